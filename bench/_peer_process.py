"""One process of the benchmark `peers`: does what its standard input says, an answer in JSON for each line.

``open``: a loader as the arguments say (settings, topology), up to its first step. ``run N``: N steps; answers samples
and CPU seconds of this process. ``ready N``: waits until N packs are finished and nothing is under way (not on peers
that only read). ``time``: one step; answers the seconds of each ``next()``.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from typing import Any

from stoker import Loader, Settings, Topology


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _run(loader: Loader, n_steps: int) -> dict[str, float]:
    before, n_before = _cpu_s(), loader.report().values["samples"]
    steps = loader.steps()
    for _ in range(n_steps):
        next(steps)
    return {"samples": loader.report().values["samples"] - n_before, "cpu_s": _cpu_s() - before}


def _wait_until_ready(loader: Loader, n_ready: int) -> bool:
    busy_s = -1.0
    while True:
        stages = loader.report().values["pipeline"]["stages"]
        if stages["admit"]["items"] >= n_ready and stages["prepare"]["busy_s"] == busy_s:
            return True
        busy_s = stages["prepare"]["busy_s"]
        time.sleep(0.05)


def _time(loader: Loader) -> list[float]:
    times: list[float] = []
    gc.collect()
    gc.disable()
    n_packs = 1
    while len(times) < n_packs:
        begin = time.perf_counter()
        batch = next(loader)
        times.append(time.perf_counter() - begin)
        n_packs = batch.counts.micro_batches_in_step
        del batch
    gc.enable()
    return times


def main(settings: dict[str, Any], topology: dict[str, Any]) -> None:
    """Serves the lines."""
    loader: Loader | None = None
    for line in sys.stdin:
        word, *numbers = line.split()
        answer: object = None
        if word == "open":
            loader = Loader(Settings.from_dict(settings), topology=Topology(**topology))
            _run(loader, 1)
        elif loader is not None and word == "run":
            answer = _run(loader, int(numbers[0]))
        elif loader is not None and word == "ready":
            answer = _wait_until_ready(loader, int(numbers[0]))
        elif loader is not None and word == "time":
            answer = _time(loader)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
