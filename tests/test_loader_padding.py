"""What fills up samples, packs and vision calls: the samples stay what they are, whatever the settings add to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from loader_data import DataSet, digests, encoded, picture, settings_for
from stoker import Batch, Loader, Settings
from stoker.settings import Pack

OPTIONS: dict[str, dict[str, Any]] = {
    "aligned": {"align_samples_to": 16},
    "multiple": {"pad_to": 64},
    "whole_aligned": {"pad_to": "tokens_per_pack", "align_samples_to": 8},
    "image": {"vision_uniform": "image", "align_samples_to": 8},
    "image+video": {"vision_uniform": "image+video", "pad_to": "tokens_per_pack"},
    "rows": {"form": "samples", "samples_per_pack": 3, "vision_uniform": "image"},
    "budget": {"form": "token_budget", "pad_to": 16},
}
N_ROWS = 24
BROKEN = {1, 2, 8, 11, 14, 20}
"""Rows whose last picture ends too early, which shows when it is decoded."""

SampleArrays = tuple[npt.NDArray[Any], ...]


def data_of(folder: Path, broken: set[int]) -> DataSet:
    """Texts, and rows with one or two pictures and their sizes; 24 rows. Every third has no picture."""
    data = DataSet(folder)
    for n in range(N_ROWS):
        images = []
        for k in range(n % 3):
            height, width = ((256, 256), (320, 256))[(n + k) % 2]
            body = encoded(picture(height, width, 10 * n + k), "JPEG")
            if n in broken and k == n % 3 - 1:
                body = body[: len(body) // 2]
            ref = data.image(f"{n}-{k}.jpg", body)
            images.append({"type": "image", "image": ref, "height": height, "width": width})
        data.chat(n, images, answer=f"{n} " + "word " * (7 * n % 40))
    return data.write()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One epoch; packs in which some of the rows are found bad late."""
    folder = tmp_path_factory.mktemp("padding")
    data = data_of(folder / "data", BROKEN)
    return settings_for(data, folder, epochs=1, bad_samples={"max_fraction": 1.0}, window_samples=N_ROWS)


@pytest.fixture(scope="module")
def alone(base: Settings) -> dict[int, SampleArrays]:
    """The samples of a run without any of it, by their place in the order."""
    with Loader(base) as loader:
        return {i: arrays for batch in loader for i, arrays in samples_of(batch) if i >= 0}


def samples_of(batch: Batch) -> Iterator[tuple[int, SampleArrays]]:
    """(sample_id, ids, labels, positions, grids, patches) of each sample, without what fills it up."""
    layout = batch.layout
    grids, offsets = batch.image_grid_thw, batch.image_patch_offsets
    images = np.cumsum([0, *layout.image_counts.tolist()])
    for i, sample_id in enumerate(layout.sample_ids.tolist()):
        at = slice(layout.cu_seqlens_padded[i], layout.cu_seqlens_padded[i] + layout.lengths[i])
        own = slice(offsets[images[i]], offsets[images[i + 1]])
        patches = np.empty((0, 3, 16, 16), np.uint8) if batch.image_patches is None else batch.image_patches[own]
        mine = np.array(grids[images[i] : images[i + 1]])
        yield sample_id, (batch.input_ids[at], batch.labels[at], batch.position_ids[:, at], mine, patches)


