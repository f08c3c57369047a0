"""The storage server: its signatures against botocore, its semantics, its faults."""

from __future__ import annotations

import gc
import http.client
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from difficult_keys import DIFFICULT_KEYS
from stoker import _core
from stoker.errors import BadSampleError
from stoker.testing import Behaviour, Fault, Latency, StorageServer, StorageServerError
from stoker.testing.sigv4 import Credentials, sign

BODY = bytes(range(256)) * 400  # 102,400 bytes


@pytest.fixture(scope="module")
def server() -> Iterator[StorageServer]:
    with StorageServer(anonymous_buckets=["open"]) as running:
        for key in DIFFICULT_KEYS:
            running.put("b", key, key.encode())
        running.put("b", "big", BODY)
        running.put("open", "big", BODY)
        yield running


@pytest.fixture
def plain(server: StorageServer) -> StorageServer:
    """The same server, doing nothing wrong, its counts at zero."""
    server.behave(Behaviour())
    server.reset_stats()
    return server


def get(
    server: StorageServer, name: str, *, method: str = "GET", timeout_s: float = 5.0, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    key_path = f"/{name}"
    signed = sign(
        credentials=Credentials(access_key_id=server.access_key_id, secret_access_key=server.secret_access_key),
        region=server.region,
        method=method,
        host=f"127.0.0.1:{server.port}",
        key_path=key_path,
    )
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    try:
        more = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, quote(key_path, safe="/-_.~"), headers={**signed, **more})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def boto(server: StorageServer, **changed: Any) -> Any:
    session = pytest.importorskip("botocore.session")
    config = pytest.importorskip("botocore.config")
    arguments = {
        "endpoint_url": server.endpoint_url,
        "region_name": server.region,
        "aws_access_key_id": server.access_key_id,
        "aws_secret_access_key": server.secret_access_key,
        "config": config.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        **changed,
    }
    return session.Session().create_client("s3", **arguments)


# --- signatures ---


@pytest.mark.parametrize("key", DIFFICULT_KEYS)
def test_botocore_reads_what_was_put(plain: StorageServer, key: str) -> None:
    assert boto(plain).get_object(Bucket="b", Key=key)["Body"].read() == key.encode()


def test_botocore_puts_and_heads(plain: StorageServer) -> None:
    client = boto(plain)
    client.put_object(Bucket="b", Key="from botocore", Body=BODY)
    head = client.head_object(Bucket="b", Key="from botocore")
    assert head["ContentLength"] == len(BODY)
    ranged = client.get_object(Bucket="b", Key="from botocore", Range="bytes=7-300", IfMatch=head["ETag"])
    assert ranged["Body"].read() == BODY[7:301]
    assert ranged["ContentRange"] == f"bytes 7-300/{len(BODY)}"


@pytest.mark.parametrize("key", DIFFICULT_KEYS)
def test_own_signature_equals_botocores(key: str) -> None:
    auth = pytest.importorskip("botocore.auth")
    request_type = pytest.importorskip("botocore.awsrequest").AWSRequest
    keys = pytest.importorskip("botocore.credentials").Credentials("AK", "secret", "token")
    url = f"http://127.0.0.1:9/b/{quote(key, safe='/-_.~')}"
    request = request_type("GET", url, headers={"X-Amz-Content-SHA256": "x"})
    del request.headers["X-Amz-Content-SHA256"]
    auth.S3SigV4Auth(keys, "s3", "eu-west-3").add_auth(request)
    import datetime

    now = datetime.datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ")
    own = sign(
        credentials=Credentials(access_key_id="AK", secret_access_key="secret", session_token="token"),
        region="eu-west-3",
        method="GET",
        host="127.0.0.1:9",
        key_path=f"/b/{key}",
        now=now,
    )
    assert own["authorization"] == request.headers["Authorization"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"aws_access_key_id": "OTHER"}, "InvalidAccessKeyId"),
        ({"aws_secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"region_name": "eu-west-3"}, "AuthorizationHeaderMalformed"),
        ({"aws_session_token": "none was given"}, "InvalidToken"),
    ],
)
def test_wrong_credentials_are_refused(plain: StorageServer, changed: dict[str, str], code: str) -> None:
    errors = pytest.importorskip("botocore.exceptions")
    with pytest.raises(errors.ClientError) as caught:
        boto(plain, **changed).get_object(Bucket="b", Key="big")
    assert caught.value.response["Error"]["Code"] == code


