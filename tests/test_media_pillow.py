"""Every kind of picture against Pillow's own reading of the same bytes, and against the blending rules on top of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import picture_variants as variants
import pytest
from PIL import Image, ImageOps
from stoker import _core

Pixels = npt.NDArray[np.uint8]


def pillow(data: bytes, *, exif: bool = False) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return ImageOps.exif_transpose(image) if exif else image.copy()


def on_white(rgba: Image.Image) -> Pixels:
    """As qwen-vl-utils does it."""
    white = Image.new("RGB", rgba.size, (255, 255, 255))
    white.paste(rgba, mask=rgba.split()[3])
    return np.asarray(white)


def opaque_or_white(image: Image.Image) -> Pixels:
    """The default rule: whatever transparency there is lies on white."""
    return on_white(image.convert("RGBA")) if image.has_transparency_data else np.asarray(image.convert("RGB"))


KINDS: dict[str, Callable[[], Iterator[tuple[str, bytes]]]] = {
    "bmp": variants.bmps,
    "gif": variants.gifs,
    "png": variants.pngs,
    "tiff": variants.tiffs,
    "webp": variants.webps,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_pixels_are_pillows(kind: str) -> None:
    """Three rules for alpha, each against what it stands for. 16-bit samples are clipped, as Pillow does."""
    wrong: dict[str, str] = {}
    n = 0
    for name, data in KINDS[kind]():
        try:
            image = pillow(data)
            wanted = {
                "drop": np.asarray(image.convert("RGB")),
                "white-rgba": on_white(image) if image.mode == "RGBA" else np.asarray(image.convert("RGB")),
            }
            if image.mode != "I;16":  # Pillow cannot convert that one to RGBA
                wanted["white"] = opaque_or_white(image)
        except (OSError, ValueError) as error:
            wrong[name] = f"Pillow itself: {error}"
            continue
        for alpha, want in wanted.items():
            n += 1
            try:
                got = _core.decode_image(data, exif=False, alpha=alpha, grey16="clip")
            except Exception as error:
                wrong[f"{name} {alpha}"] = str(error)
                continue
            if got.shape != want.shape:
                wrong[f"{name} {alpha}"] = f"{got.shape}, not {want.shape}"
            elif (got != want).any():
                y, x = np.argwhere((got != want).any(axis=2))[0]
                wrong[f"{name} {alpha}"] = f"at {y}, {x}: {got[y, x]}, not {want[y, x]}"
    assert wrong == {}
    assert n > 80
