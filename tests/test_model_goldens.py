"""Sizes, labels and positions against what transformers 5.18.0 gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from stoker import BadSampleError, _core

PAD = 1


def test_smart_resize_is_the_references(testdata: Path) -> None:
    rows = np.load(testdata / "goldens" / "smart_resize_image.npz")["h_w_factor_min_max_to_h_w"].tolist()
    assert len(rows) == 9200
    for height, width, factor, low, high, *wanted in rows:
        try:
            found = list(_core.smart_resize(height, width, factor, low, high))
        except BadSampleError as error:
            found = [-1, -1] if error.code == "IMG_ASPECT" else [-2, -2]
        assert found == wanted, (height, width, factor, low, high)


def test_labels_are_the_references(testdata: Path) -> None:
    cases = json.loads((testdata / "goldens" / "labels.json").read_text())["data"]
    rows = [json.dumps({k: case[k] for k in ("messages", "tools") if case.get(k)}).encode() for case in cases]
    n_compared = 0
    for case, (ids, trained, code, _) in zip(cases, _core.encode_rows(str(testdata / "qwen3-vl"), rows), strict=True):
        if code:  # the engine refuses what trains nothing but ends of turns; the reference trains those
            assert code == "NO_LOSS_TOKENS", case["messages"]
            assert set(case["labels"]) <= {-100, 151645, 198}
            continue
        n_compared += 1
        assert ids == case["input_ids"]
        assert [i if t else -100 for i, t in zip(ids, trained, strict=True)] == case["labels"], case["messages"]
    assert n_compared >= 100


def test_positions_of_images_are_the_references(testdata: Path) -> None:
    cases = json.loads((testdata / "goldens" / "positions.json").read_text())["data"]
    arrays = np.load(testdata / "goldens" / "positions.npz")
    at = dict.fromkeys(arrays.files, 0)
    n_compared = 0
    for case in cases:
        family, n = case["family"], case["n_tokens"]
        wanted = arrays[family][:, at[family] : at[family] + n]
        at[family] += n
        if case["video_grid_thw"]:
            continue
        ids: list[int] = []
        for kind, count in case["token_types"]:
            ids += [PAD] if kind == 1 else [0] * count
        grids: list[Any] = [(h, w) for _, h, w in case["image_grid_thw"]]
        found = np.array(_core.image_positions(ids, grids, PAD, 2))
        assert found[0].tolist() == list(range(n))
        np.testing.assert_array_equal(found[1:], wanted)
        n_compared += 1
    assert n_compared >= 60
