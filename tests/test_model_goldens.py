"""Sizes, labels and positions against what transformers 5.18.0 gave."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stoker import BadSampleError, _core

FAMILIES = {"qwen3": "Qwen3-VL", "qwen2_5": "Qwen2.5-VL", "qwen2": "Qwen2-VL"}
REFERENCE = "hf-5.18-torchvision"


def cases_of(testdata: Path, name: str) -> list[Any]:
    cases: list[Any] = json.loads((testdata / "goldens" / name).read_text())["data"]
    assert cases, "a suite that tested nothing"
    return cases


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


def test_qwen_vl_utils_sizes_differ_where_the_rule_says() -> None:
    """Worked values: a thin image keeps one factor in its first rounding, and limits must be in order."""
    low, high = 3136, 12845056
    assert _core.smart_resize(10, 2000, 28, low, high) == (28, 812)
    assert _core.smart_resize(10, 2000, 28, low, high, is_qwen_vl_utils=True) == (28, 1988)
    with pytest.raises(BadSampleError, match="below min_pixels"):
        _core.smart_resize(64, 64, 28, 4096, 4095, is_qwen_vl_utils=True)


@pytest.mark.parametrize("family", ["qwen3", "qwen2_5"])
def test_clip_sizes_are_the_references(testdata: Path, family: str) -> None:
    arrays = np.load(testdata / "goldens" / "smart_resize_video.npz")
    rows = arrays[f"{family}_t_h_w_min_max_cap_to_h_w"].tolist()
    assert len(rows) == 1500
    for n_frames, height, width, low, high, cap, *wanted in rows:
        try:
            found = list(_core.clip_size(FAMILIES[family], REFERENCE, n_frames, height, width, low, high, bool(cap)))
        except BadSampleError as error:
            found = [-1, -1] if error.code in ("CLIP_FRAMES", "IMG_ASPECT") else [-2, -2]
        assert found == wanted, (n_frames, height, width, low, high, cap)


def test_small_frames_are_an_error_for_the_older_version() -> None:
    limits = (4096, 25165824)
    assert _core.clip_size("Qwen3-VL", REFERENCE, 4, 20, 40, *limits)
    with pytest.raises(BadSampleError) as error:
        _core.clip_size("Qwen3-VL", "hf-4.57", 4, 20, 40, *limits)
    assert error.value.code == "IMG_SIZE"


def test_sampled_frames_are_the_references(testdata: Path) -> None:
    for case in cases_of(testdata, "frames.json"):
        found = _core.sample_frames("Qwen3-VL", False, case["n_frames"], case["source_fps"] or 0.0, case["fps"])
        assert len(found) == case["n"]
        assert hashlib.sha256(np.array(found, "<i4").tobytes()).hexdigest() == case["sha256_int32"], case


def test_other_samplers_take_other_frames() -> None:
    """Worked values of 90 frames at 30 a second, and of a length whose fractional step gives one frame more."""
    assert _core.sample_frames("Qwen3-VL", False, 90, 30.0) == [0, 18, 36, 53, 71, 89]
    assert _core.sample_frames("Qwen3-VL", True, 90, 30.0) == [0, 18, 36, 53, 71, 89]
    assert _core.sample_frames("Qwen2-VL", False, 90, 30.0) == [0, 15, 30, 45, 60, 75]
    assert len(_core.sample_frames("Qwen3-VL", True, 75, 29.97)) == 4
    assert len(_core.sample_frames("Qwen3-VL", False, 75, 29.97)) == 5
    assert len(_core.sample_frames("Qwen2.5-VL", False, 2335, 30.0, n_frames=470)) == 471
    with pytest.raises(BadSampleError) as error:
        _core.sample_frames("Qwen3-VL", True, 1, 30.0)
    assert error.value.code == "CLIP_FRAMES"


def test_timestamps_are_the_references(testdata: Path) -> None:
    for frames, fps, texts in cases_of(testdata, "timestamps.json"):
        assert _core.clip_timestamps(frames, fps) == texts


def test_clips_are_sized_and_timed_as_the_reference_does(testdata: Path) -> None:
    limits = {"qwen3": (4096, 25165824), "qwen2_5": (128 * 28**2, 768 * 28**2)}
    for case in cases_of(testdata, "videos.json"):
        family, clip, patch = case["family"], case["clip"], {"qwen3": 16, "qwen2_5": 14}[case["family"]]
        frames = case["frames_indices"]
        if case["sampled"]:
            assert _core.sample_frames(FAMILIES[family], False, clip["n_frames"], case["source_fps"]) == frames
        height, width = _core.clip_size(
            FAMILIES[family],
            REFERENCE,
            len(frames),
            clip["height"],
            clip["width"],
            *limits[family],
            is_capped=case["cap_pixels_per_frame"],
        )
        assert [-(-len(frames) // 2), height // patch, width // patch] == case["grid_thw"]
        if case["second_per_grid_ts"]:
            seconds = _core.seconds_per_grid(frames, case["source_fps"], clip["n_frames"])
            assert [float(np.float32(seconds))] == case[
                "second_per_grid_ts"
            ]  # a tensor's, where the reference keeps it


def test_positions_are_the_references(testdata: Path) -> None:
    """Of three families, with images and clips."""
    arrays = np.load(testdata / "goldens" / "positions.npz")
    at = dict.fromkeys(arrays.files, 0)
    for case in cases_of(testdata, "positions.json"):
        family, n = case["family"], case["n_tokens"]
        wanted = arrays[family][:, at[family] : at[family] + n]
        at[family] += n
        ids: list[int] = []
        for kind, count in case["token_types"]:  # runs: a picture, a clip, or one temporal patch of a Qwen3-VL clip
            ids += [kind] if kind else [0] * count
        found = np.array(
            _core.media_positions(
                FAMILIES[family],
                REFERENCE,
                ids,
                [tuple(grid) for grid in case["image_grid_thw"]],
                [tuple(grid) for grid in case["video_grid_thw"]],
                case["second_per_grid_ts"] or [],
                2.0,
                image_pad=1,
                video_pad=2,
                merge=2,
            )
        )
        assert found[0].tolist() == list(range(n))
        np.testing.assert_array_equal(found[1:], wanted)
    assert all(at[family] == arrays[family].shape[1] for family in FAMILIES)


@pytest.mark.parametrize(
    ("seconds", "reference", "times", "after"),
    [
        (1.0, "hf-5.18-torchvision", [1, 3, 5], 3),
        (1.0, "hf-4.57", [1, 3, 5], 6),
        (0.75, "hf-5.18-torchvision", [1, 2, 4], 3),
        (0.75, "hf-4.57", [1, 1, 1], 3),
    ],
)
def test_positions_of_a_clip_by_version(seconds: float, reference: str, times: list[int], after: int) -> None:
    """Worked values: text, a clip of 3 x 4 x 4 patches, text; at two tokens a second."""
    rows = _core.media_positions("Qwen2.5-VL", reference, [0, 2, 0], [], [(3, 4, 4)], [seconds], 2.0, 1, 2, 2)
    assert rows[1] == [0, *(t for t in times for _ in range(4)), after]
    assert [row[-1] for row in rows[1:]] == [after] * 3
