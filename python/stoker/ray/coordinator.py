"""The coordinator: the plan, who makes what, who has what, and the ledger. It sees no payload, only references."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from stoker import _core
from stoker.errors import ExhaustedError, InternalError, StokerError, UnavailableError
from stoker.loader import _state_from_dict, core_settings
from stoker.plain_values import parse_bytes
from stoker.ray import telling
from stoker.ray.placement import Placed, WorkerPlace, choose, plan_lines, read_nodes
from stoker.ray.planning import Planning
from stoker.ray.protocol import (
    NAMESPACE,
    POLL_S,
    Beat,
    Ended,
    Hello,
    Joined,
    Node,
    NotYet,
    PackHandle,
    Started,
    StepHandles,
)
from stoker.ray.roster import Member, Roster
from stoker.ray.scheduler import Scheduler
from stoker.ray.shelf import Pack, Shelf
from stoker.ray.task import Limits, Run, Task
from stoker.ray.waiters import ALL, Waiters
from stoker.ray.worker import PackWorker
from stoker.ray.workforce import Workforce
from stoker.settings import RaySettings, Settings

__all__ = ["Coordinator", "create"]

_TICK_S = 0.25
_NODES_S = 5.0  # how often the cluster's nodes are looked at, beside the moments when something died
_JOIN_LIMIT_S = 600.0  # until the last rank must have come
_NODE_SHARE = 0.45  # of a node's object store for packs made there; 0.3 are for pulled ones, and at 0.8 Ray spills
_LAST_WORDS_S = 10.0  # after an error, for clients to hear of it
_WORKERS_END_S = 3.0
_MAX_CALLS = 1 << 14  # long polls at one time; each client has at most two
_PACK_TOKEN_BYTES = 3100  # of a payload, at most
_LEAST_BYTES = 100 << 10  # a smaller payload is padded


def create(
    name: str, *, runtime_env: Mapping[str, Any] | None = None, actor_class: type[Coordinator] | None = None
) -> Any:
    """Makes the actor of that name on this node; the caller then calls `open` with the settings.

    Raises:
        ValueError: Ray has an actor of that name.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    return (
        ray.remote(actor_class or Coordinator)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_MAX_CALLS,
            enable_task_events=False,  # nobody looks at thousands of calls a second
            scheduling_strategy=here,
            **options,
        )
        .remote(name)
    )