def test_a_changed_path_breaks_the_signature(plain: StorageServer) -> None:
    signed = sign(
        credentials=Credentials(access_key_id=plain.access_key_id, secret_access_key=plain.secret_access_key),
        region=plain.region,
        method="GET",
        host=f"127.0.0.1:{plain.port}",
        key_path="/b/big",
    )
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=5)
    connection.request("GET", "/b/a.png", headers=signed)
    response = connection.getresponse()
    assert (response.status, b"SignatureDoesNotMatch" in response.read()) == (403, True)
    connection.close()


def test_unsigned_requests_reach_anonymous_buckets_only(plain: StorageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=5)
    for path, status in (("/open/big", 200), ("/b/big", 403), ("/open/big", 200)):  # on one connection
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()
    assert plain.stats()["connections"] == 1


# --- objects ---


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        ("bytes=0-0", 206, BODY[:1]),
        ("bytes=100-", 206, BODY[100:]),
        ("bytes=-5", 206, BODY[-5:]),
        ("bytes=-999999999", 206, BODY),
        (f"bytes=5-{10**12}", 206, BODY[5:]),
        (f"bytes={len(BODY)}-", 416, None),
        ("bytes=9-3", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=a-b", 200, BODY),
    ],
)
def test_ranges(plain: StorageServer, asked: str, status: int, expected: bytes | None) -> None:
    got_status, headers, body = get(plain, "b/big", Range=asked)
    assert got_status == status
    if expected is not None:
        assert body == expected
    if status == 206:
        first = len(BODY) - len(body) if asked.startswith("bytes=-") else int(asked[6:].split("-")[0])
        assert headers["content-range"] == f"bytes {first}-{first + len(body) - 1}/{len(BODY)}"


def test_head_tells_the_length_and_sends_nothing(plain: StorageServer) -> None:
    status, headers, body = get(plain, "b/big", method="HEAD")
    assert (status, int(headers["content-length"]), body) == (200, len(BODY), b"")


@pytest.mark.parametrize(("name", "code"), [("b/none", b"NoSuchKey"), ("none/x", b"NoSuchBucket")])
def test_missing(plain: StorageServer, name: str, code: bytes) -> None:
    status, _, body = get(plain, name)
    assert status == 404
    assert b"<Code>" + code + b"</Code>" in body
    assert get(plain, name, method="HEAD")[2] == b""


def test_if_match(plain: StorageServer) -> None:
    _, headers, _ = get(plain, "b/big", method="HEAD")
    assert get(plain, "b/big", If_Match=headers["etag"])[0] == 200
    assert get(plain, "b/big", If_Match='"other"')[0] == 412


def test_if_none_match(plain: StorageServer) -> None:
    tag = get(plain, "b/big", method="HEAD")[1]["etag"]
    status, headers, body = get(plain, "b/big", If_None_Match=tag)
    assert (status, headers["etag"], body) == (304, tag, b"")
    assert get(plain, "b/big", If_None_Match=tag, Range="bytes=0-9")[0] == 304
    assert get(plain, "b/big", If_None_Match='"other"')[0] == 200


def test_objects_from_a_folder_are_read_again_when_they_change(tmp_path: Path) -> None:
    (tmp_path / "b" / "sub").mkdir(parents=True)
    path = tmp_path / "b" / "sub" / "a b.txt"
    path.write_bytes(b"one")
    (tmp_path / "secret.txt").write_bytes(b"outside of any bucket")
    with StorageServer(tmp_path) as server:
        assert get(server, "b/sub/a b.txt")[2] == b"one"
        path.write_bytes(b"other")
        assert get(server, "b/sub/a b.txt")[2] == b"other"
        assert get(server, "b/../secret.txt")[0] == 404
        assert get(server, "b/sub")[0] == 404
        server.put("b", "sub/a b.txt", b"put")
        assert get(server, "b/sub/a b.txt")[2] == b"put"
    assert path.read_bytes() == b"other"


