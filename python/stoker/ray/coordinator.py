"""The coordinator: the plan, who makes what, who has what, and the ledger. It sees no payload, only references."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from stoker.errors import InternalError, StokerError, UnavailableError
from stoker.loader import _state_from_dict
from stoker.ray import telling
from stoker.ray.course import Course
from stoker.ray.protocol import (
    NAMESPACE,
    POLL_S,
    Beat,
    Ended,
    Hello,
    Joined,
    NotYet,
    PackHandle,
    Started,
    StepHandles,
)
from stoker.ray.roster import Member
from stoker.ray.shelf import Pack
from stoker.ray.worker import PackWorker
from stoker.settings import RaySettings, Settings

__all__ = ["Coordinator", "create"]

_MAX_CALLS = 1 << 14  # long polls at one time; each client has at most two


def create(
    name: str, *, runtime_env: Mapping[str, Any] | None = None, actor_class: type[Coordinator] | None = None
) -> Any:
    """Makes the actor of that name on this node; the caller then calls `open` with the settings.

    Raises:
        ValueError: Ray has an actor of that name.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Hard, since Ray puts an actor that needs no CPU wherever it likes in spite of a soft affinity. On another node it
    # would be one more whose death ends the run; that of this one ends it anyway.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
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
        self._run = Course(self.worker_class)

    # --- joining

    async def open(self, settings: Settings, ray_settings: RaySettings | None = None) -> Ended | None:
        """Begins to open; of several calls the first counts."""
        self._run.begin()
        if self._run.settings is None and self._run.ended is None:
            self._run.settings = settings
            self._run.ray_settings = ray_settings or settings.ray or RaySettings()
            self._run.plan_when_known()
        return self._run.ended

    async def hello(self, hello: Hello) -> Joined | NotYet | Ended:
        """A client joins; answered once the run is open and all clients are here."""
        self._run.begin()
        if self._run.roster.is_full_for(hello):
            self._run.counters["stale_hellos"] += 1
            return NotYet(
                waits_for=f"the place of rank {hello.dp_rank} is taken by another process, of an earlier attempt",
                is_stale=True,
            )
        if self._run.ended is not None:
            return self._run.ended
        try:
            self._run.roster.hello(hello, self._run.now())
        except StokerError as error:
            return self._run.end(error)
        self._run.plan_when_known()
        if self._run.engine is not None and self._run.placed is None and not self._run.roster.missing():
            self._run.spawn(self._run.place())
        await self._run.until(lambda: self._run.placed is not None, hello.client_id)
        if (ended := self._run.over()) is not None:
            return ended
        if self._run.placed is None:
            missing = self._run.roster.missing()
            is_open = self._run.engine is not None
            return NotYet(waits_for=f"waiting for {missing}" if missing and is_open else self._run.progress())
        return Joined(
            welcome=self._run.welcome,
            choices=self._run.placed.choices,
            why=dict(self._run.placed.why),
            rank_timeout_s=self._run.ray_settings.rank_timeout_s,
            plan=self._run.plan_lines,
            warnings=self._run.placed.warnings,
        )

    async def start(
        self, client_id: str, state: Mapping[str, Any], accepted: Sequence[str] = ()
    ) -> Started | NotYet | Ended:
        """Where to begin; answered once all clients have said the same."""
        if (no := self._run.refusal(client_id)) is not None:
            return no
        try:
            self._run.roster.start(client_id, state, accepted, self._run.now())
        except StokerError as error:
            return self._run.end(error)
        roster = self._run.roster
        if not roster.not_started() and not roster.missing() and self._run.planning is not None:
            agreed, names = roster.agreed()
            self._run.first_step = int(agreed.get("step", 0))
            self._run.planning.start(lambda engine: engine.start(_state_from_dict(agreed), names))
        await self._run.until(lambda: self._run.is_started, client_id)
        if self._run.ended is not None:
            return self._run.ended
        if not self._run.is_started:
            missing = self._run.roster.missing() or self._run.roster.not_started()
            return NotYet(waits_for=f"waiting for the first batch of {missing}" if missing else "seeking the state")
        return Started()

    # --- packs

    async def take(self, client_id: str, first: int, n_mapped: int, wanted_step: int) -> StepHandles | NotYet | Ended:
        """Packs of one step from number `first` on, as references."""
        packs = await self._run.taken(client_id, first, n_mapped, wanted_step)
        if not isinstance(packs, list):
            return packs
        return StepHandles(packs=[_handle(pack) for pack in packs])

    async def take_value(
        self, client_id: str, first: int, n_mapped: int, wanted_step: int
    ) -> StepHandles | NotYet | Ended:
        """As `take`, with the payloads themselves: they come through this process."""
        packs = await self._run.taken(client_id, first, n_mapped, wanted_step)
        if not isinstance(packs, list):
            return packs
        out: list[PackHandle] = []
        for pack in packs:
            attempt, ref = pack.attempt, pack.payload
            try:
                payload = await ref
            except RayError as error:
                self._run.lose(pack, attempt, str(error).strip().splitlines()[0])
                return StepHandles(packs=out) if out else NotYet(waits_for="a pack that was lost is made again")
            self._run.counters["payload_bytes_seen"] += sum(a.nbytes for a in payload)
            out.append(_handle(pack, payload=(payload[0], payload[1])))
        return StepHandles(packs=out)

    async def again(self, client_id: str, number: int, attempt: int, why: str) -> PackHandle | NotYet | Ended:
        """A payload could not be had: the pack is made again, once for all clients of the rank."""
        if (no := self._run.refusal(client_id)) is not None:
            return no
        member = self._run.roster.members[client_id]
        member.heard_at = self._run.now()
        pack = self._run.shelf.get(member.hello.dp_rank, number)
        if pack is None:
            return self._run.end(InternalError(f"{member.name} wants pack {number} again, which it has mapped"))
        self._run.lose(pack, attempt, f"{member.name}: {why[:300]}")
        end = self._run.now() + POLL_S
        while not pack.is_ready and self._run.ended is None and self._run.now() < end:
            await self._run.waiters.wait(pack.rank, end - self._run.now())
        if self._run.ended is not None:
            return self._run.ended
        return _handle(pack) if pack.is_ready else NotYet(waits_for=self._run.waits_for(pack.rank, number))

    async def beat(self, beat: Beat) -> Ended | None:
        """A sign of life."""
        if (no := self._run.refusal(beat.client_id)) is not None:
            return no
        member = self._run.roster.members[beat.client_id]
        self._run.roster.took(member, beat.n_mapped, beat.step, self._run.now())
        member.beat = beat
        self._run.move_on(member.hello.dp_rank)
        return None

    async def leave(self, client_id: str, why: str = "") -> None:
        """A client takes no more; with a reason, the run ends for the others."""
        member = self._run.roster.members.get(client_id)
        if member is None or member.has_left:
            return
        self._run.roster.left(member)
        if why and self._run.ended is None and self._run.stopped is None and not self._run.roster.have_all_left():
            self._run.end(
                UnavailableError(f"{member.name} ended: {why[:600]}. Resume all ranks from the last state", "RANK_LOST")
            )
        self._run.move_on(member.hello.dp_rank)

    # --- telling

    async def describe(self, sample_id: int) -> Any:
        """Where a sample comes from: (pass, manifest, line, byte offset, media)."""
        if self._run.engine is None:
            return self._run.ended or Ended.of(InternalError("the coordinator is not open"))
        try:
            return self._run.engine.describe(sample_id)
        except StokerError as error:
            return Ended.of(error)

    async def status(self) -> dict[str, Any]:
        """Who prepares what, who waits for what, and what was counted; plain values."""
        now = self._run.now()
        placed = self._run.placed
        return {
            "run": self._name,
            "pid": os.getpid(),
            "seconds": round(now - self._run.began, 1),
            "state": self._phase(),
            "ended": None if (ended := self._run.ended or self._run.stopped) is None else str(ended.error()),
            "first_step": self._run.first_step,
            "wanted_step": self._run.wanted_step,
            "choices": None if placed is None else {k: getattr(placed.choices, k) for k in placed.choices.__slots__},
            "why": {} if placed is None else dict(placed.why),
            "warnings": [] if placed is None else list(placed.warnings),
            "clients": [self._client(m, now) for m in self._run.roster.members.values()],
            "workers": [] if self._run.workforce is None else self._run.workforce.status(),
            "deaths": [] if self._run.workforce is None else list(self._run.workforce.deaths),
            "packs": {} if self._run.scheduler is None else self._run.scheduler.state(),
            "straggling": []
            if self._run.scheduler is None or self._run.workforce is None
            else telling.straggling(self._run.scheduler, self._run.workforce, now),
            "counters": dict(
                sum(
                    (c.counters for c in (self._run.scheduler, self._run.workforce) if c is not None),
                    self._run.counters.copy(),
                )
            ),
            "bytes_from_to": [{"from": a, "to": b, "bytes": n} for (a, b), n in self._run.moved.items()],
            "engine": {} if self._run.engine is None else dict(self._run.engine.report()),
        }

    def _phase(self) -> str:
        if self._run.ended is not None:
            return "ended"
        if self._run.engine is None:
            return self._run.progress()
        if self._run.placed is None:
            return f"waiting for {self._run.roster.missing()}"
        if not self._run.is_started:
            return f"waiting for the first batch of {self._run.roster.not_started()}"
        return "at the end of the data" if self._run.is_at_end else "running"

    def _client(self, member: Member, now: float) -> dict[str, Any]:
        number, since = self._run.waiting.get(member.hello.client_id, (-1, now))
        waits_for = "" if number < 0 else self._run.waits_for(member.hello.dp_rank, number)
        return telling.client(member, waits_for, now - since, now)

    async def vanish(self) -> None:
        """Ends this process; called by itself, since only a method can."""
        ray.actor.exit_actor()


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
