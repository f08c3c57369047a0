"""Where a node's object store really lies: in memory, as it should, or on a disk.

Ray puts its store on a disk when ``/dev/shm`` has no room for it (the default of a container: 64 MB), and single
objects that do not fit into the store. Either works, as slowly as the disk, and all that tells of it is a line in the
log of the node. Both show in what a process has mapped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["StoreFile", "mapped_stores", "store_warning"]

_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +(/.*/plasma\w+)(?: \(deleted\))?$")
_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
_SHM = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """A file of a node's object store that a process has mapped."""

    folder: str
    filesystem: str
    """Kind of file system that the folder is on; empty if unknown."""
    n_bytes: int

    @property
    def is_on_disk(self) -> bool:
        """Whether its pages go through a disk."""
        return bool(self.filesystem) and self.filesystem not in _IN_MEMORY


def mapped_stores(proc: Path = Path("/proc/self")) -> list[StoreFile]:
    """What this process has mapped of its node's store; empty before it has put or got its first object."""
    try:
        maps, mounts = (proc / "maps").read_text(), (proc / "mountinfo").read_text()
    except OSError:
        return []
    kinds = dict(_mount(line) for line in mounts.splitlines())
    found: dict[str, StoreFile] = {}
    for match in filter(None, map(_MAPPED.match, maps.splitlines())):
        n_bytes, path = int(match[2], 16) - int(match[1], 16), match[3]
        known = found[path].n_bytes if path in found else 0
        folder = os.path.dirname(path)
        found[path] = StoreFile(folder=folder, filesystem=_kind_of(folder, kinds), n_bytes=known + n_bytes)
    return list(found.values())


def store_warning(stores: Iterable[StoreFile], host: str) -> str:
    """What to say of a node whose store goes through a disk; empty if it does not."""
    slow = [store for store in stores if store.is_on_disk]
    if not slow:
        return ""
    n_bytes = sum(store.n_bytes for store in slow)
    return (
        f"ray: on {host} {n_bytes / 1e6:.0f} MB of the object store lie on a disk ({slow[0].folder}, "
        f"{slow[0].filesystem}), so packs are as slow as that: {_SHM} has {_size_of_shm() / 1e6:.0f} MB in all. Make "
        "it larger (docker run --shm-size, an emptyDir of medium Memory in Kubernetes) or the store smaller (ray start "
        "--object-store-memory)"
    )


def _mount(line: str) -> tuple[str, str]:
    """(folder, kind) of a line of mountinfo; see proc(5)."""
    before, _, after = line.partition(" - ")
    return before.split()[4].replace("\\040", " "), after.split()[0]


def _kind_of(folder: str, kinds: dict[str, str]) -> str:
    at = folder
    while at not in kinds and at != "/":
        at = os.path.dirname(at)
    return kinds.get(at, "")


def _size_of_shm() -> int:
    try:
        shm = os.statvfs(_SHM)
    except OSError:
        return 0
    return shm.f_blocks * shm.f_frsize
