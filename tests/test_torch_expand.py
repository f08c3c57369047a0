"""Float pixels from uint8 patches, bit for bit the reference image processor's."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest
import stoker
import torch
from golden_samples import GOLDENS, ROOT, load, recipes, sha
from stoker import _core
from stoker.torch import Normalisation, expand

FAMILIES = {"qwen3": ("qwen3-vl", 16), "qwen2_5": ("qwen2_5-vl", 14)}
FEATURES = load("image_features.json")
RESIZER = {"torchvision": "aten", "pil": "pillow13"}


def normalisation(family: str, backend: Literal["torchvision", "pil"] = "torchvision") -> Normalisation:
    config = json.loads((ROOT / "testdata" / FAMILIES[family][0] / "preprocessor_config.json").read_text())
    return Normalisation(
        mean=tuple(config["image_mean"]),
        std=tuple(config["image_std"]),
        rescale=config.get("rescale_factor", 1 / 255),
        temporal_patch=config["temporal_patch_size"],
        backend=backend,
    )


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_level_becomes_what_the_reference_makes_of_it(
    family: str, backend: Literal["torchvision", "pil"]
) -> None:
    golden = np.load(GOLDENS / "normalise.npz")[f"{family}_{backend}"]
    table = normalisation(family, backend).table().numpy()
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table.T.view(np.uint32), golden.view(np.uint32))


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("family", FAMILIES)
def test_golden_patches(family: str, backend: Literal["torchvision", "pil"]) -> None:
    golden = np.load(GOLDENS / "uint8_patches.npz")
    patch = FAMILIES[family][1]
    patches = golden[f"{family}_{backend}_uint8"].reshape(-1, 3, patch, patch)
    pixels = expand(patches, normalisation(family, backend))
    assert pixels.shape == (len(patches), 3 * 2 * patch * patch)
    assert sha(pixels) == golden[f"{family}_{backend}_float32_sha256"]


@pytest.mark.parametrize(
    "case",
    FEATURES,
    ids=lambda c: f"{c['family']}_{c['backend']}_" + "{kind}_{height}x{width}".format(**c["image"]) + f"_{c['size']}",
)
def test_a_picture_becomes_the_image_processors_pixels(case: dict[str, Any]) -> None:
    patch = FAMILIES[case["family"]][1]
    _, grid_h, grid_w = case["grid_thw"]
    target = (grid_h * patch, grid_w * patch)
    patches = _core.image_patches(recipes.image(case["image"]), target, patch, 2, resizer=RESIZER[case["backend"]])
    pixels = expand(torch.from_numpy(patches), normalisation(case["family"], case["backend"]))
    assert sha(pixels) == case["pixel_values_sha256"]


def test_a_clip_is_not_repeated_in_time() -> None:
    """Its columns are by channel, time, y, x; a picture is a clip of one frame shown twice."""
    rng = np.random.default_rng(5)
    frames = rng.integers(0, 256, (7, 3, 2, 16, 16), dtype=np.uint8)
    norm = normalisation("qwen3")
    pixels = expand(frames, norm).view(7, 3, 2, 256)
    for time in (0, 1):
        alone = expand(frames[:, :, time], norm).view(7, 3, 2, 256)
        assert torch.equal(pixels[:, :, time], alone[:, :, 0])
        assert torch.equal(alone[:, :, 0], alone[:, :, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_types_are_float32_rounded_once(dtype: Any) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, axis=1)
    norm = normalisation("qwen2_5")
    pixels = expand(levels, norm, dtype=dtype)
    assert pixels.dtype == dtype
    assert torch.equal(pixels, expand(levels, norm).to(dtype))


@pytest.mark.parametrize(
    "patches",
    [
        torch.zeros(4, 3, 16, 16),
        torch.zeros(4, 1, 16, 16, dtype=torch.uint8),
        torch.zeros(4, 768, dtype=torch.uint8),
        torch.zeros(4, 3, 16, 16, dtype=torch.int64),
    ],
    ids=["float", "grey", "flat", "int64"],
)
def test_what_does_not_fit_is_refused(patches: Any) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match="patches must be uint8") as caught:
        expand(patches, normalisation("qwen3"))
    assert caught.value.code == "SETTINGS"
