"""What further peers of a data-parallel rank cost: four tensor-parallel processes that all take the same batches.

Figures:

- CPU seconds per sample over all processes, for photographs of one megapixel (JPEG): one process alone; four peers, of
  which one prepares; four processes that each prepare the same, which is what there was before. Three rounds, the three
  in turn, medians; opening and the first steps, in which memory is touched for the first time, are not counted. The bar
  holds the four peers against the one alone.
- ``next()`` with a ready batch on the peer that prepares and on one that reads: 50th and 99th percentile over steps of
  256 small packs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
MODEL = BENCH.parent / "testdata" / "qwen3-vl"
N_PEERS = 4
N_ROUNDS = 3
N_WARM_STEPS = 6
"""Until all blocks are there that the run uses over and over."""
N_STEPS = 40
N_TIMED_STEPS = 8
PACKS_PER_STEP = 4
TOKENS_PER_PACK = 4400
"""Four samples: 1,024 visual tokens and a line of text."""
SMALL_PACKS = 256
BAR_CPU = 1.15
BAR_P50_US = 50.0
BAR_P99_US = 1000.0


def _photographs(folder: Path) -> dict[str, Any]:
    from _pictures import crops, encoded

    rows = []
    for n, picture in enumerate(crops(1024)):
        (folder / f"{n}.jpg").write_bytes(encoded(picture, "JPEG", quality=88))
        answer = {"role": "assistant", "content": "A photograph."}
        rows.append(
            {"messages": [{"role": "user", "content": "<image>"}, answer], "images": [f"{n}.jpg"]}
            | {"width": 1024, "height": 1024}
        )
    return _settings(folder, rows, TOKENS_PER_PACK, PACKS_PER_STEP)


def _texts(folder: Path) -> dict[str, Any]:
    rows = [
        {
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": f"Row {n}: " + "word " * (n * 7 % 60)},
            ]
        }
        for n in range(2048)
    ]
    return _settings(folder, rows, 96, SMALL_PACKS)


def _settings(folder: Path, rows: list[Any], tokens_per_pack: int, packs_per_step: int) -> dict[str, Any]:
    manifest = folder / "rows.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return {
        "data": [{"manifest": str(manifest)}],
        "model": str(MODEL),
        "pack": {"tokens_per_pack": tokens_per_pack, "packs_per_step": packs_per_step},
        "speed": {"cpu_threads": 2, "prefetch_steps": 1, "memory_limit": "1GiB"},
        "index_dir": str(folder / "index"),
    }


class _Process:
    def __init__(self, settings: dict[str, Any], **topology: Any) -> None:
        command = [sys.executable, str(BENCH / "_peer_process.py"), json.dumps(settings), json.dumps(topology)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said:
            raise RuntimeError(f"a process ended with {self.process.wait(10)}")
        return json.loads(said)


def _all(processes: list[_Process], line: str) -> list[Any]:
    for process in processes:
        process.tell(line)
    return [process.answer() for process in processes]


@contextmanager
def _opened(settings: dict[str, Any], topologies: list[dict[str, Any]]) -> Iterator[list[_Process]]:
    processes = [_Process(settings, **topology) for topology in topologies]
    try:
        _all(processes, "open")
        yield processes
    finally:
        for process in processes:
            process.process.kill()
            process.process.communicate()


def _peers(count: int, job: str) -> list[dict[str, Any]]:
    return [{"peer_rank": rank, "peer_count": count, "job": f"bench-{os.getpid()}-{job}"} for rank in range(count)]


def _cpu_per_sample(settings: dict[str, Any], topologies: list[dict[str, Any]]) -> float:
    """CPU seconds of all processes / samples that each of them took."""
    with _opened(settings, topologies) as processes:
        _all(processes, f"run {N_WARM_STEPS}")
        told = _all(processes, f"run {N_STEPS}")
    return float(sum(one["cpu_s"] for one in told) / told[0]["samples"])


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def run() -> list[dict[str, Any]]:
    """Measures; see the module's text."""

    def result(name: str, value: float, unit: str, bar: float | None = None) -> dict[str, Any]:
        return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": bar is None or value <= bar}

    ways: dict[str, list[dict[str, Any]]] = {
        "one alone": [{}],
        "peers": _peers(N_PEERS, "cpu"),
        "each prepares": [{}] * N_PEERS,
    }
    with tempfile.TemporaryDirectory() as scratch:
        settings = _photographs(Path(scratch))
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(N_ROUNDS):
            for name, topologies in ways.items():
                cpu[name].append(_cpu_per_sample(settings, topologies))
    times: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as scratch, _opened(_texts(Path(scratch)), _peers(2, "next")) as processes:
        for n in range(2, N_TIMED_STEPS + 2):
            _all(processes[:1], f"ready {n * SMALL_PACKS}")
            for taken, process in zip(times, processes, strict=True):
                taken.extend(_all([process], "time")[0])
    median = {name: statistics.median(values) for name, values in cpu.items()}
    alone = median["one alone"]
    return [
        result("CPU per sample: one process alone", alone * 1e3, "ms"),
        result(f"CPU per sample: {N_PEERS} peers", median["peers"] * 1e3, "ms"),
        result(f"CPU per sample: {N_PEERS} that each prepare", median["each prepares"] * 1e3, "ms"),
        result(f"{N_PEERS} peers / one alone", median["peers"] / alone, "times", BAR_CPU),
        result(f"{N_PEERS} that each prepare / one alone", median["each prepares"] / alone, "times"),
        result("next() of the one that prepares: p50", statistics.median(times[0]) * 1e6, "us", BAR_P50_US),
        result("next() of the one that prepares: p99", _percentile(times[0], 0.99) * 1e6, "us", BAR_P99_US),
        result("next() of one that reads: p50", statistics.median(times[1]) * 1e6, "us", BAR_P50_US),
        result("next() of one that reads: p99", _percentile(times[1], 0.99) * 1e6, "us", BAR_P99_US),
    ]
