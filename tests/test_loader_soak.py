"""A run under faults of every kind, for as long as one likes: every batch right, and nothing grows."""

from __future__ import annotations

import ctypes
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loader_data import DataSet, digests, engine_threads, good_data, ledger, settings_for
from stoker import Loader
from stoker.testing import Behaviour, Fault, FaultKind, Latency, StorageServer

_LIBC = ctypes.CDLL(None)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
N_COMPARED = 4
"""Steps whose batches are held against those read from disk; the run goes on for ever."""
KINDS: list[list[FaultKind]] = [
    ["error", "reset", "cut", "stall", "wrong_length"],
    ["error", "silence", "trickle", "reset", "cut"],
]
"""At most six kinds at a time, in turn."""


def faulty(turn: int, share: float) -> Behaviour:
    kinds = KINDS[turn % len(KINDS)]
    faults = tuple(
        Fault(kind=kind, share=share / len(kinds), after_bytes=300, stall_s=30.0, bytes_per_s=200_000.0)
        for kind in kinds
    )
    return Behaviour(latency=Latency(median_s=0.005, tails=((0.005, 0.05, 0.2),)), faults=faults, seed=turn)


@dataclass
class Gauges:
    """What must not grow, over time."""

    rss_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def read(self) -> None:
        _LIBC.malloc_trim(0)  # what the allocator keeps for later is not what is held
        self.rss_bytes.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES)
        self.descriptors.append(len(os.listdir("/proc/self/fd")))
        self.threads.append(len(os.listdir("/proc/self/task")))

    def quarters(self, of: Callable[[Gauges], list[int]]) -> tuple[float, float]:
        """Median of the first and of the last quarter."""
        values = of(self)
        n = max(1, len(values) // 4)
        return statistics.median(values[:n]), statistics.median(values[-n:])


def soak(
    data: DataSet, scratch: Path, *, seconds: float, share: float, read_every_s: float
) -> tuple[Gauges, dict[str, int]]:
    """Runs; returns what was measured after a tenth of the time, and the faults that were met."""
    pack = {"tokens_per_pack": 512, "packs_per_step": 4}
    expected = digests(settings_for(data, scratch / "local", pack=pack), N_COMPARED)
    gauges, met = Gauges(), dict[str, int]()
    with StorageServer(data.folder.parent, behaviour=faulty(0, share)) as server:
        settings = settings_for(
            f"s3://{data.folder.name}/rows.jsonl",
            scratch,
            pack=pack,
            storage={**server.settings(), "first_byte_timeout_s": 0.3, "stall_timeout_s": 0.3},
            # Blocks that are free are kept for packs of their size up to the limit: a small one is reached at once.
            speed={"fetch_concurrency": 16, "memory_limit": "48MiB"},
            outage_limit_s=120.0,
        )
        began = time.monotonic()
        read_next = began + seconds / 10
        turns = itertools.count(1)
        turn_next = began + seconds / 6
        got: list[list[str]] = []
        with Loader(settings) as loader:
            for step in loader.steps():
                if len(got) < N_COMPARED:
                    got.append([batch.digest() for batch in step])
                now = time.monotonic()
                if now >= read_next:
                    gauges.read()
                    read_next = now + read_every_s
                if now >= turn_next:
                    server.behave(faulty(next(turns), share))
                    turn_next = now + seconds / 6
                if now >= began + seconds and len(got) == N_COMPARED:
                    break
            report = loader.report().values
        met = dict(server.stats()["faults"])
        met["requests"] = report["pipeline"]["fetch"]["requests"]
        met["steps"] = report["steps"]
    assert got == expected
    assert ledger(settings) == [], "a fault of storage made a sample bad"
    assert engine_threads() == []
    return gauges, met


def check(gauges: Gauges, *, rss_slack: float) -> None:
    first, last = gauges.quarters(lambda g: g.rss_bytes)
    course = [round(rss / 2**20) for rss in gauges.rss_bytes[:: max(1, len(gauges.rss_bytes) // 20)]]
    assert last <= first * (1 + rss_slack), f"memory grew from {first / 2**20:.1f} to {last / 2**20:.1f} MiB: {course}"
    n = max(1, len(gauges.rss_bytes) // 8)
    before, end = statistics.median(gauges.rss_bytes[-2 * n : -n]), statistics.median(gauges.rss_bytes[-n:])
    assert end <= before * 1.02, f"memory still grows at the end: {course}"
    for what, of in (("descriptors", lambda g: g.descriptors), ("threads", lambda g: g.threads)):
        first, last = gauges.quarters(of)
        assert last <= first + 4, f"{what} grew from {first} to {last}"


def test_a_few_seconds_under_faults(tmp_path: Path) -> None:
    gauges, met = soak(good_data(tmp_path / "data", 32), tmp_path, seconds=1.0, share=0.15, read_every_s=0.05)
    check(gauges, rss_slack=0.15)  # a young process still finds its size
    assert sum(met.get(kind, 0) for kind in ("error", "reset", "cut", "stall", "silence")) > 5


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_minutes_under_faults(tmp_path: Path) -> None:
    seconds = float(os.environ.get("STOKER_SOAK_S", "600"))
    gauges, met = soak(good_data(tmp_path / "data", 200), tmp_path, seconds=seconds, share=0.05, read_every_s=0.5)
    print([round(rss / 2**20, 1) for rss in gauges.rss_bytes[:: max(1, len(gauges.rss_bytes) // 40)]], "MiB")
    for name in ("rss_bytes", "descriptors", "threads"):
        first, last = gauges.quarters(lambda g, name=name: getattr(g, name))  # type: ignore[misc]
        print(f"{name}: {first} in the first quarter, {last} in the last")
    print(met)
    check(gauges, rss_slack=0.03)
    assert {kind for kinds in KINDS for kind in kinds} <= met.keys()
