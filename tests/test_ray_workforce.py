"""When the deaths of workers end a run, and when those of their nodes are no reason to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import stoker

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

import ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from stoker.ray.placement import WorkerPlace
from stoker.ray.protocol import Choices
from stoker.ray.scheduler import Scheduler
from stoker.ray.task import Limits
from stoker.ray.workforce import Workforce

N_WORKERS = 3


def died(text: str) -> ActorDiedError:
    return ActorDiedError(ActorDiedErrorContext(error_message=text, actor_id=bytes(16)))


BROKEN = ActorUnavailableError("the connection broke", None)
OF_ITSELF = died("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR")
WITH_NODE = died("The actor died because its node has died. Node Id: 1e8f: health check failed")


class Actors:
    """In place of Ray's: each dies of the next cause when it is opened; those after the last wait for ever."""

    def __init__(self, causes: Sequence[RayError]) -> None:
        self._causes = iter(causes)
        self.open = SimpleNamespace(remote=self._open)
        self.close = self.__ray_terminate__ = SimpleNamespace(remote=lambda: None)

    def options(self, **_: Any) -> Actors:
        return self

    def remote(self) -> Actors:
        return self

    async def _open(self, *_: Any) -> NoReturn:
        if (cause := next(self._causes, None)) is not None:
            raise cause
        await asyncio.Event().wait()
        raise AssertionError


def force(monkeypatch: pytest.MonkeyPatch, causes: Sequence[RayError], now: list[float]) -> Workforce:
    monkeypatch.setattr(ray, "remote", lambda _: Actors(causes))
    monkeypatch.setattr(ray, "kill", lambda _: None)

    def unexpected(*what: Any) -> NoReturn:
        raise AssertionError(what)

    return Workforce(
        worker_class=object,
        settings=stoker.Settings.from_dict(
            {"model": "m", "data": [{"manifest": "a.jsonl"}], "pack": {"tokens_per_pack": 64}, "ray": "auto"}
        ),
        dp_size=1,
        choices=Choices(placement="spread"),
        slots=lambda _: 1,
        node_limit=lambda _: 0,
        scheduler=Scheduler(Limits(store_limit=1)),
        fingerprint="f",
        on_made=unexpected,
        on_unmakeable=unexpected,
        on_change=lambda: None,
        on_error=unexpected,
        clock=lambda: now[0],
    )


async def all_dead(workforce: Workforce, n: int) -> None:
    for _ in itertools.takewhile(lambda _: workforce.counters["died"] < n, range(1000)):
        await asyncio.sleep(0)
    assert workforce.counters["died"] == n


@pytest.mark.parametrize("cause", [WITH_NODE, BROKEN], ids=["its node", "a connection"])
def test_workers_whose_node_died_while_they_opened_are_made_again(
    monkeypatch: pytest.MonkeyPatch, cause: RayError
) -> None:
    async def run() -> None:
        now = [0.0]
        workforce = force(monkeypatch, [cause] * 7 + [OF_ITSELF], now)
        workforce.begin([WorkerPlace()] * N_WORKERS)
        await all_dead(workforce, 8)
        now[0] = 100.0
        workforce.check()
        assert len(workforce.status()) == N_WORKERS
        workforce.end()

    asyncio.run(run())


def test_workers_that_die_while_they_open_end_the_run_unless_their_node_turns_out_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        now = [0.0]
        workforce = force(monkeypatch, [OF_ITSELF] * 2, now)
        workforce.begin([WorkerPlace()] * N_WORKERS)
        await all_dead(workforce, 2)
        workforce.check()  # their node may be dead, and Ray not know it yet
        now[0] = 100.0
        with pytest.raises(stoker.UnavailableError, match="2 workers in a row died while they opened") as raised:
            workforce.check()
        assert raised.value.code == "WORKER_LOST"
        workforce.node_died("n")
        workforce.check()
        workforce.end()

    asyncio.run(run())


def test_a_run_whose_workers_die_with_their_nodes_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        now = [0.0]
        workforce = force(monkeypatch, [WITH_NODE] * 5, now)
        workforce.begin([WorkerPlace()])
        await all_dead(workforce, 5)
        now[0] = 601.0
        with pytest.raises(stoker.UnavailableError, match="no worker has opened for 600 s"):
            workforce.check()
        workforce.end()

    asyncio.run(run())
