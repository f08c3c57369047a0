"""HTTP/2 against a real server: many requests on few connections, every byte right."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError
from stoker import _core
from tls_files import make_certificates


def body_of(path: str) -> bytes:
    n = int(path.rsplit("/", 1)[1])
    return (f"{path};".encode() * 20_000)[: 100 + n * 7919 % 60_000]


@dataclass
class Seen:
    connections: int = 0
    most_streams: int = 0
    """Open at one time on one connection."""
    refused: set[str] = field(default_factory=set)


class Server(asyncio.Protocol):
    """One connection; answers GETs, in pieces as the client's windows allow, several streams in turn."""

    def __init__(self, seen: Seen) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._left: dict[int, bytes] = {}
        self._seen = seen

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        self._seen.connections += 1
        self._h2.initiate_connection()
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._transport.close()
            return
        given_up = {event.stream_id for event in events if isinstance(event, StreamReset)}  # a hedge that lost
        for event in events:
            if isinstance(event, RequestReceived):
                if event.stream_id not in given_up:
                    self._begin(event)
            elif isinstance(event, StreamReset):
                self._left.pop(event.stream_id, None)
            else:
                assert not isinstance(event, DataReceived)
        self._send()
        if any(isinstance(event, WindowUpdated | RequestReceived) for event in events):
            asyncio.get_running_loop().call_soon(self._send)

    def _begin(self, event: RequestReceived) -> None:
        path = dict(event.headers)[b":path"].decode()
        if path.endswith("3") and path not in self._seen.refused:  # now and then a stream is refused, the first time
            self._seen.refused.add(path)
            self._h2.reset_stream(event.stream_id, error_code=7)
            return
        body = body_of(path)
        headers = [(":status", "200"), ("etag", '"t"')]
        if not path.endswith("5"):  # the others end without having said how long they are
            headers.append(("content-length", str(len(body))))
        self._h2.send_headers(event.stream_id, headers)
        self._left[event.stream_id] = body
        self._seen.most_streams = max(self._seen.most_streams, len(self._left))

    def _send(self) -> None:
        for stream, body in list(self._left.items()):
            n = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(body))
            if n == 0:
                continue
            self._h2.send_data(stream, body[:n], end_stream=n == len(body))
            self._left[stream] = body[n:]
            if n == len(body):
                del self._left[stream]
        self._transport.write(self._h2.data_to_send())
        if any(self._h2.local_flow_control_window(stream) > 0 for stream in self._left):
            asyncio.get_running_loop().call_soon(self._send)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h2")
    make_certificates(folder)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[int, Seen]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "right.pem", folder / "right.key")
    context.set_alpn_protocols(["h2"])
    seen = Seen()
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(loop.create_server(lambda: Server(seen), "127.0.0.1", 0, ssl=context, backlog=256))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield made.sockets[0].getsockname()[1], seen
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    made.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_many_requests_share_a_few_connections(folder: Path, server: tuple[int, Seen]) -> None:
    port, seen = server
    paths = [f"/{i % 7}/{i}" for i in range(1500)]
    bodies = _core.fetch_all(
        [f"https://localhost:{port}{path}" for path in paths],
        concurrency=96,
        storage={"ca_file": str(folder / "ca.pem"), "http2": True},
        environ={},
        outage_limit_s=30,
    )
    for path, body in zip(paths, bodies, strict=True):
        assert body == body_of(path), path
    assert len(seen.refused) == 150
    assert 1 < seen.most_streams <= 8
    assert seen.connections - len(seen.refused) <= 64  # libcurl tries a refused stream again on a connection of its own
