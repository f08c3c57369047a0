"""Ends one cluster's processes on this machine, and no other's: ``python end_node.py HOST:PORT``.

Standard library only, since it is sent to nodes by its text.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

__all__ = ["end_node", "processes_of"]


def processes_of(address: str) -> list[int]:
    """Ray's own processes here that belong to the cluster whose head is at host:port; workers end with them."""
    host, _, port = address.rpartition(":")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
            is_member = f"--gcs-address={address}" in words or f"--address={address}" in words
            is_head = f"--gcs_server_port={port}" in words and f"--node-ip-address={host}" in words
            if is_member or is_head:
                found.append(int(name))
    return sorted(found)


def end_node(address: str, patience_s: float = 10.0) -> int:
    """Asks them to end, and kills what does not. Returns how many there were."""
    all_of_them: set[int] = set()
    end = time.monotonic() + patience_s
    while alive := processes_of(address):
        number = signal.SIGTERM if time.monotonic() < end - patience_s / 2 else signal.SIGKILL
        for pid in alive:
            if pid not in all_of_them or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        all_of_them.update(alive)
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return len(all_of_them)


if __name__ == "__main__":
    sys.stdout.write(f"{end_node(sys.argv[1])}\n")
    sys.exit(1 if processes_of(sys.argv[1]) else 0)
