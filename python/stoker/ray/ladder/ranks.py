"""Emulated ranks as actors of a Ray cluster: the steps of `stoker.ladder.ranks`, with a barrier over the network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stoker.ladder.ranks import RankFailedError, RankJob, run_steps
from stoker.ladder.result import StepRecord
from stoker.ray.ladder.bounds import Reading

__all__ = ["Output", "on_node", "run_ranks"]

_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the ranks sent."""

    records: list[StepRecord]
    reports: dict[int, dict[str, Any]]
    before: dict[str, Reading]
    """By node, when the first step, which is not measured, was done."""
    after: dict[str, Reading]
    """When the last was done."""


def on_node(node_id: str) -> dict[str, Any]:
    """Options of an actor that must run on this node and takes none of its CPUs from others."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def run_ranks(
    job: RankJob, *, places: Sequence[str], meters: Mapping[str, Any], on_step: Callable[[StepRecord], None]
) -> Output:
    """Runs the ranks to the end; `on_step` is called in this thread for each step of each rank.

    Args:
        job: What every rank does.
        places: Node of each rank.
        meters: By node; read when the measured steps begin, and when they end.
        on_step: Gets the records.

    Raises:
        RankFailedError: One of them did not make it; the others are ended before this is raised.
    """
    n_ranks = len(places)
    desk = ray.remote(_Desk).options(num_cpus=0, max_concurrency=8 + 4 * n_ranks).remote(n_ranks, job.n_steps)
    ranks = [ray.remote(_Rank).options(**on_node(node)).remote() for node in places]
    try:
        ray.get(desk.watch.remote(dict(meters)))
        running = {}
        for rank, (actor, node) in enumerate(zip(ranks, places, strict=True)):
            local = [other for other in range(n_ranks) if places[other] == node]
            running[actor.run.remote(job, rank, n_ranks, local.index(rank), len(local), desk)] = rank
        return _collect(job, running, desk, on_step)
    finally:
        for actor in [*ranks, desk]:
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.kill(actor)


def _collect(job: RankJob, running: dict[Any, int], desk: Any, on_step: Callable[[StepRecord], None]) -> Output:
    records: list[StepRecord] = []
    reports: dict[int, dict[str, Any]] = {}
    heard_at = time.monotonic()
    while running:
        fresh: list[StepRecord] = ray.get(desk.records.remote(len(records)))
        for record in fresh:
            records.append(record)
            on_step(record)
        done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
        for ref in done:
            rank = running.pop(ref)
            try:
                reports[rank] = ray.get(ref)
            except ray.exceptions.RayError as error:
                raise RankFailedError(f"rank {rank} failed: {error}") from None
        if fresh or done:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > job.step_timeout_s:
            raise RankFailedError(f"no rank has finished a step within {job.step_timeout_s:.0f} s")
    fresh = ray.get(desk.records.remote(len(records)))
    for record in fresh:
        records.append(record)
        on_step(record)
    before, after = ray.get(desk.readings.remote())
    return Output(records=records, reports=reports, before=before, after=after)


class _Rank:
    """One emulated rank."""

    def run(self, job: RankJob, rank: int, n_ranks: int, local_rank: int, n_local: int, desk: Any) -> dict[str, Any]:
        # What a launcher such as torchrun sets.
        os.environ |= {"LOCAL_WORLD_SIZE": str(n_local), "LOCAL_RANK": str(local_rank)}
        os.environ |= {"WORLD_SIZE": str(n_ranks), "RANK": str(rank)}
        told: list[Any] = []
        report = run_steps(
            job,
            rank,
            n_ranks,
            meet=lambda: ray.get(desk.meet.remote(job.step_timeout_s)),
            tell=lambda record: told.append(desk.tell.remote(record)),
        )
        ray.get(told)
        return report


class _Desk:
    """Where the ranks meet after each step, and leave their records. An asynchronous actor."""

    def __init__(self, n_ranks: int, n_steps: int) -> None:
        self._n_ranks = n_ranks
        self._n_steps = n_steps
        self._n_there = 0
        self._n_meetings = 0
        self._open = asyncio.Event()
        self._records: list[StepRecord] = []
        self._meters: dict[str, Any] = {}
        self._readings: list[asyncio.Task[dict[str, Reading]]] = []

    async def watch(self, meters: dict[str, Any]) -> None:
        self._meters = meters

    async def meet(self, timeout_s: float) -> None:
        self._n_there += 1
        if self._n_there < self._n_ranks:
            try:
                await asyncio.wait_for(self._open.wait(), timeout_s)
            except TimeoutError:
                raise RankFailedError(f"the other ranks did not come to the barrier within {timeout_s:.0f} s") from None
            return
        self._n_meetings += 1
        # The first meeting is before the first step, the second after it.
        if self._n_meetings in (2, self._n_steps + 1):
            self._readings.append(asyncio.create_task(self._read()))
        self._n_there = 0
        self._open.set()
        self._open = asyncio.Event()

    async def _read(self) -> dict[str, Reading]:
        names = list(self._meters)
        read = await asyncio.gather(*(self._meters[name].read.remote() for name in names))
        return dict(zip(names, read, strict=True))

    async def tell(self, record: StepRecord) -> None:
        self._records.append(record)

    async def records(self, after: int) -> list[StepRecord]:
        return self._records[after:]

    async def readings(self) -> list[dict[str, Reading]]:
        return list(await asyncio.gather(*self._readings))
