"""Reads a node's counters: an actor on each node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from stoker.ray.ladder.bounds import Reading

__all__ = ["Meter", "busy_s", "bytes_of", "nic_speed_bytes_s", "read"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Meter:
    """Reads the counters of the node that it runs on.

    Args:
        interfaces: Network interfaces of the cluster's network; empty: all but loopback.
    """

    def __init__(self, interfaces: tuple[str, ...] = ()) -> None:
        self._interfaces = interfaces

    def read(self) -> Reading:
        """Reads them now."""
        return read(interfaces=self._interfaces)

    def nic_bytes_s(self) -> float | None:
        """What the node's fastest network interface says that it carries; None where none says."""
        return nic_speed_bytes_s()


def read(proc: Path = Path("/proc"), interfaces: tuple[str, ...] = ()) -> Reading:
    """Reads the counters of this process's network namespace, and of the processes in it."""
    received, sent = bytes_of((proc / "self/net/dev").read_text().splitlines(), interfaces)
    host = (proc / "sys/kernel/random/boot_id").read_text().strip()
    return Reading(
        at_s=time.monotonic(),
        host=host,
        network=f"{host}/{os.stat(proc / 'self/ns/net').st_ino}",
        cores=len(os.sched_getaffinity(0)),
        busy_s=busy_s((proc / "stat").read_text()),
        received_bytes=received,
        sent_bytes=sent,
        cpu_s=_cpu_s(proc),
    )


def bytes_of(lines: Iterable[str], interfaces: tuple[str, ...] = ()) -> tuple[int, int]:
    """Returns bytes received and sent by these interfaces (none: all but lo), from the lines of ``/proc/net/dev``."""
    received = sent = 0
    for line in lines:
        name, colon, counters = line.partition(":")
        if colon and (name.strip() in interfaces if interfaces else name.strip() != "lo"):
            fields = counters.split()
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


def busy_s(stat: str) -> float:
    """Returns the CPU seconds of everybody, stolen ones included, from ``/proc/stat``."""
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in stat.split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _cpu_s(proc: Path) -> dict[int, float]:
    ours = os.stat(proc / "self/ns/net").st_ino
    found: dict[int, float] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if os.stat(folder / "ns/net").st_ino == ours:
                # the command's name may hold anything but stands in parentheses, the last of which ends it
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def nic_speed_bytes_s(net: Path = Path("/sys/class/net")) -> float | None:
    """What the fastest physical interface says that it carries."""
    speeds = []
    for folder in net.iterdir() if net.is_dir() else ():
        try:
            if (folder / "device").exists() and (mbit := int((folder / "speed").read_text())) > 0:
                speeds.append(mbit * 1e6 / 8)
        except (OSError, ValueError):
            continue
    return max(speeds, default=None)
