"""Certificates: the right ones are believed, the wrong ones are errors that name the CA file (NET-06)."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stoker import _core
from stoker.errors import UnavailableError
from tls_files import make_certificates

BODY = b"a picture behind TLS"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def server_of(certificate: Path, key: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with server_of(folder / "right.pem", folder / "right.key") as port:
        yield port


def fetch(port: int, *, environ: dict[str, str] | None = None, **storage: Any) -> bytes:
    body, _, _ = _core.fetch(f"https://localhost:{port}/k", storage=storage, environ=environ or {}, outage_limit_s=1)
    return bytes(body)


@pytest.mark.case("NET-06", "both work, the setting first; without verification every start warns")
def test_a_ca_file_of_the_settings_or_the_environment_is_believed(folder: Path, port: int) -> None:
    ca = str(folder / "ca.pem")
    stranger = str(folder / "stranger.pem")
    assert fetch(port, ca_file=ca) == BODY
    assert fetch(port, environ={"AWS_CA_BUNDLE": ca}) == BODY
    assert fetch(port, ca_file=ca, environ={"AWS_CA_BUNDLE": stranger}) == BODY
    _core.drain_log()
    for _ in range(2):
        assert fetch(port, verify_tls=False) == BODY
    assert [line for _, line in _core.drain_log()] == [
        "fetch: certificates are not verified (storage.verify_tls is false)"
    ] * 2


@pytest.mark.case("NET-06", "FETCH_TLS with the CA file in use")
def test_an_unknown_ca_is_an_error_that_names_the_file(folder: Path, port: int) -> None:
    stranger = str(folder / "stranger.pem")
    missing = str(folder / "missing.pem")
    for storage, environ, named in [
        ({}, {}, "the system's"),
        ({"ca_file": stranger}, {}, stranger),
        ({}, {"AWS_CA_BUNDLE": stranger}, stranger),
        ({"ca_file": missing}, {}, missing),
        ({"ca_file": str(folder / "names")}, {}, str(folder / "names")),
    ]:
        with pytest.raises(UnavailableError) as caught:
            fetch(port, environ=environ, **storage)
        assert caught.value.code == "FETCH_TLS"
        assert f"(CA file: {named})" in str(caught.value)


def test_a_certificate_of_another_name_is_an_error(folder: Path) -> None:
    with server_of(folder / "wrong.pem", folder / "wrong.key") as port:
        with pytest.raises(UnavailableError, match="localhost") as caught:
            fetch(port, ca_file=str(folder / "ca.pem"))
        assert caught.value.code == "FETCH_TLS"
        assert fetch(port, ca_file=str(folder / "ca.pem"), verify_tls=False) == BODY
