"""Runs torch's float resize (what qwen-vl-utils does to frames) and writes resize_float.npz.

    python make_resize_float.py            writes goldens/resize_float.npz beside this file's goldens, or into --out
    python make_resize_float.py --check    runs again and says how many samples differ from the file

Bicubic with antialiasing on float32, then clamped to 0..255, rounded half to even and made uint8, as the v1 functions
of torchvision do it. Needs the environment of requirements.txt (torch and numpy are enough). Torch's builds fuse
multiplications and additions differently, so another CPU may differ in a few samples of a million: arrays, not hashes.
No target is one pixel wide: torch 2.13 is up to 8 levels away from its own formula there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import recipes
import torch

RESIZES = [
    ((37, 53), (64, 96)), ((64, 96), (37, 53)), ((100, 40), (32, 64)), ((120, 30), (32, 32)), ((48, 64), (32, 96)),
    ((1, 1), (32, 32)), ((1, 64), (32, 64)), ((64, 1), (64, 32)), ((2, 3), (64, 96)), ((512, 512), (2, 64)),
    ((512, 300), (64, 2)), ((300, 2), (96, 32)), ((2, 300), (32, 96)), ((97, 89), (96, 96)), ((5, 5), (7, 9)),
    ((240, 320), (56, 84)), ((64, 64), (64, 64)), ((64, 90), (64, 32)), ((90, 64), (32, 64)),
]  # fmt: skip


def key(kind: str, source: tuple[int, int], target: tuple[int, int]) -> str:
    """Names a case; the picture is `recipes.image` with seed 1."""
    return f"{kind}_{source[0]}x{source[1]}_to_{target[0]}x{target[1]}"


def resized(source: np.ndarray, target: tuple[int, int]) -> np.ndarray:
    frame = torch.from_numpy(source).permute(2, 0, 1)[None].to(torch.float32)
    out = torch.nn.functional.interpolate(frame, size=list(target), mode="bicubic", antialias=True, align_corners=False)
    return out.clamp(0, 255).round().to(torch.uint8)[0].permute(1, 2, 0).contiguous().numpy()


def cases() -> dict[str, np.ndarray]:
    torch.set_num_threads(1)
    out = {}
    for source, target in RESIZES:
        for kind in ("noise", "smooth", "binary"):
            image = recipes.image({"kind": kind, "seed": 1, "height": source[0], "width": source[1]})
            out[key(kind, source, target)] = resized(image, target)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "goldens")
    options = parser.parse_args()
    path = options.out / "resize_float.npz"
    made = cases()
    if not options.check:
        np.savez_compressed(path, **made)
        print(f"{path}: {len(made)} cases, torch {torch.__version__}")
        return
    golden = np.load(path)
    if set(golden.files) != set(made):
        raise SystemExit("the cases differ")
    differing = sum(int((golden[name] != array).sum()) for name, array in made.items())
    print(f"{differing} of {sum(array.size for array in made.values())} samples differ, torch {torch.__version__}")


if __name__ == "__main__":
    main()
