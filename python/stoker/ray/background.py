"""Coroutines that run beside the rest of the coordinator's loop, kept until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Background"]


class Background:
    """Not for several threads.

    Args:
        on_error: Told what a coroutine raised.
    """

    def __init__(self, on_error: Callable[[BaseException], Any]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()  # a loop alone does not keep its tasks alive

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins a coroutine; to be called in the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancels all that run."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
