"""Fetch: GETs of 100 kB objects from nginx on loopback, ours beside a bare libcurl loop and the clients people use.

The server has core 0, whoever is measured has core 1 for itself; other programs have both, so the contenders take turns
in many short rounds, and of each the median counts. Each is one process that keeps its connections, and is asked for so
many objects a round that it takes about a third of a second: 4,096 different ones, from the page cache, in an order
that is none on disk. `fetch_bench` says what the bare loop and ours do, `_fetch_clients.py` what the Python clients do;
all look at each object's length and at the number at its beginning. nginx ignores signatures and sends no checksums, so
nobody checks any. `wrk` counts bytes and drops them: the limit.

The bars are held against objects per CPU second, user and system. On a core of one's own that is requests/s, as long as
the client is what limits; where the server is (other programs load its core as they do the client's), requests/s would
make everybody equal. Ratios are taken within a round, between neighbours, then their median. `STOKER_BENCH_ROUNDS`
changes the number of rounds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = Path(__file__).resolve().parent / "_fetch_clients.py"
ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "12"))
ROUND_S = 0.3
N_OBJECTS, OBJECT_BYTES = 4096, 100_000
BAR_OF_CURL = 0.9
BAR_OF_FEW = 1.0
"""With 1,024 in flight ours are to be no slower than with 32."""
BARE = {"http": "curl", "s3": "curl_s3"}
"""What ours are held against: the bare loop with the same bytes on the wire."""
SERVER_CORE, CLIENT_CORE = 0, 1
RUNS: dict[str, tuple[str, ...]] = {
    "32": ("curl", "curl_s3", "http", "s3"),
    "128": ("curl_s3", "s3"),
    "1024": ("curl", "curl_s3", "http", "s3"),
    "128-1024": ("s3",),
    "4096": ("curl_s3", "s3"),
}
"""Contenders of `fetch_bench` by requests in flight, as it takes them. All keep their connections, some 14,000."""
DEFAULT = "128-1024"

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors warn; worker_rlimit_nofile {n_files};
events {{ worker_connections {n_connections}; }}
http {{
  access_log off; sendfile on; tcp_nopush on; default_type application/octet-stream;
  keepalive_timeout 1h; keepalive_requests 1000000000;
  open_file_cache max=20000 inactive=1h; open_file_cache_valid 1h;
  client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
  uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
  server {{
    listen 127.0.0.1:{port} backlog=8192; listen 127.0.0.1:{tls_port} ssl backlog=8192;
    ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem;
    root {folder}/objects;
  }}
}}
"""

WRK = """
local n, requests = 0, {{}}
init = function()
  for i = 0, {last} do requests[i] = wrk.format("GET", string.format("/bench/train/%06d.jpg", i)) end
end
request = function() n = n + 1; return requests[n * 1237 % {n_objects}] end
done = function(summary, latency, per_request)
  io.stdout:write(string.format('{{"gets": %d, "wall_us": %d, "bytes": %d, "failed": %d}}\\n', summary.requests,
    summary.duration, summary.bytes, summary.errors.status + summary.errors.connect + summary.errors.read))
end
"""


@dataclass(frozen=True)
class Sample:
    """One round of one contender."""

    gets: int
    wall_ns: float
    cpu_ns: float
    in_flight: int = 0

    @property
    def rate(self) -> float:
        return self.gets / self.wall_ns * 1e9

    @property
    def cpu_us(self) -> float:
        return self.cpu_ns / self.gets / 1e3


@dataclass
class Contender:
    name: str
    go: Callable[[int], Sample]
    n_gets: int = 1000
    samples: list[Sample] = field(default_factory=list)


