"""Which worker makes which pack, and when. Pure: no Ray, no clock of its own; every call that needs the time takes it.

Tasks come in the plan's order and start in it, so that bytes in the stores always belong to what is wanted before the
rest. Three bounds hold a start back: free places on workers, `Limits.store_limit` over the cluster, and what each
node's store may hold, since Ray writes to disk what one node's has no room for. Packs of the step that the slowest rank
wants start whatever the stores hold, so a limit never stops a run; what they hold is then at most the limit and one
step.

A pack is *suspected* when its worker dies. At the second death its members are tried one by one on a worker that does
nothing else (*sacrificial*), and only a member that kills that worker twice, alone, is given up. The death of a whole
node suspects nobody.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from stoker.errors import ExhaustedError, UnavailableError
from stoker.ray.task import Limits, Run, Task
from stoker.ray.waiting import Waiting

__all__ = ["Scheduler"]

_N_REMEMBERED = 64  # finished packs whose durations make the median
_N_FOR_MEDIAN = 4
_N_LOOKED_AT = 32  # tasks passed over for a worker that only takes what nobody waits for


@dataclass(slots=True, eq=False)
class _Worker:
    worker_id: str
    node_id: str
    slots: int
    is_sacrificial: bool
    idle_since: float
    runs: dict[int, Run] = field(default_factory=dict)
    load: int = 0  # work of its runs
    s_per_work: float = 0.0  # smoothed; 0: nothing finished yet


class Scheduler:
    """Keeps who makes what. Not for several threads at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.store_limit = limits.store_limit
        self.counters: Counter[str] = Counter()
        """How often each decision was taken, by a name that says what it was."""
        self.n_bytes = 0
        """In stores or about to be: packs being made, and made ones that are not released."""
        self._held: Counter[str] = Counter()  # the same by node
        self._node_limits: dict[str, int] = {}
        self._rank_nodes: dict[int, frozenset[str]] = {}
        self._wanted_step = 0
        self._wanted_since: float | None = None
        self._step_s = 0.0  # smoothed, from one wanted step to the next
        self._tasks: dict[int, Task] = {}
        self._waiting = Waiting(limits.local_steps)
        self._careful: dict[int, Task] = {}
        self._workers: dict[str, _Worker] = {}
        self._n_free = 0  # places on ordinary workers, slow ones counted in full
        self._on_node: Counter[str] = Counter()  # ordinary workers
        self._is_short = False  # what may start has no place
        self._is_full = False  # of the latest `_best`: there is a place, but its node's store has no room
        self._would_be_late = False  # of the latest `_best`
        self._next_run = 0
        self._runs: dict[int, Run] = {}
        self._recent: deque[float] = deque(maxlen=_N_REMEMBERED)  # seconds per work
        self._median = 0.0
        self._n_finished = 0
        self._n_second = 0
        self._short_since: float | None = None

    # --- what happens

    def add_task(self, task: Task) -> None:
        """A further pack of the plan."""
        self._tasks[task.sequence] = task
        self._enqueue(task)

    def set_rank_nodes(self, rank: int, node_ids: Iterable[str]) -> None:
        """Where the clients of a rank are."""
        self._rank_nodes[rank] = frozenset(node_ids)

    def set_wanted_step(self, step: int, *, now: float) -> None:
        """The step that the slowest rank wants next."""
        if step <= self._wanted_step:
            return
        if self._wanted_since is not None:
            took = (now - self._wanted_since) / (step - self._wanted_step)
            self._step_s = took if self._step_s == 0 else 0.75 * self._step_s + 0.25 * took
        self._wanted_step, self._wanted_since = step, now
        self._waiting.set_wanted_step(step)

    def add_worker(
        self,
        worker_id: str,
        node_id: str,
        *,
        slots: int,
        now: float,
        is_sacrificial: bool = False,
        node_limit: int = 0,
    ) -> None:
        """A worker that can take packs, `slots` at a time.

        Args:
            worker_id: A new one.
            node_id: Where it is.
            slots: Packs that it makes at one time.
            now: Seconds.
            is_sacrificial: It only tries samples.
            node_limit: Bytes of packs that its node's store may hold; 0: as many as the cluster's.
        """
        if node_limit:
            self._node_limits[node_id] = node_limit
        self._workers[worker_id] = _Worker(worker_id, node_id, 1 if is_sacrificial else slots, is_sacrificial, now)
        if not is_sacrificial:
            self._n_free += slots
            self._on_node[node_id] += 1

    def remove_worker(self, worker_id: str, *, now: float, is_suspicious: bool, why: str = "") -> None:
        """A worker is gone; its packs are made elsewhere.

        Args:
            worker_id: May be unknown: then nothing happens.
            now: Seconds.
            is_suspicious: Whether what it was making may have killed it; not if its node died or it was retired.
            why: What is known of its death.

        Raises:
            UnavailableError: WORKER_LOST, if a pack keeps killing workers though none of its members does alone.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        if not worker.is_sacrificial:
            self._n_free -= worker.slots - len(worker.runs)
            self._on_node[worker.node_id] -= 1
            if not self._on_node[worker.node_id]:
                self._waiting.leave_home(worker.node_id)
        self.counters["workers_lost"] += 1
        for run in worker.runs.values():
            self._forget_run(run)
            task = run.task
            if task.is_made or task.is_released:
                continue
            self.counters["retried_after_death"] += 1
            if run.only >= 0:
                self._member_died(task, is_suspicious, why)
            elif task.is_alone:
                task.deaths += is_suspicious
                if task.deaths >= self._limits.deaths_until_careful:
                    raise UnavailableError(
                        f"pack {task.sequence} (rank {task.rank}, step {task.step}) killed {task.deaths} workers that "
                        "made nothing else, and none of its samples does alone: look at ray's log of the worker, and "
                        "whether ray.worker_memory and speed.memory_limit fit together",
                        "WORKER_LOST",
                    )
                self._careful[task.sequence] = task
            else:
                task.deaths += is_suspicious
                if task.runs:
                    continue
                if task.deaths >= self._limits.deaths_until_careful:
                    self._be_careful(task)
                else:
                    self._enqueue(task)

    def finished(self, run_id: int, *, now: float) -> bool:
        """A run came to its end.

        Returns:
            Whether its payload is the one that counts; another one is to be dropped.
        """
        run = self._end_run(run_id, now)
        if run is None:
            return False
        task, worker = run.task, self._workers.get(run.worker_id)
        if run.only >= 0:
            task.member += 1
            task.member_deaths = 0
            self._go_on_being_careful(task)
            return False
        per_work = max(now - run.started_s, 1e-6) / task.work
        if worker is not None:
            worker.s_per_work = per_work if worker.s_per_work == 0 else 0.75 * worker.s_per_work + 0.25 * per_work
        self._recent.append(per_work)
        self._n_finished += 1
        if self._n_finished % 16 == 0 or len(self._recent) < 16:
            self._median = statistics.median(self._recent) if len(self._recent) >= _N_FOR_MEDIAN else 0.0
        if task.is_made or task.is_released:
            self.counters["second_starts_in_vain"] += 1
            return False
        self.counters["second_starts_first"] += run.is_second
        task.is_made = True
        task.deaths = 0
        task.made_on = run.node_id
        self._hold(task.made_on, task.n_bytes)
        return True

    def store_full(self, run_id: int, *, now: float) -> None:
        """A finished pack found no room in its node's store: it is made again later, with less in flight.

        Raises:
            ExhaustedError: STORE_FULL, if that happened to one pack too often.
        """
        run = self._end_run(run_id, now)
        if run is None or run.task.is_made:
            return
        task = run.task
        task.n_store_full += 1
        self.counters["store_full"] += 1
        if task.n_store_full > self._limits.max_store_full:
            raise ExhaustedError(
                f"pack {task.sequence} (rank {task.rank}, step {task.step}, {task.n_bytes} bytes) found no room in an "
                f"object store {task.n_store_full} times; ray.store_limit is {self._limits.store_limit} bytes: lower "
                "it, or give the nodes larger stores (ray start --object-store-memory)",
                "STORE_FULL",
            )
        self.store_limit = max(self.store_limit * 3 // 4, self._limits.store_limit // 8, task.n_bytes)
        if not task.runs:
            self._waiting.push_later(task, now + self._limits.store_full_wait_s)

    def lost(self, sequence: int, why: str) -> None:
        """The payload of a made pack is gone: it is made again.

        Raises:
            UnavailableError: WORKER_LOST, if that happened to one pack too often.
        """
        task = self._tasks.get(sequence)
        if task is None or not task.is_made:
            return
        task.is_made = False
        task.attempt += 1
        self._hold(task.made_on, -task.n_bytes)
        self.counters["retried_after_loss"] += 1
        if task.attempt > self._limits.max_lost:
            raise UnavailableError(
                f"pack {sequence} (rank {task.rank}, step {task.step}) was made {task.attempt} times and lost each "
                f"time before its rank had it: {why}",
                "WORKER_LOST",
            )
        self._enqueue(task)

    def release(self, sequence: int) -> None:
        """A pack's rank has it, or is gone: its bytes are counted no longer, and it is never made again."""
        task = self._tasks.pop(sequence, None)
        if task is None:
            return
        task.is_released = True
        self._careful.pop(sequence, None)
        if task.is_made:
            self._hold(task.made_on, -task.n_bytes)

    # --- what to do

    def starts(self, now: float) -> list[Run]:
        """What is to start now, in order."""
        self._waiting.due(now)
        out: list[Run] = []
        self._start_careful(now, out)
        self._start_next(now, out)
        self._start_second(now, out)
        return out

    def needs_sacrificial(self) -> bool:
        """Whether a worker is to be started on which samples are tried that may have killed others."""
        return bool(self._careful) and not any(w.is_sacrificial for w in self._workers.values())

    def stuck_worker(self, now: float) -> str | None:
        """A worker to end: it is still at a pack that was made elsewhere long ago."""
        for run in self._runs.values():
            over = run.task.is_made or run.task.is_released
            if over and now - run.started_s > self._limits.stuck_s and run.worker_id in self._workers:
                self.counters["stuck_workers"] += 1
                return run.worker_id
        return None

    def n_more_workers(self, now: float, *, ranks_wait: bool) -> int:
        """How many workers more would help; asked now and then, and 0 until the need has lasted."""
        if not (ranks_wait and self._is_short):
            self._short_since = None
            return 0
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since < self._limits.up_after_s:
            return 0
        self._short_since = None
        n_more = max(1, sum(not w.is_sacrificial for w in self._workers.values()) // 4)
        self.counters["workers_up"] += n_more
        return n_more

    def idle_worker(self, now: float, *, may_be_fewer: bool) -> str | None:
        """A worker to retire: the one that is idle for longest, if that is long; or a sacrificial one without use."""
        idle = [w for w in self._workers.values() if not w.runs]
        for worker in idle:
            if worker.is_sacrificial and not self._careful:
                return worker.worker_id
        if not may_be_fewer:
            return None
        longest = min((w for w in idle if not w.is_sacrificial), key=lambda w: w.idle_since, default=None)
        if longest is None or now - longest.idle_since < self._limits.down_after_s:
            return None
        self.counters["workers_down"] += 1
        return longest.worker_id

    def runs_of(self, sequence: int) -> list[Run]:
        """Where a pack is being made now."""
        task = self._tasks.get(sequence)
        return [] if task is None else list(task.runs.values())

    def is_careful(self, sequence: int) -> bool:
        """Whether a pack's members are being tried one by one."""
        return sequence in self._careful

    def state(self) -> dict[str, int]:
        """Plain numbers for a status."""
        return {
            "waiting": len(self._waiting),
            "running": len(self._runs),
            "careful": len(self._careful),
            "workers": len(self._workers),
            "store_bytes": self.n_bytes,
            "store_limit": self.store_limit,
        }

    def straggling(self, now: float) -> list[Run]:
        """What takes so much longer than others that it is, or would be, started a second time; oldest first."""
        found = []
        for run in self._runs.values():  # oldest first
            if now - run.started_s < self._limits.straggler_min_s:
                break
            if run.only < 0 and not run.task.is_made and now - run.started_s >= self._straggling_s(run.task):
                found.append(run)
        return found

    def loads(self) -> dict[str, tuple[int, float]]:
        """(packs under way, times the median that a pack takes; 0 = not known) by worker."""
        return {w.worker_id: (len(w.runs), self._ratio(w) if w.s_per_work else 0.0) for w in self._workers.values()}

    # --- starting

    def _start_next(self, now: float, out: list[Run]) -> None:
        waiting = self._waiting
        passed_over: list[Task] = []
        self._is_short = False
        homes = waiting.homes() if self._n_free > 0 else []
        heads = [(task.sequence, home) for home in ["", *homes] if (task := waiting.head(home)) is not None]
        heapq.heapify(heads)
        while heads and len(passed_over) < _N_LOOKED_AT:
            home = heapq.heappop(heads)[1]
            task = waiting.head(home)
            if task is None or not self._has_room(task):
                continue
            self._would_be_late = self._is_full = False
            worker = self._best(task, home=home) if self._n_free > 0 else None
            if worker is not None:
                out.append(self._start(waiting.pop(home), worker, now))
            elif home:
                continue
            else:
                self._is_short = self._is_short or not self._is_full
                if not self._would_be_late:
                    continue
                self.counters["held_back_from_slow_workers"] += 1
                passed_over.append(waiting.pop())
            if (task := waiting.head(home)) is not None:
                heapq.heappush(heads, (task.sequence, home))
        for task in passed_over:
            waiting.push(task, "")

    def _has_room(self, task: Task) -> bool:
        """Whether the stores may take it."""
        if task.step <= self._wanted_step or self.n_bytes + task.n_bytes <= self.store_limit:
            return True
        self.counters["held_back_by_store_limit"] += 1
        return False

    def _best(self, task: Task, *, but_not: Collection[str] = (), home: str = "") -> _Worker | None:
        """The worker that is likely to have it first; None also where only slow ones are free, too slow for it."""
        at_home = self._rank_nodes.get(task.rank, frozenset()) if self._limits.prefers_local else frozenset()
        lead_s = (task.step - self._wanted_step) * self._step_s
        has_fast = False
        best: dict[bool, tuple[float, _Worker]] = {}  # by whether it would be late because it is slow
        for worker in self._workers.values():
            if worker.is_sacrificial or worker.worker_id in but_not or (home and worker.node_id != home):
                continue
            ratio = self._ratio(worker)
            late_s = (worker.s_per_work - self._median) * task.work
            is_slow = ratio > self._limits.slow_ratio and late_s > self._limits.slow_min_s
            has_fast = has_fast or not is_slow
            if len(worker.runs) >= self._places(worker, ratio):
                continue
            limit = self._node_limits.get(worker.node_id)
            if limit and task.step > self._wanted_step and self._held[worker.node_id] + task.n_bytes > limit:
                self._is_full = True
                continue
            score = ratio * (worker.load + task.work)
            if at_home and worker.node_id not in at_home:
                score *= self._limits.remote_factor
            is_late = is_slow and worker.s_per_work * task.work > lead_s
            if is_late not in best or score < best[is_late][0]:
                best[is_late] = (score, worker)
        self._would_be_late = has_fast and best.keys() == {True}
        if has_fast:
            best.pop(True, None)
        return min(best.values(), key=lambda entry: entry[0])[1] if best else None

    def _ratio(self, worker: _Worker) -> float:
        if self._median <= 0 or worker.s_per_work <= 0:
            return 1.0
        return worker.s_per_work / self._median

    @staticmethod
    def _places(worker: _Worker, ratio: float) -> int:
        return worker.slots if ratio <= 2 else max(1, int(worker.slots * 2 / ratio))

    def _start(self, task: Task, worker: _Worker, now: float, *, only: int = -1, is_second: bool = False) -> Run:
        run = Run(
            run_id=self._next_run,
            task=task,
            worker_id=worker.worker_id,
            only=only,
            rejected=tuple(task.rejected),
            started_s=now,
            node_id=worker.node_id,
            is_second=is_second,
        )
        self._next_run += 1
        self._runs[run.run_id] = task.runs[run.run_id] = worker.runs[run.run_id] = run
        worker.load += task.work
        self._hold(run.node_id, run.n_bytes)
        if not worker.is_sacrificial:
            self._n_free -= 1
            is_local = worker.node_id in self._rank_nodes.get(task.rank, frozenset())
            self.counters["made_on_the_ranks_node" if is_local else "made_elsewhere"] += 1
        return run

    def _start_second(self, now: float, out: list[Run]) -> None:
        if self._median <= 0 or self._n_free <= 0:
            return
        last_step = self._wanted_step + self._limits.straggler_steps
        for run in self.straggling(now):
            task = run.task
            if task.is_released or task.is_alone or task.step > last_step or run.run_id != max(task.runs):
                continue
            # What all wait for is started anew however often that was: a worker that hangs has many packs.
            is_due = task.step <= self._wanted_step and now - run.started_s >= 2 * self._straggling_s(task)
            has_share = self._n_second < 1 + self._limits.straggler_share * self._n_finished
            if not is_due and (task.had_second or not has_share):
                continue
            worker = self._best(task, but_not={r.worker_id for r in task.runs.values()})
            if worker is None:
                return
            task.had_second = True
            self._n_second += 1
            self.counters["second_starts"] += 1
            out.append(self._start(task, worker, now, is_second=True))

    def _straggling_s(self, task: Task) -> float:
        return max(self._limits.straggler_min_s, self._limits.straggler_ratio * self._median * task.work)

    # --- careful mode

    def _start_careful(self, now: float, out: list[Run]) -> None:
        worker = next((w for w in self._workers.values() if w.is_sacrificial and not w.runs), None)
        if worker is None or not self._careful:
            return
        for sequence in sorted(self._careful):
            task = self._careful[sequence]
            if task.runs:
                continue
            if task.is_alone:
                del self._careful[sequence]
                self.counters["made_alone"] += 1
                out.append(self._start(task, worker, now))
            else:
                self.counters["samples_tried_alone"] += 1
                out.append(self._start(task, worker, now, only=task.member))
            return

    def _be_careful(self, task: Task) -> None:
        task.deaths = 0
        task.n_careful += 1
        self._careful[task.sequence] = task
        if task.n_careful > 1:
            task.is_alone = True
            return
        self.counters["packs_in_careful_mode"] += 1
        task.member = task.member_deaths = 0
        self._go_on_being_careful(task)

    def _member_died(self, task: Task, is_suspicious: bool, why: str) -> None:
        task.member_deaths += is_suspicious
        if task.member_deaths >= self._limits.deaths_of_member:
            task.rejected.append(task.member)
            task.why_rejected = f"{task.member_deaths} workers died that prepared only this sample; the last: {why}"
            self.counters["samples_given_up"] += 1
            task.member += 1
            task.member_deaths = 0
        self._go_on_being_careful(task)

    def _go_on_being_careful(self, task: Task) -> None:
        if task.member < task.n_samples or task.is_released:
            return
        task.member = -1
        self._careful.pop(task.sequence, None)
        self._enqueue(task)

    # --- bookkeeping

    def _enqueue(self, task: Task) -> None:
        home = ""
        if self._limits.prefers_local:
            home = next((n for n in self._rank_nodes.get(task.rank, ()) if self._on_node[n]), "")
        self._waiting.push(task, home)

    def _forget_run(self, run: Run) -> None:
        self._runs.pop(run.run_id, None)
        run.task.runs.pop(run.run_id, None)
        self._hold(run.node_id, -run.n_bytes)

    def _hold(self, node_id: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self._held[node_id] += n_bytes

    def _end_run(self, run_id: int, now: float) -> Run | None:
        run = self._runs.get(run_id)
        if run is None:
            return None
        self._forget_run(run)
        worker = self._workers.get(run.worker_id)
        if worker is not None:
            worker.runs.pop(run_id, None)
            worker.load -= run.task.work
            worker.idle_since = now
            self._n_free += 0 if worker.is_sacrificial else 1
        return run
