"""The storage server's process: listens, and obeys its control channel."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.testing.behaviour import Behaviour
from stoker.testing.http import Connection, Meter, TokenBucket
from stoker.testing.s3 import S3Service
from stoker.testing.sigv4 import Credentials
from stoker.testing.store import ObjectStore

__all__ = ["run_by_hand", "run_controlled"]

_CONTROL_LINE_LIMIT_BYTES = 1 << 22


class _Server:
    def __init__(self, config: dict[str, Any]) -> None:
        root = config["root"]
        self._meter = Meter()
        self._cpu_at_reset_s = 0.0
        self._bucket = TokenBucket(None)
        self._service = S3Service(
            ObjectStore(None if root is None else Path(root)),
            credentials=Credentials(
                access_key_id=config["access_key_id"],
                secret_access_key=config["secret_access_key"],
                session_token=config["session_token"],
            ),
            region=config["region"],
            anonymous_buckets=config["anonymous_buckets"],
            behaviour=Behaviour(),
        )
        self._behave(Behaviour.from_dict(config["behaviour"]))
        self._port = int(config["port"])
        self._host = str(config.get("host", "127.0.0.1"))

    async def listen(self) -> int:
        """Returns the port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self._service.respond, self._meter, self._bucket), self._host, self._port, backlog=1024
        )
        port: int = server.sockets[0].getsockname()[1]
        return port

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out one order of the control channel."""
        match order.get("op"):
            case "stats":
                return {**asdict(self._meter), "cpu_s": time.process_time() - self._cpu_at_reset_s}
            case "reset":
                meter, fresh = self._meter, Meter()
                fresh.open_connections, fresh.in_flight = meter.open_connections, meter.in_flight
                for name in fresh.__slots__:  # in place: the connections hold it
                    setattr(meter, name, getattr(fresh, name))
                self._service.log.clear()
                self._cpu_at_reset_s = time.process_time()
                return {}
            case "requests":
                return {"requests": [[s.method, s.name, s.range, s.status, s.fault] for s in self._service.log]}
            case "behave":
                self._behave(Behaviour.from_dict(order["behaviour"]))
                return {}
            case "rotate":
                self._service.rotate(Credentials(**order["credentials"]))
                return {}
            case other:
                return {"error": f"unknown order {other!r}"}

    def _behave(self, behaviour: Behaviour) -> None:
        self._service.set_behaviour(behaviour)
        self._bucket.bytes_per_s = behaviour.bandwidth_bytes_per_s


async def _serve_controlled(control: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=control, limit=_CONTROL_LINE_LIMIT_BYTES)
    server: _Server | None = None
    while line := await reader.readline():
        try:
            if server is None:
                server = _Server(json.loads(line))
                answer: dict[str, Any] = {"port": await server.listen()}
            else:
                answer = server.obey(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


def run_controlled(control_fd: int) -> None:
    """Serves until the control channel ends: the first line is the configuration, each later one an order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; whoever started us ends us
    with socket.socket(fileno=control_fd) as control:
        control.setblocking(False)
        asyncio.run(_serve_controlled(control))


def run_by_hand(config: dict[str, Any], announce: Callable[[int], None]) -> None:
    """Serves until interrupted; `announce` gets the port."""

    async def serve() -> None:
        announce(await _Server(config).listen())
        await asyncio.Event().wait()

    asyncio.run(serve())
