"""The course of a run in its coordinator: planned, made, delivered, watched, ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ray

from stoker import _core
from stoker.errors import ExhaustedError, InternalError, StokerError, UnavailableError
from stoker.loader import core_settings
from stoker.plain_values import parse_bytes
from stoker.ray import telling
from stoker.ray.background import Background
from stoker.ray.placement import Placed, WorkerPlace, choose, plan_lines, read_nodes
from stoker.ray.planning import Planning
from stoker.ray.protocol import (
    POLL_S,
    Ended,
    Node,
    NotYet,
    StepHandles,
)
from stoker.ray.roster import Roster
from stoker.ray.scheduler import Scheduler
from stoker.ray.shelf import Pack, Shelf
from stoker.ray.task import Limits, Run, Task
from stoker.ray.waiters import ALL, Waiters
from stoker.ray.workforce import Workforce
from stoker.settings import RaySettings, Settings

__all__ = ["Course"]

_TICK_S = 0.25
_NODES_S = 5.0  # how often the cluster's nodes are looked at, beside the moments when something died
_JOIN_LIMIT_S = 600.0  # until the last rank must have come
_NODE_SHARE = 0.45  # of a node's object store for packs made there; 0.3 are for pulled ones, and at 0.8 Ray spills
_LAST_WORDS_S = 10.0  # after an error, for clients to hear of it
_WORKERS_END_S = 3.0
_PACK_TOKEN_BYTES = 3100  # of a payload, at most
_LEAST_BYTES = 100 << 10  # a smaller payload is padded


class Course:
    """What happens in the coordinator's loop, and on its plan's thread. Not for several threads.

    Args:
        worker_class: The workers' actor class.
    """

    def __init__(self, worker_class: Any) -> None:
        self._worker_class = worker_class
        self.began = self.now()
        self.settings: Settings | None = None
        self.ray_settings = RaySettings()
        self.roster = Roster()
        self.shelf = Shelf()
        self.planning: Planning | None = None
        self.engine: Any = None
        self.welcome = b""
        self.placed: Placed | None = None
        self.plan_lines: tuple[str, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._nodes_seen = 0.0
        self.scheduler: Scheduler | None = None
        self.workforce: Workforce | None = None
        self.first_step = 0
        self.wanted_step = -1
        self.is_started = False
        self.is_at_end = False
        self._end_messages: list[bytes] = []  # by rank; one of them counts the samples that no pack carries
        self.stopped: Ended | None = None  # ends the run where delivery stands
        self.ended: Ended | None = None  # ends it at once
        self._ended_at = 0.0
        self._is_leaving = False
        self.waiters = Waiters()
        self.waiting: dict[str, tuple[int, float]] = {}  # by client: pack number it waits for, since
        self._is_moving = False
        self.moved: Counter[tuple[str, str]] = Counter()  # bytes by (node of the worker, node of the rank)
        self.counters: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background = Background(self.end)
        self.begin()

    def waits_for(self, rank: int, number: int) -> str:
        """In words: what a rank waits for that wants the pack of a number."""
        pack = self.shelf.get(rank, number)
        if pack is not None and self.scheduler is not None and self.workforce is not None:
            return telling.waits_for(pack, self.shelf, self.scheduler, self.workforce, self.now())
        if self.is_at_end:
            return "the end of the other ranks' data"
        return f"pack {number} of rank {rank}, which is not planned yet"

    def progress(self) -> str:
        """What opening is at, in words."""
        return "waiting for the settings" if self.planning is None else f"opening: {self.planning.progress}"

    # --- beginning

    def begin(self) -> None:
        """Begins to look around; to be called in the loop, as often as one likes."""
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                return
            self.spawn(self._tick())

    def plan_when_known(self) -> None:
        """Opens the engine, once settings and the number of ranks are known."""
        settings, dp_size = self.settings, self.roster.dp_size
        if self.planning is not None or settings is None or not dp_size or self.ended is not None:
            return
        self.planning = Planning(
            lambda: self._make_engine(settings, dp_size),
            on_open=self._in_loop(self._opened),
            on_start=self._in_loop(self._started),
            on_tasks=self._in_loop(self._planned),
            on_end=self._in_loop(self._at_end),
            on_error=self._in_loop(self._plan_failed),
        )

    def _make_engine(self, settings: Settings, dp_size: int) -> _core.CoreCoordinator:
        values = core_settings(settings)
        values.dp_rank, values.dp_size = 0, dp_size
        return _core.CoreCoordinator.create(values)

    def _opened(self, engine: Any) -> None:
        self.engine = engine
        self.welcome = engine.welcome()
        if not self.roster.missing():
            self.spawn(self.place())

    async def place(self) -> None:
        """Decides where workers run, and makes them; once, when all clients are here."""
        settings = self.settings
        if self.placed is not None or self.workforce is not None or settings is None:
            return
        await self._look_at_nodes()
        if self.placed is not None or self.ended is not None:
            return
        pack_bytes = settings.pack.tokens_per_pack * _PACK_TOKEN_BYTES
        self.placed = placed = choose(
            self._nodes,
            [m.hello for m in self.roster.members.values()],
            self.ray_settings,
            memory_limit=parse_bytes(settings.speed.memory_limit),
            pack_bytes=pack_bytes,
            packs_per_step=settings.pack.packs_per_step,
        )
        self.plan_lines = tuple(plan_lines(placed, self._nodes, [m.hello for m in self.roster.members.values()]))
        self.scheduler = Scheduler(Limits(store_limit=placed.choices.store_limit))
        for rank in range(self.roster.dp_size):
            self.scheduler.set_rank_nodes(rank, self.roster.nodes_of(rank))
        room = placed.choices.worker_memory // (2 * pack_bytes) if placed.choices.worker_memory else 1 << 30
        self.workforce = Workforce(
            worker_class=self._worker_class,
            settings=settings,
            dp_size=self.roster.dp_size,
            choices=placed.choices,
            slots=lambda place: _slots(place, room),
            node_limit=self._node_limit,
            scheduler=self.scheduler,
            fingerprint=self.engine.fingerprint,
            on_made=self._made,
            on_unmakeable=self._cannot_be_made,
            on_change=self._schedule_soon,
            on_error=self._fail,
            clock=self.now,
        )
        self.workforce.alive_nodes = frozenset(node.node_id for node in self._nodes)
        self.workforce.begin(placed.places)
        self.waiters.wake(ALL)

    def _started(self) -> None:
        self.is_started = True
        self.engine.want_step(self.first_step)
        self.waiters.wake(ALL)

    # --- going on

    def _planned(self, tasks: list[Any]) -> None:
        if self.scheduler is None or self.ended is not None:
            return
        largest = max((node.store_bytes for node in self._nodes), default=0)
        for task in tasks:
            pack = self.shelf.add(task)
            n_bytes = max(pack.n_bytes, _LEAST_BYTES)
            if n_bytes > largest > 0:
                self.end(
                    ExhaustedError(
                        f"a pack of step {pack.step} has {n_bytes} bytes and the largest object store of the cluster "
                        f"{largest}: lower pack.tokens_per_pack, or give the nodes more (ray start "
                        "--object-store-memory)",
                        "STORE_FULL",
                    )
                )
                return
            self.scheduler.add_task(
                Task(
                    sequence=pack.sequence,
                    rank=pack.rank,
                    step=pack.step,
                    n_bytes=n_bytes,
                    n_samples=pack.n_samples,
                )
            )
        self._schedule_soon()

    def _at_end(self) -> None:
        self.is_at_end = True
        self._finish_data()

    def _finish_data(self) -> None:
        if self.is_at_end and not self._end_messages and not self.shelf.undelivered():
            self._end_messages = [self.engine.end() for _ in range(self.roster.dp_size)]
            self.waiters.wake_all()

    def _stop(self, error: BaseException) -> None:
        """Ends the run where delivery stands: what was delivered is still handed out, and nothing more is made."""
        if self.stopped is None:
            self.stopped = Ended.of(error)
            if self.scheduler is not None:
                for pack in self.shelf.undelivered():
                    self.scheduler.release(pack.sequence)
            self.waiters.wake_all()

    def _plan_failed(self, error: BaseException) -> None:
        if self.is_started and isinstance(error, StokerError):
            self._stop(error)  # all that was planned before it is delivered
        else:
            self.end(error)

    def _schedule_soon(self) -> None:
        """Once for all that happens in one turn of the loop."""
        if not self._is_moving and self._loop is not None:
            self._is_moving = True
            self._loop.call_soon(self._schedule)

    def _schedule(self) -> None:
        self._is_moving = False
        if self.scheduler is None or self.workforce is None or self.ended is not None:
            return
        for run in self.scheduler.starts(self.now()):
            self.workforce.give(run, self.shelf.by_sequence[run.task.sequence].message)
        if self.scheduler.needs_sacrificial():
            self.workforce.add_sacrificial()

    def _made(self, run: Run, made: bytes, payload: Any, node_id: str) -> None:
        pack = self.shelf.by_sequence.get(run.task.sequence)
        if pack is None or self.ended is not None:
            return
        pack.payload, pack.made_on, pack.attempt = payload, node_id, run.task.attempt
        self.counters["packs_made"] += 1
        for node in self.roster.nodes_of(pack.rank):
            self.moved[node_id, node] += run.task.n_bytes
        if pack.delivery is None:
            pack.made = made
            self._deliver()
        else:
            self.waiters.wake(pack.rank)

    def _cannot_be_made(self, run: Run, ended: Ended) -> None:
        pack = self.shelf.by_sequence.get(run.task.sequence)
        if pack is not None and pack.delivery is None:
            if ended.code == "PLAN_MISMATCH":
                self.engine.forget_lengths(pack.sequence)  # or every later run would end here, too
            pack.made = ended
            self._deliver()
        else:
            self.end(ended.error())

    def _deliver(self) -> None:
        if self.stopped is not None or self.ended is not None:
            return
        try:
            ranks = self.shelf.deliver(self.engine.deliver)
            self._finish_data()
        except StokerError as error:
            self._stop(error)
            return
        for rank in ranks:
            self.waiters.wake(rank)
            if self.roster.has_rank_left(rank):
                self.move_on(rank)

    async def taken(
        self, client_id: str, first: int, n_mapped: int, wanted_step: int
    ) -> list[Pack] | StepHandles | NotYet | Ended:
        """Packs that a client may have, or what it is answered instead."""
        if (no := self.refusal(client_id)) is not None:
            return no
        member = self.roster.members[client_id]
        rank = member.hello.dp_rank
        now = self.now()
        self.roster.took(member, n_mapped, wanted_step, now)
        self.move_on(rank)
        end = now + POLL_S
        try:
            while True:
                packs = self.shelf.ready(rank, first)
                if packs:
                    return packs
                if self._end_messages and first >= self.shelf.n_planned(rank):
                    return StepHandles(packs=[], is_at_end=True, end=self._end_messages[rank])
                pack = self.shelf.get(rank, first)
                if self.stopped is not None and (pack is None or pack.delivery is None):
                    return StepHandles(packs=[], is_at_end=True, ended=self.stopped)
                left = end - self.now()
                if left <= 0:
                    return NotYet(waits_for=self.waits_for(rank, first))
                self.waiting.setdefault(client_id, (first, now))
                await self.waiters.wait(rank, left)
                if self.ended is not None:
                    return self.ended
        finally:
            self.waiting.pop(client_id, None)

    def move_on(self, rank: int) -> None:
        """After a client said how far it is: lets go of what its rank has, and plans further."""
        if self.scheduler is None:
            return
        released = self.shelf.release(rank, self.roster.mapped_by_all(rank))
        for pack in released:
            self.scheduler.release(pack.sequence)
        wanted = self.roster.wanted_by_slowest()
        if wanted > self.wanted_step and self.is_started and self.ended is None:
            self.wanted_step = wanted
            self.scheduler.set_wanted_step(wanted, now=self.now())
            self.engine.want_step(wanted)
            self._schedule_soon()
        elif released:
            self._schedule_soon()

    def lose(self, pack: Pack, attempt: int, why: str) -> None:
        """Makes a pack again unless that has begun since `attempt`."""
        if self.scheduler is None or pack.attempt != attempt or pack.payload is None:
            return
        pack.payload = None
        self.counters["payloads_lost"] += 1
        try:
            self.scheduler.lost(pack.sequence, why)
        except StokerError as error:
            self.end(error)
        self._schedule_soon()

    # --- watching

    async def _tick(self) -> None:
        while not self._is_leaving:
            try:
                await self._look_around()
            except StokerError as error:
                self.end(error)
            except Exception as error:
                self.end(InternalError(f"coordinator: {type(error).__name__}: {error}"))
            await asyncio.sleep(_TICK_S)

    async def _look_around(self) -> None:
        now = self.now()
        roster, timeout_s = self.roster, self.ray_settings.rank_timeout_s
        if self.ended is not None:
            if roster.have_all_left() or now - self._ended_at > _LAST_WORDS_S:
                await self._exit()
            return
        if roster.have_all_left() or (not roster.members and now - self.began > max(timeout_s, 30.0)):
            self.end(UnavailableError("every rank has left", "STOPPED"))
            return
        silent = roster.silent(now, timeout_s)
        if silent is not None:
            roster.left(silent)
            raise UnavailableError(
                f"nothing was heard of {silent.name} for {timeout_s:g} s (ray.rank_timeout_s): resume all ranks from "
                "the last state",
                "RANK_LOST",
            )
        if self.placed is None and roster.missing() and now - self.began > _JOIN_LIMIT_S:
            raise UnavailableError(f"{roster.missing()} did not come within {_JOIN_LIMIT_S:g} s", "RANK_LOST")
        if self.scheduler is None or self.workforce is None:
            return
        n_died = self.workforce.counters["died"]
        if now - self._nodes_seen > _NODES_S or n_died != self.counters["deaths_seen"]:
            self.counters["deaths_seen"] = n_died
            await self._look_at_nodes()
        self.workforce.check()
        if self.workforce.may_be_more():
            ranks_wait = any(now - since > 2 * _TICK_S for _, since in self.waiting.values())
            self.workforce.add(self.scheduler.n_more_workers(now, ranks_wait=ranks_wait))
        if worker_id := self.scheduler.idle_worker(now, may_be_fewer=self.workforce.may_be_fewer()):
            self.workforce.retire(worker_id)
        if (worker_id := self.scheduler.stuck_worker(now)) is not None:
            self.workforce.end_stuck(worker_id)
        self._schedule_soon()  # stragglers, and packs whose stores were full

    async def _look_at_nodes(self) -> None:
        self._nodes_seen = self.now()
        try:
            self._nodes = await asyncio.to_thread(_read_nodes)
        except Exception as error:  # the cluster's head is busy, or gone; those that are known stay
            self.counters["nodes_not_read"] += 1
            if not self._nodes:
                raise UnavailableError(f"the cluster's nodes cannot be read: {error}", "RAY") from error
            return
        alive = frozenset(node.node_id for node in self._nodes)
        workforce = self.workforce
        if workforce is None:
            return
        gone = workforce.alive_nodes - alive
        workforce.alive_nodes = alive
        for node_id in gone:
            self.counters["nodes_lost"] += 1
            workforce.node_died(node_id)
            for pack in self.shelf.made_on(node_id):
                self.lose(pack, pack.attempt, f"node {node_id[:8]} died")
            member = next(
                (m for m in self.roster.members.values() if m.hello.node_id == node_id and not m.has_left), None
            )
            if member is not None:
                raise UnavailableError(
                    f"the node of {member.name} died: resume all ranks from the last state", "RANK_LOST"
                )

    # --- ending

    def end(self, error: BaseException) -> Ended:
        """Ends the run for all; the first reason counts."""
        if self.ended is None:
            self.ended = Ended.of(error)
            self._ended_at = self.now()
            if self.workforce is not None:
                self.workforce.end()
            self.shelf.clear()
            self.waiters.wake_all()
        return self.ended

    def _fail(self, error: BaseException) -> None:
        self.end(error)

    async def _exit(self) -> None:
        """Ends the workers and this process."""
        self._is_leaving = True
        if self.workforce is not None:
            self.workforce.end()
            await self.workforce.ended(_WORKERS_END_S)
        self.shelf.clear()
        if self.planning is not None:
            await asyncio.to_thread(self.planning.stop)
        if self.engine is not None:
            await asyncio.to_thread(self.engine.close)
        await asyncio.sleep(0.2)  # answers that are on their way
        ray.get_runtime_context().current_actor.vanish.remote()  # which is quieter than a kill: Ray logs those

    # --- waiting

    def over(self) -> Ended | None:
        """What the run ended with at once."""
        return self.ended

    def refusal(self, client_id: str) -> Ended | None:
        """What a client is answered that may not ask."""
        if self.ended is not None:
            return self.ended
        if client_id not in self.roster.members:
            return Ended.of(InternalError(f"client {client_id} has not said hello"))
        return None

    async def until(self, reached: Callable[[], bool], client_id: str) -> None:
        """A client waits for what concerns all, at most `POLL_S`."""
        member = self.roster.members[client_id]
        member.n_asking += 1
        end = self.now() + POLL_S
        try:
            while not reached() and self.ended is None and (left := end - self.now()) > 0:
                await self.waiters.wait(ALL, left)
        finally:
            member.n_asking -= 1
            member.heard_at = self.now()

    def _in_loop(self, call: Callable[..., Any]) -> Callable[..., None]:
        def later(*values: Any) -> None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *values)

        return later

    def spawn(self, work: Any) -> None:
        """Runs a coroutine in the loop; what it raises ends the run."""
        self._background.run(work)

    @staticmethod
    def now() -> float:
        """Seconds."""
        return time.monotonic()

    def _node_limit(self, node_id: str) -> int:
        return next((int(_NODE_SHARE * n.store_bytes) for n in self._nodes if n.node_id == node_id), 0)


def _slots(place: WorkerPlace, room: int) -> int:
    """Packs that a worker makes at one time: one more than its threads, so that fetches overlap with decoding."""
    return max(1, min(place.threads + 1, room, 16))


def _read_nodes() -> tuple[Node, ...]:
    from ray._private.state import available_resources_per_node

    return read_nodes(ray.nodes(), available_resources_per_node())
