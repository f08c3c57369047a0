"""One HTTP/1.1 connection of the storage server: requests in, answers out, one at a time, kept alive.

A hand-written `asyncio.Protocol` because the server shares its cores with what is being measured: about 0.1 ms of CPU
per request of 100 kB, no task per request, bodies handed to the socket without a copy of ours.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from stoker.testing.behaviour import Fault

__all__ = ["Answer", "Connection", "Meter", "Request", "TokenBucket"]

_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 1 << 30
_CHUNK_BYTES = 64 * 1024
_SEND_BUFFER_BYTES = 1 << 20
_REASONS = {int(status): status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class Request:
    """One request, whole."""

    method: str
    target: str
    """Path and query as sent."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes = b""


@dataclass(slots=True)
class Answer:
    """What to send, when, and what to do wrong meanwhile."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    delay_s: float = 0.0
    fault: Fault | None = None
    is_head: bool = False
    """The body counts for Content-Length and is not sent."""


@dataclass(slots=True)
class Meter:
    """Counts of one server."""

    connections: int = 0
    open_connections: int = 0
    requests: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    body_bytes_sent: int = 0
    """Handed to the sockets; of a connection that breaks, some of it never arrives."""
    statuses: dict[str, int] = field(default_factory=dict)
    methods: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


class TokenBucket:
    """One bandwidth shared by all connections: each chunk is given the next free slot of time."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def book(self, n_bytes: int, now: float) -> float:
        """Returns when the next ``n_bytes`` may leave."""
        if self.bytes_per_s is None:
            return now
        start = max(self._free_at, now)
        self._free_at = start + n_bytes / self.bytes_per_s
        return start


