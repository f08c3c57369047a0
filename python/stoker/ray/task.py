"""What the scheduler works with: its limits, packs to make, and starts of them on workers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Limits", "Run", "Task"]

_MIN_WORK = 256 << 10  # a pack of texts has few bytes and takes its time all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and thresholds."""

    store_limit: int
    """Bytes of packs in object stores over the cluster that are being made or not yet mapped by their ranks."""
    prefers_local: bool = True
    """Whether a worker on the rank's own node is better than others."""
    local_steps: int = 1
    """A pack of a later step than so many beyond the one that is wanted waits for a worker on its rank's node."""
    remote_factor: float = 1.5
    """A worker elsewhere is taken when one on the rank's node has so many times its load."""
    slow_ratio: float = 2.0
    """A worker that takes so many times the median makes only packs that are not wanted before it will be ready."""
    slow_min_s: float = 0.25
    """As long as it is later than others by no more than this, it is not slow."""
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
    made_on: str = ""
    """Node in whose store it lies."""
    rejected: list[int] = field(default_factory=list)
    """Members given up, because they kill workers."""
    why_rejected: str = ""
    """For the ledger."""
    runs: dict[int, Run] = field(default_factory=dict)
    deaths: int = 0
    is_released: bool = False
    n_store_full: int = 0
    had_second: bool = False
    member: int = -1  # tried next; -1: not in careful mode
    member_deaths: int = 0
    n_careful: int = 0
    is_alone: bool = False

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
    node_id: str
    """Of the worker."""
    is_second: bool

    @property
    def n_bytes(self) -> int:
        """What it puts into a store."""
        return self.task.n_bytes if self.only < 0 else 0
