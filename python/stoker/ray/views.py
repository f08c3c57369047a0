"""Whether an array lies in the node's object store, and is no copy of what lies there."""

from __future__ import annotations

import re
import threading

import numpy as np
import numpy.typing as npt

__all__ = ["StoreMap"]

_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +/.*/plasma\w+", re.MULTILINE)


class StoreMap:
    """Where this process has mapped its node's store. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._ranges: list[tuple[int, int]] = []
        self._n_reads = 0

    @property
    def n_reads(self) -> int:
        """Grows when something new may have been mapped."""
        with self._lock:
            return self._n_reads

    def has(self, array: npt.NDArray[np.uint8]) -> bool:
        """Whether all of the array is in the store."""
        first = int(array.__array_interface__["data"][0])
        end = first + array.nbytes
        with self._lock:
            if not self._is_known(first, end):
                self._ranges = _mapped()  # mappings are few and come with the first object
                self._n_reads += 1
            return self._is_known(first, end)

    def _is_known(self, first: int, end: int) -> bool:
        return any(low <= first and end <= high for low, high in self._ranges)


def _mapped() -> list[tuple[int, int]]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return [(int(m[1], 16), int(m[2], 16)) for m in _MAPPED.finditer(maps.read())]
    except OSError:  # not Linux
        return []