class Connection(asyncio.Protocol):
    """Reads requests, asks ``respond`` for each answer, sends it.

    Threads: the event loop's.
    """

    def __init__(self, respond: Callable[[Request], Answer], meter: Meter, bucket: TokenBucket) -> None:
        self._respond = respond
        self._meter = meter
        self._bucket = bucket
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._head: Request | None = None  # a request whose body is still coming
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False  # with an answer; later requests wait in _received
        self._is_paused = False
        self._resume: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a stream transport is needed, not {transport!r}")
        self._transport = transport
        self._meter.connections += 1
        self._meter.open_connections += 1
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone, or was sent away."""
        self._meter.open_connections -= 1
        if self._timer is not None:
            self._timer.cancel()
        if self._is_busy:
            self._done_counting()
        self._transport = None

    def pause_writing(self) -> None:
        """The socket is full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It has room again."""
        self._is_paused = False
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def data_received(self, data: bytes) -> None:
        """Some bytes of requests."""
        self._received += data
        if not self._is_busy:
            self._read()

    # --- requests ---

    def _read(self) -> None:
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                if len(self._received) > _MAX_HEAD_BYTES:
                    self._refuse(431)
                return
            self._head = _parse_head(bytes(self._received[:end]))
            del self._received[: end + 4]
            if self._head is None:
                self._refuse(400)
                return
            if self._head.headers.get("expect", "").lower() == "100-continue":
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request = self._head
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES or "transfer-encoding" in request.headers:
            self._refuse(411)
            return
        if len(self._received) < int(length):
            return
        if int(length) > 0:
            request.body = bytes(self._received[: int(length)])
            del self._received[: int(length)]
        self._head = None
        self._answer(request)

    def _refuse(self, status: int) -> None:
        self._write(f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        self._close()

    def _answer(self, request: Request) -> None:
        meter = self._meter
        meter.requests += 1
        meter.methods[request.method] = meter.methods.get(request.method, 0) + 1
        meter.in_flight += 1
        meter.max_in_flight = max(meter.max_in_flight, meter.in_flight)
        self._is_busy = True
        answer = self._respond(request)
        answer.is_head = request.method == "HEAD"
        if request.headers.get("connection", "").lower() == "close":
            answer.headers["Connection"] = "close"
        if answer.delay_s > 0:
            self._timer = self._loop.call_later(answer.delay_s, self._send, answer)
        else:
            self._send(answer)

    # --- answers ---

    def _send(self, answer: Answer) -> None:
        fault = answer.fault
        if fault is not None:
            self._meter.faults[fault.kind] = self._meter.faults.get(fault.kind, 0) + 1
            if fault.kind == "silence":
                return
            if fault.kind == "reset" and fault.after_bytes == 0:
                self._reset()
                return
        status = str(answer.status)
        self._meter.statuses[status] = self._meter.statuses.get(status, 0) + 1
        length = len(answer.body)
        if fault is not None and fault.kind == "wrong_length":
            length = max(0, length + fault.length_error)
            answer.headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {status} {_REASONS.get(answer.status, 'Unknown')}"]
        if "Content-Length" not in answer.headers:
            lines.append(f"Content-Length: {length}")
        lines.extend(f"{name}: {value}" for name, value in answer.headers.items())
        lines.append("\r\n")
        head = "\r\n".join(lines).encode("latin-1")
        body = b"" if answer.is_head else answer.body
        if fault is None and self._bucket.bytes_per_s is None:
            self._meter.body_bytes_sent += len(body)
            if self._transport is not None:
                self._transport.writelines((head, body))
            self._finish(answer)
            return
        self._write(head)
        self._send_slowly(answer, memoryview(body), 0, None)

    def _send_slowly(self, answer: Answer, body: memoryview, at: int, paused_at: int | None) -> None:
        """Sends ``body[at:]`` chunk by chunk, at the allowed rate, with what goes wrong on the way."""
        fault = answer.fault
        kind = None if fault is None else fault.kind
        end = min(at + _CHUNK_BYTES, len(body))
        now = self._loop.time()
        if fault is not None and kind in ("reset", "cut", "stall") and paused_at is None:
            stop = min(fault.after_bytes, len(body))
            if at == stop:
                if kind == "reset":
                    self._reset()
                elif kind == "cut":
                    self._is_busy = False
                    self._done_counting()
                    self._close()
                else:
                    self._timer = self._loop.call_later(fault.stall_s, self._send_slowly, answer, body, at, at)
                return
            end = min(end, stop)
        if at == len(body):
            self._finish(answer)
            return
        if fault is not None and kind == "trickle":
            end = min(end, at + max(1, int(fault.bytes_per_s * 0.1)))
        leaves_at = self._bucket.book(end - at, now)
        if fault is not None and kind == "trickle":
            leaves_at = max(leaves_at, now + (end - at) / fault.bytes_per_s)
        if leaves_at > now:
            self._timer = self._loop.call_at(leaves_at, self._send_chunk, answer, body, at, end, paused_at)
        else:
            self._send_chunk(answer, body, at, end, paused_at)

    def _send_chunk(self, answer: Answer, body: memoryview, at: int, end: int, paused_at: int | None) -> None:
        self._meter.body_bytes_sent += end - at
        self._write(body[at:end])

        def go_on() -> None:
            self._send_slowly(answer, body, end, paused_at)

        if self._is_paused:
            self._resume = go_on
        else:
            self._timer = self._loop.call_at(0, go_on)  # through the loop: no recursion, others get their turn

    def _finish(self, answer: Answer) -> None:
        self._is_busy = False
        self._done_counting()
        if answer.headers.get("Connection") == "close":
            self._close()
        elif self._received:
            self._loop.call_soon(self._read_next)

    def _read_next(self) -> None:
        if not self._is_busy and self._transport is not None:
            self._read()

    def _done_counting(self) -> None:
        self._meter.in_flight -= 1

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and len(data) > 0:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends RST
            self._transport.abort()


def _parse_head(head: bytes) -> Request | None:
    lines = head.decode("latin-1").split("\r\n")
    first = lines[0].split(" ")
    if len(first) != 3 or not first[2].startswith("HTTP/1.") or not first[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            return None
        name = name.lower()
        value = value.strip()
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return Request(first[0], first[1], headers)
