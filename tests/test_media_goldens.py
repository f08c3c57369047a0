"""Pixels of the core against the reference's golden files."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from stoker import _core

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / "testdata" / "goldens"
sys.path.insert(0, str(ROOT / "tools" / "golden"))

import recipes  # noqa: E402

Pixels = npt.NDArray[np.uint8]


def load(name: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = json.loads((GOLDENS / name).read_text())["data"]
    assert data, "a suite that tested nothing"
    return data


def sha(pixels: Pixels) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


DECODE = load("decode.json")
RESIZE = load("resize.json")
FEATURES = load("image_features.json")
PATCH = {"qwen3": 16, "qwen2_5": 14}
RESIZER = {"torchvision": "aten", "pil": "pillow13"}


@pytest.mark.case("IMG-35", "hashes of the reference, bit for bit")
@pytest.mark.parametrize("case", DECODE, ids=lambda case: case["file"])
@pytest.mark.parametrize("exif", [False, True], ids=["as_stored", "upright"])
def test_decoded_pixels_are_pillows(case: dict[str, Any], exif: bool) -> None:
    """Under Pillow's rules for alpha and depth, every file: RGB, grey, CMYK, palette, 16 bits, all orientations."""
    files = np.load(GOLDENS / "decode_files.npz")
    pixels = _core.decode_image(files[case["file"]].tobytes(), exif=exif, alpha="drop", grey16="clip")
    prefix = "exif_" if exif else ""
    assert list(pixels.shape[:2]) == case[prefix + "height_width"]
    assert sha(pixels) == case[prefix + "rgb_sha256"]


@pytest.mark.parametrize(
    "case", [case for case in DECODE if case["mode"] in {"RGB", "L", "CMYK", "1"}], ids=lambda case: case["file"]
)
def test_our_own_rules_change_nothing_without_alpha_or_depth(case: dict[str, Any]) -> None:
    files = np.load(GOLDENS / "decode_files.npz")
    assert sha(_core.decode_image(files[case["file"]].tobytes())) == case["exif_rgb_sha256"]


@pytest.mark.parametrize(
    "case", RESIZE, ids=lambda c: "{kind}_{height}x{width}".format(**c["image"]) + "_to_{}x{}".format(*c["target"])
)
def test_resize_is_the_references(case: dict[str, Any]) -> None:
    source = recipes.image(case["image"])
    assert sha(source) == case["source_sha256"], "the recipe"
    target = tuple(case["target"])
    assert sha(_core.resize(source, target)) == case["aten_uint8"]
    assert sha(_core.resize(source, target, resizer="pillow13")) == case["pillow_13"]
    assert sha(_core.resize(source, target, resizer="pillow")) == case["pillow_horizontal_first"]
    height, width, _ = source.shape
    is_vertical_first = height > 100 * width and target[0] < height  # Pillow 12.2 and 12.3
    order = "vertical" if is_vertical_first else "horizontal"
    assert sha(_core.resize(source, target, resizer="pillow12.2")) == case[f"pillow_{order}_first"]


def test_the_resize_goldens_know_both_orders() -> None:
    """Else the tests above could not tell one order from the other."""
    differing = [case for case in RESIZE if case["pillow_horizontal_first"] != case["pillow_vertical_first"]]
    vertical = [case for case in differing if case["pillow_13"] == case["pillow_vertical_first"]]
    assert len(differing) >= 60
    assert 20 <= len(vertical) <= len(differing) - 20
    assert any(c["image"]["height"] > 100 * c["image"]["width"] for c in vertical), "the rule of 12.2"


@pytest.mark.parametrize(("prefix", "resizer"), [("aten_uint8_", "aten"), ("pillow_13_", "pillow13")])
def test_small_resizes_in_full(prefix: str, resizer: str) -> None:
    """The same as arrays: where a hash differs, this says by how much."""
    arrays = np.load(GOLDENS / "resize_small.npz")
    checked = 0
    for name in arrays.files:
        if not name.startswith(prefix):
            continue
        kind, source_size, _, target_size = name.removeprefix(prefix).split("_")
        case = next(
            c
            for c in RESIZE
            if c["image"]["kind"] == kind
            and f"{c['image']['height']}x{c['image']['width']}" == source_size
            and "{}x{}".format(*c["target"]) == target_size
        )
        height, width = case["target"]
        resized = _core.resize(recipes.image(case["image"]), (height, width), resizer=resizer)
        np.testing.assert_array_equal(resized, arrays[name], err_msg=name)
        checked += 1
    assert checked == 20


def test_float_resizes_are_torchs() -> None:
    """Torch's builds round sums differently, so the bound is one sample in ten thousand, by one level."""
    arrays = np.load(GOLDENS / "resize_float.npz")
    n_samples = n_differing = 0
    for name in arrays.files:
        kind, source_size, _, target_size = name.split("_")
        height, width = map(int, source_size.split("x"))
        source = recipes.image({"kind": kind, "seed": 1, "height": height, "width": width})
        rows, columns = map(int, target_size.split("x"))
        got = _core.resize(source, (rows, columns), resizer="float")
        apart = np.abs(got.astype(int) - arrays[name])
        assert apart.max() <= 1, name
        n_samples += apart.size
        n_differing += int((apart != 0).sum())
    assert len(arrays.files) == 57
    assert n_differing <= n_samples / 10_000, f"{n_differing} of {n_samples}"


@pytest.mark.parametrize("family", sorted(PATCH))
def test_patch_layout(family: str) -> None:
    """Patches of a picture whose value is its own flat index: three pictures carry the index's three bytes."""
    patch = PATCH[family]
    golden = np.load(GOLDENS / "patch_layout.npz")[f"{family}_image_4x6"]
    want = golden.reshape(-1, 3, 2, patch, patch)[:, :, 0]  # without the temporal copy
    height, width = 4 * patch, 6 * patch
    index = np.arange(3 * height * width).reshape(3, height, width).transpose(1, 2, 0)
    got = np.zeros(want.shape, np.int64)
    for shift in (0, 8, 16):
        source = np.ascontiguousarray((index >> shift & 255).astype(np.uint8))
        got |= _core.image_patches(source, (height, width), patch, 2).astype(np.int64) << shift
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "case",
    FEATURES,
    ids=lambda c: f"{c['family']}_{c['backend']}_" + "{kind}_{height}x{width}".format(**c["image"]) + f"_{c['size']}",
)
def test_patches_are_the_image_processors(case: dict[str, Any]) -> None:
    patch = PATCH[case["family"]]
    _, grid_h, grid_w = case["grid_thw"]
    patches = _core.image_patches(
        recipes.image(case["image"]),
        (grid_h * patch, grid_w * patch),
        patch,
        2,
        resizer=RESIZER[case["backend"]],
    )
    assert sha(patches) == case["uint8_patches_sha256"]


@pytest.mark.parametrize("family", sorted(PATCH))
@pytest.mark.parametrize("backend", sorted(RESIZER))
def test_uint8_patches_in_full(family: str, backend: str) -> None:
    patch = PATCH[family]
    want = np.load(GOLDENS / "uint8_patches.npz")[f"{family}_{backend}_uint8"].reshape(-1, 3, patch, patch)
    source = recipes.image({"kind": "smooth", "seed": 21, "height": 61, "width": 83})
    patches = _core.image_patches(source, (4 * patch, 6 * patch), patch, 2, resizer=RESIZER[backend])
    np.testing.assert_array_equal(patches, want)
