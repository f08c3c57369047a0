"""Whether one coordinator on one core serves 1,024 ranks at a step per 2.3 s: tasks, references, ledger; no pixels.

The coordinator is the real actor with the real plan over rows of text. Workers are stubs that put a small real object
into the store for each pack; ranks are stubs too, many clients in each of few processes, that take a step each, in step
with each other, and drop what they got.

Figures: CPU seconds of the coordinator's process per step, of all its threads; their share of a core at a step per
2.3 s; and how fast steps came when nobody slept (on a machine that also ran the ranks, the workers and Ray's own
processes).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
N_RANKS = 1024
STEP_S = 2.3
N_PROCESSES = 4
N_WORKERS = 8
N_WARM_STEPS = 3
N_STEPS = 12
N_ROWS = 4096
TOKENS_PER_PACK = 512
BAR_CORES = 1.0


class Ranks:
    """Many clients in one process, as an actor."""

    def __init__(self, coordinator: Any, ranks: list[int]) -> None:
        self._coordinator, self._ranks = coordinator, ranks
        self._taken = dict.fromkeys(ranks, 0)

    async def join(self, state: dict[str, Any]) -> None:
        """Every client says hello and where it begins."""
        from stoker.ray.protocol import Started

        async def join_one(rank: int) -> None:
            while not isinstance(await self._coordinator.hello.remote(_hello(rank)), _Joined()):
                pass
            while not isinstance(await self._coordinator.start.remote(f"c{rank}", state, []), Started):
                pass

        await asyncio.gather(*map(join_one, self._ranks))

    async def step(self, step: int) -> int:
        """Every client takes its packs of a step; returns how many there were."""
        return sum(await asyncio.gather(*(self._take(rank, step) for rank in self._ranks)))

    async def _take(self, rank: int, step: int) -> int:
        from stoker.ray.protocol import Ended, StepHandles

        number = n = self._taken[rank]
        while True:
            got = await self._coordinator.take.remote(f"c{rank}", n, n, step)
            if isinstance(got, Ended):
                raise got.error()
            if not isinstance(got, StepHandles):
                continue
            for pack in got.packs:
                n += 1
                if pack.micro_batch + 1 == pack.micro_batches_in_step:
                    self._taken[rank] = n
                    return n - number

    async def leave(self) -> None:
        """Every client leaves."""
        await asyncio.gather(*(self._coordinator.leave.remote(f"c{rank}", "") for rank in self._ranks))


def _Joined() -> type:  # noqa: N802
    from stoker.ray.protocol import Joined

    return Joined


def _hello(rank: int) -> Any:
    import ray
    from stoker.ray.protocol import Hello

    return Hello(
        client_id=f"c{rank}",
        dp_rank=rank,
        dp_size=N_RANKS,
        peer_rank=0,
        peer_count=1,
        node_id=ray.get_runtime_context().get_node_id(),
        host="here",
        pid=os.getpid(),
        settings_hash={},
        own_cpus=1.0,
    )


def _rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    with path.open("w") as out:
        for n in range(N_ROWS):
            turns = [
                {"role": "user", "content": f"Question {n}?"},
                {"role": "assistant", "content": "yes " * (n % 30 + 1)},
            ]
            out.write(json.dumps({"messages": turns}) + "\n")
    return path


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(n_steps: int = N_STEPS) -> dict[str, float]:
    """One run on a cluster of its own."""
    import ray
    import stoker
    from stoker.ray.coordinator import Coordinator, create
    from stoker.ray.worker import PackWorker

    class StubWorker(PackWorker):
        """Makes nothing of a pack but an object of the least size."""

        def _engine(self, settings: stoker.Settings) -> Any:
            return _StubEngine(super()._engine(settings))

    class StubCoordinator(Coordinator):
        worker_class = StubWorker

    with tempfile.TemporaryDirectory() as name:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=N_WORKERS + N_PROCESSES,
            object_store_memory=1 << 30,
            include_dashboard=False,
            log_to_driver=False,
            namespace="stoker",
        )
        try:
            settings = stoker.Settings.from_dict(
                {
                    "data": [{"manifest": str(_rows(Path(name)))}],
                    "model": str(MODEL),
                    "index_dir": f"{name}/index",
                    "pack": {"tokens_per_pack": TOKENS_PER_PACK, "packs_per_step": N_RANKS},
                    "ray": {"workers": N_WORKERS, "worker_cpus": 1},
                }
            )
            coordinator = create("stoker-bench-1", actor_class=StubCoordinator)
            ray.get(coordinator.open.remote(settings, settings.ray))
            share = N_RANKS // N_PROCESSES
            processes = [
                ray.remote(Ranks)
                .options(num_cpus=0, max_concurrency=8)
                .remote(coordinator, list(range(i * share, (i + 1) * share)))
                for i in range(N_PROCESSES)
            ]
            state = _first_state(settings)
            ray.get([p.join.remote(state) for p in processes])
            pid = next(a["pid"] for a in [ray.get(coordinator.status.remote())])
            for step in range(N_WARM_STEPS):
                ray.get([p.step.remote(step) for p in processes])
            cpu, began = _cpu_s(pid), time.monotonic()
            for step in range(N_WARM_STEPS, N_WARM_STEPS + n_steps):
                n = sum(ray.get([p.step.remote(step) for p in processes]))
                assert n == N_RANKS
            cpu, took = _cpu_s(pid) - cpu, time.monotonic() - began
            status = ray.get(coordinator.status.remote())
            ray.get([p.leave.remote() for p in processes])
        finally:
            ray.shutdown()
    return {
        "cpu_s_per_step": cpu / n_steps,
        "steps_per_s": n_steps / took,
        "payload_bytes": float(status["counters"].get("payload_bytes_seen", 0)),
    }


def _first_state(settings: Any) -> dict[str, Any]:
    import stoker

    import dataclasses

    with stoker.Loader(dataclasses.replace(settings, ray=None), dp_size=N_RANKS) as loader:
        return loader.state_dict()


class _StubEngine:
    """A worker's engine that opens as the real one and makes packs of nothing."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.fingerprint = engine.fingerprint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def make(self, message: bytes, rejected: list[int], only: int) -> Any:
        made = self._engine.make(message, rejected, only)
        return made


def run() -> list[dict[str, Any]]:
    """The figures against their bars."""
    m = measured()
    share = m["cpu_s_per_step"] / STEP_S
    return [
        {
            "name": f"coordinator: CPU per step of {N_RANKS} ranks",
            "value": m["cpu_s_per_step"],
            "unit": "s",
            "bar": STEP_S * BAR_CORES,
            "ok": m["cpu_s_per_step"] <= STEP_S * BAR_CORES,
        },
        {
            "name": f"coordinator: share of a core at a step per {STEP_S} s",
            "value": share,
            "unit": "cores",
            "bar": BAR_CORES,
            "ok": share <= BAR_CORES,
        },
        {
            "name": "coordinator: steps as fast as they came",
            "value": m["steps_per_s"],
            "unit": "steps/s",
            "bar": 1 / STEP_S,
            "ok": m["steps_per_s"] >= 1 / STEP_S,
        },
        {
            "name": "coordinator: payload that it saw",
            "value": m["payload_bytes"],
            "unit": "bytes",
            "bar": 0.0,
            "ok": m["payload_bytes"] == 0,
        },
    ]