def tool(name: str) -> str:
    """Finds a program of the system.

    Raises:
        FileNotFoundError: It is not installed.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: tools/setup.sh bench")
    return found


def fetch_bench() -> Path:
    """Returns the newest built fetch_bench; STOKER_BENCH_DIR names its folder where that is not below build/."""
    folders = (
        [Path(os.environ["STOKER_BENCH_DIR"])] if "STOKER_BENCH_DIR" in os.environ else ROOT.glob("build/**/bench")
    )
    found = [folder / "fetch_bench" for folder in folders if (folder / "fetch_bench").is_file()]
    if not found:
        raise FileNotFoundError("fetch_bench is not built: configure with -DSTOKER_BENCH=ON")
    return max(found, key=lambda path: path.stat().st_mtime)


def pinned(core: int) -> list[str]:
    """The command that keeps what follows on a core; with a single core there is nothing to choose."""
    return [tool("taskset"), "-c", str(core)] if core in os.sched_getaffinity(0) else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[tuple[str, str]]:
    """Serves the objects; yields the endpoints of HTTP and HTTPS. Its certificate is ``folder/certificate.pem``."""
    objects = folder / "objects" / "bench" / "train"
    objects.mkdir(parents=True)
    body = os.urandom(OBJECT_BYTES - 8)
    for n in range(N_OBJECTS):
        (objects / f"{n:06}.jpg").write_bytes(n.to_bytes(8, sys.byteorder) + body)
    folder.chmod(0o755)  # nginx's workers are somebody else when we are root
    certificate = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"), "-days", "2"]
    whose = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", *certificate, *whose]
    subprocess.run(command, check=True, capture_output=True)
    port, tls_port = _free_port(), _free_port()
    n_files = _allow_open_files()
    text = NGINX.format(folder=folder, port=port, tls_port=tls_port, n_files=n_files, n_connections=n_files - 100)
    (folder / "nginx.conf").write_text(text, encoding="ascii")
    command = [*pinned(SERVER_CORE), tool("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if server.poll() is not None:
                raise RuntimeError(f"nginx ended: {server.stderr.read().decode() if server.stderr else ''}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", f"https://127.0.0.1:{tls_port}"
    finally:
        server.terminate()
        server.wait(10)


def _allow_open_files() -> int:
    """Raises this process's limit as far as it goes, for the server and the contenders: thousands of connections."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, 65536) if hard > 0 else 65536


