"""A worker: the engine without a plan. It makes whole packs, each put once into its node's object store."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from stoker import _core
from stoker.errors import UnavailableError
from stoker.loader import core_settings
from stoker.ray.protocol import Ended
from stoker.settings import Settings

__all__ = ["Opened", "PackWorker"]

_INLINED_BYTES = 100 << 10  # Ray sends a smaller object inside the reply, to whoever asked for it: the coordinator
_TICK_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A worker is ready."""

    node_id: str
    host: str
    pid: int
    fingerprint: str
    """Of the settings as this node sees them; the coordinator's must be the same."""


class PackWorker:
    """The actor. Its methods return `Ended` and never raise, so what fails is told as it is.

    It has no name and is not detached: it dies with the coordinator that made it. It gets its settings by `open`, since
    what an actor is made with is kept by the cluster.
    """

    def __init__(self) -> None:
        self._worker: _core.CorePackWorker | None = None

    def open(self, settings: Settings, dp_size: int, threads: int, memory_bytes: int) -> Opened | Ended:
        """Opens the model and the data.

        Args:
            settings: Of the run.
            dp_size: Ranks of the run.
            threads: That decode and tokenise; 0: as the settings say.
            memory_bytes: For packs and encoded objects; 0: as the settings say.
        """
        try:
            speed = dataclasses.replace(settings.speed, ranks_per_node=1)  # a worker shares its own with nobody
            if threads:
                speed = dataclasses.replace(speed, cpu_threads=threads)
            if memory_bytes:
                speed = dataclasses.replace(speed, memory_limit=memory_bytes)
            self._worker = worker = self._engine(dataclasses.replace(settings, speed=speed), dp_size)
            while not worker.open_within(_TICK_MS):
                pass
            return Opened(
                node_id=ray.get_runtime_context().get_node_id(),
                host=socket.gethostname(),
                pid=os.getpid(),
                fingerprint=worker.fingerprint,
            )
        except Exception as error:
            return Ended.of(error)

    @ray.method(num_returns=2)
    def make(
        self, message: bytes, rejected: Sequence[int] = (), only: int = -1, why_rejected: str = ""
    ) -> tuple[bytes | Ended, list[np.ndarray] | None]:
        """Makes a pack; several at a time.

        Args:
            message: The task, from the coordinator's engine.
            rejected: Members given up, because they kill workers.
            only: Try just this member and give nothing.
            why_rejected: For the ledger.

        Returns:
            What the coordinator is told, and ``[pixels, tail]``, uint8 arrays, with a third one that pads what Ray
            would else send along with the first. The second is None with the first one `Ended`, or with `only`.
        """
        try:
            if self._worker is None:
                raise UnavailableError("the worker is not open", "WORKER_LOST")
            made = self._worker.make(message, list(rejected), only, why_rejected)
            if only >= 0:
                return made.made, None
            return made.made, padded(made.pixels, made.tail)
        except Exception as error:
            return Ended.of(error), None

    def report(self) -> dict[str, Any] | Ended:
        """What the engine counted."""
        try:
            return {} if self._worker is None else dict(self._worker.report())
        except Exception as error:
            return Ended.of(error)

    def close(self) -> None:
        """Ends what is being made within a second."""
        if self._worker is not None:
            self._worker.close()

    def _engine(self, settings: Settings, dp_size: int) -> _core.CorePackWorker:
        values = core_settings(settings)
        values.dp_rank, values.dp_size = 0, dp_size
        return _core.CorePackWorker.create(values)


def padded(pixels: Any, tail: Any) -> list[np.ndarray]:
    """The payload of a pack as Ray gets it: views, with as many zeros as keep it in the object store."""
    arrays = [np.frombuffer(pixels, np.uint8), np.frombuffer(tail, np.uint8)]
    short = _INLINED_BYTES + 1 - sum(a.nbytes for a in arrays)
    return [*arrays, np.zeros(short, np.uint8)] if short > 0 else arrays