@pytest.mark.parametrize(
    "junk",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"x" * 70_000,
        b"PUT /b/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_junk_is_refused_and_harms_nobody(plain: StorageServer, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), timeout=5) as sock:
        sock.sendall(junk)
        assert sock.recv(100).startswith(b"HTTP/1.1 4")
    assert get(plain, "b/big")[2] == BODY


def test_pipelined_requests_are_answered_in_order(plain: StorageServer) -> None:
    asks = b"".join(f"GET /open/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for key in ("big", "none", "big"))
    with socket.create_connection(("127.0.0.1", plain.port), timeout=5) as sock:
        for i in range(0, len(asks), 11):  # torn
            sock.sendall(asks[i : i + 11])
        received = b""
        while received.count(b"HTTP/1.1 ") < 3 or not received.endswith(BODY):
            part = sock.recv(1 << 16)
            assert part
            received += part
    assert next(line[:12] for line in received.split(b"\r\n") if b"HTTP/1.1 " in line) == b"HTTP/1.1 200"
    assert b"HTTP/1.1 404" in received


# --- behaviour ---


def test_latency_has_the_quantiles_that_it_promises() -> None:
    behaviour = Behaviour(latency=Latency(), seed=3)
    drawn = sorted(behaviour.decide("GET", f"b/{i}", 0)[0] for i in range(200_000))
    p50, p90, p99, p999 = (drawn[int(len(drawn) * q)] for q in (0.5, 0.9, 0.99, 0.999))
    assert p50 == pytest.approx(0.030, rel=0.02)
    assert p90 == pytest.approx(0.066, rel=0.03)
    assert p99 == pytest.approx(0.145, rel=0.15)
    assert 0.6 < p999 < 1.5
    assert sum(x > 1 for x in drawn) / len(drawn) == pytest.approx(0.0005, rel=0.4)


def test_draws_depend_on_seed_key_and_number_only() -> None:
    behaviour = Behaviour(latency=Latency(), faults=(Fault(kind="reset", share=0.3),), seed=5)
    asked = [("b/x", 0), ("b/y", 0), ("b/x", 1)]
    once = {ask: behaviour.decide("GET", *ask) for ask in asked}
    assert {ask: behaviour.decide("GET", *ask) for ask in reversed(asked)} == once
    assert len({delay for delay, _ in once.values()}) == 3
    other = Behaviour(latency=Latency(), faults=behaviour.faults, seed=6)
    assert other.decide("GET", "b/x", 0) != once["b/x", 0]


def test_behaviour_survives_json() -> None:
    import json

    behaviour = Behaviour(
        latency=Latency(),
        faults=(Fault(kind="cut", first=2, after_bytes=5, headers={"a": "b"}),),
        bandwidth_bytes_per_s=1e6,
        stays_slow=True,
    )
    assert Behaviour.from_dict(json.loads(json.dumps(behaviour.to_dict()))) == behaviour


def test_what_is_slow_may_stay_slow() -> None:
    for stays_slow in (False, True):
        behaviour = Behaviour(latency=Latency(), stays_slow=stays_slow, seed=5)
        drawn = [[behaviour.decide("GET", f"b/{key}", nth)[0] for nth in range(3)] for key in range(50)]
        assert all(len(set(times)) == (1 if stays_slow else 3) for times in drawn)
        assert len({times[0] for times in drawn}) == 50


def test_slow_requests_do_not_hold_up_others(plain: StorageServer) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="silence", match="b/big"),)))
    with socket.create_connection(("127.0.0.1", plain.port), timeout=5):
        with pytest.raises(TimeoutError):
            get(plain, "b/big", timeout_s=0.05)
        assert get(plain, "b/a.png")[0] == 200


def test_first_requests_of_each_key_fail_then_work(plain: StorageServer) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="error", first=2),)))
    for key in ("a.png", "big"):
        assert [get(plain, f"b/{key}")[0] for _ in range(4)] == [503, 503, 200, 200]
    assert plain.stats()["faults"] == {"error": 4}
    assert [seen.fault for seen in plain.requests()] == ["error", "error", None, None] * 2


def test_a_cut_body_ends_cleanly_and_short(plain: StorageServer) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="cut", after_bytes=600, first=1),)))
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(plain, "b/big")
    assert caught.value.partial == BODY[:600]
    assert get(plain, "b/big", Range="bytes=600-")[2] == BODY[600:]


@pytest.mark.parametrize("after_bytes", [0, 70_000])
def test_a_reset_resets(plain: StorageServer, after_bytes: int) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="reset", after_bytes=after_bytes),)))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        get(plain, "b/big")
    assert plain.stats()["in_flight"] == 0


