"""What comes before the first sample: the scan of a manifest, and finding one's place again.

Each manifest is written into a temporary folder, measured and removed; reads come from the page cache as far as that
holds it, for all in turn. Figures:

- bytes/s of ``wc -l``, of the index build (line starts and a hash of the content), of the same with the side of a split
  for each row, and of simdjson alone parsing every row (`bench/index_bench.cc`), at three sizes with rows of 1 and 10
  kB: interleaved, the better of two runs each;
- the slope over the sizes: seconds per GB and what that makes of 10 million rows in 100 GB;
- the order and the step planner at step one million: from a state to the first planned step; a loader of 200,000 texts
  from such a state to its first batch, beside its very first;
- memory of a rank that plans from an index of 100 million rows: private, and mapped pages apart.

``STOKER_BENCH_GB`` bounds the largest manifest (default 8); ``STOKER_BENCH_MILLION_ROWS`` the rows of the last (100).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES_GB = (0.5, 2.0, 8.0)
ROW_KB = (1, 10)
N_RUNS = 2
BAR_SEEK_S = 1.0
BAR_MEMORY_GB = 4.0


def _row(n_bytes: int) -> bytes:
    row: dict[str, list[dict[str, Any]]] = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image", "image": "images/000000.jpg"}, {"type": "text", "text": "?"}],
            },
            {"role": "assistant", "content": ""},
        ]
    }
    words = "The quick brown fox jumps over the lazy dog. "
    missing = n_bytes - 1 - len(json.dumps(row))
    row["messages"][1]["content"] = (words * (missing // len(words) + 1))[:missing]
    return json.dumps(row).encode() + b"\n"


def _write(path: Path, n_bytes: int, row_bytes: int) -> int:
    """Writes rows that differ in their first digits; returns their number."""
    block_rows = max(1, (4 << 20) // row_bytes)
    block = bytearray(_row(row_bytes) * block_rows)
    at = bytes(block).index(b"000000")
    n_rows = 0
    with path.open("wb") as file:
        while n_rows * row_bytes < n_bytes:
            block[at : at + 6] = b"%06d" % (n_rows // block_rows % 10**6)
            file.write(block)
            n_rows += block_rows
    return n_rows


def _scan(path: Path, *, split: bool) -> int:
    from stoker import _core

    with tempfile.TemporaryDirectory(dir=path.parent) as index:
        share = 10_000 if split else 0
        return _core.Manifest.open(str(path), index_dir=index, held_out_millionths=share).n_rows


def _command(*command: str) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _build_speed(folder: Path) -> list[dict[str, Any]]:
    results = []
    parser = Path(os.environ.get("STOKER_BENCH_DIR", ROOT / "build" / "release" / "bench")) / "index_bench"
    largest = float(os.environ.get("STOKER_BENCH_GB", "8"))
    for row_kb in ROW_KB:
        seconds: dict[str, list[tuple[float, float]]] = {}
        for size in (gb for gb in SIZES_GB if gb <= largest):
            path = folder / "rows.jsonl"
            n_rows = _write(path, int(size * 1e9), row_kb * 1000)
            gb = path.stat().st_size / 1e9
            tasks: dict[str, Callable[[], object]] = {
                "simdjson": _command(str(parser), str(path)),
                "wc -l": _command("wc", "-l", str(path)),
                "index": functools.partial(_scan, path, split=False),
                "index and split": functools.partial(_scan, path, split=True),
            }
            best = dict.fromkeys(tasks, float("inf"))
            for _ in range(N_RUNS):
                for name, task in tasks.items():
                    began = time.perf_counter()
                    task()
                    best[name] = min(best[name], time.perf_counter() - began)
            path.unlink()
            for name, took in best.items():
                seconds.setdefault(name, []).append((gb, took))
                what = f"{name}, {size:g} GB, rows of {row_kb} kB"
                results.append(_result(f"{what}: speed", gb * 1000 / took, "MB/s"))
                if name != "wc -l":
                    results.append(_result(f"{what}: rows", n_rows / took, "rows/s"))
        for name, points in seconds.items():
            slope = _slope(points)
            results.append(_result(f"{name}, rows of {row_kb} kB: slope", slope, "s/GB"))
            if row_kb == 10:
                results.append(_result(f"{name}, 10 million rows in 100 GB, extrapolated", slope * 100, "s"))
    return results


def _slope(points: list[tuple[float, float]]) -> float:
    """Least squares through (GB, seconds)."""
    x = sum(gb for gb, _ in points) / len(points)
    y = sum(s for _, s in points) / len(points)
    spread = sum((gb - x) ** 2 for gb, _ in points)
    return sum((gb - x) * (s - y) for gb, s in points) / spread if spread else points[0][1] / points[0][0]


STEP_MILLION = """
    import time
    import numpy as np
    from stoker import _core
    n_rows, n_window, steps = 100_000_000, 1024, 1_000_000
    order = _core.Order.make([("content", n_rows)], seed=1)

    def plan(window):
        places = [order.at(i)[2] for i in range(window * n_window, (window + 1) * n_window)]
        samples = np.zeros((n_window, 8), np.int64)
        samples[:, 0] = np.arange(window * n_window, (window + 1) * n_window)
        samples[:, 1] = 500 + np.asarray(places) % 3000
        samples[:, 2] = samples[:, 1] // 2
        samples[:, 6] = samples[:, 1]
        return _core.plan_window(window, samples, {"tokens_per_pack": 16384})

    window = steps * 64 // 126  # 126 packs a window
    half = plan(window)
    state = {"step": steps, "window": window, "packs_delivered": len(half.packs) // 2, "window_digest": half.digest()}
    began = time.perf_counter()
    order = _core.Order.make([("content", n_rows)], seed=1)
    planner = _core.StepPlanner(packs_per_step=64, rows_per_pass=n_rows, state=state)
    while (step := planner.next(dp_size=64)) is None:
        planner.add(plan(planner.next_window))
    assert step["step"] == steps
    print(time.perf_counter() - began)
"""

LOADER_MILLION = """
    import json, sys, time
    from pathlib import Path
    from stoker import Loader, Settings
    rows = Path(sys.argv[1]) / "rows.jsonl"
    with rows.open("w") as file:
        for n in range(200_000):
            said = {"role": "assistant", "content": f"Row {n}: " + "word " * (n * 7 % 60)}
            file.write(json.dumps({"messages": [{"role": "user", "content": "?"}, said]}) + "\\n")
    settings = Settings.from_dict(
        {
            "data": [{"manifest": str(rows)}],
            "model": sys.argv[2],
            "shuffle": sys.argv[3],
            "pack": {"tokens_per_pack": 4096, "packs_per_step": 8},
            "index_dir": sys.argv[1] + "/index",
        }
    )
    for steps in (0, 10**6):
        with Loader(settings) as loader:
            state = loader.state_dict()
            state.update(step=steps, window=steps * 2 // 3)
            loader.load_state_dict(state)
            began = time.perf_counter()
            next(loader)
            print(time.perf_counter() - began)
"""

MEMORY = """
    import sys
    from stoker import _core

    def status(name):
        for line in open("/proc/self/status"):
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1e6

    base, base_mapped = status("RssAnon"), status("RssFile")
    manifest = _core.Manifest.open(sys.argv[1], index_dir=sys.argv[2], held_out_millionths=10_000)
    order = _core.Order.make([(manifest.fingerprint, manifest.n_rows)], seed=1)
    for window in range(2000):
        for position in range(window * 1024, window * 1024 + 1024):
            manifest.row(order.at(position)[2])
    peak = status("VmHWM")
    print(manifest.n_rows, manifest.was_scanned, status("RssAnon") - base, status("RssFile") - base_mapped, peak)
"""


def _python(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def _memory(folder: Path) -> list[dict[str, Any]]:
    n_rows = int(float(os.environ.get("STOKER_BENCH_MILLION_ROWS", "100")) * 1e6)
    path = folder / "short.jsonl"
    block = b'{"text": 1}\n' * 100_000
    with path.open("wb") as file:
        for _ in range(max(1, n_rows // 100_000)):
            file.write(block)
    index = str(folder / "index")
    results = []
    for what in ("building it", "opening it"):
        n, was_scanned, private, mapped, peak = _python(MEMORY, str(path), index)
        if (was_scanned == "True") != (what == "building it"):
            raise RuntimeError(f"{what}: scanned is {was_scanned}")
        named = f"index of {int(n) / 1e6:g} million rows, {what} and planning"
        results.append(_result(f"{named}: private memory", float(private), "GB", BAR_MEMORY_GB))
        results.append(_result(f"{named}: mapped pages", float(mapped), "GB"))
        results.append(_result(f"{named}: peak of all", float(peak), "GB", BAR_MEMORY_GB))
    path.unlink()
    size = sum(file.stat().st_size for file in Path(index).iterdir())
    results.append(_result(f"index of {n_rows / 1e6:g} million rows: files", size / 1e9, "GB"))
    return results


def _result(name: str, value: float, unit: str, bar: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": bar is None or value <= bar}


def _resume(folder: Path) -> list[dict[str, Any]]:
    (took,) = _python(STEP_MILLION)
    results = [_result("resume at step one million: first step planned", float(took), "s", BAR_SEEK_S)]
    for shuffle in ("rows", "chunked"):
        at_first, at_million = _python(LOADER_MILLION, str(folder), str(ROOT / "testdata" / "qwen3-vl"), shuffle)
        what = f"first batch of an open loader, shuffle: {shuffle}"
        results.append(_result(f"{what}, from the start", float(at_first), "s"))
        results.append(_result(f"{what}, at step one million", float(at_million), "s", BAR_SEEK_S))
    return results


def run() -> list[dict[str, Any]]:
    """Runs the group."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return _resume(folder) + _build_speed(folder) + _memory(folder)
