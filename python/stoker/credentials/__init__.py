"""Keys for S3 that the engine does not look up itself, through botocore, which the extra ``stoker[aws]`` installs.

Settings, environment and profile files are the engine's own. Single sign-on, web identities, roles of profiles,
containers and instances, and ``credential_process`` are botocore's: it is asked when a profile or the environment names
one of them, or when there are no keys elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stoker.errors import CancelledError, UnavailableError
from stoker.settings import Storage

__all__ = ["FoundKeys", "KeyFinder"]

_CHILD = Path(__file__).with_name("_find_keys.py")
_TICK_S = 0.05


class FoundKeys(NamedTuple):
    """What the engine takes; in the order that it takes it."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    valid_for_s: float | None
    provider: str

    def __repr__(self) -> str:
        return f"FoundKeys(provider={self.provider!r})"


class KeyFinder:
    """Asks botocore. The engine calls it on a thread of its own, ahead of the keys' end and when a store refused them.

    botocore runs in a process of its own, for the second or two that it takes: a service that does not answer or a
    ``credential_process`` that hangs can be ended at any moment, and its work never holds the trainer's interpreter.

    Threads: any.
    """

    def __init__(self, storage: Storage) -> None:
        # The token service must be somewhere; the region of a store of one's own says nothing about it.
        region = "" if storage.endpoint_url else storage.region
        self._arguments = [storage.profile, region]

    def __call__(self, afresh: bool, is_stopped: Callable[[], bool]) -> FoundKeys:
        """Finds keys, however long that takes.

        Args:
            afresh: The last ones were refused. Nothing is cached here, so that this changes nothing.
            is_stopped: Asked every now and then.

        Raises:
            UnavailableError: botocore is missing, or found none.
            CancelledError: Nobody waits any more.
        """
        if not sys.executable:
            raise _unavailable("there is no interpreter to run botocore in (sys.executable is empty)")
        child = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # nothing asks on this terminal, and all that it starts ends with it
        )
        try:
            while child.poll() is None:
                if is_stopped():
                    raise CancelledError("no longer wanted", "STOPPED")
                time.sleep(_TICK_S)
            assert child.stdout is not None
            answer = child.stdout.read()
        finally:
            _end(child)
        try:
            said = json.loads(answer)
        except ValueError:
            raise _unavailable(f"botocore's process ended with code {child.returncode}, without an answer") from None
        if "error" in said:
            raise _unavailable(said["error"])
        return FoundKeys(**said)


def _unavailable(message: str) -> UnavailableError:
    return UnavailableError(message, "FETCH_CREDENTIALS")


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)  # with all that it started
        child.wait()
    if child.stdout is not None:
        child.stdout.close()
