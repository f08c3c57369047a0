"""To a CUDA device, beside the computation."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SideStreamCopy"]

_log = logging.getLogger("stoker")

Tensors = dict[str, Any]


class SideStreamCopy:
    """Copies tensors and works on them on a stream of its own, so that the device goes on computing meanwhile.

    The host never waits for the device: the stream that uses the tensors is told to wait for the copy. How long it
    really stood still is read later from a pair of events, and counted as time that the trainer waited.

    Lifetimes: a pinned buffer may be dropped at once, since torch's host allocator holds it back until the copy out of
    it is done. The results belong to the side stream's memory and are used on another, which `record_stream` tells the
    device's allocator. What lies between is used and given back on the side stream alone.

    Where the system gives no page-locked memory, that is said once, and copies go on from ordinary memory: as right,
    but the host waits for each.

    Threads: one, the trainer's.

    Args:
        device: The CUDA device, with its index.
        add_wait: Called with seconds that were not hidden.
        cuda: `torch.cuda`, or what stands in for it.
    """

    def __init__(self, device: Any, add_wait: Callable[[float], None], *, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._add_wait = add_wait
        self._cuda = cuda
        self._stream = cuda.Stream(device=device)
        self._stalls: deque[tuple[Any, Any]] = deque()
        self._can_pin = True

    def __call__(self, host: Tensors, finish: Callable[[Tensors], Tensors]) -> Tensors:
        """Copies `host` over and gives back what `finish` makes of the copies, ready for the current stream."""
        with self._cuda.stream(self._stream):
            tensors = finish({name: self._copied(tensor) for name, tensor in host.items()})
            done = self._stream.record_event()
        user = self._cuda.current_stream(self._device)
        before, after = (self._cuda.Event(enable_timing=True) for _ in range(2))
        before.record(user)
        user.wait_event(done)
        after.record(user)
        for tensor in tensors.values():
            tensor.record_stream(user)
        self._stalls.append((before, after))
        self._count_stalls()
        return tensors

    def _copied(self, tensor: Any) -> Any:
        if self._can_pin:
            try:
                pinned = tensor.pin_memory()
            except RuntimeError as error:
                self._can_pin = False
                _log.warning(
                    "no page-locked memory for copies to %s (%s): they go on from ordinary memory, and the trainer "
                    "waits for them; see `ulimit -l` and the memory limit of the container",
                    self._device,
                    error,
                )
            else:
                return pinned.to(self._device, non_blocking=True)
        return tensor.to(self._device, non_blocking=False)  # has read the engine's memory when it returns

    def _count_stalls(self) -> None:
        while self._stalls and self._stalls[0][1].query():
            before, after = self._stalls.popleft()
            self._add_wait(before.elapsed_time(after) / 1e3)
