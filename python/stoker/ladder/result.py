"""What a rung gives: per step and rank, then summed up. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["LadderResult", "RungResult", "StepRecord", "summarise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of one rank. Times in seconds."""

    rank: int
    step: int
    """From 0, the warm-up step."""
    wait_s: float
    """Blocked on data; for the first step with the loader's start."""
    train_s: float
    barrier_s: float
    """Waiting for slower ranks."""
    step_s: float
    """From asking for this step's data to asking for the next."""
    n_samples: int
    n_tokens: int
    n_patches: int
    cpu_s: float
    """CPU time of the rank's process in this step, all threads."""
    digests: tuple[str, ...] = ()
    """Per micro-batch; empty where none was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """One rung, over its measured steps: all but the first."""

    name: str
    steps: int
    """Measured, without the first."""
    wait_ratio: float
    """Wait / step time, mean over ranks."""
    gpu_busy: float
    """Train / step time, mean over ranks."""
    data_s_per_step: float
    """Of it, what training did not hide: the wait, mean over ranks."""
    train_s_per_step: float
    barrier_s_per_step: float
    step_s: float
    first_step_s: float
    """The slowest rank's wait for its first step, start of the loader included."""
    samples_per_s: float
    """Over all ranks."""
    tokens_per_s: float
    samples_per_step: float
    """Per rank."""
    cpu_s: float
    """Of all rank processes over the measured steps."""
    cpu_s_per_step: float
    cpu_ms_per_sample: float
    digest: str | None
    """Over all micro-batches of all ranks of the first `digest_steps` steps; None where there is nothing to compare."""
    digest_steps: int
    reports: tuple[dict[str, Any], ...] = ()
    """What each rank's loader says of itself at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderResult:
    """The ladder: its rungs, lowest first, and what it was climbed on."""

    rungs: tuple[RungResult, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def digests_agree(self) -> bool:
        """Tells whether all rungs that have a digest have the same."""
        return len({rung.digest for rung in self.rungs if rung.digest is not None}) <= 1

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {**self.facts, "digests_agree": self.digests_agree, "rungs": [asdict(rung) for rung in self.rungs]}


def summarise(name: str, records: Sequence[StepRecord], *, digest_steps: int, any_rank: bool = False) -> RungResult:
    """Sums up a rung.

    Args:
        name: Of the rung.
        records: Every rank must have the same steps, at least two of them.
        digest_steps: The digest covers the first so many steps; 0: there is none.
        any_rank: The digest leaves open which rank got which micro-batch of a step, so that it is the same for any
            number of ranks that share the steps.

    Raises:
        ValueError: Ranks differ in their steps, or there is nothing to measure.
    """
    ranks = sorted({record.rank for record in records})
    by_rank = [sorted((r for r in records if r.rank == rank), key=lambda r: r.step) for rank in ranks]
    n_steps = len(by_rank[0]) if by_rank else 0
    if n_steps < 2 or any([r.step for r in steps] != list(range(n_steps)) for steps in by_rank):
        raise ValueError(f"rung {name}: needs at least two steps, the same from every rank")
    measured = [steps[1:] for steps in by_rank]
    flat = [record for steps in measured for record in steps]
    n_measured = n_steps - 1
    spans_s = [sum(r.step_s for r in steps) for steps in measured]
    n_samples = sum(r.n_samples for r in flat)
    cpu_s = sum(r.cpu_s for r in flat)
    return RungResult(
        name=name,
        steps=n_measured,
        wait_ratio=_mean([sum(r.wait_s for r in steps) / span for steps, span in zip(measured, spans_s, strict=True)]),
        gpu_busy=_mean([sum(r.train_s for r in steps) / span for steps, span in zip(measured, spans_s, strict=True)]),
        data_s_per_step=_mean([r.wait_s for r in flat]),
        train_s_per_step=_mean([r.train_s for r in flat]),
        barrier_s_per_step=_mean([r.barrier_s for r in flat]),
        step_s=_mean([r.step_s for r in flat]),
        first_step_s=max(steps[0].wait_s for steps in by_rank),
        samples_per_s=n_samples / _mean(spans_s),
        tokens_per_s=sum(r.n_tokens for r in flat) / _mean(spans_s),
        samples_per_step=n_samples / len(flat),
        cpu_s=cpu_s,
        cpu_s_per_step=cpu_s / n_measured,
        cpu_ms_per_sample=1000 * cpu_s / max(1, n_samples),
        digest=_digest(by_rank, min(digest_steps, n_steps), any_rank=any_rank) if digest_steps > 0 else None,
        digest_steps=min(digest_steps, n_steps),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _digest(by_rank: Sequence[Sequence[StepRecord]], n_steps: int, *, any_rank: bool) -> str:
    """Returns one value over (step, rank, micro-batch, digest) of the first steps."""
    total = hashlib.sha256()
    for step in range(n_steps):
        of_step = [steps[step] for steps in by_rank]
        lines = [f"{step} {r.rank} {i} {digest}" for r in of_step for i, digest in enumerate(r.digests)]
        if any_rank:
            lines = sorted(f"{step} {digest}" for r in of_step for digest in r.digests)
        for line in lines:
            total.update(f"{line}\n".encode())
    return total.hexdigest()[:16]
