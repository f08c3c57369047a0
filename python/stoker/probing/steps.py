"""What a step costs: the steps of a run, simulated over measured times. Pure.

A step needs `n_requests` answers, and waits for the last of them. Requests start in the order of the plan, at most
`concurrency` at a time and `requests_per_s`; those of a step start as soon as the trainer asks for the step that stands
`prefetch_steps` before it. This is what the loader does; decoding costs nothing here.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.probing.quantiles import quantile

__all__ = ["Answers", "Fetching", "StepTimes", "cold_step_s", "simulate"]

_MOST_DRAWS = 100_000
_LEAST_STEPS = 12
_MOST_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Measured answers to draw from: seconds to the first byte and to the last, of the same request at each place."""

    first_byte_s: Sequence[float]
    took_s: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How a step is fetched."""

    n_requests: int
    concurrency: int
    requests_per_s: float | None = None
    """What the storage answers at most, or one link carries; None: nothing was found that limits it."""
    hedge_share: float = 0.0
    """At most this share of requests is sent a second time, with a time of its own, when the first byte is later than
    all but half of that share of all first bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What came out."""

    wait_s: float
    """The trainer's mean wait for a step, behind the first ones."""
    step_s: float
    """Wait and training time."""

    @property
    def wait_ratio(self) -> float:
        """Share of the time in which the trainer waits."""
        return self.wait_s / self.step_s if self.step_s > 0 else 0.0


class _Requests:
    """Times of requests, one after another."""

    def __init__(self, answers: Answers, fetching: Fetching, seed: int) -> None:
        self._first = np.asarray(answers.first_byte_s, dtype=np.float64)
        self._took = np.asarray(answers.took_s, dtype=np.float64)
        self._rng = np.random.default_rng(seed)
        self._fetching = fetching
        self._late_s = float("inf")
        if fetching.hedge_share > 0:
            self._late_s = quantile(sorted(answers.first_byte_s), 1 - min(fetching.hedge_share, 1.0) / 2)
        self._free = [0.0] * fetching.concurrency
        self._last_start = float("-inf")
        self._n_seen = self._n_hedged = 0

    def step_ready(self, released_s: float) -> float:
        """When the last answer of a further step is there, whose requests may start at `released_s`."""
        n = self._fetching.n_requests
        first, took = self._draws(n)
        apart_s = 1 / self._fetching.requests_per_s if self._fetching.requests_per_s else 0.0
        ready = released_s
        for k in range(n):
            start = max(self._free[0], released_s, self._last_start + apart_s)
            self._last_start = start
            end = start + self._time_of(first[k], took[k])
            heapq.heapreplace(self._free, end)
            ready = max(ready, end)
        return ready

    def _draws(self, n: int) -> tuple[list[float], list[float]]:
        at = self._rng.integers(0, len(self._took), n)
        return self._first[at].tolist(), self._took[at].tolist()

    def _time_of(self, first_s: float, took_s: float) -> float:
        self._n_seen += 1
        if first_s <= self._late_s or self._n_hedged + 1 > self._fetching.hedge_share * self._n_seen:
            return took_s
        self._n_hedged += 1
        return min(took_s, self._late_s + self._draws(1)[1][0])


def simulate(answers: Answers, fetching: Fetching, *, prefetch_steps: int, train_s: float, seed: int = 0) -> StepTimes:
    """Runs a trainer that takes `train_s` for a step; 0: as fast as the data comes.

    Raises:
        ValueError: Without a single answer to draw from.
    """
    if not answers.took_s:
        raise ValueError("there is nothing to draw from")
    n_steps = min(max(_MOST_DRAWS // fetching.n_requests, _LEAST_STEPS), _MOST_STEPS)
    n_first = min(prefetch_steps + 2, n_steps // 2)
    requests = _Requests(answers, fetching, seed)
    wanted = [0.0]  # when the trainer asks for a step
    waited = 0.0
    for step in range(n_steps):
        ready = requests.step_ready(wanted[max(0, step - prefetch_steps)])
        begins = max(wanted[step], ready)
        if step >= n_first:
            waited += begins - wanted[step]
        wanted.append(begins + train_s)
    n_measured = n_steps - n_first
    return StepTimes(wait_s=waited / n_measured, step_s=(wanted[n_steps] - wanted[n_first]) / n_measured)


def cold_step_s(answers: Answers, fetching: Fetching, *, seed: int = 0) -> float:
    """Mean time to fetch one step with nothing else under way: the largest of its requests' ends."""
    return simulate(answers, fetching, prefetch_steps=0, train_s=0.0, seed=seed).step_s
