"""Which worker makes which pack: properties over simulated clusters that die, slow down and lose things."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import stoker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stoker.ray.scheduler import Scheduler
from stoker.ray.task import Limits, Run, Task

MB = 1 << 20


@dataclass
class Machine:
    node: str
    seconds_per_mb: float
    is_alive: bool = True
    is_sacrificial: bool = False


@dataclass
class Plan:
    """What a simulated run is made of."""

    n_ranks: int = 2
    micro_batches: int = 2
    n_steps: int = 12
    n_samples: int = 3
    pack_mb: tuple[int, ...] = (1, 3, 2)
    workers: tuple[tuple[int, float], ...] = ((0, 0.05), (1, 0.05))  # (node, seconds per MB)
    rank_nodes: tuple[int, ...] = (0, 1)
    limit_mb: int = 64
    prefetch_steps: int = 3
    step_s: float = 0.2
    killers: frozenset[tuple[int, int]] = frozenset()  # (sequence, member)
    kills: tuple[tuple[float, int], ...] = ()  # (time, which of those alive)
    node_kills: tuple[tuple[float, int], ...] = ()
    losses: tuple[tuple[float, int], ...] = ()  # (time, which of the made packs that no rank has)
    full: frozenset[int] = frozenset()  # sequences whose first finish finds the store full
    hangs: frozenset[int] = frozenset()  # sequences whose first run never ends
    slots: int = 2
    seed: int = 0


@dataclass
class Simulation:
    """A cluster with ranks that meet at the end of each step; time is a number."""

    plan: Plan
    limits: Limits
    now: float = 0.0
    taken: dict[int, list[int]] = field(default_factory=dict)
    made_with: dict[int, tuple[int, ...]] = field(default_factory=dict)
    starts: list[tuple[int, Run]] = field(default_factory=list)  # with the step wanted then
    most_bytes: int = 0
    n_deaths: int = 0
    made_by: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        p = self.plan
        self.rng = random.Random(p.seed)
        self.scheduler = Scheduler(self.limits)
        self.machines: dict[str, Machine] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.n_events = 0
        self.tasks = [
            Task(
                sequence=(step * p.micro_batches + mb) * p.n_ranks + rank,
                rank=rank,
                step=step,
                n_bytes=p.pack_mb[((step * p.micro_batches + mb) * p.n_ranks + rank) % len(p.pack_mb)] * MB,
                n_samples=p.n_samples,
            )
            for step in range(p.n_steps)
            for mb in range(p.micro_batches)
            for rank in range(p.n_ranks)
        ]
        self.n_given = 0
        self.wanted = 0
        self.made: set[int] = set()
        self.taken = {rank: [] for rank in range(p.n_ranks)}
        self.was_full: set[int] = set()
        self.hung: set[int] = set()
        self.is_training = False
        self.spawn_pending = False

    def at(self, time: float, what: Callable[[], None]) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (time, self.n_events, what))

    def spawn(self, node: int, speed: float, *, is_sacrificial: bool = False) -> None:
        name = f"w{len(self.machines)}"
        self.machines[name] = Machine(f"n{node}", speed, is_sacrificial=is_sacrificial)
        self.scheduler.add_worker(name, f"n{node}", slots=self.plan.slots, now=self.now, is_sacrificial=is_sacrificial)
        self.spawn_pending = self.spawn_pending and not is_sacrificial

    def die(self, name: str, *, is_suspicious: bool = True) -> None:
        machine = self.machines[name]
        if not machine.is_alive:
            return
        machine.is_alive = False
        self.n_deaths += 1
        self.scheduler.remove_worker(name, now=self.now, is_suspicious=is_suspicious)
        if not machine.is_sacrificial:
            node = int(machine.node[1:])
            self.at(self.now + 0.5, lambda: self.spawn(node, machine.seconds_per_mb))

    def run(self) -> None:
        p = self.plan
        for rank, node in enumerate(p.rank_nodes[: p.n_ranks]):
            self.scheduler.set_rank_nodes(rank, [f"n{node}"])
        for node, speed in p.workers:
            self.spawn(node, speed)
        for time, which in p.kills:
            self.at(time, lambda which=which: self.kill(which))  # type: ignore[misc]
        for time, node in p.node_kills:
            self.at(time, lambda node=node: self.kill_node(node))  # type: ignore[misc]
        for time, which in p.losses:
            self.at(time, lambda which=which: self.lose(which))  # type: ignore[misc]
        self.at(0.0, self.tick)
        while self.events and not self.is_over:
            self.now, _, what = heapq.heappop(self.events)
            assert self.now < 600, f"stands still: {self.scheduler.state()} {dict(self.scheduler.counters)}"
            what()
            self.advance()

    @property
    def is_over(self) -> bool:
        return self.wanted >= self.plan.n_steps

    def tick(self) -> None:
        if self.scheduler.needs_sacrificial() and not self.spawn_pending:
            self.spawn_pending = True
            self.at(self.now + 0.3, lambda: self.spawn(0, 0.05, is_sacrificial=True))
        stuck = self.scheduler.stuck_worker(self.now)
        if stuck is not None:
            self.die(stuck, is_suspicious=False)
        self.at(self.now + 0.25, self.tick)

    def kill(self, which: int) -> None:
        alive = [name for name, m in self.machines.items() if m.is_alive and not m.is_sacrificial]
        if alive:
            self.die(alive[which % len(alive)])

    def kill_node(self, node: int) -> None:
        for name, machine in self.machines.items():
            if machine.node == f"n{node}":
                self.die(name, is_suspicious=False)

    def lose(self, which: int) -> None:
        if self.made:
            sequence = sorted(self.made)[which % len(self.made)]
            self.made.remove(sequence)
            self.scheduler.lost(sequence, "its node died")

    def advance(self) -> None:
        """Everything that follows at once from what happened."""
        p, s = self.plan, self.scheduler
        while self.n_given < len(self.tasks) and self.tasks[self.n_given].step < self.wanted + p.prefetch_steps:
            s.add_task(self.tasks[self.n_given])
            self.n_given += 1
        for rank in range(p.n_ranks):
            while True:  # a rank maps its packs in order, up to the steps that it looks ahead
                number = len(self.taken[rank])
                sequence = number * p.n_ranks + rank
                if sequence not in self.made or number // p.micro_batches > self.wanted + 1:
                    break
                self.made.remove(sequence)
                self.taken[rank].append(sequence)
                s.release(sequence)
        ready = all(len(packs) >= (self.wanted + 1) * p.micro_batches for packs in self.taken.values())
        if ready and not self.is_training:
            self.is_training = True
            self.at(self.now + p.step_s, self.end_step)
        for run in s.starts(self.now):
            self.begin(run)
        self.most_bytes = max(self.most_bytes, s.n_bytes)

    def end_step(self) -> None:
        self.wanted += 1
        self.is_training = False
        self.scheduler.set_wanted_step(self.wanted, now=self.now)

    def begin(self, run: Run) -> None:
        self.starts.append((self.wanted, run))
        machine, task = self.machines[run.worker_id], run.task
        assert machine.is_alive
        members = [run.only] if run.only >= 0 else [m for m in range(task.n_samples) if m not in run.rejected]
        if any((task.sequence, member) in self.plan.killers for member in members):
            self.at(self.now + 0.01, lambda: self.die(run.worker_id))
            return
        if task.sequence in self.plan.hangs and task.sequence not in self.hung:
            self.hung.add(task.sequence)
            return
        took = 0.01 if run.only >= 0 else machine.seconds_per_mb * task.n_bytes / MB * self.rng.uniform(0.8, 1.25)
        self.at(self.now + took, lambda: self.finish(run))

    def finish(self, run: Run) -> None:
        if not self.machines[run.worker_id].is_alive:
            return
        sequence = run.task.sequence
        if sequence in self.plan.full and sequence not in self.was_full and run.only < 0:
            self.was_full.add(sequence)
            self.scheduler.store_full(run.run_id, now=self.now)
            return
        if self.scheduler.finished(run.run_id, now=self.now):
            assert sequence not in self.made
            self.made.add(sequence)
            self.made_with[sequence] = run.rejected
            self.made_by[run.worker_id] += 1


def simulate(plan: Plan, **limits: float) -> Simulation:
    base = {"store_limit": plan.limit_mb * MB, "stuck_s": 5.0}
    simulation = Simulation(plan, Limits(**(base | limits)))  # type: ignore[arg-type]
    simulation.run()
    return simulation


times = st.floats(0.0, 6.0)
plans = st.builds(
    Plan,
    n_ranks=st.integers(1, 3),
    micro_batches=st.integers(1, 3),
    n_steps=st.integers(2, 10),
    n_samples=st.integers(1, 3),
    pack_mb=st.lists(st.integers(1, 6), min_size=1, max_size=5).map(tuple),
    workers=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.02, 0.05, 0.5])), min_size=1, max_size=4).map(
        tuple
    ),
    rank_nodes=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    limit_mb=st.integers(1, 60),
    prefetch_steps=st.integers(1, 4),
    step_s=st.sampled_from([0.0, 0.1, 0.5]),
    killers=st.frozensets(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=2),
    kills=st.lists(st.tuples(times, st.integers(0, 3)), max_size=3).map(tuple),
    node_kills=st.lists(st.tuples(times, st.integers(0, 2)), max_size=1).map(tuple),
    losses=st.lists(st.tuples(times, st.integers(0, 5)), max_size=3).map(tuple),
    full=st.frozensets(st.integers(0, 12), max_size=2),
    hangs=st.just(frozenset()),
    slots=st.integers(1, 3),
    seed=st.integers(0, 9),
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_every_pack_comes_once_in_order_and_only_killers_are_given_up(plan: Plan) -> None:
    run = simulate(plan)
    killers = {k for k in plan.killers if k[0] < len(run.tasks) and k[1] < plan.n_samples}
    for rank, packs in run.taken.items():
        assert packs == [task.sequence for task in run.tasks if task.rank == rank]
    given_up = {(sequence, m) for sequence, rejected in run.made_with.items() for m in rejected}
    assert given_up == killers, "a random kill costs no sample, and what kills is named"
    # Each killer: two deaths of its pack, two of its own; others' packs on that worker are tried and found innocent.
    n_packs = len({k[0] for k in killers})
    chance = len(plan.kills) + len(plan.node_kills) * len(plan.workers)
    assert run.n_deaths <= 2 * n_packs * (plan.slots + 1) + 2 * len(killers) + 2 * chance + 4


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_stores_hold_at_most_the_limit_and_the_step_at_hand(plan: Plan) -> None:
    run = simulate(plan)
    by_step = Counter[int]()
    for task in run.tasks:
        by_step[task.step] += task.n_bytes
    # Beside the limit: the step wanted next, and packs being made a second time.
    second = max(plan.pack_mb) * MB * (1 + run.scheduler.counters["second_starts"])
    assert run.most_bytes <= plan.limit_mb * MB + max(by_step.values()) + second
    assert run.scheduler.n_bytes == sum(run.tasks[q].n_bytes for q in run.made) + sum(
        r.n_bytes for r in run.scheduler._runs.values()
    )


def test_packs_start_in_the_plans_order() -> None:
    run = simulate(Plan(workers=((0, 0.05),)))
    assert [r.task.sequence for _, r in run.starts] == sorted(r.task.sequence for _, r in run.starts)


def test_packs_are_made_on_their_ranks_node_while_it_has_room() -> None:
    run = simulate(Plan(n_steps=30, pack_mb=(2,), step_s=0.5))
    assert run.scheduler.counters["made_elsewhere"] < 0.1 * len(run.tasks), "only where the own worker was full"
    far = simulate(Plan(n_steps=30, pack_mb=(2,), step_s=0.1, rank_nodes=(0, 0)))
    assert far.scheduler.counters["made_elsewhere"] > 20, "the other node's worker helps, though it is elsewhere"


def test_a_slow_node_gets_fewer_packs_and_none_that_is_waited_for() -> None:
    plan = Plan(n_steps=60, pack_mb=(2,), workers=((0, 0.02), (0, 0.02), (1, 0.4)), rank_nodes=(0, 0), step_s=0.0)
    run = simulate(plan)
    assert run.made_by["w2"] < 0.25 * sum(run.made_by.values()) / 3
    waited_for = [r for wanted, r in run.starts if r.worker_id == "w2" and r.task.step <= wanted]
    assert len(waited_for) <= plan.slots, "until it is known to be slow"
    even = simulate(Plan(n_steps=60, pack_mb=(2,), workers=((0, 0.02),) * 3, rank_nodes=(0, 0), step_s=0.0))
    slack = 2 * 0.4 * 1.25  # until it is known to be slow
    assert run.now < 1.5 * even.now + slack, "as if there were only the other two"


def test_a_pack_that_takes_much_longer_is_started_a_second_time() -> None:
    plan = Plan(n_steps=20, pack_mb=(2,), hangs=frozenset({21}), step_s=0.1)
    run = simulate(plan)
    counters = run.scheduler.counters
    assert counters["second_starts_first"] == 1
    assert counters["second_starts"] <= 2
    assert counters["stuck_workers"] <= 1
    without = Plan(n_steps=20, pack_mb=(2,), step_s=0.1)
    assert run.now < simulate(without).now + 3


def test_second_starts_are_few_where_all_packs_differ() -> None:
    plan = Plan(n_steps=100, n_ranks=3, pack_mb=(1, 1, 1, 12), workers=((0, 0.05), (1, 0.15), (2, 0.05)), step_s=0.3)
    run = simulate(plan, straggler_min_s=0.05, straggler_ratio=1.5)
    assert run.scheduler.counters["second_starts"] <= 2 + 0.05 * (len(run.tasks) + 30)


def test_a_worker_killed_by_chance_while_a_sample_is_tried_costs_no_sample() -> None:
    class Unlucky(Simulation):
        def begin(self, run: Run) -> None:
            key = (run.task.sequence, run.only)
            if run.only >= 0 and key not in self.hurt:
                self.hurt.add(key)
                self.at(self.now + 0.001, lambda: self.die(run.worker_id))
            else:
                super().begin(run)

        hurt: set[tuple[int, int]] = set()  # noqa: RUF012

    run = Unlucky(Plan(killers=frozenset({(5, 1)})), Limits(store_limit=64 * MB))
    run.run()
    assert len(Unlucky.hurt) >= 3
    assert {q: m for q, m in run.made_with.items() if m} == {5: (1,)}


def test_a_pack_that_kills_only_as_a_whole_ends_the_run_with_the_reason() -> None:
    class OnlyTogether(Simulation):
        def begin(self, run: Run) -> None:
            if run.task.sequence == 3 and run.only < 0:
                self.at(self.now + 0.01, lambda: self.die(run.worker_id))
            else:
                super().begin(run)

    plan = Plan()
    with pytest.raises(stoker.UnavailableError, match=r"WORKER_LOST: pack 3 .*none of its samples does alone"):
        OnlyTogether(plan, Limits(store_limit=64 * MB)).run()


def test_a_payload_that_is_lost_again_and_again_ends_the_run() -> None:
    scheduler = Scheduler(Limits(store_limit=MB, max_lost=2))
    scheduler.add_worker("w", "n", slots=1, now=0.0)
    scheduler.add_task(Task(sequence=0, rank=0, step=0, n_bytes=MB, n_samples=1))
    for _ in range(2):
        (run,) = scheduler.starts(0.0)
        assert scheduler.finished(run.run_id, now=1.0)
        scheduler.lost(0, "node n died")
    (run,) = scheduler.starts(0.0)
    assert scheduler.finished(run.run_id, now=1.0)
    with pytest.raises(stoker.UnavailableError, match=r"WORKER_LOST.*node n died"):
        scheduler.lost(0, "node n died")


def test_a_full_store_makes_less_in_flight_and_then_ends_the_run() -> None:
    scheduler = Scheduler(Limits(store_limit=16 * MB, max_store_full=3))
    scheduler.add_worker("w", "n", slots=1, now=0.0)
    scheduler.add_task(Task(sequence=0, rank=0, step=0, n_bytes=MB, n_samples=1))
    for round_ in range(3):
        (run,) = scheduler.starts(10.0 * round_)
        scheduler.store_full(run.run_id, now=10.0 * round_)
        assert scheduler.starts(10.0 * round_) == [], "not at once"
    assert scheduler.store_limit < 8 * MB
    (run,) = scheduler.starts(100.0)
    with pytest.raises(stoker.ExhaustedError, match=r"STORE_FULL.*ray\.store_limit is 16777216 bytes"):
        scheduler.store_full(run.run_id, now=100.0)


def test_workers_become_more_while_ranks_wait_and_fewer_when_idle() -> None:
    scheduler = Scheduler(Limits(store_limit=64 * MB, up_after_s=2.0, down_after_s=60.0))
    scheduler.add_worker("w", "n", slots=1, now=0.0)
    for n in range(3):
        scheduler.add_task(Task(sequence=n, rank=0, step=n, n_bytes=MB, n_samples=1))
    (run,) = scheduler.starts(0.0)
    assert scheduler.n_more_workers(0.0, ranks_wait=True) == 0
    assert scheduler.n_more_workers(1.0, ranks_wait=False) == 0, "nobody waits: the need begins anew"
    assert scheduler.n_more_workers(3.0, ranks_wait=True) == 0
    assert scheduler.n_more_workers(5.0, ranks_wait=True) == 1
    scheduler.add_worker("w2", "n", slots=2, now=5.0)
    scheduler.finished(run.run_id, now=6.0)
    for later in scheduler.starts(6.0):
        scheduler.finished(later.run_id, now=7.0)
    assert scheduler.idle_worker(30.0, may_be_fewer=True) is None
    assert scheduler.idle_worker(90.0, may_be_fewer=False) is None
    assert scheduler.idle_worker(90.0, may_be_fewer=True) is not None


def test_workers_do_not_become_more_where_the_stores_are_the_limit() -> None:
    scheduler = Scheduler(Limits(store_limit=MB))
    scheduler.add_worker("w", "n", slots=2, now=0.0)
    for n in range(3):
        scheduler.add_task(Task(sequence=n, rank=0, step=n, n_bytes=MB, n_samples=1))
    assert len(scheduler.starts(0.0)) == 1
    assert scheduler.counters["held_back_by_store_limit"] == 1
    for now in (0.0, 3.0, 6.0):
        assert scheduler.n_more_workers(now, ranks_wait=True) == 0


def test_a_worker_that_no_longer_moves_holds_up_no_step() -> None:
    """Its node hangs, so all its packs straggle at one time, and at the beginning few have finished."""
    scheduler = Scheduler(Limits(store_limit=64 * MB))
    for worker in ("frozen", "well"):
        scheduler.add_worker(worker, worker, slots=8, now=0.0)
    for n in range(32):
        scheduler.add_task(Task(sequence=n, rank=n % 8, step=n // 8, n_bytes=MB, n_samples=1))
    made: set[int] = set()
    now, running = 0.0, scheduler.starts(0.0)
    assert sum(run.worker_id == "frozen" for run in running) == 8
    while len(made) < 32 and now < 60:
        now += 0.5
        for run in [run for run in running if run.worker_id == "well"]:
            running.remove(run)
            if scheduler.finished(run.run_id, now=now):
                made.add(run.task.sequence)
        step = min((n for n in range(32) if n not in made), default=32) // 8
        scheduler.set_wanted_step(step, now=now)
        frozen = [run for run in running if run.worker_id == "frozen" and not run.task.is_made]
        assert [run for run in scheduler.straggling(now) if run.worker_id == "frozen"] == (frozen if now >= 2 else [])
        running += scheduler.starts(now)
    assert len(made) == 32, f"hangs: {32 - len(made)} packs are not made after {now} s"
    assert now < 20


def test_one_nodes_store_is_not_filled_by_a_limit_over_all_of_them() -> None:
    """The only fast node would make nearly all packs; what it has no room for, Ray would write to its disk."""
    scheduler = Scheduler(Limits(store_limit=64 * MB, up_after_s=1.0))
    for name, slots in (("fast", 4), ("slow", 1)):
        scheduler.add_worker(name, name, slots=slots, now=0.0, node_limit=8 * MB)
    for n in range(60):
        scheduler.add_task(Task(sequence=n, rank=n % 2, step=n // 2, n_bytes=MB, n_samples=1))
    held: set[int] = set()
    now = 0.0
    for _ in range(40):
        now += 0.1
        for run in scheduler.starts(now):
            if run.worker_id == "fast":
                held.add(run.task.sequence)
                assert scheduler.finished(run.run_id, now=now)
        assert scheduler.n_more_workers(now, ranks_wait=True) == 0, "more of them would not help"
    assert 8 <= len(held) <= 9, "one of the step that is waited for may have been started a second time"
    wanted = max(held) // 2 + 2
    scheduler.set_wanted_step(wanted, now=now)
    steps = [run.task.step for run in scheduler.starts(now)]
    assert len(steps) >= 2, "what is waited for starts all the same"
    assert max(steps) <= wanted
