"""Which worker makes which pack, and when. Pure: no Ray, no clock of its own; every call that needs the time takes it.

Tasks come in the plan's order and start in it, so that bytes in the stores always belong to what is wanted before the
rest. Three bounds hold a start back: free places on workers, `Limits.store_limit` over the cluster, and nothing else.
Packs of the step that the slowest rank wants start whatever the stores hold, so a limit never stops a run; what the
stores hold is then at most the limit and one step.

A pack is *suspected* when its worker dies. At the second death its members are tried one by one on a worker that does
nothing else (*sacrificial*), and only a member that kills that worker twice, alone, is given up. The death of a whole
node suspects nobody.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from stoker.errors import ExhaustedError, UnavailableError

__all__ = ["Limits", "Run", "Scheduler", "Task"]

_MIN_WORK = 256 << 10  # a pack of texts has few bytes and takes its time all the same
_N_REMEMBERED = 64  # finished packs whose durations make the median
_N_FOR_MEDIAN = 4
_N_LOOKED_AT = 32  # tasks passed over for a worker that only takes what nobody waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and thresholds."""

    store_limit: int
    """Bytes of packs alive in object stores over the cluster."""
    prefers_local: bool = True
    """Whether a worker on the rank's own node is better than others."""
    remote_factor: float = 1.5
    """A worker elsewhere is taken when one on the rank's node has so many times its load."""
    slow_ratio: float = 2.0
    """A worker that takes so many times the median makes only packs that are not wanted before it will be ready."""
    straggler_ratio: float = 3.0
    """A pack that takes so many times the median is started a second time."""
    straggler_min_s: float = 1.0
    straggler_steps: int = 1
    """Only packs of steps up to so many beyond the one that is wanted."""
    straggler_share: float = 0.05
    """Second starts, of all packs finished, beside the first one."""
    stuck_s: float = 120.0
    """A worker that is so long at a pack that was made elsewhere meanwhile is ended."""
    deaths_until_careful: int = 2
    deaths_of_member: int = 2
    max_lost: int = 8
    """How often one pack's payload may be lost before the run ends."""
    max_store_full: int = 20
    """How often one pack may find its store full before the run ends."""
    store_full_wait_s: float = 1.0
    up_after_s: float = 2.0
    """Ranks wait and all places are taken for so long: more workers."""
    down_after_s: float = 60.0
    """A worker is idle for so long: one worker less."""


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A pack to make. The first group comes from the plan; the second is the scheduler's."""

    sequence: int
    rank: int
    step: int
    n_bytes: int
    n_samples: int

    attempt: int = 0
    """Times that a finished payload was lost."""
    is_made: bool = False
    rejected: list[int] = field(default_factory=list)
    """Members given up, because they kill workers."""
    runs: dict[int, Run] = field(default_factory=dict)
    _deaths: int = 0
    _is_released: bool = False
    _n_store_full: int = 0
    _had_second: bool = False
    _member: int = -1  # tried next; -1: not in careful mode
    _member_deaths: int = 0
    _n_careful: int = 0
    _is_alone: bool = False

    @property
    def work(self) -> int:
        """How long it takes, in a unit of its own."""
        return self.n_bytes + _MIN_WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of a task on a worker."""

    run_id: int
    task: Task
    worker_id: str
    only: int
    """The one member to try; -1: the whole pack."""
    rejected: tuple[int, ...]
    started_s: float
    is_second: bool

    @property
    def n_bytes(self) -> int:
        """What it puts into a store."""
        return self.task.n_bytes if self.only < 0 else 0


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
        self.held_by_ranks = 0
        """Bytes that ranks have mapped and not let go of; set by the caller."""
        self.n_bytes = 0
        """In stores or about to be: packs being made, and made ones that are not released."""
        self._rank_nodes: dict[int, frozenset[str]] = {}
        self._wanted_step = 0
        self._wanted_since: float | None = None
        self._step_s = 0.0  # smoothed, from one wanted step to the next
        self._tasks: dict[int, Task] = {}
        self._queue: list[tuple[int, Task]] = []  # heap by sequence
        self._later: list[tuple[float, int, Task]] = []  # heap by time; their stores were full
        self._careful: dict[int, Task] = {}
        self._workers: dict[str, _Worker] = {}
        self._n_free = 0  # places on ordinary workers, slow ones counted in full
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
        heapq.heappush(self._queue, (task.sequence, task))

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

    def add_worker(self, worker_id: str, node_id: str, *, slots: int, now: float, is_sacrificial: bool = False) -> None:
        """A worker that can take packs, `slots` at a time."""
        self._workers[worker_id] = _Worker(worker_id, node_id, 1 if is_sacrificial else slots, is_sacrificial, now)
        self._n_free += 0 if is_sacrificial else slots

    def remove_worker(self, worker_id: str, *, now: float, is_suspicious: bool) -> None:
        """A worker is gone; its packs are made elsewhere.

        Args:
            worker_id: May be unknown: then nothing happens.
            now: Seconds.
            is_suspicious: Whether what it was making may have killed it; not if its node died or it was retired.

        Raises:
            UnavailableError: WORKER_LOST, if a pack keeps killing workers though none of its members does alone.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        if not worker.is_sacrificial:
            self._n_free -= worker.slots - len(worker.runs)
        self.counters["workers_lost"] += 1
        for run in worker.runs.values():
            self._forget_run(run)
            task = run.task
            if task.is_made or task._is_released:
                continue
            self.counters["retried_after_death"] += 1
            if run.only >= 0:
                self._member_died(task, is_suspicious)
            elif task._is_alone:
                task._deaths += is_suspicious
                if task._deaths >= self._limits.deaths_until_careful:
                    raise UnavailableError(
                        f"pack {task.sequence} (rank {task.rank}, step {task.step}) killed {task._deaths} workers that "
                        "made nothing else, and none of its samples does alone: look at ray's log of the worker, and "
                        "whether ray.worker_memory and speed.memory_limit fit together",
                        "WORKER_LOST",
                    )
                self._careful[task.sequence] = task
            else:
                task._deaths += is_suspicious
                if task.runs:
                    continue
                if task._deaths >= self._limits.deaths_until_careful:
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
            task._member += 1
            task._member_deaths = 0
            self._go_on_being_careful(task)
            return False
        per_work = max(now - run.started_s, 1e-6) / task.work
        if worker is not None:
            worker.s_per_work = per_work if worker.s_per_work == 0 else 0.75 * worker.s_per_work + 0.25 * per_work
        self._recent.append(per_work)
        self._n_finished += 1
        if self._n_finished % 16 == 0 or len(self._recent) < 16:
            self._median = statistics.median(self._recent) if len(self._recent) >= _N_FOR_MEDIAN else 0.0
        if task.is_made or task._is_released:
            self.counters["second_starts_in_vain"] += 1
            return False
        self.counters["second_starts_first"] += run.is_second
        task.is_made = True
        task._deaths = 0
        self.n_bytes += task.n_bytes
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
        task._n_store_full += 1
        self.counters["store_full"] += 1
        if task._n_store_full > self._limits.max_store_full:
            raise ExhaustedError(
                f"pack {task.sequence} (rank {task.rank}, step {task.step}, {task.n_bytes} bytes) found no room in an "
                f"object store {task._n_store_full} times; ray.store_limit is {self._limits.store_limit} bytes: lower "
                "it, or give the nodes larger stores (ray start --object-store-memory)",
                "STORE_FULL",
            )
        self.store_limit = max(self.store_limit * 3 // 4, self._limits.store_limit // 8, task.n_bytes)
        if not task.runs:
            heapq.heappush(self._later, (now + self._limits.store_full_wait_s, task.sequence, task))

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
        self.n_bytes -= task.n_bytes
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
        task._is_released = True
        self._careful.pop(sequence, None)
        if task.is_made:
            self.n_bytes -= task.n_bytes

    # --- what to do

    def starts(self, now: float) -> list[Run]:
        """What is to start now, in order."""
        while self._later and self._later[0][0] <= now:
            task = heapq.heappop(self._later)[2]
            if not task._is_released:
                self._enqueue(task)
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
            over = run.task.is_made or run.task._is_released
            if over and now - run.started_s > self._limits.stuck_s and run.worker_id in self._workers:
                self.counters["stuck_workers"] += 1
                return run.worker_id
        return None

    def n_more_workers(self, now: float, *, ranks_wait: bool) -> int:
        """How many workers more would help; asked now and then, and 0 until the need has lasted."""
        is_short = ranks_wait and self._n_free <= 0 and bool(self._queue)
        if not is_short:
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

    def idle_worker(self, now: float) -> str | None:
        """A worker to retire: the one that is idle for longest, if that is long; or a sacrificial one without use."""
        idle = [w for w in self._workers.values() if not w.runs]
        for worker in idle:
            if worker.is_sacrificial and not self._careful:
                return worker.worker_id
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
            "waiting": len(self._queue) + len(self._later),
            "running": len(self._runs),
            "careful": len(self._careful),
            "workers": len(self._workers),
            "store_bytes": self.n_bytes,
            "held_by_ranks_bytes": self.held_by_ranks,
            "store_limit": self.store_limit,
        }

    def loads(self) -> dict[str, tuple[int, float]]:
        """(packs under way, times the median that a pack takes; 0 = not known) by worker."""
        return {w.worker_id: (len(w.runs), self._ratio(w) if w.s_per_work else 0.0) for w in self._workers.values()}

    # --- starting

    def _start_next(self, now: float, out: list[Run]) -> None:
        passed_over: list[tuple[int, Task]] = []
        while self._queue and self._n_free > 0 and len(passed_over) < _N_LOOKED_AT:
            sequence, task = self._queue[0]
            if task._is_released or task.is_made:
                heapq.heappop(self._queue)
                continue
            is_urgent = task.step <= self._wanted_step
            if not is_urgent and self.n_bytes + self.held_by_ranks + task.n_bytes > self.store_limit:
                self.counters["held_back_by_store_limit"] += 1
                break
            worker = self._best(task)
            heapq.heappop(self._queue)
            if worker is None:
                passed_over.append((sequence, task))
                self.counters["held_back_from_slow_workers"] += 1
                continue
            out.append(self._start(task, worker, now))
        for entry in passed_over:
            heapq.heappush(self._queue, entry)

    def _best(self, task: Task, *, but_not: str = "") -> _Worker | None:
        at_home = self._rank_nodes.get(task.rank, frozenset()) if self._limits.prefers_local else frozenset()
        lead_s = (task.step - self._wanted_step) * self._step_s
        has_fast = False
        best: dict[bool, tuple[float, _Worker]] = {}  # by whether it would be late because it is slow
        for worker in self._workers.values():
            if worker.is_sacrificial or worker.worker_id == but_not:
                continue
            ratio = self._ratio(worker)
            is_slow = ratio > self._limits.slow_ratio
            has_fast = has_fast or not is_slow
            if len(worker.runs) >= self._places(worker, ratio):
                continue
            score = ratio * (worker.load + task.work)
            if at_home and worker.node_id not in at_home:
                score *= self._limits.remote_factor
            is_late = is_slow and worker.s_per_work * task.work > lead_s
            if is_late not in best or score < best[is_late][0]:
                best[is_late] = (score, worker)
        if has_fast:
            best.pop(True, None)
        return min(best.values(), key=lambda entry: entry[0])[1] if best else None

    def _ratio(self, worker: _Worker) -> float:
        if self._median <= 0 or worker.s_per_work <= 0:
            return 1.0
        return worker.s_per_work / self._median

    @staticmethod
    def _places(worker: _Worker, ratio: float) -> int:
        return worker.slots if ratio <= 1.5 else max(1, int(worker.slots * 1.5 / ratio))

    def _start(self, task: Task, worker: _Worker, now: float, *, only: int = -1, is_second: bool = False) -> Run:
        run = Run(
            run_id=self._next_run,
            task=task,
            worker_id=worker.worker_id,
            only=only,
            rejected=tuple(task.rejected),
            started_s=now,
            is_second=is_second,
        )
        self._next_run += 1
        self._runs[run.run_id] = task.runs[run.run_id] = worker.runs[run.run_id] = run
        worker.load += task.work
        self.n_bytes += run.n_bytes
        if not worker.is_sacrificial:
            self._n_free -= 1
            is_local = worker.node_id in self._rank_nodes.get(task.rank, frozenset())
            self.counters["made_on_the_ranks_node" if is_local else "made_elsewhere"] += 1
        return run

    def _start_second(self, now: float, out: list[Run]) -> None:
        if self._median <= 0 or self._n_free <= 0:
            return
        if self._n_second >= 1 + self._limits.straggler_share * self._n_finished:
            return
        last_step = self._wanted_step + self._limits.straggler_steps
        for run in list(self._runs.values()):  # oldest first
            task = run.task
            took = now - run.started_s
            if took < self._limits.straggler_min_s:
                break
            if task.is_made or task._is_released or task._had_second or run.only >= 0 or task._is_alone:
                continue
            if task.step > last_step or took < self._limits.straggler_ratio * self._median * task.work:
                continue
            worker = self._best(task, but_not=run.worker_id)
            if worker is None or self._n_second >= 1 + self._limits.straggler_share * self._n_finished:
                return
            task._had_second = True
            self._n_second += 1
            self.counters["second_starts"] += 1
            out.append(self._start(task, worker, now, is_second=True))

    # --- careful mode

    def _start_careful(self, now: float, out: list[Run]) -> None:
        worker = next((w for w in self._workers.values() if w.is_sacrificial and not w.runs), None)
        if worker is None or not self._careful:
            return
        for sequence in sorted(self._careful):
            task = self._careful[sequence]
            if task.runs:
                continue
            if task._is_alone:
                del self._careful[sequence]
                self.counters["made_alone"] += 1
                out.append(self._start(task, worker, now))
            else:
                self.counters["samples_tried_alone"] += 1
                out.append(self._start(task, worker, now, only=task._member))
            return

    def _be_careful(self, task: Task) -> None:
        task._deaths = 0
        task._n_careful += 1
        self._careful[task.sequence] = task
        if task._n_careful > 1:
            task._is_alone = True
            return
        self.counters["packs_in_careful_mode"] += 1
        task._member = task._member_deaths = 0
        self._go_on_being_careful(task)

    def _member_died(self, task: Task, is_suspicious: bool) -> None:
        task._member_deaths += is_suspicious
        if task._member_deaths >= self._limits.deaths_of_member:
            task.rejected.append(task._member)
            self.counters["samples_given_up"] += 1
            task._member += 1
            task._member_deaths = 0
        self._go_on_being_careful(task)

    def _go_on_being_careful(self, task: Task) -> None:
        if task._member < task.n_samples or task._is_released:
            return
        task._member = -1
        self._careful.pop(task.sequence, None)
        self._enqueue(task)

    # --- bookkeeping

    def _enqueue(self, task: Task) -> None:
        heapq.heappush(self._queue, (task.sequence, task))

    def _forget_run(self, run: Run) -> None:
        self._runs.pop(run.run_id, None)
        run.task.runs.pop(run.run_id, None)
        self.n_bytes -= run.n_bytes

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
