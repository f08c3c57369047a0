"""The storage server in a process of its own, started, asked and stopped from this one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from stoker.testing.behaviour import Behaviour
from stoker.testing.s3 import Seen
from stoker.testing.sigv4 import Credentials, sign

__all__ = ["StorageServer", "StorageServerError"]

_ANSWER_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 2.0


class StorageServerError(RuntimeError):
    """The server did not start, has died, or refused what it was given."""


class StorageServer:
    """An S3-compatible server, on loopback unless told otherwise, in its own process.

    It starts with the ``with`` statement (or `start`), and ends with it, with `close`, or when this process ends in
    whatever way. Path-style addresses: ``endpoint_url/bucket/key``.

    Args:
        root: Folder whose sub-folders are buckets; objects are read from it and never written to it.
        behaviour: Latency, faults, bandwidth; `behave` changes it later.
        region: What signatures must be made for.
        anonymous_buckets: Buckets that may be read and written unsigned.
        access_key_id: One half of the only key pair that is let in.
        secret_access_key: The other; by default drawn at random.
        session_token: If given, requests must carry it.
        port: 0 takes a free one.
        host: Address to listen on; another than loopback is for the nodes of a virtual cluster.

    Threads: any.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        behaviour: Behaviour | None = None,
        region: str = "us-east-1",
        anonymous_buckets: Collection[str] = (),
        access_key_id: str = "STOKERTESTING",
        secret_access_key: str | None = None,
        session_token: str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.region = region
        self.access_key_id = access_key_id
        self.secret_access_key = secret_access_key or secrets.token_urlsafe(24)
        self.session_token = session_token
        self._config = {
            "root": None if root is None else str(Path(root).resolve()),
            "behaviour": (behaviour or Behaviour()).to_dict(),
            "region": region,
            "anonymous_buckets": sorted(anonymous_buckets),
            "access_key_id": access_key_id,
            "secret_access_key": self.secret_access_key,
            "session_token": session_token,
            "port": port,
            "host": host,
        }
        self._host = host
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._control_mutex = threading.Lock()
        self._local = threading.local()

    # --- life ---

    def start(self) -> Self:
        """Starts the process and returns once it listens.

        Raises:
            StorageServerError: It did not come up within some seconds.
        """
        if self._process is not None:
            return self
        ours, theirs = socket.socketpair()
        ours.settimeout(_ANSWER_TIMEOUT_S)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stoker.testing", "--control-fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._control = ours
        try:
            self._port = int(self._ask(self._config)["port"])
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends the process; may be called again."""
        with self._control_mutex:
            control, self._control = self._control, None
            process, self._process = self._process, None
        if control is not None:
            control.close()  # the server takes the end of its control channel for an order to end
        if process is not None:
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- address ---

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._process is None:
            raise StorageServerError("the storage server is not running: call start() or use it in a with statement")
        return self._port

    @property
    def endpoint_url(self) -> str:
        """Such as ``http://127.0.0.1:40123``."""
        return f"http://{self._host}:{self.port}"

    def settings(self) -> dict[str, Any]:
        """Returns the ``storage`` group of a run's settings that leads here."""
        group: dict[str, Any] = {
            "endpoint_url": self.endpoint_url,
            "region": self.region,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }
        if self.session_token is not None:
            group["session_token"] = self.session_token
        return group

    # --- objects ---

    def put(self, bucket: str, key: str, body: bytes, *, content_encoding: str = "") -> None:
        """Puts one object, by a signed request like any other client's. It comes back with its ``content_encoding``."""
        key_path = f"/{bucket}/{key}"
        headers = sign(
            credentials=self._credentials(),
            region=self.region,
            method="PUT",
            host=f"{self._host}:{self.port}",
            key_path=key_path,
            payload=body,
        )
        if content_encoding:
            headers["Content-Encoding"] = content_encoding
        connection = self._connection()
        try:
            connection.request("PUT", quote(key_path, safe="/-_.~"), body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if response.status != 200:
            raise StorageServerError(f"PUT {key_path}: {response.status} {answer.decode(errors='replace')}")

    def put_folder(
        self,
        bucket: str,
        folder: str | Path,
        *,
        prefix: str = "",
        n_threads: int = 4,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Puts all files below a folder under ``prefix`` + their relative path.

        Args:
            bucket: Where to.
            folder: Where from.
            prefix: Put before each key; ends with a slash if one is wanted.
            n_threads: Requests at one time.
            progress: Called with (files done, files in all) after each file, from any of the threads.

        Returns:
            The number of bytes put.
        """
        base = Path(folder)
        files = sorted(path for path in base.rglob("*") if path.is_file())
        n_done = 0
        mutex = threading.Lock()

        def put_file(path: Path) -> int:
            nonlocal n_done
            body = path.read_bytes()
            self.put(bucket, prefix + path.relative_to(base).as_posix(), body)
            with mutex:
                n_done += 1
                if progress is not None:
                    progress(n_done, len(files))
            return len(body)

        with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
            return sum(pool.map(put_file, files))

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None or connection.port != self.port:
            connection = http.client.HTTPConnection(self._host, self.port, timeout=_ANSWER_TIMEOUT_S)
            self._local.connection = connection
        return connection

    # --- control ---

    def stats(self) -> dict[str, Any]:
        """Returns what was counted since the start or the last `reset_stats`.

        Keys: requests, methods, statuses, faults, body_bytes_sent, connections, open_connections, in_flight,
        max_in_flight, cpu_s.
        """
        stats: dict[str, Any] = self._ask({"op": "stats"})
        return stats

    def reset_stats(self) -> None:
        """Starts counting, and the log of requests, anew."""
        self._ask({"op": "reset"})

    def requests(self) -> list[Seen]:
        """Returns the requests since the start or the last `reset_stats`, oldest first, the last 100,000 at most."""
        return [Seen(*entry) for entry in self._ask({"op": "requests"})["requests"]]

    def behave(self, behaviour: Behaviour) -> None:
        """Changes latency, faults and bandwidth for the requests that come from now on; counts per key start anew."""
        self._ask({"op": "behave", "behaviour": behaviour.to_dict()})

    def rotate(self, access_key_id: str, secret_access_key: str, session_token: str | None = None) -> None:
        """From now on lets in these keys only; what comes with the earlier ones is answered with ExpiredToken."""
        self.access_key_id, self.secret_access_key, self.session_token = access_key_id, secret_access_key, session_token
        self._ask({"op": "rotate", "credentials": dataclasses.asdict(self._credentials())})

    def _credentials(self) -> Credentials:
        return Credentials(
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
        )

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._control_mutex:
            control = self._control
            if control is None:
                raise StorageServerError("the storage server is not running")
            received = bytearray()
            with contextlib.suppress(OSError):  # said below, with what is known of the process
                control.sendall(json.dumps(question).encode() + b"\n")
                while not received.endswith(b"\n"):
                    part = control.recv(1 << 16)
                    if not part:
                        break
                    received += part
            if not received.endswith(b"\n"):
                code = None if self._process is None else self._process.poll()
                state = "does not answer" if code is None else f"has ended with code {code}"
                raise StorageServerError(f"the storage server {state}")
        answer: dict[str, Any] = json.loads(received)
        if "error" in answer:
            raise StorageServerError(f"the storage server: {answer['error']}")
        return answer
