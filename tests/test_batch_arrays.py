"""Arrays that follow from a pack's own, made when they are asked for; against the golden samples and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import stoker.torch
from golden_samples import ALL, MODEL, SAMPLES, unrun, write_rows
from stoker.torch.inputs import EXTRAS

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stoker.Loader]:
    """All golden samples, clips among them, in one pack; one has a turn with a weight."""
    folder = tmp_path_factory.mktemp("goldens")
    settings = stoker.Settings.from_dict(
        {
            "data": [{"manifest": str(write_rows(folder, ALL))}],
            "model": str(MODEL),
            "epochs": 1,
            "shuffle": "none",
            "pack": {"tokens_per_pack": 4000, "packs_per_step": 1},
            "labels": {"weights": "deliver"},
            "index_dir": str(folder / "index"),
        }
    )
    with stoker.Loader(settings) as made:
        yield made


@pytest.fixture(scope="module")
def batch(loader: stoker.Loader) -> stoker.Batch:
    (made,) = list(loader)
    return made


def bounds(batch: stoker.Batch) -> list[tuple[int, int]]:
    begins = batch.layout.cu_seqlens_padded.tolist()
    return [(begin, begin + n) for begin, n in zip(begins[:-1], batch.layout.lengths.tolist(), strict=True)]


def test_sequence_ids_say_whose_token_it_is(batch: stoker.Batch) -> None:
    ids = batch.sequence_ids
    assert ids.dtype == np.int32
    assert len(ids) == batch.counts.tokens
    for number, (begin, end) in enumerate(bounds(batch)):
        assert (ids[begin:end] == number).all()


def test_token_types_are_the_processors(loader: stoker.Loader, batch: stoker.Batch) -> None:
    types = batch.mm_token_type_ids
    assert types.dtype == np.int32
    seen = set()
    for sample_id, (begin, end) in zip(batch.layout.sample_ids.tolist(), bounds(batch), strict=True):
        want = unrun(SAMPLES[loader.describe(sample_id).line - 1]["mm_token_type_ids"])
        assert types[begin:end].tolist()[: len(want)] == want
        seen |= set(want)
    assert seen == {0, 1, 2}


def test_shifted_labels_are_each_samples_own(batch: stoker.Batch) -> None:
    made = batch.shifted
    assert len(made.labels) == len(made.loss_mask) == batch.counts.tokens, "rolled, never cut short"
    for begin, end in bounds(batch):
        assert made.labels[begin : end - 1].tolist() == batch.labels[begin + 1 : end].tolist()
        assert made.labels[end - 1] == -100, "the last token of a sample predicts nothing of the next"
    assert made.loss_mask.dtype == np.float32
    assert made.loss_mask.tolist() == [float(label != -100) for label in made.labels]
    assert int(made.loss_mask.sum()) == batch.counts.target_tokens
    assert made.loss_weights is not None
    assert batch.loss_weights is not None
    assert made.loss_weights[:-1].tolist() == batch.loss_weights[1:].tolist()


def test_vision_metadata_is_what_the_tower_computes(batch: stoker.Batch) -> None:
    from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids

    made = batch.vision_metadata()
    for kind, grids in (("image", batch.image_grid_thw), ("video", batch.video_grid_thw)):
        assert grids
        cu_seqlens = get_vision_cu_seqlens(torch.tensor(grids))
        assert made[f"{kind}_cu_seqlens"].dtype == np.int32
        assert made[f"{kind}_cu_seqlens"].tolist() == cu_seqlens.tolist()
        assert made[f"{kind}_max_seqlen"] == int(cu_seqlens.diff().max())
        wanted = get_vision_position_ids(torch.tensor(grids), 2)
        assert torch.equal(torch.from_numpy(made[f"{kind}_position_ids"]), wanted)


def test_patch_offsets_cut_the_patches_by_image(batch: stoker.Batch) -> None:
    for offsets, patches, grids in (
        (batch.image_patch_offsets, batch.image_patches, batch.image_grid_thw),
        (batch.video_patch_offsets, batch.video_patches, batch.video_grid_thw),
    ):
        assert patches is not None
        assert np.diff(offsets).tolist() == [t * h * w for t, h, w in grids]
        assert offsets[-1] == len(patches)


@pytest.mark.parametrize("form", ["packed", "padded"])
def test_extras_stand_beside_the_inputs(tmp_path: Path, batch: stoker.Batch, loader: stoker.Loader, form: Any) -> None:
    with stoker.Loader(loader.settings.replace(index_dir=str(tmp_path))) as other:
        (made,) = list(stoker.torch.batches(other, form=form, extras=EXTRAS, pad_to_multiple_of=8))
    shape = made.inputs["input_ids"].shape
    assert set(made.extras) == set(EXTRAS)
    assert not set(made.extras) & set(made.inputs)
    assert all(array.shape == shape for array in made.extras.values())
    flat: dict[str, Any] = {
        "sequence_ids": batch.sequence_ids,
        "mm_token_type_ids": batch.mm_token_type_ids,
        "shifted_labels": batch.shifted.labels,
        "loss_mask": batch.shifted.loss_mask,
        "shifted_loss_weights": batch.shifted.loss_weights,
    }
    for name, array in flat.items():
        if form == "packed":
            assert made.extras[name][0].tolist() == array.tolist()
            continue
        behind = {"sequence_ids": -1, "shifted_labels": -100}.get(name, 0)
        for row, (begin, end) in enumerate(bounds(batch)):
            assert made.extras[name][row, : end - begin].tolist() == array[begin:end].tolist()
            assert (made.extras[name][row, end - begin :] == behind).all()


def test_an_extra_that_is_not_there_is_refused(loader: stoker.Loader) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match="extras: 'cu_seqlens' is not served; there are sequence_ids"):
        stoker.torch.batches(loader, extras=["cu_seqlens"])


def test_padded_rows_are_what_processor_and_collator_give(loader: stoker.Loader, batch: stoker.Batch) -> None:
    """The numbers are the processor's already (tests/test_torch_goldens.py); what counts is what is put behind."""
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert tokenizer.padding_side == "right"
    features = [
        {"input_ids": batch.input_ids[begin:end].tolist(), "labels": batch.labels[begin:end].tolist()}
        for begin, end in bounds(batch)
    ]
    for multiple in (1, 64):
        rows = batch.padded(pad_to_multiple_of=multiple)
        wanted = DataCollatorForSeq2Seq(tokenizer, padding=True, pad_to_multiple_of=multiple)(features)
        for name in ("input_ids", "labels", "attention_mask"):
            assert getattr(rows, name).tolist() == wanted[name].tolist(), name
    assert batch.pad_token_id == tokenizer.pad_token_id


def test_rows_of_a_pack_need_a_sound_multiple(batch: stoker.Batch) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match="pad_to_multiple_of must be at least 1"):
        batch.padded(pad_to_multiple_of=0)


def test_the_golden_samples_come_in_one_pack(loader: stoker.Loader, batch: stoker.Batch) -> None:
    assert batch.n_samples == len(ALL)
    assert batch.layout.n_pad_segments == 0
    assert batch.layout.cu_segments is batch.layout.cu_seqlens_padded
    assert batch.counts.pad_tokens == 0
