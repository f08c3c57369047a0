"""Climbs the ladder: one rung after another, on the same data and the same emulated ranks."""

from __future__ import annotations

import functools
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from stoker.ladder.emulation import RankModel
from stoker.ladder.engine import Engine
from stoker.ladder.ranks import RankJob, run_ranks
from stoker.ladder.result import LadderResult, RungResult, StepRecord, summarise
from stoker.ladder.takers import TakerFactory

__all__ = ["RUNGS", "Listener", "Plan", "Rung", "climb", "rungs_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One way to feed the ranks."""

    name: str
    about: str
    steps: int
    """Measured ones, by default: few where each takes long."""
    speed: Mapping[str, Any] | None
    """Changes of the engine's speed settings; None: not the engine."""


RUNGS = {
    rung.name: rung
    for rung in (
        Rung(
            name="python-serial",
            about="the loop people start with: one request, one Pillow decode, one tokenizer call after another",
            steps=2,
            speed=None,
        ),
        Rung(
            name="serial",
            about="the engine with one of everything: one request in flight, one CPU thread, nothing ahead of use",
            steps=3,
            speed={"cpu_threads": 1, "fetch_concurrency": 1, "prefetch_steps": 0},
        ),
        Rung(
            name="concurrent",
            about="many requests in flight and all cores, but a step is begun only when it is asked for",
            steps=6,
            speed={"prefetch_steps": 0},
        ),
        Rung(
            name="prefetch",
            about="the default settings: the next steps are made ready while the ranks train",
            steps=12,
            speed={},
        ),
    )
}
"""Lowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be climbed."""

    settings: Any
    """A `stoker.Settings`: decides the data, and the speed of the highest rung."""
    python_serial: Any
    """A `PythonSerial`, or another `TakerFactory` with ``samples_per_step``: the same data without the engine."""
    engine: Callable[..., TakerFactory] = Engine
    """Makes the engine's takers from ``settings``."""
    rungs: tuple[str, ...] = tuple(RUNGS)
    steps: int | None = None
    """Measured steps of every rung; None: each rung's own number."""
    n_ranks: int = 2
    model: RankModel = field(default_factory=RankModel)
    step_timeout_s: float = 180.0
    facts: Callable[[], Mapping[str, Any]] = dict
    """Asked at the end, for the result: what the data and the storage are, and what they saw."""

    def __post_init__(self) -> None:
        rungs_from(self.rungs)
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"at least one step must be measured, not {self.steps}")

    def steps_of(self, name: str) -> int:
        """Returns the number of steps of a rung, the first, which is not measured, included."""
        return 1 + (self.steps or RUNGS[name].steps)

    def about(self, name: str) -> str:
        """Returns what a rung is, in words."""
        return RUNGS[name].about

    def ranks_of(self, name: str) -> int:
        """Returns the number of ranks that a rung feeds."""
        return self.n_ranks

    @property
    def in_ladder_order(self) -> tuple[str, ...]:
        """The rungs, lowest first."""
        return tuple(name for name in RUNGS if name in self.rungs)

    @property
    def in_running_order(self) -> tuple[str, ...]:
        """The rungs as they are run: python-serial second, because it takes as many samples as the engine does."""
        order = list(self.in_ladder_order)
        if len(order) > 1 and RUNGS[order[0]].speed is None:
            order[0], order[1] = order[1], order[0]
        return tuple(order)

    @property
    def digest_steps(self) -> int:
        """How many steps, from the first, all engine rungs run and have compared."""
        return min((self.steps_of(name) for name in self.rungs if RUNGS[name].speed is not None), default=0)


class Listener(Protocol):
    """Is told how the climb goes, in the climber's thread."""

    def rung_started(self, name: str) -> None:
        """A rung begins."""

    def step_done(self, name: str, record: StepRecord) -> None:
        """One rank has finished a step."""

    def rung_done(self, result: RungResult) -> None:
        """A rung has its result."""


def climb(plan: Plan, listener: Listener) -> LadderResult:
    """Runs all rungs of a plan.

    Raises:
        RankFailedError: A rank of some rung failed; nothing is left running.
    """
    results: dict[str, RungResult] = {}
    samples_per_step: int | None = None
    with tempfile.TemporaryDirectory(prefix="stoker-ladder-") as scratch:
        for name in plan.in_running_order:
            listener.rung_started(name)
            result = _run(plan, name, Path(scratch), samples_per_step, functools.partial(listener.step_done, name))
            results[name] = result
            listener.rung_done(result)
            if RUNGS[name].speed is not None:
                samples_per_step = round(result.samples_per_step)
    return LadderResult(rungs=tuple(results[name] for name in plan.in_ladder_order), facts=_facts(plan))


def _run(
    plan: Plan, name: str, scratch: Path, samples_per_step: int | None, on_step: Callable[[StepRecord], None]
) -> RungResult:
    rung = RUNGS[name]
    is_engine = rung.speed is not None
    if is_engine:
        # An index of its own: no rung may profit from what another has measured.
        settings = plan.settings.replace(speed=dict(rung.speed or {}), index_dir=str(scratch / name))
        make_taker = plan.engine(settings=settings)
    else:
        make_taker = plan.python_serial
        if samples_per_step is not None:
            make_taker = replace(make_taker, samples_per_step=samples_per_step)
    digest_steps = plan.digest_steps if is_engine else 0
    job = RankJob(
        make_taker=make_taker,
        model=plan.model,
        n_steps=plan.steps_of(name),
        digest_steps=digest_steps,
        step_timeout_s=plan.step_timeout_s,
    )
    output = run_ranks(job, n_ranks=plan.n_ranks, on_step=on_step)
    reports = tuple(output.reports[rank] for rank in sorted(output.reports))
    return replace(summarise(name, output.records, digest_steps=digest_steps), reports=reports)


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "ranks": plan.n_ranks,
        "rank_model": asdict(plan.model),
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "architecture": platform.machine(),
            "python": platform.python_version(),
        },
        **plan.facts(),
    }


def rungs_from(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the rungs that comma-separated lists name; all if they name none.

    Raises:
        ValueError: There is no such rung.
    """
    found = tuple(name.strip() for given in names for name in given.split(",") if name.strip())
    for name in found:
        if name not in RUNGS:
            raise ValueError(f"there is no rung {name!r}; there are {', '.join(RUNGS)}")
    return found or tuple(RUNGS)
