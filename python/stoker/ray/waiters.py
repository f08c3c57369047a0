"""Calls that wait in the coordinator's loop until something happens to their rank."""

from __future__ import annotations

import asyncio

__all__ = ["ALL", "Waiters"]

ALL = -1
"""In place of a rank: what concerns the whole run."""


class Waiters:
    """Not for several threads."""

    def __init__(self) -> None:
        self._of_rank: dict[int, set[asyncio.Future[None]]] = {}

    async def wait(self, rank: int, seconds: float) -> None:
        """Until something happens to a rank, at most so long."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiters = self._of_rank.setdefault(rank, set())
        waiters.add(woken)
        timer = loop.call_later(seconds, _set, woken)
        try:
            await woken
        finally:
            timer.cancel()
            waiters.discard(woken)

    def wake(self, rank: int) -> None:
        """Something happened to a rank."""
        for woken in self._of_rank.get(rank, ()):
            _set(woken)

    def wake_all(self) -> None:
        """Something happened that concerns everybody."""
        for rank in list(self._of_rank):
            self.wake(rank)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
