"""What a model is fed, sample by sample, against what the reference processor gave (testdata/goldens)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import stoker.torch
from golden_samples import ALL, MODEL, PACKS, SAMPLES, WITHOUT_CLIPS, cut, sha, unrun, write_rows

LONGEST = 464  # tokens, of the golden samples


@contextmanager
def opened(
    folder: Path, numbers: list[int], tokens_per_pack: int, *, rows: Sequence[dict[str, Any]] = (), **changes: Any
) -> Iterator[stoker.Loader]:
    manifest = write_rows(folder, numbers)
    with manifest.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    settings = stoker.Settings.from_dict(
        {
            "data": [{"manifest": str(manifest)}],
            "model": str(MODEL),
            "epochs": 1,
            "shuffle": "none",
            "pack": {"tokens_per_pack": tokens_per_pack, "packs_per_step": 1},
            "index_dir": str(folder / "index"),
            **changes,
        }
    )
    with stoker.Loader(settings) as loader:
        yield loader


def test_every_golden_is_in_scope() -> None:
    assert len(ALL) == 10
    assert len(WITHOUT_CLIPS) == 7
    assert len(PACKS) == 5


@pytest.mark.parametrize("tokens_per_pack", [LONGEST, 4 * LONGEST], ids=["few_in_a_pack", "all_in_one_pack"])
def test_every_sample_is_the_references(tmp_path: Path, tokens_per_pack: int) -> None:
    seen = []
    with opened(tmp_path, ALL, tokens_per_pack) as loader:
        for batch in stoker.torch.batches(loader):
            for sample in cut(loader, batch, ALL):
                seen.append(sample.number)
                want = SAMPLES[sample.number]
                n = len(sample.input_ids)
                assert sample.input_ids.tolist() == unrun(want["input_ids"])
                assert sample.labels.tolist() == unrun(want["labels"])
                assert sample.position_ids[0].tolist() == list(range(n))
                assert sample.position_ids[1:].tolist() == want["position_ids"]
                assert sample.image_grid_thw == want["image_grid_thw"]
                assert (sample.pixel_values is None) == (want["pixel_values_sha256"] is None)
                if sample.pixel_values is not None:
                    assert sha(sample.pixel_values) == want["pixel_values_sha256"]
                assert sample.video_grid_thw == want["video_grid_thw"]
                assert (sample.pixel_values_videos is None) == (want["pixel_values_videos_sha256"] is None)
                if sample.pixel_values_videos is not None:
                    assert sha(sample.pixel_values_videos) == want["pixel_values_videos_sha256"]
    assert sorted(seen) == ALL


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: "-".join(map(str, pack["samples"])))
def test_packs_are_the_references(tmp_path: Path, pack: dict[str, Any]) -> None:
    """The planner has an order of its own inside a pack; in the golden order the bytes are the reference's."""
    members = pack["samples"]
    with opened(tmp_path, members, 2 * LONGEST) as loader:
        (batch,) = list(stoker.torch.batches(loader))
        samples = sorted(cut(loader, batch, members), key=lambda sample: sample.line)
    assert [sample.number for sample in samples] == members
    assert np.cumsum([0] + [len(sample.input_ids) for sample in samples]).tolist() == pack["cu_seq_lens"]
    assert batch.layout.max_seqlen == pack["max_length"]
    in_order = sorted(samples, key=lambda sample: sample.in_pack.start)
    assert batch.layout.cu_seqlens[:-1].tolist() == [sample.in_pack.start for sample in in_order]
    assert batch.layout.cu_seqlens[-1] == batch.inputs["input_ids"].shape[1]
    assert sha(np.concatenate([s.input_ids for s in samples])) == pack["input_ids_sha256_int64"]
    assert np.concatenate([s.labels for s in samples]).tolist() == unrun(pack["labels"])
    assert all(s.labels[0] == -100 for s in samples)
    positions = np.concatenate([s.position_ids for s in samples], axis=1)[:, None]
    assert list(positions.shape) == pack["position_ids_shape"]
    assert sha(positions) == pack["position_ids_sha256_int64"]
    pixels = [s.pixel_values for s in samples if s.pixel_values is not None]
    assert sha(np.concatenate(pixels)) == pack["pixel_values_sha256"]


def test_a_row_without_an_answer_is_refused(tmp_path: Path) -> None:
    """Why golden 4 has a turn put behind it; as it stands it trains the end of a turn and nothing else."""
    row = {"messages": [{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": ""}]}
    with opened(tmp_path, [0, 9], LONGEST, rows=[row], bad_samples={"max_fraction": 0.5}) as loader:
        batches = list(loader)
    assert sum(batch.n_samples for batch in batches) == 2
    (line,) = map(json.loads, (tmp_path / "index" / "ledger.jsonl").read_text().splitlines())
    assert line["code"] == "NO_LOSS_TOKENS"
    assert line["line"] == 3


def test_counts_are_the_packs(tmp_path: Path) -> None:
    with opened(tmp_path, WITHOUT_CLIPS, LONGEST) as loader:
        steps = list(stoker.torch.batches(loader).steps())
    assert len(steps) > 2
    for step, (batch,) in enumerate(steps):
        counts = batch.counts
        assert counts.step == step
        assert counts.micro_batches_in_step == 1
        assert counts.tokens == batch.inputs["input_ids"].shape[1] == batch.layout.cu_seqlens[-1]
        assert counts.target_tokens == int((batch.inputs["labels"] != -100).sum()) == counts.step_target_tokens
        assert counts.patches == (batch.inputs["pixel_values"].shape[0] if "pixel_values" in batch.inputs else 0)


def test_inputs_hold_the_forwards_arguments_and_nothing_else(tmp_path: Path) -> None:
    always = {"input_ids", "labels", "position_ids", "use_cache"}
    with opened(tmp_path, WITHOUT_CLIPS, LONGEST) as loader:
        packs = list(stoker.torch.batches(loader))
    with opened(tmp_path, WITHOUT_CLIPS, LONGEST) as loader:
        rows = list(stoker.torch.batches(loader, form="padded"))
    kinds = set()
    for one, other in zip(packs, rows, strict=True):
        media = {"pixel_values", "image_grid_thw"} if one.counts.patches else set()
        kinds.add(bool(media))
        assert one.inputs.keys() == always | media, "absent, never empty, where there are no pictures"
        assert other.inputs.keys() == always | media | {"attention_mask"}
        assert one.inputs["use_cache"] is other.inputs["use_cache"] is False
    assert True in kinds


def test_a_text_pack_has_no_pixels(tmp_path: Path) -> None:
    with opened(tmp_path, [0], LONGEST) as loader:
        (batch,) = list(stoker.torch.batches(loader))
    assert batch.inputs.keys() == {"input_ids", "labels", "position_ids", "use_cache"}
