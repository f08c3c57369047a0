"""Finite and endless order: every row once, equal steps on all ranks, and an end that is one."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import DataSet, digests, engine_threads, good_data, ledger, settings_for, taken
from stoker import InvalidArgumentError, Loader, Settings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Twenty-three rows: no multiple of anything."""
    return good_data(tmp_path_factory.mktemp("data"), 23)


@pytest.fixture(scope="module")
def once(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One pass in the manifest's order."""
    return settings_for(data, tmp_path_factory.mktemp("scratch"), epochs=1, shuffle="none")


def ids_of(settings: Settings, **rank: Any) -> list[list[list[int]]]:
    """Sample ids per step and micro-batch."""
    with Loader(settings, **rank) as loader:
        return [[batch.layout.sample_ids.tolist() for batch in step] for step in loader.steps()]


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_every_row_once_and_equal_steps(once: Settings, data: DataSet, dp_size: int) -> None:
    ranks = [ids_of(once, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    assert len({len(steps) for steps in ranks}) == 1
    assert {len(step) for steps in ranks for step in steps} == {4 // dp_size}
    seen = Counter(i for steps in ranks for step in steps for ids in step for i in ids if i >= 0)
    assert seen == Counter(range(len(data.lines)))


def test_the_last_step_is_completed_by_marked_dummies(data: DataSet, once: Settings) -> None:
    with Loader(once.replace(pack={"packs_per_step": 16})) as loader:
        batches = list(loader)
    assert len(batches) % 16 == 0
    dummies = [batch for batch in batches if batch.layout.sample_ids.tolist() == [-1]]
    assert dummies, "no dummy: choose another number of packs"
    for batch in dummies:
        assert (batch.labels == -100).all()
        assert batch.counts.target_tokens == 0
        assert batch.layout.cu_seqlens.tolist() == [0, batch.counts.tokens]
        assert batch.image_patches is None
        assert batch.image_grid_thw == []
    assert sum(len(b.layout.sample_ids) for b in batches) - len(dummies) == len(data.lines)


def test_exhausted_stays_exhausted(once: Settings) -> None:
    loader = Loader(once)
    n = len(list(loader))
    assert n > 0
    assert list(loader) == []
    with pytest.raises(StopIteration):
        next(loader)
    state = loader.state_dict()
    loader.close()
    with Loader(once) as again:
        again.load_state_dict(state)
        assert list(again) == []
    with pytest.raises(StopIteration):  # the end stays the end, also of a closed loader
        next(loader)
    assert engine_threads() == []


def test_several_passes_have_every_row_as_often(data: DataSet, once: Settings) -> None:
    with Loader(once.replace(epochs=3, shuffle="rows")) as loader:
        ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
        origins = Counter(loader.describe(i).line for i in ids)
        passes = [[loader.describe(i).line for i in sorted(ids) if loader.describe(i).pass_ == p] for p in range(3)]
    assert sorted(ids) == list(range(3 * len(data.lines)))
    assert set(origins.values()) == {3}
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_an_endless_order_runs_across_passes(data: DataSet, once: Settings) -> None:
    n = len(data.lines)
    with Loader(once.replace(epochs=None, shuffle="rows")) as loader:
        seen: set[int] = set()
        while not set(range(3 * n)) <= seen:
            seen.update(next(loader).layout.sample_ids.tolist())
        assert loader.describe(3 * n - 1).pass_ == 2
        assert {loader.describe(i).line for i in range(n, 2 * n)} == set(range(1, n + 1))


def test_positions_and_boundaries_restart_in_each_sample(once: Settings) -> None:
    with Loader(once) as loader:
        for batch in loader:
            cu = batch.layout.cu_seqlens
            assert cu[0] == 0
            assert cu[-1] == batch.counts.tokens == len(batch.input_ids)
            lengths = np.diff(cu)
            assert lengths.min() > 0
            assert batch.layout.max_seqlen == lengths.max()
            for begin, end in itertools.pairwise(cu.tolist()):
                assert batch.position_ids[0, begin:end].tolist() == list(range(end - begin))
                assert batch.position_ids[1:, begin].tolist() == [0, 0, 0]
                assert batch.labels[begin] == -100
            n_patches = sum(t * h * w for t, h, w in batch.image_grid_thw)
            assert n_patches == batch.counts.patches
            assert batch.layout.image_counts.sum() == len(batch.image_grid_thw)
            assert batch.counts.target_tokens == (batch.labels != -100).sum()


def test_the_steps_target_tokens_are_those_of_all_micro_batches(once: Settings) -> None:
    with Loader(once) as loader:
        for step in loader.steps():
            assert {b.counts.step_target_tokens for b in step} == {sum(b.counts.target_tokens for b in step)}
            assert not any(b.counts.is_step_target_upper_bound for b in step)


def test_too_few_rows_for_an_endless_order(tmp_path: Path) -> None:
    tiny = good_data(tmp_path / "data", 3)
    settings = settings_for(tiny, tmp_path)
    with Loader(settings) as loader, pytest.raises(InvalidArgumentError, match="3 rows") as error:
        next(loader)
    assert error.value.code == "DATA_TOO_SMALL"
    finite = settings.replace(epochs=1)
    assert sum(len(ids) for step in ids_of(finite) for ids in step if ids != [-1]) == 3


def test_an_empty_manifest(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data", [b"", b"   "]).write()
    for changes in ({}, {"epochs": 1}):
        with Loader(settings_for(data, tmp_path, **changes)) as loader:
            with pytest.raises(InvalidArgumentError) as error:
                next(loader)
            assert error.value.code in ("NO_DATA", "DATA_TOO_SMALL")


@pytest.mark.parametrize("changes", [{}, {"epochs": 1}, {"epochs": 1, "window_samples": 4}, {"window_samples": 1000}])
@pytest.mark.parametrize(("max_fraction", "code"), [(1.0, "NO_DATA"), (0.01, "TOO_MANY_BAD")])
def test_only_bad_rows_end_with_an_error_and_a_ledger(
    tmp_path: Path, changes: dict[str, Any], max_fraction: float, code: str
) -> None:
    data = DataSet(tmp_path / "data", [b"{not json %d" % i for i in range(12)]).write()
    settings = settings_for(data, tmp_path, bad_samples={"max_fraction": max_fraction}, **changes)
    with Loader(settings) as loader:
        for _ in range(2):  # it comes again
            with pytest.raises(InvalidArgumentError) as error:
                next(loader)
            assert error.value.code == code
    lines = {entry["line"] for entry in ledger(settings)}
    assert len(lines) == (4 if changes.get("window_samples") == 4 and max_fraction < 1 else 12)
    assert lines <= set(range(1, 13))


def test_bad_rows_at_the_end_are_in_the_ledger(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 8)
    bad = [data.row(b"{broken") for _ in range(9)]
    data.write()
    settings = settings_for(
        data, tmp_path, epochs=1, shuffle="none", window_samples=8, bad_samples={"max_fraction": 1.0}
    )
    settings = settings.replace(pack={"packs_per_step": 1})
    with Loader(settings) as loader:
        ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
        assert loader.report().values["bad_samples"] == {"JSON_SYNTAX": len(bad)}
    assert sorted(ids) == list(range(8))
    assert [entry["line"] for entry in ledger(settings)] == bad


def test_a_finite_run_resumes_in_its_last_steps(once: Settings) -> None:
    whole = digests(once)
    with Loader(once) as loader:
        states = [loader.state_dict()]
        for _ in loader.steps():
            states.append(loader.state_dict())
    for i in range(len(whole) - 2, len(whole) + 1):
        with Loader(once) as loader:
            loader.load_state_dict(states[i])
            assert [[b.digest() for b in step] for step in loader.steps()] == whole[i:], f"step {i}"


def test_iterating_is_free_of_side_effects_until_next(once: Settings) -> None:
    with Loader(once) as loader:
        iter(loader)
        loader.steps()
        assert loader.report().values["pipeline"] is None
        first = taken(loader, 1)
        assert iter(loader) is iter(loader)
        assert taken(loader, 1)[0].digest() != first[0].digest()
