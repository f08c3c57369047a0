"""Which processes are left: for tests that end programs."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["left_in_group"]


def left_in_group(group: int, *, patience_s: float = 5.0) -> list[str]:
    """Returns the command lines of a process group's processes once none is left, or after a while.

    Helpers such as the standard library's resource tracker end a moment after their owner; processes that have ended
    and wait to be reaped do not count.
    """
    deadline = time.monotonic() + patience_s
    while (found := _alive(group)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _alive(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
    return found
