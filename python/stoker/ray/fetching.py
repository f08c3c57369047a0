"""Gets a pack's payload to this process, asking for it again when it is lost or late."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import GetTimeoutError, ObjectLostError

from stoker.errors import InternalError
from stoker.ray.asking import SLICE_S, Asker
from stoker.ray.protocol import PackHandle

__all__ = ["Fetched", "Fetcher"]

_PULL_TIMEOUT_S = 30.0  # then the pack is asked for again

_Bytes = npt.NDArray[np.uint8]
Fetched = tuple[PackHandle, _Bytes, _Bytes]
"""With pixels and tail; the handle is that of the payload which came in the end."""


class OnPulled(Protocol):
    """Told how long a payload took, and how often it was asked for again."""

    def __call__(self, seconds: float, *, again: int) -> None: ...


class Fetcher:
    """Called with a handle, for `Pulls`. Threads: any.

    Args:
        asker: The coordinator.
        client_id: Who asks.
        is_eager: Payloads are copied into this process, in place of mapped.
        on_pulled: As its type says.
        go_on: Raises once the client is being closed.
    """

    def __init__(
        self, asker: Asker, *, client_id: str, is_eager: bool, on_pulled: OnPulled, go_on: Callable[[], None]
    ) -> None:
        self._asker, self._client_id, self._is_eager = asker, client_id, is_eager
        self._on_pulled, self._go_on = on_pulled, go_on

    def __call__(self, handle: PackHandle) -> Fetched:
        """Waits for the payload.

        Raises:
            StokerError: If it cannot be had, or is no payload.
            ClosedError: The client is being closed.
        """
        began = time.monotonic()
        again = 0
        while True:
            try:
                pixels, tail = _checked(handle, self._payload(handle))
                break
            except (ObjectLostError, GetTimeoutError) as error:
                why = f"{type(error).__name__} after {time.monotonic() - began:.1f} s"
            again += 1
            handle = self._again(handle, why)
        if self._is_eager:
            pixels, tail = pixels.copy(), tail.copy()
        self._on_pulled(time.monotonic() - began, again=again)
        return handle, pixels, tail

    def _again(self, lost: PackHandle, why: str) -> PackHandle:
        number, attempt = lost.number, lost.attempt
        made: PackHandle = self._asker.ask(lambda actor: actor.again.remote(self._client_id, number, attempt, why))
        return made

    def _payload(self, handle: PackHandle) -> Any:
        if handle.payload is not None:
            return handle.payload
        until = time.monotonic() + _PULL_TIMEOUT_S
        while True:
            self._go_on()
            # A get that times out gives up what has come so far, so that a slow network would never bring a pack; a
            # wait's fetching goes on.
            ready, _ = ray.wait(handle.ref, timeout=SLICE_S)
            try:
                if ready:
                    return ray.get(handle.ref[0], timeout=SLICE_S)
            except GetTimeoutError:
                pass
            if time.monotonic() > until:
                raise GetTimeoutError


def _checked(handle: PackHandle, payload: Any) -> tuple[_Bytes, _Bytes]:
    """(pixels, tail), which are what they should be; what pads a small pack may follow them."""
    if not isinstance(payload, list | tuple) or len(payload) not in (2, 3):
        raise InternalError(f"ray: the pack of step {handle.step} is no pixels and tail")
    pixels, tail = payload[:2]
    for part in (pixels, tail):
        if not isinstance(part, np.ndarray) or part.dtype != np.uint8 or part.ndim != 1:
            raise InternalError(f"ray: the pack of step {handle.step} has another form than bytes")
    return pixels, tail
