"""The plan's own thread in the coordinator: opens the engine, then takes tasks from it and hands them to the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Planning"]

_TICK_MS = 100
_BATCH = 64  # tasks handed on at one time


class Planning:
    """Runs until the data are at their end, `stop`, or an error.

    Args:
        make: Makes the engine (`CoreCoordinator`), on the thread.
        on_open: Called with the engine, once it is open.
        on_start: Called once the engine stands at the agreed state.
        on_tasks: Called with the next tasks, in the plan's order.
        on_end: Called when there are no more.
        on_error: Called with what ended it.

    All are called on the thread.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        on_open: Callable[[Any], None],
        on_start: Callable[[], None],
        on_tasks: Callable[[list[Any]], None],
        on_end: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._make = make
        self._on_open, self._on_start, self._on_tasks = on_open, on_start, on_tasks
        self._on_end, self._on_error = on_end, on_error
        self._from: Callable[[Any], None] | None = None
        self._may_start = threading.Event()
        self._is_stopped = False
        self.progress = "the coordinator begins to open the model and the data"
        """What the engine is at, in words."""
        self._thread = threading.Thread(target=self._run, name="stoker-plan", daemon=True)
        self._thread.start()

    def start(self, start: Callable[[Any], None]) -> None:
        """Lets it go on, with what sets the engine to the agreed state."""
        self._from = start
        self._may_start.set()

    def stop(self) -> None:
        """Ends the thread; it is gone within a second."""
        self._is_stopped = True
        self._may_start.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        engine = None
        try:
            engine = self._make()
            while not self._is_stopped and not engine.open_within(_TICK_MS):
                self.progress = engine.progress() or self.progress
            if self._is_stopped:
                return
            self._on_open(engine)
            self._may_start.wait()
            if self._is_stopped or self._from is None:
                return
            self._from(engine)
            self._on_start()
            self._take(engine)
        except BaseException as error:
            if not self._is_stopped:
                self._on_error(error)
        finally:
            if engine is not None and self._is_stopped:
                engine.close()

    def _take(self, engine: Any) -> None:
        while not self._is_stopped:
            tasks = []
            task = engine.next_task_within(_TICK_MS)
            while task is not None:
                tasks.append(task)
                task = engine.next_task_within(0) if len(tasks) < _BATCH else None
            if tasks:
                self._on_tasks(tasks)
            elif engine.is_at_end:
                self._on_end()
                return
