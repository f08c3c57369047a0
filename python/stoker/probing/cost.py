"""What a step of so many samples costs on the measured storage. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.probing.measure import Measurement, unsaturated
from stoker.probing.steps import Answers, Fetching, cold_step_s, simulate
from stoker.probing.verdict import Verdict

__all__ = ["PREFETCH", "StepCost", "step_cost"]

PREFETCH = (1, 2, 4)
"""Steps ahead that are looked at, beside the engine's own setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds and wait ratios; each pair is (without second requests, with them)."""

    concurrency: int
    """Requests that the engine keeps in flight."""
    samples: int
    objects: int
    header_reads: int
    """Headers that are read for sizes that the rows do not say."""
    cold_s: tuple[float, float]
    """One step, with nothing else under way."""
    steady_s: dict[int, tuple[float, float]]
    """By prefetch steps: a step, if the trainer took no time at all."""
    train_s: float | None
    wait_ratio: dict[int, tuple[float, float]]
    """By prefetch steps, of a trainer that takes `train_s`; empty without it."""


def step_cost(
    measurement: Measurement,
    verdict: Verdict,
    *,
    samples: int,
    train_s: float | None,
    concurrency: int,
    prefetch_steps: int,
    hedge_share: float,
) -> StepCost:
    """Simulates a run over what was measured.

    Args:
        measurement: With at least one answer.
        verdict: Of the same measurement.
        samples: Of a step.
        train_s: What the trainer takes for it.
        concurrency: Requests that the engine keeps in flight.
        prefetch_steps: Steps that the engine prepares ahead.
        hedge_share: Of second requests.
    """
    objects = measurement.objects
    per_sample = objects.media / objects.rows if objects.rows else 1.0
    unsized = 1.0 - objects.sized / objects.media if objects.media else 0.0
    n_objects = max(1, math.ceil(samples * per_sample))
    n_headers = math.ceil(n_objects * unsized) if objects.rows else 0
    phase = measurement.steady or unsaturated(measurement.phases)
    answers = Answers(first_byte_s=phase.first_byte_s, took_s=phase.took_s)
    plain, hedged = (
        Fetching(
            n_requests=n_objects + n_headers,
            concurrency=min(concurrency, 16) if objects.are_local else concurrency,
            requests_per_s=verdict.requests_per_s,
            hedge_share=share,
        )
        for share in (0.0, hedge_share)
    )
    depths = sorted({*PREFETCH, prefetch_steps})
    return StepCost(
        concurrency=concurrency,
        samples=samples,
        objects=n_objects,
        header_reads=n_headers,
        cold_s=(cold_step_s(answers, plain), cold_step_s(answers, hedged)),
        steady_s={
            depth: (
                simulate(answers, plain, prefetch_steps=depth, train_s=0.0).step_s,
                simulate(answers, hedged, prefetch_steps=depth, train_s=0.0).step_s,
            )
            for depth in depths
        },
        train_s=train_s,
        wait_ratio={}
        if train_s is None
        else {
            depth: (
                simulate(answers, plain, prefetch_steps=depth, train_s=train_s).wait_ratio,
                simulate(answers, hedged, prefetch_steps=depth, train_s=train_s).wait_ratio,
            )
            for depth in depths
        },
    )