class Coordinator:
    """The actor; `protocol` has its methods, and they return `Ended` where others raise.

    Detached, so that it outlives the trainer process that made it; it ends itself and its workers when all clients have
    left, when one has been silent for ``ray.rank_timeout_s``, and after an error, which every client is told first.
    """

    worker_class: Any = PackWorker

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._began = self._now()
        self._settings: Settings | None = None
        self._ray = RaySettings()
        self._roster = Roster()
        self._shelf = Shelf()
        self._planning: Planning | None = None
        self._engine: Any = None
        self._welcome = b""
        self._placed: Placed | None = None
        self._plan_lines: tuple[str, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._nodes_seen = 0.0
        self._scheduler: Scheduler | None = None
        self._workforce: Workforce | None = None
        self._first_step = 0
        self._wanted_step = -1
        self._is_started = False
        self._is_at_end = False
        self._end_messages: list[bytes] = []  # by rank; one of them counts the samples that no pack carries
        self._stopped: Ended | None = None  # ends the run where delivery stands
        self._ended: Ended | None = None  # ends it at once
        self._ended_at = 0.0
        self._is_leaving = False
        self._waiters = Waiters()
        self._waiting: dict[str, tuple[int, float]] = {}  # by client: pack number it waits for, since
        self._is_moving = False
        self._moved: Counter[tuple[str, str]] = Counter()  # bytes by (node of the worker, node of the rank)
        self._counters: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin()

    # --- joining

    async def open(self, settings: Settings, ray_settings: RaySettings | None = None) -> Ended | None:
        """Begins to open; of several calls the first counts."""
        self._begin()
        if self._settings is None and self._ended is None:
            self._settings = settings
            self._ray = ray_settings or settings.ray or RaySettings()
            self._plan_when_known()
        return self._ended

    async def hello(self, hello: Hello) -> Joined | NotYet | Ended:
        """A client joins; answered once the run is open and all clients are here."""
        self._begin()
        if self._roster.is_full_for(hello):
            self._counters["stale_hellos"] += 1
            return NotYet(
                waits_for=f"the place of rank {hello.dp_rank} is taken by another process, of an earlier attempt",
                is_stale=True,
            )
        if self._ended is not None:
            return self._ended
        try:
            self._roster.hello(hello, self._now())
        except StokerError as error:
            return self._end(error)
        self._plan_when_known()
        if self._engine is not None and self._placed is None and not self._roster.missing():
            self._spawn(self._place())
        await self._until(lambda: self._placed is not None)
        if (ended := self._over()) is not None:
            return ended
        if self._placed is None:
            missing = self._roster.missing()
            opening = self._planning.progress if self._planning is not None else "the settings have not come"
            return NotYet(waits_for=f"waiting for {missing}" if missing and self._engine is not None else opening)
        return Joined(
            welcome=self._welcome,
            choices=self._placed.choices,
            why=dict(self._placed.why),
            rank_timeout_s=self._ray.rank_timeout_s,
            plan=self._plan_lines,
            warnings=self._placed.warnings,
        )

    async def start(
        self, client_id: str, state: Mapping[str, Any], accepted: Sequence[str] = ()
    ) -> Started | NotYet | Ended:
        """Where to begin; answered once all clients have said the same."""
        if (no := self._refusal(client_id)) is not None:
            return no
        try:
            self._roster.start(client_id, state, accepted, self._now())
        except StokerError as error:
            return self._end(error)
        if not self._roster.not_started() and not self._roster.missing() and self._planning is not None:
            agreed, names = self._roster.agreed()
            self._first_step = int(agreed.get("step", 0))
            self._planning.start(lambda engine: engine.start(_state_from_dict(agreed), names))
        await self._until(lambda: self._is_started)
        if self._ended is not None:
            return self._ended
        if not self._is_started:
            missing = self._roster.missing() or self._roster.not_started()
            return NotYet(waits_for=f"waiting for the first batch of {missing}" if missing else "seeking the state")
        return Started()

    # --- packs

    async def take(self, client_id: str, first: int, n_mapped: int, wanted_step: int) -> StepHandles | NotYet | Ended:
        """Packs of one step from number `first` on, as references."""
        packs = await self._taken(client_id, first, n_mapped, wanted_step)
        if not isinstance(packs, list):
            return packs
        return StepHandles(packs=[_handle(pack) for pack in packs])

    async def take_value(
        self, client_id: str, first: int, n_mapped: int, wanted_step: int
    ) -> StepHandles | NotYet | Ended:
        """As `take`, with the payloads themselves: they come through this process."""
        packs = await self._taken(client_id, first, n_mapped, wanted_step)
        if not isinstance(packs, list):
            return packs
        out: list[PackHandle] = []
        for pack in packs:
            attempt, ref = pack.attempt, pack.payload
            try:
                payload = await ref
            except RayError as error:
                self._lose(pack, attempt, str(error).strip().splitlines()[0])
                return StepHandles(packs=out) if out else NotYet(waits_for="a pack that was lost is made again")
            self._counters["payload_bytes_seen"] += sum(a.nbytes for a in payload)
            out.append(_handle(pack, payload=(payload[0], payload[1])))
        return StepHandles(packs=out)

    async def again(self, client_id: str, number: int, attempt: int, why: str) -> PackHandle | NotYet | Ended:
        """A payload could not be had: the pack is made again, once for all clients of the rank."""
        if (no := self._refusal(client_id)) is not None:
            return no
        member = self._roster.members[client_id]
        member.heard_at = self._now()
        pack = self._shelf.get(member.hello.dp_rank, number)
        if pack is None:
            return self._end(InternalError(f"{member.name} wants pack {number} again, which it has mapped", "INTERNAL"))
        self._lose(pack, attempt, f"{member.name}: {why[:300]}")
        end = self._now() + POLL_S
        while not pack.is_ready and self._ended is None and self._now() < end:
            await self._waiters.wait(pack.rank, end - self._now())
        if self._ended is not None:
            return self._ended
        return _handle(pack) if pack.is_ready else NotYet(waits_for=self._waits_for(pack.rank, number))

    async def beat(self, beat: Beat) -> Ended | None:
        """A sign of life."""
        if (no := self._refusal(beat.client_id)) is not None:
            return no
        member = self._roster.members[beat.client_id]
        self._roster.took(member, beat.n_mapped, beat.step, self._now())
        member.beat = beat
        self._move_on(member.hello.dp_rank)
        return None

    async def leave(self, client_id: str, why: str = "") -> None:
        """A client takes no more; with a reason, the run ends for the others."""
        member = self._roster.members.get(client_id)
        if member is None or member.has_left:
            return
        self._roster.left(member)
        if why and self._ended is None and self._stopped is None and not self._roster.have_all_left():
            self._end(
                UnavailableError(f"{member.name} ended: {why[:600]}. Resume all ranks from the last state", "RANK_LOST")
            )
        self._move_on(member.hello.dp_rank)

    # --- telling

    async def describe(self, sample_id: int) -> Any:
        """Where a sample comes from: (pass, manifest, line, byte offset, media)."""
        if self._engine is None:
            return self._ended or Ended.of(InternalError("the coordinator is not open"))
        try:
            return self._engine.describe(sample_id)
        except StokerError as error:
            return Ended.of(error)

    async def status(self) -> dict[str, Any]:
        """Who prepares what, who waits for what, and what was counted; plain values."""
        now = self._now()
        placed = self._placed
        return {
            "run": self._name,
            "pid": os.getpid(),
            "seconds": round(now - self._began, 1),
            "state": self._phase(),
            "ended": None if (ended := self._ended or self._stopped) is None else str(ended.error()),
            "first_step": self._first_step,
            "wanted_step": self._wanted_step,
            "choices": None if placed is None else {k: getattr(placed.choices, k) for k in placed.choices.__slots__},
            "why": {} if placed is None else dict(placed.why),
            "warnings": [] if placed is None else list(placed.warnings),
            "clients": [self._client(m, now) for m in self._roster.members.values()],
            "workers": [] if self._workforce is None else self._workforce.status(),
            "deaths": [] if self._workforce is None else list(self._workforce.deaths),
            "packs": {} if self._scheduler is None else self._scheduler.state(),
            "straggling": []
            if self._scheduler is None or self._workforce is None
            else telling.straggling(self._scheduler, self._workforce, now),
            "counters": dict(
                sum(
                    (c.counters for c in (self._scheduler, self._workforce) if c is not None),
                    self._counters.copy(),
                )
            ),
            "bytes_from_to": [{"from": a, "to": b, "bytes": n} for (a, b), n in self._moved.items()],
            "engine": {} if self._engine is None else dict(self._engine.report()),
        }

    def _node_limit(self, node_id: str) -> int:
        return next((int(_NODE_SHARE * n.store_bytes) for n in self._nodes if n.node_id == node_id), 0)

    def _phase(self) -> str:
        if self._ended is not None:
            return "ended"
        if self._engine is None:
            return f"opening: {self._planning.progress}" if self._planning is not None else "waiting for the settings"
        if self._placed is None:
            return f"waiting for {self._roster.missing()}"
        if not self._is_started:
            return f"waiting for the first batch of {self._roster.not_started()}"
        return "at the end of the data" if self._is_at_end else "running"

    def _client(self, member: Member, now: float) -> dict[str, Any]:
        number, since = self._waiting.get(member.hello.client_id, (-1, now))
        waits_for = "" if number < 0 else self._waits_for(member.hello.dp_rank, number)
        return telling.client(member, waits_for, now - since, now)

    def _waits_for(self, rank: int, number: int) -> str:
        pack = self._shelf.get(rank, number)
        if pack is not None and self._scheduler is not None and self._workforce is not None:
            return telling.waits_for(pack, self._shelf, self._scheduler, self._workforce, self._now())
        if self._is_at_end:
            return "the end of the other ranks' data"
        return f"pack {number} of rank {rank}, which is not planned yet"

    # --- inside: beginning

    def _begin(self) -> None:
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                return
            self._spawn(self._tick())

    def _plan_when_known(self) -> None:
        settings, dp_size = self._settings, self._roster.dp_size
        if self._planning is not None or settings is None or not dp_size or self._ended is not None:
            return
        self._planning = Planning(
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
        self._engine = engine
        self._welcome = engine.welcome()
        if not self._roster.missing():
            self._spawn(self._place())

    async def _place(self) -> None:
        settings = self._settings
        if self._placed is not None or self._workforce is not None or settings is None:
            return
        await self._look_at_nodes()
        if self._placed is not None or self._ended is not None:
            return
        pack_bytes = settings.pack.tokens_per_pack * _PACK_TOKEN_BYTES
        self._placed = placed = choose(
            self._nodes,
            [m.hello for m in self._roster.members.values()],
            self._ray,
            memory_limit=parse_bytes(settings.speed.memory_limit),
            pack_bytes=pack_bytes,
            packs_per_step=settings.pack.packs_per_step,
        )
        self._plan_lines = tuple(plan_lines(placed, self._nodes, [m.hello for m in self._roster.members.values()]))
        self._scheduler = Scheduler(Limits(store_limit=placed.choices.store_limit))
        for rank in range(self._roster.dp_size):
            self._scheduler.set_rank_nodes(rank, self._roster.nodes_of(rank))
        room = placed.choices.worker_memory // (2 * pack_bytes) if placed.choices.worker_memory else 1 << 30
        self._workforce = Workforce(
            worker_class=self.worker_class,
            settings=settings,
            dp_size=self._roster.dp_size,
            choices=placed.choices,
            slots=lambda place: _slots(place, room),
            node_limit=self._node_limit,
            scheduler=self._scheduler,
            fingerprint=self._engine.fingerprint,
            on_made=self._made,
            on_unmakeable=self._cannot_be_made,
            on_change=self._schedule_soon,
            on_error=self._fail,
            clock=self._now,
        )
        self._workforce.alive_nodes = frozenset(node.node_id for node in self._nodes)
        self._workforce.begin(placed.places)
        self._waiters.wake(ALL)

    def _started(self) -> None:
        self._is_started = True
        self._engine.want_step(self._first_step)
        self._waiters.wake(ALL)

    # --- inside: going on

    def _planned(self, tasks: list[Any]) -> None:
        if self._scheduler is None or self._ended is not None:
            return
        largest = max((node.store_bytes for node in self._nodes), default=0)
        for task in tasks:
            pack = self._shelf.add(task)
            n_bytes = max(pack.n_bytes, _LEAST_BYTES)
            if n_bytes > largest > 0:
                self._end(
                    ExhaustedError(
                        f"a pack of step {pack.step} has {n_bytes} bytes and the largest object store of the cluster "
                        f"{largest}: lower pack.tokens_per_pack, or give the nodes more (ray start "
                        "--object-store-memory)",
                        "STORE_FULL",
                    )
                )
                return
            self._scheduler.add_task(
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
        self._is_at_end = True
        self._finish_data()

    def _finish_data(self) -> None:
        if self._is_at_end and not self._end_messages and not self._shelf.undelivered():
            self._end_messages = [self._engine.end() for _ in range(self._roster.dp_size)]
            self._waiters.wake_all()

    def _stop(self, error: BaseException) -> None:
        """Ends the run where delivery stands: what was delivered is still handed out, and nothing more is made."""
        if self._stopped is None:
            self._stopped = Ended.of(error)
            if self._scheduler is not None:
                for pack in self._shelf.undelivered():
                    self._scheduler.release(pack.sequence)
            self._waiters.wake_all()

    def _plan_failed(self, error: BaseException) -> None:
        if self._is_started and isinstance(error, StokerError):
            self._stop(error)  # all that was planned before it is delivered
        else:
            self._end(error)

    def _schedule_soon(self) -> None:
        """Once for all that happens in one turn of the loop."""
        if not self._is_moving and self._loop is not None:
            self._is_moving = True
            self._loop.call_soon(self._schedule)

    def _schedule(self) -> None:
        self._is_moving = False
        if self._scheduler is None or self._workforce is None or self._ended is not None:
            return
        for run in self._scheduler.starts(self._now()):
            self._workforce.give(run, self._shelf.by_sequence[run.task.sequence].message)
        if self._scheduler.needs_sacrificial():
            self._workforce.add_sacrificial()

    def _made(self, run: Run, made: bytes, payload: Any, node_id: str) -> None:
        pack = self._shelf.by_sequence.get(run.task.sequence)
        if pack is None or self._ended is not None:
            return
        pack.payload, pack.made_on, pack.attempt = payload, node_id, run.task.attempt
        self._counters["packs_made"] += 1
        for node in self._roster.nodes_of(pack.rank):
            self._moved[node_id, node] += run.task.n_bytes
        if pack.delivery is None:
            pack.made = made
            self._deliver()
        else:
            self._waiters.wake(pack.rank)

    def _cannot_be_made(self, run: Run, ended: Ended) -> None:
        pack = self._shelf.by_sequence.get(run.task.sequence)
        if pack is not None and pack.delivery is None:
            pack.made = ended
            self._deliver()
        else:
            self._end(ended.error())

    def _deliver(self) -> None:
        if self._stopped is not None or self._ended is not None:
            return
        try:
            ranks = self._shelf.deliver(self._engine.deliver)
            self._finish_data()
        except StokerError as error:
            self._stop(error)
            return
        for rank in ranks:
            self._waiters.wake(rank)
            if self._roster.has_rank_left(rank):
                self._move_on(rank)

    async def _taken(
        self, client_id: str, first: int, n_mapped: int, wanted_step: int
    ) -> list[Pack] | StepHandles | NotYet | Ended:
        if (no := self._refusal(client_id)) is not None:
            return no
        member = self._roster.members[client_id]
        rank = member.hello.dp_rank
        now = self._now()
        self._roster.took(member, n_mapped, wanted_step, now)
        self._move_on(rank)
        end = now + POLL_S
        try:
            while True:
                packs = self._shelf.ready(rank, first)
                if packs:
                    return packs
                if self._end_messages and first >= self._shelf.n_planned(rank):
                    return StepHandles(packs=[], is_at_end=True, end=self._end_messages[rank])
                pack = self._shelf.get(rank, first)
                if self._stopped is not None and (pack is None or pack.delivery is None):
                    return StepHandles(packs=[], is_at_end=True, ended=self._stopped)
                left = end - self._now()
                if left <= 0:
                    return NotYet(waits_for=self._waits_for(rank, first))
                self._waiting.setdefault(client_id, (first, now))
                await self._waiters.wait(rank, left)
                if self._ended is not None:
                    return self._ended
        finally:
            self._waiting.pop(client_id, None)

    def _move_on(self, rank: int) -> None:
        """After a client said how far it is: lets go of what its rank has, and plans further."""
        if self._scheduler is None:
            return
        released = self._shelf.release(rank, self._roster.mapped_by_all(rank))
        for pack in released:
            self._scheduler.release(pack.sequence)
        wanted = self._roster.wanted_by_slowest()
        if wanted > self._wanted_step and self._is_started and self._ended is None:
            self._wanted_step = wanted
            self._scheduler.set_wanted_step(wanted, now=self._now())
            self._engine.want_step(wanted)
            self._schedule_soon()
        elif released:
            self._schedule_soon()

    def _lose(self, pack: Pack, attempt: int, why: str) -> None:
        """Makes a pack again unless that has begun since `attempt`."""
        if self._scheduler is None or pack.attempt != attempt or pack.payload is None:
            return
        pack.payload = None
        self._counters["payloads_lost"] += 1
        try:
            self._scheduler.lost(pack.sequence, why)
        except StokerError as error:
            self._end(error)
        self._schedule_soon()

    # --- inside: watching

    async def _tick(self) -> None:
        while not self._is_leaving:
            try:
                await self._look_around()
            except StokerError as error:
                self._end(error)
            except Exception as error:
                self._end(InternalError(f"coordinator: {type(error).__name__}: {error}"))
            await asyncio.sleep(_TICK_S)

    async def _look_around(self) -> None:
        now = self._now()
        roster, timeout_s = self._roster, self._ray.rank_timeout_s
        if self._ended is not None:
            if roster.have_all_left() or now - self._ended_at > _LAST_WORDS_S:
                await self._exit()
            return
        if roster.have_all_left() or (not roster.members and now - self._began > max(timeout_s, 30.0)):
            self._end(UnavailableError("every rank has left", "STOPPED"))
            return
        silent = roster.silent(now, timeout_s)
        if silent is not None:
            roster.left(silent)
            raise UnavailableError(
                f"nothing was heard of {silent.name} for {timeout_s:g} s (ray.rank_timeout_s): resume all ranks from "
                "the last state",
                "RANK_LOST",
            )
        if self._placed is None and roster.missing() and now - self._began > _JOIN_LIMIT_S:
            raise UnavailableError(f"{roster.missing()} did not come within {_JOIN_LIMIT_S:g} s", "RANK_LOST")
        if self._scheduler is None or self._workforce is None:
            return
        n_died = self._workforce.counters["died"]
        if now - self._nodes_seen > _NODES_S or n_died != self._counters["deaths_seen"]:
            self._counters["deaths_seen"] = n_died
            await self._look_at_nodes()
        self._workforce.check()
        if self._workforce.may_be_more():
            ranks_wait = any(now - since > 2 * _TICK_S for _, since in self._waiting.values())
            self._workforce.add(self._scheduler.n_more_workers(now, ranks_wait=ranks_wait))
        if worker_id := self._scheduler.idle_worker(now, may_be_fewer=self._workforce.may_be_fewer()):
            self._workforce.retire(worker_id)
        if (worker_id := self._scheduler.stuck_worker(now)) is not None:
            self._workforce.end_stuck(worker_id)
        self._schedule_soon()  # stragglers, and packs whose stores were full

    async def _look_at_nodes(self) -> None:
        self._nodes_seen = self._now()
        try:
            self._nodes = await asyncio.to_thread(_read_nodes)
        except Exception as error:  # the cluster's head is busy, or gone; those that are known stay
            self._counters["nodes_not_read"] += 1
            if not self._nodes:
                raise UnavailableError(f"the cluster's nodes cannot be read: {error}", "RAY") from error
            return
        alive = frozenset(node.node_id for node in self._nodes)
        workforce = self._workforce
        if workforce is None:
            return
        gone = workforce.alive_nodes - alive
        workforce.alive_nodes = alive
        for node_id in gone:
            self._counters["nodes_lost"] += 1
            workforce.node_died(node_id)
            for pack in self._shelf.made_on(node_id):
                self._lose(pack, pack.attempt, f"node {node_id[:8]} died")
            member = next(
                (m for m in self._roster.members.values() if m.hello.node_id == node_id and not m.has_left), None
            )
            if member is not None:
                raise UnavailableError(
                    f"the node of {member.name} died: resume all ranks from the last state", "RANK_LOST"
                )

    # --- inside: ending

    def _end(self, error: BaseException) -> Ended:
        """Ends the run for all; the first reason counts."""
        if self._ended is None:
            self._ended = Ended.of(error)
            self._ended_at = self._now()
            if self._workforce is not None:
                self._workforce.end()
            self._shelf.clear()
            self._waiters.wake_all()
        return self._ended

    def _fail(self, error: BaseException) -> None:
        self._end(error)

    async def _exit(self) -> None:
        """Ends the workers and this process."""
        self._is_leaving = True
        if self._workforce is not None:
            self._workforce.end()
            await self._workforce.ended(_WORKERS_END_S)
        self._shelf.clear()
        if self._planning is not None:
            await asyncio.to_thread(self._planning.stop)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        await asyncio.sleep(0.2)  # answers that are on their way
        ray.get_runtime_context().current_actor.vanish.remote()  # which is quieter than a kill: Ray logs those

    async def vanish(self) -> None:
        """Ends this process; called by itself, since only a method can."""
        ray.actor.exit_actor()

    # --- inside: waiting

    def _over(self) -> Ended | None:
        return self._ended

    def _refusal(self, client_id: str) -> Ended | None:
        if self._ended is not None:
            return self._ended
        if client_id not in self._roster.members:
            return Ended.of(InternalError(f"client {client_id} has not said hello"))
        return None

    async def _until(self, reached: Callable[[], bool]) -> None:
        end = self._now() + POLL_S
        while not reached() and self._ended is None and (left := end - self._now()) > 0:
            await self._waiters.wait(ALL, left)

    def _in_loop(self, call: Callable[..., Any]) -> Callable[..., None]:
        def later(*values: Any) -> None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *values)

        return later

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    @staticmethod
    def _now() -> float:
        return time.monotonic()


def _slots(place: WorkerPlace, room: int) -> int:
    """Packs that a worker makes at one time: one more than its threads, so that fetches overlap with decoding."""
    return max(1, min(place.threads + 1, room, 16))


def _handle(pack: Pack, *, payload: tuple[Any, Any] | None = None) -> PackHandle:
    return PackHandle(
        number=pack.number,
        step=pack.step,
        micro_batch=pack.micro_batch,
        micro_batches_in_step=pack.micro_batches_in_step,
        delivery=pack.delivery or b"",
        n_bytes=pack.n_bytes,
        ref=[pack.payload] if payload is None else [],
        payload=payload,
        made_on=pack.made_on,
        attempt=pack.attempt,
    )


def _read_nodes() -> tuple[Node, ...]:
    from ray._private.state import available_resources_per_node

    return read_nodes(ray.nodes(), available_resources_per_node())
