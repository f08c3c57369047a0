"""Removes virtual clusters: their processes, namespaces, links and folders.

A cluster's record names all of it and is written before any of it is made, so a half-made cluster goes the same way.
Also run as a program, ``python teardown.py NAME OWNER_PID``: it waits until the owner ends, in whatever way, and
removes the cluster then. Standard library only, so that it starts at once and cannot fail on an import.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["RECORDS", "Record", "locked", "processes_in", "sweep", "tear_down"]

RECORDS = Path("/run/stoker-virtual")
"""Folder of the records of all virtual clusters of the machine."""

_NAMESPACES = Path("/run/netns")


@dataclass
class Record:
    """What a virtual cluster is made of."""

    name: str
    owner_pid: int
    """It ends with this process; 0: it stays until it is taken down."""
    owner_began: str
    """Start time of the owner, since process ids come again."""
    folder: str
    namespaces: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """What its maker wants to know of it later."""

    @property
    def path(self) -> Path:
        """Its file."""
        return RECORDS / f"{self.name}.json"

    def write(self) -> None:
        """Writes the file, whole or not at all."""
        RECORDS.mkdir(mode=0o755, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(self)))
        beside.replace(self.path)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """The record, or None if there is none that can be read."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_abandoned(self) -> bool:
        """Whether it was to end with a process that has ended."""
        return self.owner_pid != 0 and began(self.owner_pid) != self.owner_began


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One process at a time chooses names and addresses."""
    RECORDS.mkdir(mode=0o755, exist_ok=True)
    with (RECORDS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def began(pid: int) -> str:
    """When a process started, in ticks since boot; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def processes_in(namespaces: list[str]) -> list[int]:
    """Processes that run in these network namespaces."""
    wanted = set()
    for name in namespaces:
        with contextlib.suppress(OSError):
            at = (_NAMESPACES / name).stat()
            wanted.add((at.st_dev, at.st_ino))
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                of = os.stat(f"/proc/{name}/ns/net")
                if (of.st_dev, of.st_ino) in wanted and began(int(name)):
                    found.append(int(name))
    return found


def tear_down(record: Record, patience_s: float = 10.0) -> list[str]:
    """Ends and removes all of a cluster. Returns what could not be removed, in words; then the record stays."""
    end = time.monotonic() + patience_s
    while alive := processes_in(record.namespaces):  # again: one may start another while it is being killed
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    left = [f"process {pid}" for pid in alive]
    for name in record.namespaces:
        if (_NAMESPACES / name).exists():
            left += _run("ip", "netns", "delete", name)
    for name in record.links:
        if Path(f"/sys/class/net/{name}").exists():
            _run("ip", "link", "delete", name)  # may go by itself in between: its namespace was its other end
            if Path(f"/sys/class/net/{name}").exists():
                left.append(f"link {name}")
    shutil.rmtree(record.folder, ignore_errors=True)
    if not left:
        record.path.unlink(missing_ok=True)
    return left


def sweep() -> list[str]:
    """Removes clusters whose owner has ended without removing them. Returns their names."""
    gone = []
    for path in sorted(RECORDS.glob("*.json")):
        record = Record.read(path)
        if record is not None and record.is_abandoned() and not tear_down(record):
            gone.append(record.name)
    return gone


def _run(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return [] if done.returncode == 0 else [f"{' '.join(command)}: {done.stderr.strip()}"]


def _watch(name: str, owner: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends the owner must not end us before
    path = RECORDS / f"{name}.json"
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(owner)
        if os.getppid() == owner:  # else the id may be another process's by now
            sys.stdout.write("watching\n")
            sys.stdout.flush()
            select.select([fd, sys.stdin], [], [])  # the owner closes our input when it has removed all itself
            if path.exists():
                select.select([fd], [], [])
    record = Record.read(path)
    if record is not None and record.owner_pid == owner:
        tear_down(record)


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
