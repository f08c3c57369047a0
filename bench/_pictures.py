"""Pictures for benchmarks, cut from the demonstration's photographs."""

from __future__ import annotations

import io
import random
from typing import Any

from PIL import Image
from stoker.demo.photos import PHOTOS, find_testdata

__all__ = ["crops", "encoded", "exif_of", "photographs"]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def photographs() -> list[Image.Image]:
    """All of them, whole."""
    found = []
    for name in sorted(PHOTOS):
        with Image.open(find_testdata() / "photos" / name) as photo:
            found.append(photo.convert("RGB"))
    return found


def crops(side_px: int) -> list[Image.Image]:
    """Four squares of each photograph that is large enough."""
    found = []
    for whole in photographs():
        for n in range(4):
            left, top = (whole.width - side_px) * n // 4, (whole.height - side_px) * n // 4
            if left >= 0 and top >= 0:
                found.append(whole.crop((left, top, left + side_px, top + side_px)))
    return found


def exif_of(n_bytes: int, seed: int) -> bytes:
    """EXIF as phones write it: an orientation, and as many bytes of a thumbnail and of their maker's own."""
    exif = Image.Exif()
    exif[0x0112] = 1  # orientation
    exif[0x927C] = random.Random(seed).randbytes(n_bytes)
    return bytes(exif.tobytes())
