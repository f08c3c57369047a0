"""Cases PCK-01 to PCK-05 and PCK-07: what a packed batch looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
from loader_data import DataSet, good_data, settings_for, small_model
from stoker import Batch, Loader, Settings, _core, derived

Cases = dict[str, tuple[Path, dict[str, Any]]]
IMAGE_PAD, VIDEO_PAD = 151655, 151656


@pytest.fixture(scope="module")
def cases(case_files: Path) -> Cases:
    """Each packing case's file, and what is wanted of it."""
    listed = json.loads((case_files / "manifest.json").read_text())["cases"]
    found = {
        case["id"]: (case_files / case["file"], {**case["expect"], "config": case.get("config")})
        for case in listed
        if case["id"].startswith("PCK")
    }
    assert {"PCK-01", "PCK-02", "PCK-03", "PCK-04", "PCK-07"} <= found.keys()
    return found


def texts(folder: Path, n_rows: int) -> DataSet:
    """Rows without pictures, of different lengths."""
    data = DataSet(folder)
    for n in range(n_rows):
        data.chat(n, [], answer="word " * (n + 1))
    return data.write()


def lengths_of(data: DataSet, settings: Settings) -> list[int]:
    """Tokens of each row by itself."""
    rows = [json.loads(line) for line in data.lines]
    return [len(stoker.prepare(row, settings, media_root=str(data.folder)).input_ids) for row in rows]


def in_one_pack(data: DataSet | str, scratch: Path, **pack: Any) -> tuple[Batch, Settings]:
    settings = settings_for(
        data, scratch, epochs=1, shuffle="none", pack={"tokens_per_pack": 4096, "packs_per_step": 1, **pack}
    )
    with Loader(settings) as loader:
        (batch,) = list(loader)
    return batch, settings


@pytest.mark.case("PCK-01", "cu_seqlens are sums of the samples' lengths; text positions begin anew with each")
def test_borders_of_packed_samples(tmp_path: Path, cases: Cases) -> None:
    # The case's own lengths, through what makes sequence ids; then real rows.
    wanted = cases["PCK-01"][1]
    cu_seqlens = np.array(wanted["cu_seqlens"], np.int32)
    ids = derived.sequence_ids(cu_seqlens[:-1], np.diff(cu_seqlens), cu_seqlens[-1] + wanted["pad"])
    assert (ids + 1).tolist() == wanted["segment_ids"]
    data = texts(tmp_path / "data", 3)
    batch, settings = in_one_pack(data, tmp_path)
    lengths = lengths_of(data, settings)
    assert batch.layout.cu_seqlens.tolist() == np.cumsum([0, *lengths]).tolist()
    assert batch.layout.cu_seqlens.dtype == np.int32
    assert batch.layout.max_seqlen == max(lengths)
    assert batch.position_ids[0].tolist() == [i for n in lengths for i in range(n)]
    assert batch.layout.n_pad_segments == 0


@pytest.mark.case("PCK-02", "every axis begins at 0 in each sample; (4, T) with the text row first")
def test_positions_of_packed_pictures(tmp_path: Path, cases: Cases) -> None:
    path, wanted = cases["PCK-02"]
    rows: list[list[int]] = [[], [], [], []]
    for before, (t, h, w), after in json.loads(path.read_text())["samples"]:
        ids = [1] * before + [IMAGE_PAD] + [2] * after
        made = _core.media_positions(
            family="Qwen3-VL",
            reference="stoker",
            ids=ids,
            image_pad=IMAGE_PAD,
            video_pad=VIDEO_PAD,
            merge=2,
            image_grids=[(t, 2 * h, 2 * w)],
            video_grids=[],
            seconds_per_grid=[],
            tokens_per_second=1.0,
        )
        rows = [a + b for a, b in zip(rows, made, strict=True)]
    assert rows[1:] == wanted["position_ids"]
    assert np.flatnonzero(np.array(rows[0]) == 0).tolist() == wanted["cu_seqlens"][:-1]

    data = good_data(tmp_path / "data", 6)
    batch, settings = in_one_pack(data, tmp_path)
    assert batch.position_ids.shape == (4, batch.counts.tokens)
    assert len(batch.image_grid_thw) > 1
    begins = batch.layout.cu_seqlens.tolist()
    for line, begin, end in zip(data.lines, begins[:-1], begins[1:], strict=True):
        own = stoker.prepare(json.loads(line), settings, media_root=str(data.folder)).position_ids
        np.testing.assert_array_equal(batch.position_ids[:, begin:end], own)
        assert (batch.position_ids[:, begin] == 0).all()


