"""What ``next()`` costs when a batch is ready: the share of a step that the loader takes even when it is never late.

Small text packs, many to a step, so that thousands of ready batches can be taken one after another: before each step
the trainer's stand-in waits until the engine has nothing left to do, then takes the step's batches and times every
call. Giving a batch back is not counted. Figures:

- ``next()`` with a ready batch, 50th and 99th percentile, from Python, the `Batch` object included;
- the same with every array of the batch made into numpy, as a trainer does it;
- an upper bound of what the loader's measuring costs: all of ``next()``, of which it is a part, for the 8 micro-batches
  of a step of 100 ms;
- the longest time that another Python thread could not run while one waits in ``next()`` and takes what comes (the
  interpreter's lock is free during the wait); on a busy machine that is the machine's.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
PACKS_PER_STEP = 256
N_STEPS = 16
BAR_P50_US = 50.0
BAR_P99_US = 1000.0
BAR_SHARE = 0.01


def _manifest(folder: Path) -> Path:
    rows = []
    for n in range(2048):
        answer = f"Row {n}: " + "word " * (n * 7 % 60)
        rows.append(
            json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]})
        )
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _settings(folder: Path) -> Any:
    from stoker import Settings

    return Settings.from_dict(
        {
            "data": [{"manifest": str(_manifest(folder))}],
            "model": str(MODEL),
            "pack": {"tokens_per_pack": 96, "packs_per_step": PACKS_PER_STEP},
            "speed": {"cpu_threads": 2, "prefetch_steps": 1},
            "index_dir": str(folder / "index"),
        }
    )


def _wait_until_ready(loader: Any, n_ready: int) -> None:
    """Returns once so many packs are finished and none is under way."""
    while True:
        stages = loader.report().values["pipeline"]["stages"]
        if stages["admit"]["items"] >= n_ready and stages["prepare"]["busy_s"] == _busy_after(loader, 0.02):
            return


def _busy_after(loader: Any, pause_s: float) -> float:
    time.sleep(pause_s)
    busy: float = loader.report().values["pipeline"]["stages"]["prepare"]["busy_s"]
    return busy


def _timed(loader: Any, *, with_arrays: bool) -> list[float]:
    """Seconds of each call, over whole steps whose batches were all ready."""
    times: list[float] = []
    clock = time.perf_counter
    for _ in range(N_STEPS):
        n_taken = loader.report().values["batches"]
        _wait_until_ready(loader, n_taken + PACKS_PER_STEP)
        gc.collect()
        gc.disable()
        for _ in range(PACKS_PER_STEP):
            begin = clock()
            batch = next(loader)
            if with_arrays:
                _ = (batch.input_ids, batch.labels, batch.position_ids, batch.image_grid_thw, batch.layout)
            times.append(clock() - begin)
            del batch
        gc.enable()
    return times


def _longest_pause(loader: Any, seconds: float) -> float:
    """The longest that this thread was kept from running while another waits in ``next()`` and takes what comes."""
    stop = threading.Event()

    def take() -> None:
        while not stop.is_set():
            next(loader)

    taker = threading.Thread(target=take)
    taker.start()
    longest, last, end = 0.0, time.perf_counter(), time.perf_counter() + seconds
    while last < end:
        time.sleep(0)
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    stop.set()
    taker.join()
    return longest


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def run() -> list[dict[str, Any]]:
    """Measures; see the module's text."""
    from stoker import Loader

    with tempfile.TemporaryDirectory() as scratch, Loader(_settings(Path(scratch))) as loader:
        for _ in range(PACKS_PER_STEP):  # cold start
            next(loader)
        bare = _timed(loader, with_arrays=False)
        with_arrays = _timed(loader, with_arrays=True)
        report = loader.report().values
        pause_s = _longest_pause(loader, 1.0)
    share = 8 * statistics.fmean(bare) / 0.1
    p50, p99 = statistics.median(bare) * 1e6, _percentile(bare, 0.99) * 1e6

    def result(name: str, value: float, unit: str, bar: float | None = None, *, ok: bool = True) -> dict[str, Any]:
        return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": ok}

    return [
        result("next(), a batch is ready: p50", p50, "us", BAR_P50_US, ok=p50 <= BAR_P50_US),
        result("next(), a batch is ready: p99", p99, "us", BAR_P99_US, ok=p99 <= BAR_P99_US),
        result("next(), a batch is ready: longest", max(bare) * 1e6, "us"),
        result("with its arrays in numpy: p50", statistics.median(with_arrays) * 1e6, "us"),
        result("with its arrays in numpy: p99", _percentile(with_arrays, 0.99) * 1e6, "us"),
        result("share of a 100 ms step, 8 micro-batches", share, "of the step", BAR_SHARE, ok=share <= BAR_SHARE),
        result("calls measured", len(bare), "calls"),
        result("longest pause of another Python thread", pause_s * 1e3, "ms"),
        result("batches delivered", report["batches"], "batches"),
    ]
