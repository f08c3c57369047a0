"""Order, packs, steps and resume as properties over made-up data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker import _core

SUMMED = ("tokens", "target_tokens", "patches", "images", "videos", "cost_language", "cost_vision")
Pack = tuple[int, ...]
"""Order indices; empty for a dummy."""


def table(rng: np.random.Generator, n: int, max_tokens: int, usable_share: float = 1.0) -> np.ndarray[Any, Any]:
    """Returns int64 (n, 8) as plan_window takes it; 0 tokens marks an unusable sample."""
    tokens = rng.integers(1, max_tokens + 1, n) * (rng.random(n) < usable_share)
    patches = rng.integers(0, 500, n) * (rng.random(n) < 0.7)
    videos = (patches > 0) & (rng.random(n) < 0.2)
    images = (patches > 0) & ~videos
    columns = [np.arange(n), tokens, tokens // 2, patches, images, videos, tokens * 50, patches * patches]
    return np.stack(columns, axis=1).astype(np.int64)


class Run:
    """Drives order, plan and steps as a loader would, over rows whose lengths are a function of the row."""

    def __init__(self, *, n_rows: int, window: int, packs_per_step: int, epochs: int | None) -> None:
        rng = np.random.default_rng(n_rows)
        self.rows = table(rng, n_rows, 60, usable_share=0.9)
        self.rows[0, 1] = 7  # never a pass without a usable sample
        self.order = _core.Order.make([("content", n_rows)], seed=3, epochs=epochs)
        self.window = window
        self.packs_per_step = packs_per_step
        self.n_rows = n_rows

    def plan(self, window: int) -> tuple[Any, np.ndarray[Any, Any]] | None:
        first = window * self.window
        last = first + self.window if self.order.size is None else min(first + self.window, self.order.size)
        if first >= last:
            return None
        samples = np.stack([self.rows[self.order.at(p)[2]] for p in range(first, last)])
        samples[:, 0] = np.arange(first, last)
        return _core.plan_window(window, np.ascontiguousarray(samples), {"tokens_per_pack": 64}), samples

    def steps(
        self, dp_size: int, state: dict[str, Any] | None = None
    ) -> Iterator[tuple[dict[str, Any], list[list[Pack]]]]:
        """Yields (step, packs per rank and micro-batch)."""
        planner = _core.StepPlanner(packs_per_step=self.packs_per_step, rows_per_pass=self.n_rows, state=state)
        packs: dict[tuple[int, int], Pack] = {}
        is_finished = False
        while True:
            step = planner.next(dp_size=dp_size)
            if step is not None:
                found = [() if at is None else packs[at] for at in step["packs"]]
                yield step, [[found[i] for i in mine] for mine in step["ranks"]]
                continue
            if is_finished:
                return
            window = planner.next_window
            planned = self.plan(window)
            if planned is None:
                planner.finish()
                is_finished = True
                continue
            plan, samples = planned
            for i, members in enumerate(plan.packs):
                packs[window, i] = tuple(int(samples[m, 0]) for m in members)
            planner.add(plan)


@settings(max_examples=60, deadline=None)
@given(
    n_rows=st.integers(1, 400),
    window=st.integers(1, 120),
    packs_per_step=st.sampled_from([1, 2, 12]),
    epochs=st.integers(1, 3),
)
def test_a_finite_run_has_every_usable_sample_once(n_rows: int, window: int, packs_per_step: int, epochs: int) -> None:
    run = Run(n_rows=n_rows, window=window, packs_per_step=packs_per_step, epochs=epochs)
    seen: Counter[int] = Counter()
    for dp_size in (d for d in (1, 2, 3, 12) if packs_per_step % d == 0):
        seen.clear()
        for _, ranks in run.steps(dp_size):
            assert len(ranks) == dp_size
            assert {len(mine) for mine in ranks} == {packs_per_step // dp_size}
            for mine in ranks:
                for pack in mine:
                    seen.update(pack)
        usable = [p for p in range(run.order.size or 0) if run.rows[run.order.at(p)[2], 1] > 0]
        assert seen == Counter(usable)


@settings(max_examples=25, deadline=None)
@given(
    n_rows=st.integers(64, 200),
    window=st.integers(5, 150),
    packs_per_step=st.sampled_from([12, 64]),
    seed=st.integers(0, 1000),
    endless=st.booleans(),
)
def test_resume_with_another_dp_size_at_every_step(
    n_rows: int, window: int, packs_per_step: int, seed: int, endless: bool
) -> None:
    run = Run(n_rows=n_rows, window=window, packs_per_step=packs_per_step, epochs=None if endless else 3)
    rng = np.random.default_rng(seed)
    whole: list[list[Pack]] = []
    for step, ranks in run.steps(1):
        assert step["step"] == len(whole)
        whole.append(sorted(ranks[0]))
        if len(whole) == 15:
            break
    state: dict[str, Any] | None = None
    for i, wanted in enumerate(whole):
        step, ranks = next(run.steps(int(rng.choice([n for n in range(1, 65) if packs_per_step % n == 0])), state))
        assert step["step"] == i
        assert sorted(pack for mine in ranks for pack in mine) == wanted
        assert step["before"] == (state or step["before"])
        state = step["after"]


@settings(max_examples=100, deadline=None)
@given(n=st.integers(0, 3000), limit=st.integers(1, 2000), seed=st.integers(0, 2**31))
def test_a_plan_packs_everything_within_the_limit(n: int, limit: int, seed: int) -> None:
    samples = table(np.random.default_rng(seed), n, limit, 0.8)
    plan = _core.plan_window(0, samples, {"tokens_per_pack": limit})
    members = [m for pack in plan.packs for m in pack]
    assert sorted(members) == np.flatnonzero(samples[:, 1]).tolist()
    for pack, sums in zip(plan.packs, plan.sums, strict=True):
        assert 0 < sums["tokens"] == sums["aligned_tokens"] == sums["total_tokens"] <= limit
        assert samples[pack][:, 1:].sum(axis=0).tolist() == [sums[name] for name in SUMMED]
    assert plan.digest() == _core.plan_window(0, samples, {"tokens_per_pack": limit}).digest()


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=4), seed=st.integers(0, 2**64 - 1), shuffle=st.booleans()
)
def test_a_pass_has_every_row_once(sizes: list[int], seed: int, shuffle: bool) -> None:
    sources = [(f"content {i}", n) for i, n in enumerate(sizes)]
    if sum(sizes) == 0:
        with pytest.raises(Exception, match="NO_DATA"):
            _core.Order.make(sources, seed=seed, shuffle=shuffle)
        return
    order = _core.Order.make(sources, seed=seed, shuffle=shuffle)
    rows = [(i, row) for i, n in enumerate(sizes) for row in range(n)]
    for number in range(3):
        entries = [order.at(number * len(rows) + i) for i in range(len(rows))]
        assert {entry[0] for entry in entries} == {number}
        visited = [entry[1:] for entry in entries]
        assert sorted(visited) == rows
        assert shuffle or visited == rows


def test_too_little_data_is_said_at_once() -> None:
    with pytest.raises(Exception, match="DATA_TOO_SMALL"):  # LDR-04
        _core.check_data_size(rows_per_pass=3, packs_per_step=8, is_finite=False)
    _core.check_data_size(rows_per_pass=3, packs_per_step=8, is_finite=True)


def test_a_pass_without_a_usable_sample_ends_the_run() -> None:
    planner = _core.StepPlanner(packs_per_step=1, rows_per_pass=20)  # LDR-04
    empty = np.zeros((12, 8), dtype=np.int64)
    planner.add(_core.plan_window(0, empty, {"tokens_per_pack": 64}))
    with pytest.raises(Exception, match="NO_DATA"):
        planner.add(_core.plan_window(1, empty, {"tokens_per_pack": 64}))


def test_dp_size_must_divide() -> None:
    with pytest.raises(Exception, match="SETTINGS"):
        _core.assign_step([(1, 0)] * 8, dp_size=3)
    places = _core.assign_step([(5, 1), (1, 4), (4, 0), (2, 2), (3, 3), (6, 0)], dp_size=2)
    assert sorted(places) == [(r, m) for r in range(2) for m in range(3)]