@contextlib.contextmanager
def talking_to(command: list[str]) -> Iterator[Callable[[int], Sample]]:
    """A contender that lives as long as the context: takes numbers of GETs, answers with what they took."""
    process = subprocess.Popen(
        [*pinned(CLIENT_CORE), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    to, back, errors = process.stdin, process.stdout, process.stderr

    def go(n_gets: int) -> Sample:
        to.write(f"{n_gets}\n")
        to.flush()
        line = back.readline()
        if not line:
            raise RuntimeError(f"{' '.join(command)}: {errors.read()[-2000:]}")
        return Sample(**json.loads(line))

    try:
        yield go
    finally:
        process.kill()
        process.communicate()


def with_wrk(endpoint: str, in_flight: int, script: Path) -> Callable[[int], Sample]:
    """`wrk` counts time, not requests, and keeps nothing from one round to the next.

    Each of its rounds takes two seconds, so that its start counts for little.
    """
    script.write_text(WRK.format(last=N_OBJECTS - 1, n_objects=N_OBJECTS), encoding="ascii")
    command = [*pinned(CLIENT_CORE), tool("wrk"), "-t1", f"-c{in_flight}", "-d2s", "-s", str(script), endpoint]

    def go(_: int) -> Sample:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = json.loads(printed.strip().splitlines()[-1])
        if process.returncode != 0 or said["failed"] or said["bytes"] < said["gets"] * OBJECT_BYTES:
            raise RuntimeError(f"wrk: {printed}")
        return Sample(said["gets"], said["wall_us"] * 1e3, (usage.ru_utime + usage.ru_stime) * 1e9)

    return go


def contenders(folder: Path, http: str, https: str, stack: contextlib.ExitStack) -> Iterator[Contender]:
    """All that are installed; each is started when it is asked for."""
    objects = [str(N_OBJECTS), str(OBJECT_BYTES)]
    ours = str(fetch_bench())
    runs = [(kind, n, http) for n, kinds in RUNS.items() for kind in kinds]
    for kind, in_flight, endpoint in [*runs, ("curl_s3", "32", https), ("s3", "32", https)]:
        name = f"{kind}{' over TLS' if endpoint == https else ''}, {in_flight}"
        command = [ours, kind, in_flight, endpoint, *objects, str(folder / "certificate.pem")]
        yield Contender(name, stack.enter_context(talking_to(command)))
    for client in ("obstore", "s3torchconnector", "boto3", "aiohttp"):
        if importlib.util.find_spec(client) is not None:
            command = [sys.executable, str(CLIENTS), client, "32", http, *objects]
            yield Contender(client, stack.enter_context(talking_to(command)))
    yield Contender("wrk, 32", with_wrk(http, 32, folder / "wrk.lua"))


def measured(found: list[Contender]) -> None:
    """Fills in the samples, in rounds over all contenders."""
    for contender in found:  # connections, and how much is a third of a second
        contender.go(5000 if contender.name.endswith(("1024", "4096")) else 1000)
        contender.n_gets = max(500, int(contender.go(1000).rate * ROUND_S))
    for n in range(ROUNDS):
        print(f"fetch: round {n + 1} of {ROUNDS}", file=sys.stderr)
        for contender in found:
            contender.samples.append(contender.go(contender.n_gets))


def ratio(a: Contender, b: Contender, of: Callable[[Sample], float]) -> float:
    """How much of b's figure a's is: the median over the rounds."""
    return median(of(x) / of(y) for x, y in zip(a.samples, b.samples, strict=True))


def results(found: list[Contender]) -> list[dict[str, Any]]:
    by_name = {contender.name: contender for contender in found}
    lines: list[dict[str, Any]] = []

    def line(name: str, value: float, unit: str, bar: float | None = None) -> None:
        lines.append({"name": name, "value": value, "unit": unit, "bar": bar, "ok": bar is None or value >= bar})

    def per_cpu(sample: Sample) -> float:
        return 1 / sample.cpu_us

    def rate(sample: Sample) -> float:
        return sample.rate

    for kind, bare, in_flight in [
        *((kind, BARE[kind], n) for n, kinds in RUNS.items() for kind in kinds if kind in BARE and n != DEFAULT),
        ("s3 over TLS", "curl_s3 over TLS", "32"),
    ]:
        mine, other = by_name[f"{kind}, {in_flight}"], by_name[f"{bare}, {in_flight}"]
        name = f"ours ({kind}, {in_flight} in flight) of the bare loop"
        line(f"{name}: objects per CPU second", ratio(mine, other, per_cpu), "times", BAR_OF_CURL)
        line(f"{name}: requests/s", ratio(mine, other, rate), "times")
    many, few = by_name[f"s3, {DEFAULT}"], by_name["s3, 32"]
    line("in flight in the end, of at most 1,024", many.samples[-1].in_flight, "requests")
    line("s3, at most 1,024 in flight of 32: requests/s", ratio(many, few, rate), "times")
    line("s3, at most 1,024 in flight of 32: objects per CPU second", ratio(many, few, per_cpu), "times")
    for kind in ("s3", "http", "curl"):
        many, few = by_name[f"{kind}, 1024"], by_name[f"{kind}, 32"]
        line(
            f"{kind}, 1,024 in flight of 32: requests/s",
            ratio(many, few, rate),
            "times",
            BAR_OF_FEW if kind == "s3" else None,
        )
        line(f"{kind}, 1,024 in flight of 32: objects per CPU second", ratio(many, few, per_cpu), "times")
    for client in ("obstore", "s3torchconnector", "boto3", "aiohttp"):
        if client in by_name:
            mine = by_name["http, 32" if client == "aiohttp" else "s3, 32"]
            line(f"ours of {client}: objects per CPU second", ratio(mine, by_name[client], per_cpu), "times")
        else:
            line(f"{client} (not installed)", 0, "times")
    line(
        "ours (s3, 32 in flight) of wrk: objects per CPU second",
        ratio(by_name["s3, 32"], by_name["wrk, 32"], per_cpu),
        "times",
    )
    for contender in found:
        line(f"{contender.name}: requests/s", median(s.rate for s in contender.samples), "GET/s")
        line(f"{contender.name}: CPU per 1,000 objects", median(s.cpu_us for s in contender.samples) / 1e3, "s")
    return lines


def run() -> list[dict[str, Any]]:
    """Measures; see the module's text."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        http, https = stack.enter_context(nginx(Path(name)))
        found = list(contenders(Path(name), http, https, stack))
        measured(found)
        return results(found)
