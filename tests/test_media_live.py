"""The resizers beside the libraries that they follow, on random pictures (tools/live_pixels.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import PIL
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import live_pixels


def check(n_pictures: int, seed: int, largest_side: int) -> None:
    assert PIL.__version__.startswith("13."), "Pillow's order of passes changed twice; the test knows that of 13"
    counts = live_pixels.compare(n_pictures, seed, largest_side)
    assert counts["compared aten"] == counts["compared pillow13"] == counts["compared pillow"] == n_pictures
    assert counts["vertical first"] >= n_pictures // 40, "cases that tell Pillow's orders apart"
    assert not {name: n for name, n in counts.items() if name.startswith("differ")}


def test_random_pictures() -> None:
    check(n_pictures=200, seed=1, largest_side=600)


@pytest.mark.soak
def test_many_random_pictures() -> None:
    check(n_pictures=2000, seed=2, largest_side=4000)
