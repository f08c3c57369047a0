"""Questions to the coordinator, each with a time limit, so that a client never hangs with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from stoker.errors import UnavailableError
from stoker.ray.protocol import POLL_S, Ended, NotYet

__all__ = ["SLICE_S", "Asker", "ClosedError", "StaleError"]

SLICE_S = 0.1
"""The longest wait that does not look at whether the client is being closed."""


class ClosedError(Exception):
    """The client is being closed."""


class StaleError(Exception):
    """The coordinator belongs to an attempt before this one."""


class Asker:
    """The coordinator, as one client asks it.

    Args:
        actor: Its handle.
        name: Of it.
        silence_s: It counts as lost after so long without an answer.
        is_closing: Ends every question.

    Threads: any.
    """

    def __init__(self, actor: Any, name: str, silence_s: float, is_closing: Callable[[], bool]) -> None:
        self.actor = actor
        self._name, self._silence_s, self._is_closing = name, silence_s, is_closing

    def ask(self, call: Callable[[Any], Any], *, say: Callable[[str], None] = lambda _: None) -> Any:
        """Asks until the answer is something else than `NotYet`.

        Args:
            call: Calls a method of the actor it is given, and returns the reference.
            say: Told what is waited for.

        Raises:
            StokerError: What the coordinator answered, or COORDINATOR_LOST.
            ClosedError: The client is being closed.
            StaleError: It is the coordinator of an attempt before this one.
        """
        heard_at = time.monotonic()
        while True:
            try:
                answer = self._once(call, heard_at)
            except ActorUnavailableError as error:  # a connection; it may come back
                if time.monotonic() - heard_at > self._silence_s:
                    raise self.lost(error) from None
                time.sleep(SLICE_S)
                continue
            except (RayActorError, GetTimeoutError) as error:
                raise self.lost(error) from None
            heard_at = time.monotonic()
            if isinstance(answer, Ended):
                raise answer.error()
            if not isinstance(answer, NotYet):
                return answer
            if answer.is_stale:
                raise StaleError
            say(answer.waits_for)

    def _once(self, call: Callable[[Any], Any], heard_at: float) -> Any:
        if self._is_closing():
            raise ClosedError
        ref = call(self.actor)
        while True:
            # A get that times out gives up what has come so far of a large answer; a wait's fetching goes on.
            ready, _ = ray.wait([ref], timeout=SLICE_S)
            try:
                if ready:
                    return ray.get(ref, timeout=SLICE_S)
            except GetTimeoutError:
                pass
            if self._is_closing():
                raise ClosedError
            if time.monotonic() - heard_at > POLL_S + self._silence_s:
                raise GetTimeoutError

    def lost(self, error: Exception) -> UnavailableError:
        """What the trainer is told of a coordinator that is gone."""
        why = (str(error).strip().splitlines()[-1:] or [type(error).__name__])[0].partition(" Some common causes")[0]
        said = "does not answer" if isinstance(error, GetTimeoutError) else f"has died: {why[:300]}"
        return UnavailableError(
            "no more batches come. Restart all ranks and resume from the last checkpoint; state_dict() still tells "
            f"where delivery stands. The coordinator {self._name} {said}",
            "COORDINATOR_LOST",
        )
