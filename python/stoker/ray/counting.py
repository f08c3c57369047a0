"""What a rank client counts."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Counts", "Tally"]

_USUAL_AFTER = 8  # pulls, before one can be a straggler
_STRAGGLES = 3.0  # times the usual


@dataclass(slots=True, kw_only=True)
class Counts:
    """Of one process since it joined."""

    packs: int = 0
    local_packs: int = 0
    """Made on this node."""
    local_bytes: int = 0
    network_packs: int = 0
    """That came from another node; once for all peers on this one."""
    network_bytes: int = 0
    mapped_packs: int = 0
    """Of which the trainer's arrays are the node's store itself."""
    copies: int = 0
    """Of whole payloads after their making: into the worker's store, over the network, into this process."""
    copied_bytes: int = 0
    """Into this process."""
    asked_again: int = 0
    """Packs that were lost, or late on their way."""
    pull_s: float = 0.0
    """Sum over pulls, which go on side by side."""
    longest_pull_s: float = 0.0
    straggler_s: float = 0.0
    """By which pulls took longer than three usual ones."""
    wait_handle_s: float = 0.0
    """The trainer waited, and the pack was not made."""
    wait_pull_s: float = 0.0
    """The trainer waited, and the pack was on its way."""


class Tally:
    """`Counts`, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._counts = Counts()
        self._usual_s = 0.0
        self._n_pulls = 0

    def pulled(self, seconds: float, *, again: int) -> None:
        """A payload is in this node's store, or copied."""
        with self._lock:
            counts = self._counts
            counts.asked_again += again
            counts.pull_s += seconds
            counts.longest_pull_s = max(counts.longest_pull_s, seconds)
            if self._n_pulls >= _USUAL_AFTER:
                counts.straggler_s += max(0.0, seconds - _STRAGGLES * self._usual_s)
            self._n_pulls += 1
            # A mean that forgets, and that one straggler does not carry off.
            capped = seconds if self._n_pulls <= _USUAL_AFTER else min(seconds, _STRAGGLES * self._usual_s)
            self._usual_s += (capped - self._usual_s) / min(self._n_pulls, 4 * _USUAL_AFTER)

    def handed_on(self, n_bytes: int, *, is_local: bool, is_mapped: bool, copies: int) -> None:
        """A pack was given to the trainer's side."""
        with self._lock:
            counts = self._counts
            counts.packs += 1
            if is_local:
                counts.local_packs += 1
                counts.local_bytes += n_bytes
            else:
                counts.network_packs += 1
                counts.network_bytes += n_bytes
            counts.copies += copies
            if is_mapped:
                counts.mapped_packs += 1
            else:
                counts.copied_bytes += n_bytes

    def waited(self, seconds: float, *, came_at: float, now: float) -> None:
        """The trainer did until `now`, for a pack that was known to be made since `came_at`."""
        for_handle_s = min(max(0.0, came_at - (now - seconds)), seconds)
        with self._lock:
            self._counts.wait_handle_s += for_handle_s
            self._counts.wait_pull_s += seconds - for_handle_s

    def snapshot(self) -> Counts:
        """A copy."""
        with self._lock:
            return Counts(**asdict(self._counts))


def plain(counts: Counts) -> dict[str, Any]:
    """For reports."""
    values = asdict(counts)
    copies = values.pop("copies")
    return {**values, "copies_per_pack": copies / counts.packs if counts.packs else 0.0}