@pytest.mark.case("PCK-03", "T and every array are padded alike; the tail is one segment, never a sample")
def test_a_pack_padded_to_a_multiple(tmp_path: Path, cases: Cases) -> None:
    multiple = json.loads(cases["PCK-03"][0].read_text())["pad_to_multiple_of"]
    data = texts(tmp_path / "data", 2)
    batch, settings = in_one_pack(data, tmp_path, pad_to=multiple)
    lengths = lengths_of(data, settings)
    n_tokens, n_real = batch.counts.tokens, sum(lengths)
    assert n_tokens == -(-n_real // multiple) * multiple > n_real, "the case is one with a tail"
    per_token = [batch.input_ids, batch.labels, *batch.position_ids, batch.sequence_ids, *batch.shifted[:2]]
    assert {len(array) for array in per_token} == {n_tokens}
    assert (batch.labels[n_real:] == -100).all()
    assert not batch.shifted.loss_mask[n_real - 1 :].any()
    assert (batch.position_ids[:, n_real:] == np.arange(n_tokens - n_real)).all()
    assert batch.n_samples == len(batch.layout.sample_ids) == 2
    assert batch.layout.cu_seqlens.tolist() == np.cumsum([0, *lengths]).tolist()
    assert batch.layout.n_pad_segments == 1
    assert batch.layout.cu_segments.tolist() == [*np.cumsum([0, *lengths]).tolist(), n_tokens]
    assert batch.counts.target_tokens == sum(
        int((stoker.prepare(json.loads(line), settings).labels != -100).sum()) for line in data.lines
    )


@pytest.mark.case("PCK-04", "one pack is one row; each micro-batch has its own cu_seqlens (int32) and max_seqlen")
def test_every_micro_batch_has_its_borders(tmp_path: Path, cases: Cases) -> None:
    assert cases["PCK-04"][1]["cu_seqlens_rows"] == [[0, 3, 5], [0, 4, 5]], "which is what each pack has"
    data = texts(tmp_path / "data", 12)
    settings = settings_for(data, tmp_path, epochs=1, pack={"tokens_per_pack": 160, "packs_per_step": 2})
    lengths = lengths_of(data, settings)
    seen: list[int] = []
    with Loader(settings) as loader:
        for step in loader.steps():
            assert len(step) == 2
            for batch in step:
                own = [lengths[loader.describe(i).line - 1] for i in batch.layout.sample_ids.tolist() if i >= 0]
                if own:
                    assert batch.layout.cu_seqlens.tolist() == np.cumsum([0, *own]).tolist()
                    assert batch.layout.max_seqlen == max(own)
                assert batch.layout.cu_seqlens.dtype == np.int32
                assert batch.layout.cu_seqlens[-1] == len(batch.input_ids)
                seen += own
    assert sorted(seen) == sorted(lengths)


@pytest.mark.case("PCK-05", "`pack.vision_uniform`: every micro-batch of every rank has a picture, or a marked dummy")
def test_every_rank_calls_the_vision_tower(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(32):
        data.chat(n, [data.good_image(n)] if n % 8 == 0 else [], answer="word " * (30 + n % 7))
    settings = settings_for(data.write(), tmp_path, epochs=1, window_samples=32)
    calls: dict[str, list[list[bool]]] = {}
    marked = 0
    for uniform in ("none", "image"):
        for rank in range(2):
            run = settings.replace(pack={"vision_uniform": uniform}, index_dir=str(tmp_path / uniform))
            with Loader(run, dp_rank=rank, dp_size=2) as loader:
                batches = list(loader)
            calls.setdefault(uniform, []).append([batch.counts.patches > 0 for batch in batches])
            for batch in batches:
                assert batch.counts.patches == sum(h * w for _, h, w in batch.image_grid_thw)
                is_dummy = batch.layout.sample_ids == -1
                marked += int(batch.layout.image_counts[is_dummy].sum())
    assert calls["none"][0] != calls["none"][1], "without it ranks would wait for each other"
    assert all(all(rank) for rank in calls["image"])
    assert len(calls["image"][0]) == len(calls["image"][1])
    assert marked > 0


@pytest.mark.case("PCK-07", "image_counts 2, 0, 3; all grids in the rows' order, offsets of each picture's patches")
def test_pictures_of_all_samples(tmp_path: Path, cases: Cases) -> None:
    path, wanted = cases["PCK-07"]
    folder = small_model(tmp_path / "model")
    asked = wanted["config"]
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        config = json.loads((folder / name).read_text())
        config["patch_size"], config["merge_size"] = asked["patch_size"], asked["merge_size"]
        config["size"] = {"shortest_edge": asked["min_pixels"], "longest_edge": asked["max_pixels"]}
        (folder / name).write_text(json.dumps(config))
    whole = json.loads((folder / "config.json").read_text())
    whole["vision_config"]["patch_size"] = asked["patch_size"]
    (folder / "config.json").write_text(json.dumps(whole))
    batch, _ = in_one_pack(str(path), tmp_path)
    assert batch.layout.image_counts.tolist() == wanted["images_per_sample"]
    assert batch.image_grid_thw == [tuple(grid) for grid in wanted["image_grid_thw"]]
    assert batch.image_patches is not None
    assert len(batch.image_patches) == wanted["patch_rows"] == batch.image_patch_offsets[-1]
    for i, (_, height, width) in enumerate(batch.image_grid_thw):
        begin, end = batch.image_patch_offsets[i : i + 2].tolist()
        assert end - begin == height * width
        # Each picture is of one colour, and no two of the same.
        assert len(np.unique(batch.image_patches[begin:end], axis=0)) <= 2
    firsts = batch.image_patches[batch.image_patch_offsets[:-1]]
    assert len(np.unique(firsts.reshape(len(firsts), -1), axis=0)) == len(firsts)
