"""Trouble with packs that people reported: samples lost between packs, and ranks that wait for the dearest one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from stoker import _core

Samples = np.ndarray[Any, np.dtype[np.int64]]


def steps_of(samples: Samples, *, packs_per_step: int, dp_size: int, **pack: Any) -> list[list[list[Any]]]:
    """(steps, ranks, micro-batches): the members of each pack and its sums; None for a dummy. One window, one epoch."""
    plan = _core.plan_window(0, samples, pack)
    planner = _core.StepPlanner(packs_per_step=packs_per_step, rows_per_pass=len(samples))
    planner.add(plan)
    planner.finish()
    steps = []
    while (step := planner.next(dp_size=dp_size)) is not None:
        packs = [None if at is None else (plan.packs[at[1]], plan.sums[at[1]]) for at in step["packs"]]
        steps.append([[packs[i] for i in mine] for mine in step["ranks"]])
    return steps


@pytest.mark.case(
    "PCK-06", "every sample exactly once, the last pack short; as many packs on every rank, dummies marked"
)
@pytest.mark.parametrize("form", ["packed", "token_budget", "samples"])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_leftovers_of_the_last_pack_are_kept(dp_size: int, form: str) -> None:
    lengths = [70, 60, 80, 30]
    samples = np.array([[i, n, n, 0, 0, 0, n, 0] for i, n in enumerate(lengths)], dtype=np.int64)
    rows = {"samples_per_pack": 3} if form == "samples" else {}
    steps = steps_of(samples, packs_per_step=4, dp_size=dp_size, tokens_per_pack=100, form=form, **rows)
    assert {len(mine) for step in steps for mine in step} == {4 // dp_size}
    packs = [pack for step in steps for mine in step for pack in mine if pack is not None]
    assert Counter(i for members, _ in packs for i in members) == Counter(range(4))
    for _, sums in packs:
        assert form == "samples" or sums["total_tokens"] <= 100


@pytest.mark.case("PCK-08", "max/mean below 1.03 in each phase and in their sum, at 1, 2 and 4 packs to a rank")
@pytest.mark.parametrize("per_rank", [1, 2, 4])
def test_ranks_have_equal_vision_work(per_rank: int) -> None:
    rng = np.random.default_rng(8)
    rows = []
    for i in range(4000):
        patches = 4000 if rng.random() < 0.1 else 250
        tokens = int(rng.integers(50, 400)) + patches // 4
        rows.append([i, tokens, 10, patches, 1, 0, *_core.cost_of(tokens, [patches])])
    steps = steps_of(np.array(rows, dtype=np.int64), packs_per_step=8 * per_rank, dp_size=8, tokens_per_pack=8192)
    ratios: dict[str, list[float]] = {"cost_language": [], "cost_vision": [], "sum": []}
    for step in steps[:-1]:  # the last is filled with dummies
        costs = np.array([[[pack[1]["cost_language"], pack[1]["cost_vision"]] for pack in mine] for mine in step])
        of_ranks = costs.sum(axis=1).astype(float)  # (ranks, phases)
        for name, of in zip(ratios, (of_ranks[:, 0], of_ranks[:, 1], of_ranks.sum(axis=1)), strict=True):
            ratios[name].append(of.max() / of.mean())
    assert len(steps) > 5
    for name, of_steps in ratios.items():
        assert np.mean(of_steps) < 1.03, name
