"""Pixels: encoded pictures to patches on one core, beside the bare codec, in interleaved rounds.

All of C++ comes from one process (`pixels_bench`) that goes over the workloads again and again and keeps each file's
best round, in CPU time. The processors people use today run beside it on the same JPEG files: open, convert, resize,
normalise, patch; they make floats, four times the bytes of our patches. `STOKER_BENCH_ROUNDS` changes the number of
rounds.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = ROOT / "testdata" / "photos"
MODEL = ROOT / "testdata" / "qwen3-vl"
ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "12"))
MIN_PIXELS, MAX_PIXELS = 65536, 16777216
SIZES = [(1190, 793), (1024, 1000), (933, 1111), (1280, 853), (875, 1163), (1111, 900), (1333, 750), (999, 1001)]
"""(width, height) of the pictures, about 1 MP; few sides are multiples of 32, as in life."""
IDENTITY_SIZES = [(1184, 800), (1024, 1024), (928, 1120), (1280, 864)]
LARGE_SIZES = [(4000, 3000), (3024, 4032)]
MIX_BAR_AVX512, MIX_BAR_AVX2 = 0.85, 0.80
TWO_CORES_BAR = 1.8


@dataclass(frozen=True)
class Workload:
    """What `pixels_bench` does with some files, and the bar of its ratio to raw decoding."""

    name: str
    files: list[Path]
    bar: float | None
    resizer: str = "aten"
    min_pixels: int = MIN_PIXELS
    max_pixels: int = MAX_PIXELS
    n_threads: int = 1
    target: str = "any"
    """Our kernels' instructions: the best of this CPU, or at most ``avx2``."""

    def line(self) -> str:
        words = [self.name, self.resizer, self.min_pixels, self.max_pixels, self.n_threads, self.target, *self.files]
        return " ".join(map(str, words))


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


def pictures(sizes: list[tuple[int, int]]) -> list[Image.Image]:
    """Makes pictures from the photographs, unscaled: enlarged ones would decode too easily."""
    photos = [Image.open(path).convert("RGB") for path in sorted(PHOTOS.glob("*.*")) if path.suffix in {".png", ".jpg"}]
    made = []
    for index, size in enumerate(sizes):
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


def write(folder: Path, name: str, sizes: list[tuple[int, int]], **how: Any) -> list[Path]:
    """Writes the pictures, as JPEG 4:2:0 of quality 85 to 92 where nothing else is asked for."""
    paths = []
    for index, picture in enumerate(pictures(sizes)):
        path = folder / f"{name}{index}{how.get('suffix', '.jpg')}"
        options = {"quality": 85 + index % 8, "subsampling": 2} if path.suffix == ".jpg" else {}
        picture.save(path, **options, **{key: value for key, value in how.items() if key != "suffix"})
        paths.append(path)
    return paths


