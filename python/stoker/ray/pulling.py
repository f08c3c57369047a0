"""Packs on their way into a trainer: fetched ahead, several at a time, bounded by bytes, handed on in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stoker.ray.protocol import PackHandle

__all__ = ["Pulls"]

_TICK_S = 0.1  # how often a wait for room looks at what the trainer has let go of


@dataclass(slots=True, eq=False)
class _Pull:
    handle: PackHandle | None
    n_bytes: int
    step: int
    came_at: float
    is_begun: bool = False
    result: Any = None


class Pulls:
    """Fetches the packs that it is given.

    A pack is begun when its bytes fit into `limit_bytes` together with all that is fetched, ready, or held by the
    trainer; those of the step that the trainer takes always are, so that a small limit is slow and never stands still.

    Threads: `n_threads` that fetch and one that hands on, all ended by `close`. `add`, `set_step`: any one.

    Args:
        fetch: Gets a pack, as whatever `put` takes but None; may block, and must return or raise soon after `close`.
        put: Takes a pack in its turn, and the time by `clock` when it was added.
        held_bytes: Bytes put and not yet let go of.
        limit_bytes: Of packs in this process.
        n_threads: That fetch.
        on_error: Called once with what `fetch` or `put` raised, unless closed; nothing is fetched afterwards.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        fetch: Callable[[PackHandle], Any],
        put: Callable[[Any, float], None],
        held_bytes: Callable[[], int],
        limit_bytes: int,
        n_threads: int,
        on_error: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._put, self._on_error = fetch, put, on_error
        self._held_bytes = held_bytes
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._pulls: deque[_Pull] = deque()  # in order; the first is handed on next
        self._step = 0
        self._n_put = 0
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"stoker-ray-{name}", daemon=True)
            for work, name in [(self._fetch_one, f"pull-{i}") for i in range(n_threads)] + [(self._put_one, "put")]
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_put(self) -> int:
        """Packs handed on."""
        with self._changed:
            return self._n_put

    def add(self, handles: Iterable[PackHandle]) -> None:
        """Packs that come next, in order."""
        now = self._clock()
        with self._changed:
            if not self._is_closed:
                self._pulls.extend(_Pull(h, h.n_bytes, h.step, now) for h in handles)
                self._changed.notify_all()

    def set_step(self, step: int) -> None:
        """The step that the trainer takes."""
        with self._changed:
            self._step = max(self._step, step)
            self._changed.notify_all()

    def drained_within(self, seconds: float) -> bool:
        """Waits until everything added is handed on; False if it is not in time, True once closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or not self._pulls, timeout=seconds)

    def close(self, *, within_s: float) -> bool:
        """Fetches nothing more and drops what is here. Returns whether all threads have ended."""
        with self._changed:
            self._is_closed = True
            self._pulls.clear()
            self._changed.notify_all()
        until = self._clock() + within_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - self._clock()))
        return not any(thread.is_alive() for thread in self._threads if thread is not threading.current_thread())

    def _run(self, work: Callable[[], bool]) -> None:
        try:
            while work():
                pass
        except BaseException as error:
            with self._changed:
                was_closed, self._is_closed = self._is_closed, True
                self._pulls.clear()
                self._changed.notify_all()
            if not was_closed:
                self._on_error(error)

    def _fetch_one(self) -> bool:
        pull = self._next_to_fetch()
        if pull is None or pull.handle is None:
            return False
        result = self._fetch(pull.handle)
        with self._changed:
            if not self._is_closed:
                pull.result = result
                self._changed.notify_all()
        return True

    def _next_to_fetch(self) -> _Pull | None:
        with self._changed:
            while not self._is_closed:
                pull = next((p for p in self._pulls if not p.is_begun), None)
                if pull is not None and self._has_room(pull):
                    pull.is_begun = True
                    return pull
                # What the trainer lets go of is told by nobody.
                self._changed.wait(None if pull is None else _TICK_S)
            return None

    def _has_room(self, pull: _Pull) -> bool:
        if pull.step <= self._step:
            return True
        begun = sum(p.n_bytes for p in self._pulls if p.is_begun)
        return begun + self._held_bytes() + pull.n_bytes <= self._limit_bytes

    def _put_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or (self._pulls and self._pulls[0].result is not None))
            if self._is_closed:
                return False
            pull = self._pulls[0]
        self._put(pull.result, pull.came_at)
        with self._changed:
            # Only now: until then its bytes count as being here. The reference goes with the handle.
            pull.handle = pull.result = None
            if self._pulls and self._pulls[0] is pull:
                self._pulls.popleft()
                self._n_put += 1
            self._changed.notify_all()
        return True
