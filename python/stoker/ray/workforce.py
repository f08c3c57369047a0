"""The workers as Ray has them: made, opened, given packs, watched, replaced, ended. Lives in the coordinator's loop."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayError,
    RayTaskError,
)

from stoker.errors import InvalidArgumentError, StokerError, UnavailableError
from stoker.ray.background import Background
from stoker.ray.placement import WorkerPlace, worker_options
from stoker.ray.protocol import Choices, Ended
from stoker.ray.scheduler import Scheduler
from stoker.ray.task import Run
from stoker.ray.worker import Opened
from stoker.settings import Settings

__all__ = ["Workforce"]

_OPEN_LIMIT_S = 600.0  # until a worker must have opened where none works
_MAX_DEATHS_WHILE_OPENING = 2  # in a row, that no node's death explains
_NODE_NEWS_S = 5.0  # a node that is stopped takes its workers with it before Ray says that it is gone
_STORE_ERRORS = (ObjectStoreFullError, OutOfDiskError)


@dataclass(slots=True, eq=False)
class _Worker:
    worker_id: str
    place: WorkerPlace
    actor: Any
    is_sacrificial: bool
    opened: Opened | None = None


class Workforce:
    """Keeps as many workers as it was told to. Not for several threads.

    Args:
        worker_class: The actor's class, `worker.PackWorker`.
        settings: Given to each worker by a call, never kept by the cluster.
        dp_size: Ranks of the job.
        choices: Where they run, and with what.
        node_limit: Bytes of packs that a node's store may hold; 0: unknown.
        scheduler: Told of every worker that comes and goes.
        fingerprint: That of the coordinator; a worker with another one sees other data.
        on_made: Called with (run, made, reference to the payload, node id) for what is to be kept.
        on_unmakeable: Called with what a worker says a pack cannot be made for.
        on_change: Called when workers or places are free.
        on_error: Called with what ends the run.
    """

    def __init__(
        self,
        *,
        worker_class: Any,
        settings: Settings,
        dp_size: int,
        choices: Choices,
        slots: Callable[[WorkerPlace], int],
        node_limit: Callable[[str], int],
        scheduler: Scheduler,
        fingerprint: str,
        on_made: Callable[[Run, bytes, Any, str], None],
        on_unmakeable: Callable[[Run, Ended], None],
        on_change: Callable[[], None],
        on_error: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._class = ray.remote(worker_class)
        self._settings, self._dp_size, self._choices, self._slots = settings, dp_size, choices, slots
        self._scheduler, self._fingerprint = scheduler, fingerprint
        self._on_made, self._on_unmakeable = on_made, on_unmakeable
        self._on_change, self._on_error = on_change, on_error
        self._clock, self._node_limit = clock, node_limit
        self._workers: dict[str, _Worker] = {}
        self._n_made = 0
        self._deaths_while_opening: list[tuple[float, str]] = []
        self._began = clock()
        self._has_opened = False
        self._background = Background(on_error)
        self._is_ended = False
        self._going: list[Any] = []
        self.alive_nodes: frozenset[str] = frozenset()
        """Set by the coordinator."""
        self.deaths: deque[str] = deque(maxlen=16)
        """What was said of the latest deaths, for a status."""
        self.counters: Counter[str] = Counter()

    # --- how many

    def begin(self, places: Sequence[WorkerPlace]) -> None:
        """Makes the workers to begin with."""
        for place in places:
            self._make(place)

    def may_be_more(self) -> bool:
        """Whether another worker may be made; not while one is still opening."""
        ordinary = self._ordinary()
        return len(ordinary) < self._choices.max_workers and all(w.opened is not None for w in ordinary)

    def may_be_fewer(self) -> bool:
        """Whether one may go."""
        return len(self._ordinary()) > self._choices.min_workers

    def add(self, n_more: int) -> None:
        """Makes more, at the places of those that are there, as far as they may be."""
        ordinary = self._ordinary()
        for i in range(min(n_more, self._choices.max_workers - len(ordinary))):
            self._make(ordinary[i % len(ordinary)].place if ordinary else WorkerPlace())

    def add_sacrificial(self) -> None:
        """Makes the worker on which samples are tried; it takes no CPU from others' counts."""
        if not any(w.is_sacrificial for w in self._workers.values()):
            self._make(WorkerPlace(cpus=0), is_sacrificial=True)

    def retire(self, worker_id: str) -> None:
        """Ends a worker that makes nothing."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self.counters["retired"] += 1
            self._drop(worker, is_suspicious=False)

    def _ordinary(self) -> list[_Worker]:
        return [w for w in self._workers.values() if not w.is_sacrificial]

    def end_stuck(self, worker_id: str) -> None:
        """Ends a worker that no longer comes back, and makes another."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._died(worker, "it was at one pack for too long", is_suspicious=False)

    def end(self) -> None:
        """Ends all of them."""
        if self._is_ended:
            return
        self._is_ended = True
        for worker in self._workers.values():
            worker.actor.close.remote()  # what is being made ends within a second
            self._going.append(worker.actor.__ray_terminate__.remote())  # Ray's log takes a kill for an accident
        self._workers.clear()
        self._background.cancel()

    async def ended(self, limit_s: float) -> None:
        """Waits until they are gone; what hangs longer dies with the coordinator."""
        if self._going:
            await asyncio.wait([asyncio.ensure_future(_gone(ref)) for ref in self._going], timeout=limit_s)

    def node_died(self, node_id: str) -> None:
        """What ran on a node is gone with it."""
        self._deaths_while_opening.clear()
        for worker in list(self._workers.values()):
            if worker.opened is not None and worker.opened.node_id == node_id:
                self._died(worker, "its node died", is_suspicious=False)

    def status(self) -> list[dict[str, Any]]:
        """A line for each worker."""
        loads = self._scheduler.loads()
        return [
            {
                "worker": w.worker_id,
                "node": w.opened.node_id if w.opened else w.place.node_id,
                "host": w.opened.host if w.opened else "",
                "pid": w.opened.pid if w.opened else 0,
                "state": "opening" if w.opened is None else "sacrificial" if w.is_sacrificial else "ready",
                "packs": loads.get(w.worker_id, (0, 0.0))[0],
                "times_median": round(loads.get(w.worker_id, (0, 0.0))[1], 2),
            }
            for w in self._workers.values()
        ]

    def check(self) -> None:
        """Ends the run if no worker ever came, or none stays; called now and then.

        Raises:
            UnavailableError: RAY, with what was asked for; WORKER_LOST, with what they died of.
        """
        now = self._clock()
        if len(deaths := self._deaths_while_opening) >= _MAX_DEATHS_WHILE_OPENING:
            if now - deaths[_MAX_DEATHS_WHILE_OPENING - 1][0] > _NODE_NEWS_S:
                raise UnavailableError(
                    f"{len(deaths)} workers in a row died while they opened the model and the data; the last: "
                    f"{deaths[-1][1]}",
                    "WORKER_LOST",
                )
        if not self._has_opened and self._workers and now - self._began > _OPEN_LIMIT_S:
            cpus = self._choices.worker_cpus
            raise UnavailableError(
                f"no worker has opened for {_OPEN_LIMIT_S:g} s: Ray finds no room for an actor with {cpus:g} CPUs "
                f"(placement {self._choices.placement}), or reading the data takes so long: see `ray status`, and "
                "ray.worker_cpus, ray.placement",
                "RAY",
            )

    # --- packs

    def where(self, worker_id: str) -> str:
        """A worker for people."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.opened is None:
            return f"worker {worker_id}"
        o = worker.opened
        return f"worker {worker_id} (host {o.host}, node {o.node_id[:8]}, pid {o.pid})"

    def give(self, run: Run, message: bytes) -> None:
        """Starts a run on its worker."""
        actor = self._workers[run.worker_id].actor
        made, payload = actor.make.remote(message, run.rejected, run.only, run.task.why_rejected)
        self._background.run(self._finish(run, made, payload))

    async def _finish(self, run: Run, made_ref: Any, payload: Any) -> None:
        worker = self._workers.get(run.worker_id)
        try:
            made = await made_ref
        except RayError as error:
            if not self._is_ended and worker is not None:
                self._failed(run, worker, error)
            return
        if self._is_ended or worker is None or worker.opened is None or run.worker_id not in self._workers:
            return
        if isinstance(made, Ended):
            if made.code == "STOPPED":
                self._died(worker, "it was stopped", is_suspicious=False)
            elif self._scheduler.finished(run.run_id, now=self._clock()):
                where = self.where(run.worker_id)
                self._on_unmakeable(run, dataclasses.replace(made, message=f"{made.message} ({where})"))
            return
        if self._scheduler.finished(run.run_id, now=self._clock()):
            self._on_made(run, made, payload, worker.opened.node_id)
        self._on_change()

    def _failed(self, run: Run, worker: _Worker, error: BaseException) -> None:
        cause = getattr(error, "cause", None)
        if isinstance(error, _STORE_ERRORS) or isinstance(cause, _STORE_ERRORS):
            try:
                self._scheduler.store_full(run.run_id, now=self._clock())
            except StokerError as ended:
                self._on_error(ended)
            self._on_change()
        elif not isinstance(error, RayTaskError):  # also a kill by Ray's memory monitor
            self._died(worker, _said(error), is_suspicious=not _is_of_node(error))
        else:
            self._on_error(UnavailableError(f"{self.where(run.worker_id)} failed: {_said(error)}", "WORKER_LOST"))

    # --- one worker's life

    def _make(self, place: WorkerPlace, *, is_sacrificial: bool = False) -> None:
        if place.node_id and self.alive_nodes and place.node_id not in self.alive_nodes:
            place = WorkerPlace(cpus=place.cpus)
        worker_id = f"w{self._n_made}"
        self._n_made += 1
        slots = 1 if is_sacrificial else self._slots(place)
        options = worker_options(
            self._choices,
            place,
            max_concurrency=slots + 2,
            runtime_env=self._settings.ray.runtime_env if self._settings.ray is not None else None,
        )
        worker = _Worker(
            worker_id,
            place,
            self._class.options(enable_task_events=False, **options).remote(),
            is_sacrificial,
        )
        self._workers[worker_id] = worker
        self.counters["made"] += 1
        self._background.run(self._open(worker, slots))

    async def _open(self, worker: _Worker, slots: int) -> None:
        try:
            opened = await worker.actor.open.remote(
                self._settings, self._dp_size, worker.place.threads, self._choices.worker_memory
            )
        except RayError as error:
            if not self._is_ended and worker.worker_id in self._workers:
                if not _is_of_node(error):
                    self._deaths_while_opening.append((self._clock(), _said(error)))
                self._died(worker, _said(error), is_suspicious=False)
            return
        if self._is_ended or worker.worker_id not in self._workers:
            return
        if isinstance(opened, Ended):
            self._on_error(opened.error())
            return
        if opened.fingerprint != self._fingerprint:
            self._on_error(
                InvalidArgumentError(
                    f"the worker on host {opened.host} sees other data, model or settings than the coordinator "
                    f"(fingerprint {opened.fingerprint} and {self._fingerprint}): are the manifests and the model's "
                    "folder the same there?",
                    "PLAN_MISMATCH",
                )
            )
            return
        worker.opened = opened
        self._has_opened = True
        self._deaths_while_opening.clear()
        self._scheduler.add_worker(
            worker.worker_id,
            opened.node_id,
            slots=slots,
            now=self._clock(),
            is_sacrificial=worker.is_sacrificial,
            node_limit=self._node_limit(opened.node_id),
        )
        self._on_change()

    def _died(self, worker: _Worker, why: str, *, is_suspicious: bool) -> None:
        if worker.worker_id not in self._workers:
            return
        self.counters["died"] += 1
        self.deaths.append(f"{self.where(worker.worker_id)}: {why}")
        self._drop(worker, is_suspicious=is_suspicious, why=why)
        if not self._is_ended and not worker.is_sacrificial:
            self._make(worker.place)
        self._on_change()

    def _drop(self, worker: _Worker, *, is_suspicious: bool, why: str = "") -> None:
        self._workers.pop(worker.worker_id, None)
        _kill(worker.actor)
        try:
            self._scheduler.remove_worker(worker.worker_id, now=self._clock(), is_suspicious=is_suspicious, why=why)
        except StokerError as error:
            self._on_error(error)


def _kill(actor: Any) -> None:
    try:
        ray.kill(actor)
    except Exception:  # it is gone, which is what was wanted
        return


async def _gone(ref: Any) -> None:
    try:
        await ref
    except RayError:
        return


def _said(error: BaseException) -> str:
    """What Ray says of an error, on one line, without its general advice."""
    text = " ".join(str(error).split())
    for begin in ("The actor is dead because", "The actor died because"):
        text = text[text.find(begin) :] if begin in text else text
    return text.partition(" Some common causes include")[0][:400] or type(error).__name__


def _is_of_node(error: BaseException) -> bool:
    """Whether the worker's node is what was lost."""
    if isinstance(error, ActorUnavailableError):
        return True  # a connection broke: no sign that a sample is at fault
    return isinstance(error, ActorDiedError) and "its node has died" in str(error)  # Ray tells it by words only