def turned() -> Image.Exif:
    """Says that the picture has to be turned by 90 degrees, as phones do."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def workloads(folder: Path) -> list[Workload]:
    """Writes all files.

    With AVX-512, every workload that has a bar comes a second time with our kernels held to AVX2, where the bar of the
    mix is lower.
    """
    mix = write(folder, "mix", SIZES)
    large = write(folder, "large", LARGE_SIZES)
    found = [
        Workload("jpeg", mix, MIX_BAR_AVX2),
        Workload("jpeg_identity", write(folder, "identity", IDENTITY_SIZES), 0.95),
        Workload("jpeg_12mp", large, 0.80),
        Workload("jpeg_12mp_to_1mp", large, 0.88, max_pixels=1 << 20),
        Workload("jpeg_progressive", write(folder, "progressive", SIZES[:4], progressive=True), 0.90),
        Workload("jpeg_pillow13", mix, 0.78, resizer="pillow13"),
    ]
    if has_avx512():
        narrow = [replace(work, name=f"{work.name}_avx2", target="avx2") for work in found]
        found[0] = replace(found[0], bar=MIX_BAR_AVX512)
        found = [work for pair in zip(found, narrow, strict=True) for work in pair]
    found += [
        Workload("jpeg_growing_4_times", mix[:3], None, min_pixels=1 << 22),
        Workload("jpeg_exif6", write(folder, "turned", SIZES, exif=turned()), None),
        Workload("jpeg_float", mix[:3], None, resizer="float"),
        Workload("png", write(folder, "png", SIZES[:2], suffix=".png"), None),
    ]
    if len(os.sched_getaffinity(0)) > 1:
        found.append(Workload("jpeg_two_cores", mix, None, n_threads=2))
    return found


def has_avx512() -> bool:
    """Whether the kernels for wide vectors run here."""
    try:
        return "avx512_vnni" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    except OSError:
        return False


def result(name: str, value: float, unit: str, bar: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "bar": bar, "ok": bar is None or value >= bar}


def measured(folder: Path, found: list[Workload]) -> list[dict[str, Any]]:
    """Runs `pixels_bench`."""
    lines = folder / "workloads.txt"
    lines.write_text("\n".join(work.line() for work in found) + "\n", encoding="utf-8")
    command = [str(executable()), str(ROUNDS), str(lines)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    report = json.loads(done.stdout)
    results = []
    for work in found:
        values = report["workloads"][work.name]
        if work.n_threads > 1:
            gain = work.n_threads * report["workloads"]["jpeg"]["ours_ns"] / values["ours_ns"]
            results.append(result("two cores over one", gain, "times", TWO_CORES_BAR))
            continue
        results += [
            result(f"{work.name}_raw_decode", values["pixels"] / values["raw_ns"] * 1e3, "MP/s"),
            result(f"{work.name}_to_patches", values["pixels"] / values["ours_ns"] * 1e3, "MP/s"),
            result(f"{work.name}_ratio", values["raw_ns"] / values["ours_ns"], "of raw", work.bar),
        ]
    copy = report["kernels"].pop("copy")
    results.append(result("memory copy, read and written", copy["bytes"] / copy["ns"], "GB/s"))
    for name, kernel in report["kernels"].items():
        results.append(result(f"resize alone, {name}", kernel["bytes"] / kernel["ns"], "GB/s"))
    return results


def rate(files: list[Path], process: Callable[[Path], object], rounds: int = 3) -> float:
    """Returns MP/s of source pixels per second of CPU time, each file's best round."""
    n_pixels, spent = 0, 0.0
    for path in files:
        with Image.open(path) as image:
            n_pixels += image.width * image.height
        times = []
        for _ in range(rounds):
            begin = time.process_time()
            process(path)
            times.append(time.process_time() - begin)
        spent += min(times)
    return n_pixels / spent / 1e6


def others(files: list[Path]) -> list[dict[str, Any]]:
    """Measures the processors that are installed; one that is not is named with a value of 0."""
    found = []
    if importlib.util.find_spec("transformers") is None:
        return [result("transformers (not installed)", 0, "MP/s")]
    import torch

    sys.path.insert(0, str(ROOT / "tools" / "golden"))
    importlib.import_module("torchvision_ops")  # lets torchvision be imported beside a torch for CPUs
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for backend in ("pil", "torchvision"):
        name = f"transformers {transformers.__version__}, {backend} backend"
        if backend == "torchvision" and importlib.util.find_spec("torchvision") is None:
            found.append(result(f"{name} (torchvision is not installed)", 0, "MP/s"))
            continue
        processor = transformers.AutoImageProcessor.from_pretrained(str(MODEL), backend=backend)

        def process(path: Path, processor: Any = processor) -> object:
            return processor(images=[Image.open(path).convert("RGB")], return_tensors="np")

        found.append(result(name, rate(files, process), "MP/s"))
    return [*found, *rust_processors(files)]


def rust_processors(files: list[Path]) -> list[dict[str, Any]]:
    """Measures hf-processors-rs with one thread, where somebody installed it: it is no requirement of ours."""
    if importlib.util.find_spec("hf_processors_rs") is None:
        return [result("hf-processors-rs (not installed)", 0, "MP/s")]
    import hf_processors_rs  # type: ignore[import-not-found, unused-ignore]

    found = []
    for backend in ("pil", "torchvision"):
        processor = hf_processors_rs.AutoImageProcessor.from_pretrained(str(MODEL), backend=backend)

        def process(path: Path, processor: Any = processor) -> object:
            return processor(str(path))

        version = importlib.metadata.version("hf-processors-rs")
        found.append(result(f"hf-processors-rs {version}, {backend} backend", rate(files, process), "MP/s"))
    return found


def run() -> list[dict[str, Any]]:
    """Measures everything; see the module's text.

    Returns:
        Per workload MP/s of source pixels for raw decoding and for the whole way to patches, and their ratio with its
        bar; then the kernels alone, and the processors of others.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = workloads(folder)
        return measured(folder, found) + others(found[0].files[:4])