def test_a_stall_sends_the_head_and_then_waits(plain: StorageServer) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="stall", after_bytes=10, match="b/big", stall_s=0.3),)))
    started = time.monotonic()
    assert get(plain, "b/big")[2] == BODY
    assert time.monotonic() - started >= 0.3
    plain.behave(Behaviour(faults=(Fault(kind="stall", after_bytes=10),)))
    with pytest.raises(TimeoutError):
        get(plain, "b/big", timeout_s=0.1)


@pytest.mark.parametrize("error", [-100, 100])
def test_a_wrong_length(plain: StorageServer, error: int) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="wrong_length", length_error=error),)))
    if error > 0:
        with pytest.raises(http.client.IncompleteRead):
            get(plain, "b/big")
    else:
        assert get(plain, "b/big")[2] == BODY[:error]


def test_checksums_are_right_until_they_lie(plain: StorageServer) -> None:
    client = boto(plain)

    def read() -> object:
        return client.get_object(Bucket="b", Key="big")["Body"].read()

    assert "x-amz-checksum-crc32" not in get(plain, "b/big")[1]
    assert read() == BODY
    plain.behave(Behaviour(faults=(Fault(kind="wrong_checksum", first=1),)))
    with pytest.raises(pytest.importorskip("botocore.exceptions").FlexibleChecksumError):
        read()
    assert read() == BODY


def test_what_stoker_makes_of_checksums_that_lie(plain: StorageServer) -> None:
    plain.put("b", "other", BODY)
    storage = plain.settings()
    storage["endpoint"] = storage.pop("endpoint_url")
    plain.behave(
        Behaviour(
            faults=(
                Fault(kind="wrong_checksum", match="b/big", first=2),
                Fault(kind="cut", match="b/big", after=2, first=1, after_bytes=50_000),
                Fault(kind="wrong_checksum", match="b/other"),
            )
        )
    )
    assert _core.fetch("s3://b/big", storage=storage)[0] == BODY
    with pytest.raises(BadSampleError, match="CRC32 AAAAAQ==") as caught:
        _core.fetch("s3://b/other", storage=storage)
    assert caught.value.code == "MEDIA_CHECKSUM"
    assert plain.stats()["faults"] == {"wrong_checksum": 5, "cut": 1}


def test_a_trickle_comes_whole_in_the_end(plain: StorageServer) -> None:
    plain.behave(Behaviour(faults=(Fault(kind="trickle", bytes_per_s=20.0),)))
    started = time.monotonic()
    assert get(plain, "b/a.png")[2] == b"a.png"
    assert time.monotonic() - started >= 4 / 20


def test_an_error_with_a_code_of_choice(plain: StorageServer) -> None:
    fault = Fault(
        kind="error", status=301, code="PermanentRedirect", message="elsewhere", headers={"x-amz-bucket-region": "eu-x"}
    )
    plain.behave(Behaviour(faults=(fault,)))
    status, headers, body = get(plain, "b/big")
    assert (status, headers["x-amz-bucket-region"]) == (301, "eu-x")
    assert b"<Code>PermanentRedirect</Code>" in body
    assert get(plain, "b/big", method="HEAD")[2] == b""


def test_bandwidth_is_shared(plain: StorageServer) -> None:
    import concurrent.futures

    rate = 2e6
    plain.behave(Behaviour(bandwidth_bytes_per_s=rate))
    n = 8
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        bodies = [answer[2] for answer in pool.map(lambda _: get(plain, "b/big"), range(n))]
    took_s = time.monotonic() - started
    assert bodies == [BODY] * n
    assert took_s >= (n * len(BODY) - 65_536) / rate  # the first chunk leaves at once


# --- life ---


def test_the_process_ends_with_its_owner(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from stoker.testing import StorageServer
        server = StorageServer().start()
        print(server._process.pid, server.port, flush=True)
        time.sleep(60)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    pid, port = map(int, owner.stdout.readline().split())
    owner.send_signal(signal.SIGKILL)
    owner.wait(5)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            break
        except OSError:  # dying: neither answers nor refuses
            continue
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the server outlived its owner")
    owner.stdout.close()


def test_a_closed_server_says_so() -> None:
    server = StorageServer().start()
    server.close()
    server.close()
    with pytest.raises(StorageServerError, match="not running"):
        server.stats()
    with pytest.raises(StorageServerError, match="not running"):
        _ = server.endpoint_url


def test_a_taken_port_is_an_error() -> None:
    with StorageServer() as server, pytest.raises(StorageServerError, match="address already in use"):
        StorageServer(port=server.port).start()


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    yield
    gc.collect()