def check_filling(batch: Batch, pack: Pack) -> None:
    """All that must hold of a batch whatever happened to its samples."""
    layout, counts = batch.layout, batch.counts
    n_tokens = counts.tokens
    for array in (batch.input_ids, batch.labels, batch.position_ids[0], batch.sequence_ids, batch.mm_token_type_ids):
        assert len(array) == n_tokens
    assert layout.cu_seqlens.dtype == layout.cu_seqlens_padded.dtype == np.int32
    widths = np.diff(layout.cu_seqlens_padded)
    assert (widths == -(-layout.lengths // pack.align_samples_to) * pack.align_samples_to).all()
    assert layout.max_seqlen == widths.max()
    assert layout.cu_segments[-1] == n_tokens
    assert len(layout.cu_segments) == batch.n_samples + 1 + layout.n_pad_segments
    if pack.form == "packed" and pack.pad_to != "none":
        assert n_tokens == pack.tokens_per_pack if pack.pad_to == "tokens_per_pack" else n_tokens % pack.pad_to == 0
    else:
        assert layout.n_pad_segments == 0
    is_filling = batch.sequence_ids == -1
    assert is_filling.sum() == counts.pad_tokens == n_tokens - layout.cu_seqlens[-1]
    assert (batch.input_ids[is_filling] == batch.pad_token_id).all()
    assert (batch.labels[is_filling] == -100).all()
    assert not batch.shifted.loss_mask[is_filling].any()
    assert not batch.mm_token_type_ids[is_filling].any()
    assert counts.target_tokens == (batch.labels != -100).sum() == batch.shifted.loss_mask.sum()
    # What transformers takes for a border: a 0 (flash attention), or a step other than 1 (the others).
    text = batch.position_ids[0]
    assert np.flatnonzero(text == 0).tolist() == layout.cu_segments[:-1].tolist()
    assert (1 + np.flatnonzero(np.diff(text) != 1)).tolist() == layout.cu_segments[1:-1].tolist()
    if layout.n_pad_segments:
        tail = batch.position_ids[:, layout.cu_segments[-2] :]
        assert (tail == np.arange(tail.shape[1])).all()
    if pack.vision_uniform != "none":
        assert len(batch.image_grid_thw) >= 1
    if pack.vision_uniform == "image+video":
        assert len(batch.video_grid_thw) >= 1


@pytest.mark.parametrize("option", OPTIONS)
def test_samples_stay_what_they_are(
    base: Settings, alone: dict[int, SampleArrays], tmp_path: Path, option: str
) -> None:
    settings = base.replace(pack=OPTIONS[option], index_dir=str(tmp_path))
    seen: list[int] = []
    n_dummies = n_tails = 0
    with Loader(settings) as loader:
        for batch in loader:
            check_filling(batch, settings.pack)
            n_tails += batch.layout.n_pad_segments
            dummies = [i for i, (sample_id, _) in enumerate(samples_of(batch)) if sample_id == -1]
            assert dummies in ([], [batch.n_samples - 1]), "one, behind all samples"
            n_dummies += len(dummies)
            for sample_id, arrays in samples_of(batch):
                if sample_id == -1:
                    assert (arrays[1] == -100).all()
                    continue
                seen.append(sample_id)
                for one, other in zip(arrays, alone[sample_id], strict=True):
                    np.testing.assert_array_equal(one, other)
    assert sorted(seen) == sorted(alone)
    assert len(seen) == N_ROWS - len(BROKEN)
    assert n_dummies > 0
    assert (n_tails > 0) == ("pad_to" in OPTIONS[option] and option != "budget")


@pytest.mark.parametrize("option", OPTIONS)
def test_threads_and_ranks_change_nothing(base: Settings, tmp_path: Path, option: str) -> None:
    settings = base.replace(pack=OPTIONS[option], index_dir=str(tmp_path))
    one = digests(settings.replace(speed={"cpu_threads": 4, "prefetch_steps": 0}))
    assert one == digests(settings.replace(speed={"cpu_threads": 1, "prefetch_steps": 3}))
    ranks = [digests(settings, dp_rank=rank, dp_size=2) for rank in range(2)]
    assert [sorted(step) for step in one] == [sorted(a + b) for a, b in zip(*ranks, strict=True)]
    assert any(len(set(step)) > 1 for step in one)


def test_defaults_add_nothing(base: Settings, tmp_path: Path) -> None:
    with Loader(base.replace(index_dir=str(tmp_path))) as loader:
        for batch in loader:
            check_filling(batch, base.pack)
            assert batch.counts.pad_tokens == 0
            assert batch.layout.cu_segments.tolist() == batch.layout.cu_seqlens.tolist()


def test_a_finite_runs_last_step_is_completed_in_full_width(base: Settings, tmp_path: Path) -> None:
    pack = {"pad_to": "tokens_per_pack", "vision_uniform": "image", "packs_per_step": 64}
    settings = base.replace(pack=pack, index_dir=str(tmp_path))
    with Loader(settings) as loader:
        (step,) = loader.steps()
    empty = [batch for batch in step if batch.layout.sample_ids.tolist() == [-1]]
    assert len(empty) > 20
    for batch in empty:
        check_filling(batch, settings.pack)
        assert batch.image_grid_thw == [(1, 2, 2)]
        assert batch.counts.target_tokens == 0


def test_settings_that_plan_for_rows_give_rows(base: Settings, tmp_path: Path) -> None:
    """Of the width that was planned: B times L never passes the budget."""
    pytest.importorskip("torch")
    import stoker.torch

    pack = {"form": "token_budget", "tokens_per_pack": 800, "pad_to": 32}
    n_rows, n_real, n_all = [], 0, 0
    with Loader(base.replace(pack=pack, index_dir=str(tmp_path))) as loader:
        for batch in stoker.torch.batches(loader):
            mask = batch.inputs["attention_mask"]
            assert mask.shape == batch.inputs["input_ids"].shape
            assert mask.sum(1).tolist() == batch.layout.lengths.tolist()
            assert mask.shape[1] == -(-max(batch.layout.lengths.tolist()) // 32) * 32
            assert mask.numel() <= 800
            n_rows.append(len(mask))
            n_real, n_all = n_real + int(mask.sum()), n_all + mask.numel()
        fill = loader.report().values["fill"]
    assert max(n_rows) > 1
    assert fill == pytest.approx(n_real / n_all)


# --- counts over ranks and micro-batches


def test_a_steps_targets_are_counted_over_ranks_and_micro_batches(tmp_path: Path) -> None:
    """Without late bad samples exactly; with them what was planned, and the packs that lost some say so."""
    sums: dict[bool, list[tuple[int, int]]] = {}
    for is_hurt in (False, True):
        data = data_of(tmp_path / f"data{is_hurt}", BROKEN if is_hurt else set())
        changes: dict[str, Any] = {"epochs": 1, "bad_samples": {"max_fraction": 1.0}, "window_samples": N_ROWS}
        settings = settings_for(data, tmp_path / f"scratch{is_hurt}", **changes)
        ranks: list[list[list[Batch]]] = []
        for rank in range(2):
            with Loader(settings, dp_rank=rank, dp_size=2) as loader:
                ranks.append(list(loader.steps()))
        assert len(ranks[0]) == len(ranks[1]) > 1
        for number, steps in enumerate(zip(*ranks, strict=True)):
            batches = [batch for step in steps for batch in step]
            assert [b.counts.micro_batch for b in batches] == [0, 1, 0, 1]
            assert {b.counts.micro_batches_in_step for b in batches} == {2}
            assert {b.counts.step for b in batches} == {number}
            (planned,) = {b.counts.step_target_tokens for b in batches}
            total = sum(b.counts.target_tokens for b in batches)
            assert (planned == total) == (not any(b.counts.is_step_target_upper_bound for b in batches))
            assert planned >= total
            sums.setdefault(is_hurt, []).append((planned, total))
    assert [planned for planned, _ in sums[True]] == [total for _, total in sums[False]]
    assert sum(total for _, total in sums[True]) < sum(total for _, total in sums[False])
