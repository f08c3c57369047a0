"""Where the photographs, and the model folder to go with them, lie."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PHOTOS", "PhotosNotFoundError", "find_testdata"]

PHOTOS = {
    "astronaut.png": "an astronaut in an orange suit before a flag",
    "chelsea.png": "a ginger cat looking past the camera",
    "china.jpg": "the painted roof of a temple against the sky",
    "coffee.png": "a cup of espresso on a wooden table",
    "flower.jpg": "a flower with long red petals",
    "hubble_deep_field.jpg": "hundreds of distant galaxies",
    "retina.jpg": "the back of a human eye with its vessels",
    "rocket.jpg": "a rocket leaving its launch pad at dusk",
}
"""File name -> what it shows."""


class PhotosNotFoundError(FileNotFoundError):
    """The demonstration's photographs are not where this program looks."""


def find_testdata() -> Path:
    """Returns the folder ``testdata`` of the source tree, with ``photos/`` and ``qwen3-vl/`` in it.

    They are part of the source tree and not of the wheel (15 MB that only the demonstration needs). Looked for beside
    the package, as an editable install leaves it, then in the current folder and those above it. The environment
    variable ``STOKER_TESTDATA`` overrides both.

    Raises:
        PhotosNotFoundError: None of these has it.
    """
    given = os.environ.get("STOKER_TESTDATA")
    here = Path.cwd()
    candidates = (
        [Path(given)]
        if given
        else [folder / "testdata" for folder in (Path(__file__).resolve().parents[3], here, *here.parents)]
    )
    for candidate in candidates:
        if all((candidate / "photos" / name).is_file() for name in PHOTOS):
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates[:3])
    raise PhotosNotFoundError(
        f"no folder testdata/photos with the demonstration's photographs (looked in {looked}): run it inside a "
        "checkout of Stoker, or name the folder in STOKER_TESTDATA"
    )
