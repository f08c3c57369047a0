"""User code for the tests of user code; imported by its path, as a user's own would be."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, Any]
Pixels = npt.NDArray[np.uint8]

threads: set[int] = set()
reached = threading.Event()
"""Set once `forever` or `patient` runs."""


def shout(row: Row) -> Row:
    """Changes the text, so the lengths too."""
    threads.add(threading.get_ident())
    for message in row["messages"]:
        if isinstance(message["content"], str):
            message["content"] = message["content"].upper() + " Indeed."
    return row


def picky(row: Row) -> Row:
    """Raises for some rows."""
    said = row["messages"][-1]["content"]
    if "number 3" in said or "Number 3" in said:
        raise LookupError("I do not like this one")
    return row


def careless(row: Row) -> None:
    """Forgets to give the row back."""


def mirrored(pixels: Pixels) -> Pixels:
    """Keeps the size; gives a view that is not contiguous."""
    return pixels[:, ::-1]


def cropped(pixels: Pixels) -> Pixels:
    """Halves the height."""
    return pixels[: pixels.shape[0] // 2]


cropped.size = lambda height, width: (height // 2, width)  # type: ignore[attr-defined]


def undeclared(pixels: Pixels) -> Pixels:
    """As `cropped`, and does not say so."""
    return pixels[: pixels.shape[0] // 2]


def as_float(pixels: Pixels) -> Any:
    """Gives another type."""
    return pixels.astype(np.float32)


def forever(row: Row) -> Row:
    """Never ends of itself."""
    reached.set()
    while True:
        sum(range(100))


def patient(row: Row) -> Row:
    """Lets the interpreter go for a while in every row."""
    reached.set()
    time.sleep(0.05)
    return row


not_callable = 3


def deadly(pixels: Pixels) -> Pixels:
    """Ends its process at a picture of 288 x 352, as a decoder that runs into the memory's limit does."""
    if pixels.shape[:2] == (288, 352):
        if "STOKER_TEST_MERELY_RAISES" in os.environ:
            raise MemoryError("too much")
        os._exit(9)
    return pixels


class Ungiving(Exception):
    """Cannot be pickled, nor told."""

    def __reduce__(self) -> str:
        raise RuntimeError("this has a socket in it")

    def __str__(self) -> str:
        raise RuntimeError("and has no words")


def raise_ungiving(row: Row) -> Row:
    """Fails in a way that cannot leave the process."""
    raise Ungiving
