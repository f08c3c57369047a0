"""Compares Stoker's resizers with the libraries that they follow, live, on random pictures.

    python tools/live_pixels.py [--pictures 5000] [--seed 1] [--largest-side 4000]

Every picture has random sides (even in the logarithm, at most 1 : 200) and random content, and goes to the size that a
Qwen-VL image processor would choose or to any other. ``aten`` is held against ``torch.nn.functional.interpolate`` on
uint8, ``pillow13`` and ``pillow`` against Pillow (its horizontal-first order by resizing one axis after the other),
``float`` against torch on float32 with a bound of one sample in ten thousand. Every fifth picture also becomes a JPEG
with a random EXIF orientation, and its patches are compared with those that Pillow's decoder, ``exif_transpose`` and
resize give. Prints counts; the exit status says whether all is equal.

Needs torch, Pillow 13 and numpy beside the built package: the environment of tools/golden/requirements.txt, or the
project's own for tests.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from stoker import _core

Pixels = npt.NDArray[np.uint8]
MAX_RATIO = 200
MAX_TARGET_PIXELS = 4_000_000
FLOAT_BOUND = 1e-4
FAMILIES = ((16, 65536, 16777216), (14, 3136, 12845056))
"""Patch, least and most pixels, as shipped."""


def random_size(rng: random.Random, largest_side: int) -> tuple[int, int]:
    """A height and a width, each 1 to `largest_side`."""
    while True:
        sides = [round(math.exp(rng.uniform(0, math.log(largest_side)))) for _ in range(2)]
        if rng.random() < 0.5:  # near to life
            sides[1] = min(largest_side, max(1, round(sides[0] * rng.uniform(0.5, 2))))
        if max(sides) <= MAX_RATIO * min(sides):
            return sides[0], sides[1]


def random_target(rng: random.Random, height: int, width: int) -> tuple[int, int, int]:
    """Height and width of a target that is a grid of patches, and the patch."""
    patch, least, most = rng.choice(FAMILIES)
    factor = 2 * patch
    if rng.random() < 0.5:
        most = rng.choice([most, 512 * 512, 1024 * 1024])
        size = _core.smart_resize(height, width, factor, least, most)
        if size[0] * size[1] <= MAX_TARGET_PIXELS:
            return size[0], size[1], patch
    return factor * rng.randint(1, 24), factor * rng.randint(1, 24), patch


def random_pixels(rng: random.Random, height: int, width: int) -> Pixels:
    """Noise, hard black and white, or something smooth with an edge."""
    noise = np.random.default_rng(rng.getrandbits(64))
    kind = rng.randrange(3)
    if kind == 0:
        return noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        return noise.integers(0, 2, (height, width, 3), dtype=np.uint8) * np.uint8(255)
    y, x = np.ogrid[0:height, 0:width]
    planes = [127 + 120 * np.sin(x / rng.uniform(2, 40) + y / rng.uniform(2, 40)) for _ in range(3)]
    pixels: Pixels = np.stack(planes, -1).astype(np.uint8)
    pixels[height // 2 :, width // 3 :] ^= 255
    return pixels


def by_torch(pixels: Pixels, size: tuple[int, int], *, as_float: bool) -> Pixels:
    """What torch makes of it, on uint8 or on float32."""
    frame = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    if as_float:
        frame = frame.to(torch.float32)
    else:
        frame = frame.contiguous()
    out = torch.nn.functional.interpolate(frame, size=list(size), mode="bicubic", antialias=True, align_corners=False)
    if as_float:
        out = out.clamp(0, 255).round().to(torch.uint8)
    result: Pixels = out[0].permute(1, 2, 0).contiguous().numpy()
    return result


def by_pillow(image: Image.Image, size: tuple[int, int], *, horizontal_first: bool = False) -> Pixels:
    """What the installed Pillow makes of it, in its own order or one axis after the other."""
    height, width = size
    if horizontal_first:
        image = image.resize((width, image.height), Image.Resampling.BICUBIC)
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def patches_of(pixels: Pixels, patch: int) -> Pixels:
    """(n, 3, patch, patch), merge groups of four together."""
    rows, columns = pixels.shape[0] // (2 * patch), pixels.shape[1] // (2 * patch)
    blocks = pixels.reshape(rows, 2, patch, columns, 2, patch, 3)
    return np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, 3, patch, patch)


def turned_file(rng: random.Random, image: Image.Image) -> bytes:
    """A JPEG that says it has to be turned."""
    exif = Image.Exif()
    exif[0x0112] = rng.randint(1, 8)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=rng.randint(60, 95), subsampling=rng.randint(0, 2), exif=exif)
    return out.getvalue()


def compare(n_pictures: int, seed: int, largest_side: int, *, floats: bool = True) -> Counter[str]:
    """Runs the comparison.

    Returns:
        Per resizer how many pictures were compared and how many differ, and the same for samples of ``float``. The
        names of counters that should be zero begin with ``differ``.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()

    def count(name: str, got: Any, want: Any, case: str) -> None:
        counts[f"compared {name}"] += 1
        if not np.array_equal(got, want):
            counts[f"differ {name}"] += 1
            print(f"{name} differs: {case}", file=sys.stderr)

    for index in range(n_pictures):
        height, width = random_size(rng, largest_side)
        pixels = random_pixels(rng, height, width)
        target_height, target_width, patch = random_target(rng, height, width)
        size = target_height, target_width
        case = f"picture {index} of seed {seed}, {height}x{width} to {target_height}x{target_width}"
        image = Image.fromarray(pixels)
        count("aten", _core.resize(pixels, size), by_torch(pixels, size, as_float=False), case)
        count("pillow13", _core.resize(pixels, size, resizer="pillow13"), by_pillow(image, size), case)
        plain = by_pillow(image, size, horizontal_first=True)
        count("pillow", _core.resize(pixels, size, resizer="pillow"), plain, case)
        counts["vertical first"] += int(not np.array_equal(plain, by_pillow(image, size)))
        if floats and index % 5 == 0:
            got, want = _core.resize(pixels, size, resizer="float"), by_torch(pixels, size, as_float=True)
            counts["float samples"] += got.size
            counts["float samples apart"] += int((got != want).sum())
        if index % 5 == 0:
            file = turned_file(rng, image)
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
            pixels = np.asarray(upright)
            for resizer, want in (
                ("aten", by_torch(pixels.copy(), size, as_float=False)),
                ("pillow13", by_pillow(upright, size)),
            ):
                got = _core.image_patches(file, size, patch, 2, resizer=resizer)
                count(f"{resizer} from turned JPEG", got, patches_of(want, patch), case)
    if counts["float samples apart"] > FLOAT_BOUND * counts["float samples"]:
        counts["differ float"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest-side", type=int, default=4000)
    options = parser.parse_args()
    counts = compare(options.pictures, options.seed, options.largest_side)
    for name, n in sorted(counts.items()):
        print(f"{name:32} {n}")
    return int(any(n for name, n in counts.items() if name.startswith("differ")))


if __name__ == "__main__":
    sys.exit(main())
