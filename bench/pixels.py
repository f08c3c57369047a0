"""Pixels: encoded pictures to patches on one core, beside the bare codec, in interleaved rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = ROOT / "testdata" / "photos"
ROUNDS = 15
JPEG_RATIO_BAR = 0.60
"""Patches per second over raw decoding, JPEG."""
SIZES = [(1190, 793), (1024, 1000), (933, 1111), (1280, 853), (875, 1163), (1111, 900), (1333, 750), (999, 1001)]
"""(width, height) of the pictures, about 1 MP; few sides are multiples of 32, as in life."""


def executable() -> Path:
    """Returns the newest built pixels_bench; STOKER_BENCH_DIR names its folder where that is not below build/."""
    folders = (
        [Path(os.environ["STOKER_BENCH_DIR"])]
        if "STOKER_BENCH_DIR" in os.environ
        else sorted(ROOT.glob("build/**/bench"))
    )
    found = [folder / "pixels_bench" for folder in folders if (folder / "pixels_bench").is_file()]
    if not found:
        raise FileNotFoundError("pixels_bench is not built: configure with -DSTOKER_BENCH=ON")
    return max(found, key=lambda path: path.stat().st_mtime)


def pictures() -> list[Image.Image]:
    """Makes pictures of about 1 MP from the photographs, unscaled: enlarged ones would decode too easily."""
    photos = [Image.open(path).convert("RGB") for path in sorted(PHOTOS.glob("*.*")) if path.suffix in {".png", ".jpg"}]
    made = []
    for index, size in enumerate(SIZES):
        canvas = Image.new("RGB", size)
        column = 0
        nth = index
        while column < size[0]:
            row = 0
            width = photos[nth % len(photos)].width
            while row < size[1]:
                photo = photos[nth % len(photos)]
                canvas.paste(photo, (column, row))
                row += photo.height
                nth += 1
            column += min(width, photos[(nth - 1) % len(photos)].width)
        made.append(canvas)
    return made


def write_files(folder: Path) -> list[Path]:
    """Writes each picture as JPEG 4:2:0 of quality 85 to 92, and two as PNG."""
    paths = []
    for index, picture in enumerate(pictures()):
        path = folder / f"{index}.jpg"
        picture.save(path, quality=85 + index % 8, subsampling=2)
        paths.append(path)
    for index, picture in enumerate(pictures()[:2]):
        path = folder / f"{index}.png"
        picture.save(path)
        paths.append(path)
    return paths


def run() -> list[dict[str, Any]]:
    """Measures raw decoding and the whole way to patches.

    Returns:
        Medians over the rounds: MP/s of source pixels, and the median of the rounds' ratios.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder))
        done = subprocess.run(
            [str(executable()), str(ROUNDS), *map(str, paths)], check=True, capture_output=True, text=True, timeout=300
        )
    results = []
    for name, rounds in json.loads(done.stdout).items():
        raw = statistics.median(rounds["pixels"] / ns * 1e3 for ns in rounds["raw_ns"])
        ours = statistics.median(rounds["pixels"] / ns * 1e3 for ns in rounds["ours_ns"])
        ratio = statistics.median(a / b for a, b in zip(rounds["raw_ns"], rounds["ours_ns"], strict=True))
        bar = JPEG_RATIO_BAR if name == "jpeg" else None
        results += [
            {"name": f"{name}_raw_decode", "value": round(raw, 1), "unit": "MP/s", "bar": None, "ok": True},
            {"name": f"{name}_to_patches", "value": round(ours, 1), "unit": "MP/s", "bar": None, "ok": True},
            {
                "name": f"{name}_ratio",
                "value": round(ratio, 3),
                "unit": "of raw",
                "bar": bar,
                "ok": bar is None or ratio >= bar,
            },
        ]
    return results
