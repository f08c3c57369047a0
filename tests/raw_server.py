"""A server on loopback that says exactly what a test wants, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def answering(answer: Callable[[str, dict[str, str]], bytes]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers with what `answer(path, headers)` gives, and closes the connection after it.

    Yields its address, and the headers of the requests that came, names in lower case.
    """
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked.append(headers)
            self.wfile.write(answer(self.path, headers))
            self.close_connection = True

        do_CONNECT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", asked
        finally:
            http.shutdown()
            thread.join()


def ok(body: bytes) -> bytes:
    """200 with a body."""
    return b'HTTP/1.1 200 OK\r\nETag: "abc"\r\nContent-Length: %d\r\n\r\n' % len(body) + body
