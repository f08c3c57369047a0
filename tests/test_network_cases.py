"""Cases NET-01 to NET-13: what storage and networks do to a run, seen from a loader and its settings."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import resource
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, encoded, good_data, ledger, picture, settings_for, taken
from raw_server import answering, ok
from stoker import InvalidArgumentError, Loader, Settings, UnavailableError, _core
from stoker.testing import Behaviour, Fault, StorageServer

KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "topSECRET/of+the/test", "session_token": "topTOKEN/=="}
N_STEPS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("data"), 32)


@pytest.fixture(scope="module")
def expected(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Digests of the first steps, from disk."""
    return digests(settings_for(data, tmp_path_factory.mktemp("scratch")), N_STEPS)


@pytest.fixture(scope="module")
def running(data: DataSet) -> Iterator[StorageServer]:
    with StorageServer(data.folder.parent) as server:
        yield server


@pytest.fixture
def server(running: StorageServer) -> StorageServer:
    """The same for all, doing nothing wrong, its counts at zero."""
    running.behave(Behaviour())
    running.reset_stats()
    return running


def remote(data: DataSet, server: StorageServer, scratch: Path, **changes: Any) -> Settings:
    return settings_for(f"s3://{data.folder.name}/rows.jsonl", scratch, storage=server.settings()).replace(**changes)


@pytest.fixture(scope="module")
def answers(case_files: Path) -> dict[str, list[tuple[bytes, dict[str, Any]]]]:
    """What storage says in each case, byte for byte, and what is wanted."""
    found: dict[str, list[tuple[bytes, dict[str, Any]]]] = {}
    for case in json.loads((case_files / "manifest.json").read_text())["cases"]:
        if case["kind"] == "http":
            found.setdefault(case["id"], []).append(((case_files / case["file"]).read_bytes(), case["expect"]))
    assert {"NET-01", "NET-02", "NET-03", "NET-04"} <= found.keys()
    return found


def fetch(url: str, endpoint: str, **storage: Any) -> bytes:
    return bytes(_core.fetch(url, storage={"endpoint": endpoint, **KEYS, **storage}, environ={}, outage_limit_s=5)[0])


# --- NET-01 throttling


@pytest.mark.case("NET-01", "batches the same, `throttled` counted in the report")
def test_a_store_that_asks_to_slow_down(
    data: DataSet, server: StorageServer, tmp_path: Path, expected: list[list[str]]
) -> None:
    server.behave(Behaviour(faults=(Fault(kind="error", first=3),)))  # 503 SlowDown
    settings = remote(data, server, tmp_path, speed={"fetch_concurrency": 64}, outage_limit_s=60.0)
    with Loader(settings) as loader:
        got = [[batch.digest() for batch in step] for step in itertools.islice(loader.steps(), N_STEPS)]
        fetched = loader.report().values["pipeline"]["fetch"]
    assert got == expected
    assert fetched["throttled"] > 30
    assert ledger(settings) == []


@pytest.mark.case("NET-01", "OUTAGE that names FETCH_THROTTLED, after `outage_limit_s`")
def test_a_store_that_never_stops_asking(data: DataSet, server: StorageServer, tmp_path: Path) -> None:
    server.behave(Behaviour(faults=(Fault(kind="error", match="*/images/*"),)))
    began = time.monotonic()
    with (
        pytest.raises(UnavailableError, match="FETCH_THROTTLED") as raised,
        Loader(remote(data, server, tmp_path, outage_limit_s=0.5)) as loader,
    ):
        taken(loader, 8)
    assert raised.value.code == "OUTAGE"
    assert time.monotonic() - began < 5


def test_the_cases_answer_of_a_throttling_store(answers: dict[str, list[tuple[bytes, dict[str, Any]]]]) -> None:
    slow_down = answers["NET-01"][0][0]
    tries = Counter[str]()

    def answer(path: str, headers: dict[str, str]) -> bytes:
        tries[path] += 1
        return slow_down if tries[path] <= 2 else ok(path.encode())

    with answering(answer) as (endpoint, _):
        assert fetch("s3://b/k", endpoint) == b"/b/k"
    assert tries["/b/k"] == 3


# --- NET-02 credentials that end


@pytest.mark.case("NET-02", "the credentials file is read again; requests wait, batches the same")
def test_keys_that_end_in_mid_run(
    data: DataSet, tmp_path: Path, expected: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    def write(key_id: str, secret: str) -> None:
        keys.write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n")

    with StorageServer(data.folder.parent, access_key_id="OLDKEY", secret_access_key="old") as server:
        write("OLDKEY", "old")
        settings = remote(data, server, tmp_path, storage={"access_key_id": "", "secret_access_key": ""})
        got: list[list[str]] = []
        with Loader(settings) as loader:
            steps = loader.steps()
            for n in range(N_STEPS):
                if n == 2:
                    server.rotate("NEWKEY", "new")
                    write("NEWKEY", "new")
                got.append([batch.digest() for batch in next(steps)])
        assert got == expected
        assert 400 in {seen.status for seen in server.requests()}, "nothing was refused: the test tests nothing"


@pytest.mark.case("NET-02", "FETCH_CREDENTIALS names the provider, without key material")
def test_keys_that_end_and_are_not_renewed(answers: dict[str, list[tuple[bytes, dict[str, Any]]]]) -> None:
    (expired,) = [answer for answer, _ in answers["NET-02"] if b"ExpiredToken" in answer]  # the other is for HEAD
    with answering(lambda path, headers: expired) as (endpoint, _), pytest.raises(UnavailableError) as raised:
        fetch("s3://b/k", endpoint)
    assert raised.value.code == "FETCH_CREDENTIALS"
    assert "the settings" in raised.value.message
    for secret in KEYS.values():
        assert secret not in str(raised.value)


# --- NET-03 short bodies


@pytest.mark.case("NET-03", "continued by a ranged read, batches the same")
def test_bodies_that_end_early(data: DataSet, server: StorageServer, tmp_path: Path, expected: list[list[str]]) -> None:
    server.behave(Behaviour(faults=(Fault(kind="cut", after_bytes=600, first=1),)))
    assert digests(remote(data, server, tmp_path), N_STEPS) == expected
    assert any((seen.range or "").startswith("bytes=600-") for seen in server.requests())


@pytest.mark.case("NET-03", "the rest is asked for with If-Match")
def test_the_cases_answer_with_a_short_body(answers: dict[str, list[tuple[bytes, dict[str, Any]]]]) -> None:
    short, wanted = answers["NET-03"][0]

    def answer(path: str, headers: dict[str, str]) -> bytes:
        if "if-match" not in headers:
            return short
        head = b'HTTP/1.1 206 Partial Content\r\nETag: "abc"\r\nContent-Range: bytes 600-999/1000\r\n'
        return head + b"Content-Length: 400\r\n\r\n" + b"y" * 400

    with answering(answer) as (endpoint, asked):
        assert fetch("s3://b/k", endpoint) == b"x" * 600 + b"y" * 400
    assert asked[1]["if-match"] == wanted["if_match"]
    assert re.fullmatch(wanted["next_range"] + "|bytes=600-", asked[1]["range"])


# --- NET-04 another region


@pytest.mark.case("NET-04", "followed once, signed anew, remembered")
def test_a_bucket_in_another_region(answers: dict[str, list[tuple[bytes, dict[str, Any]]]]) -> None:
    redirect, wanted = answers["NET-04"][0]

    def answer(path: str, headers: dict[str, str]) -> bytes:
        return ok(b"there") if f"/{wanted['region']}/s3/" in headers["authorization"] else redirect

    with answering(answer) as (endpoint, asked):
        assert fetch("s3://b/k", endpoint, region="us-y-1") == b"there"
        assert len(asked) == 2
    with answering(lambda path, headers: redirect) as (endpoint, asked):
        with pytest.raises(UnavailableError) as raised:
            fetch("s3://b/k", endpoint, region="us-y-1")
        assert len(asked) <= 3
    assert raised.value.code == "FETCH_REDIRECT"
    assert 'bucket "b" is in region' in raised.value.message


# --- NET-05 endpoints


@pytest.mark.case("NET-05", "settings, then AWS_ENDPOINT_URL_S3, then AWS_ENDPOINT_URL; said once, with the style")
@pytest.mark.parametrize("said_by", ["storage.endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_an_endpoint_of_ones_own(
    said_by: str,
    data: DataSet,
    server: StorageServer,
    tmp_path: Path,
    expected: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = server.endpoint_url
    _core.drain_log()  # of earlier tests
    with answering(lambda path, headers: b"") as (elsewhere, strays):
        ways = ["storage.endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
        for later in ways[ways.index(said_by) + 1 :]:
            monkeypatch.setenv(later, elsewhere)
        if said_by != "storage.endpoint":
            monkeypatch.setenv(said_by, here)
        endpoint = here if said_by == "storage.endpoint" else ""
        with caplog.at_level(logging.INFO, "stoker"):
            got = digests(remote(data, server, tmp_path, storage={"endpoint_url": endpoint}), 2)
        assert got == expected[:2]
        assert strays == []
    lines = [line for line in caplog.messages if "endpoint" in line]
    assert len(lines) == 1
    assert here in lines[0]
    assert said_by in lines[0]
    assert lines[0].endswith("path style"), "since the endpoint is an IP"
    url, _ = _core.prepare_s3("s3://b/k", storage={"endpoint": "http://store.local", "addressing": "virtual", **KEYS})
    assert url == "http://b.store.local/k"


# --- NET-07 patience


@pytest.mark.case("NET-07", "each limit is a setting; FETCH_TIMEOUT says which, and how many bytes had come")
@pytest.mark.parametrize(
    ("fault", "setting", "said"),
    [
        (Fault(kind="silence", match="*/images/*"), "first_byte_timeout_s", "no first byte"),
        (Fault(kind="stall", match="*/images/*", after_bytes=100), "stall_timeout_s", "nothing more for"),
        (Fault(kind="trickle", match="*/images/*", bytes_per_s=20), "object_timeout_s", "of"),
    ],
)
def test_patience_is_a_setting(
    fault: Fault, setting: str, said: str, data: DataSet, server: StorageServer, tmp_path: Path
) -> None:
    server.behave(Behaviour(faults=(fault,)))
    settings = remote(data, server, tmp_path, storage={setting: 0.2}, outage_limit_s=0.1)
    with pytest.raises(UnavailableError, match="FETCH_TIMEOUT") as raised, Loader(settings) as loader:
        taken(loader, 8)
    assert raised.value.code == "OUTAGE"
    assert said in raised.value.message


@pytest.mark.case("NET-07", "a body that trickles is never given up by default")
def test_a_trickle_is_waited_for(
    data: DataSet, server: StorageServer, tmp_path: Path, expected: list[list[str]]
) -> None:
    server.behave(Behaviour(faults=(Fault(kind="trickle", match="*/images/*", first=1, bytes_per_s=60_000),)))
    settings = remote(data, server, tmp_path, storage={"stall_timeout_s": 0.3}, speed={"fetch_concurrency": 64})
    assert digests(settings, 2) == expected[:2]


# --- NET-08, NET-09 keys


@pytest.mark.case("NET-08", "all read; the key of an s3:// URL is literal")
@pytest.mark.case("NET-09", "all read; keys are opaque, joining adds one slash")
def test_keys_that_clients_get_wrong(case_files: Path, server: StorageServer, tmp_path: Path) -> None:
    cases = [
        case
        for case in json.loads((case_files / "manifest.json").read_text())["cases"]
        if case["kind"] == "keys" and case["id"] in ("NET-08", "NET-09")
    ]
    assert len(cases) == 2
    names: list[str] = []
    for case in cases:
        keys = json.loads((case_files / case["file"]).read_text())["keys"]
        for key, coded in zip(keys, case["expect"]["encoded"], strict=True):
            url, _ = _core.prepare_s3(f"s3://b/{key}", storage={"endpoint": "http://127.0.0.1:1", **KEYS})
            assert url == f"http://127.0.0.1:1/b/{coded}"
        names += keys
    data = DataSet(tmp_path / "data")
    for n, key in enumerate(names):
        body = encoded(picture(256, 256, n), "PNG")
        server.put("odd", key, body)
        server.put("odd", f"under/{key}", body)
        data.chat(n, [f"s3://odd/{key}"])
    settings = settings_for(
        data.write(), tmp_path, storage=server.settings(), epochs=1, shuffle="none", pack={"packs_per_step": 1}
    )
    absolute = digests(settings)
    assert ledger(settings) == []
    # The same pictures below a prefix, with and without its slash; a name with a slash in front is a path of its own.
    relative = DataSet(tmp_path / "relative")
    kept = [(n, key) for n, key in enumerate(names) if not key.startswith("/")]
    for n, key in kept:
        relative.chat(n, [key])
    relative.write()
    roots = [
        digests(
            settings.replace(
                data=[{"manifest": str(relative.manifest), "media_root": root}], index_dir=str(tmp_path / f"index{i}")
            )
        )
        for i, root in enumerate(("s3://odd/under", "s3://odd/under/"))
    ]
    assert roots[0] == roots[1]
    assert len(absolute) >= len(roots[0]) > 0
    assert not ledger(settings.replace(index_dir=str(tmp_path / "index0")))


@pytest.mark.case("NET-09", "errors show the key in quotes")
def test_a_key_that_is_not_there_is_shown_as_it_is(server: StorageServer, data: DataSet, tmp_path: Path) -> None:
    rows = DataSet(tmp_path / "data")
    for n in range(4):
        rows.chat(n, [])
    rows.chat(9, ["s3://odd/d//./gone+ .png"])
    server.put("odd", "k", b"")
    settings = settings_for(
        rows.write(),
        tmp_path,
        storage=server.settings(),
        epochs=1,
        pack={"packs_per_step": 1},
        bad_samples={"max_fraction": 1.0},
    )
    digests(settings)
    (line,) = ledger(settings)
    assert line["code"] == "MEDIA_NOT_FOUND"
    assert '"s3://odd/d//./gone+ .png"' in line["message"]


# --- NET-10 prefixes


@pytest.mark.case("NET-10", "buckets are never listed: MANIFEST that says what to name instead")
@pytest.mark.parametrize("given", ["s3://{}/", "s3://{}/images/", "s3://{}/*.jsonl", "s3://{}"])
def test_a_prefix_as_manifest(given: str, data: DataSet, server: StorageServer, tmp_path: Path) -> None:
    settings = remote(data, server, tmp_path).replace(data=[{"manifest": given.format(data.folder.name)}])
    with pytest.raises(InvalidArgumentError, match="never listed") as raised, Loader(settings) as loader:
        taken(loader, 1)
    assert raised.value.code == "MANIFEST"
    assert f"s3://{data.folder.name}" in raised.value.message


# --- NET-11 a manifest that is replaced


def swapped(data: DataSet) -> bytes:
    """The same rows in another order, in as many bytes."""
    lines = data.manifest.read_bytes().splitlines(keepends=True)
    return b"".join(reversed(lines))


@pytest.mark.case("NET-11", "MANIFEST at the next window; a resume names the changed setting")
@pytest.mark.parametrize("is_one_of_many", [False, True])
def test_a_local_manifest_rewritten_in_place(data: DataSet, tmp_path: Path, is_one_of_many: bool) -> None:
    copy = good_data(tmp_path / "copy", 32)
    settings = settings_for(copy, tmp_path, speed={"prefetch_steps": 0})
    if is_one_of_many:
        (copy.folder / "a.jsonl").write_bytes(copy.manifest.read_bytes())
        settings = settings.replace(data=[{"manifest": str(copy.folder / "*.jsonl")}])
    with Loader(settings) as loader:
        taken(loader, 4)
        state = loader.state_dict()
        size = copy.manifest.stat().st_size
        copy.manifest.write_bytes(swapped(copy))
        assert copy.manifest.stat().st_size == size
        with pytest.raises(InvalidArgumentError, match="changed") as raised:
            taken(loader, 1000)
    assert raised.value.code == "MANIFEST"
    with Loader(settings) as loader, pytest.raises(InvalidArgumentError, match="data") as refused:
        loader.load_state_dict(state)
    assert refused.value.code == "STATE"


@pytest.mark.case("NET-11", "a run on S3 goes on with the rows that it began with; a resume names the changed setting")
def test_a_manifest_on_s3_replaced_in_mid_run(
    data: DataSet, server: StorageServer, tmp_path: Path, expected: list[list[str]]
) -> None:
    bucket = f"copy{tmp_path.name[-4:]}".replace("_", "-")
    server.put(bucket, "rows.jsonl", data.manifest.read_bytes())
    root = f"s3://{data.folder.name}"
    settings = remote(data, server, tmp_path).replace(
        data=[{"manifest": f"s3://{bucket}/rows.jsonl", "media_root": root}]
    )
    got: list[list[str]] = []
    with Loader(settings) as loader:
        for step in loader.steps():
            got.append([batch.digest() for batch in step])
            if len(got) == 2:
                state = loader.state_dict()
                server.put(bucket, "rows.jsonl", swapped(data))
            if len(got) == N_STEPS:
                break
    assert got == expected
    with Loader(settings) as loader, pytest.raises(InvalidArgumentError, match="data") as refused:
        loader.load_state_dict(state)
    assert refused.value.code == "STATE"


@pytest.mark.case("NET-11", "MANIFEST when it is replaced while it is copied, by If-Match")
def test_a_manifest_on_s3_replaced_while_it_is_copied(tmp_path: Path) -> None:
    whole = b"x" * (9 << 20)  # two parts
    tags = iter(['"old"', '"old"'])

    def answer(path: str, headers: dict[str, str]) -> bytes:
        first, last = (int(n) for n in headers["range"].removeprefix("bytes=").split("-"))
        tag = next(tags, '"new"')
        if headers.get("if-match", tag) != tag:
            return b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
        part = whole[first : last + 1]
        head = (
            f"HTTP/1.1 206 Partial Content\r\nETag: {tag}\r\nContent-Length: {len(part)}\r\n"
            f"Content-Range: bytes {first}-{first + len(part) - 1}/{len(whole)}\r\n\r\n"
        )
        return head.encode() + part

    with answering(answer) as (endpoint, _):
        settings = settings_for(
            "s3://b/rows.jsonl", tmp_path, storage={**KEYS, "endpoint_url": endpoint, "region": "us-east-1"}
        )
        with (
            pytest.raises(InvalidArgumentError, match="changed while it was read") as raised,
            Loader(settings) as loader,
        ):
            taken(loader, 1)
    assert raised.value.code == "MANIFEST"


# --- NET-12 descriptors


@pytest.mark.case("NET-12", "requests in flight lowered to what ulimit allows, said once; batches the same")
def test_few_descriptors(data: DataSet, server: StorageServer, tmp_path: Path, expected: list[list[str]]) -> None:
    settings = remote(data, server, tmp_path, speed={"fetch_concurrency": 1024, "prefetch_steps": 8})
    (tmp_path / "settings.json").write_text(json.dumps(settings.to_dict()))
    script = f"""
        import json, logging, os, sys, itertools, stoker
        logging.basicConfig(level=logging.WARNING)
        settings = stoker.Settings.from_dict(json.load(open({str(tmp_path / "settings.json")!r})))
        with stoker.Loader(settings) as loader:
            steps = itertools.islice(loader.steps(), {N_STEPS})
            print(json.dumps([[batch.digest() for batch in step] for step in steps]))
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
    (line,) = [line for line in done.stderr.splitlines() if "ulimit" in line]
    assert "ulimit -n is 256" in line
    assert "1024 requests in flight need" in line


# --- NET-13 the end


@pytest.mark.case("NET-13", "ends within seconds, with its own exit code")
@pytest.mark.parametrize(
    ("ending", "code", "stalls"), [("", 0, True), ("raise ZeroDivisionError", 1, True), ("sys.exit(7)", 7, False)]
)
def test_a_program_that_does_not_close(
    ending: str, code: int, stalls: bool, data: DataSet, server: StorageServer, tmp_path: Path
) -> None:
    settings = remote(data, server, tmp_path, shuffle="none")
    (tmp_path / "settings.json").write_text(json.dumps(settings.to_dict()))
    if stalls:  # what the next window wants never comes
        server.behave(Behaviour(faults=(Fault(kind="stall", match="*/images/[23]???.*", after_bytes=10),)))
    script = f"""
        import json, sys, time, stoker
        loader = stoker.Loader(stoker.Settings.from_dict(json.load(open({str(tmp_path / "settings.json")!r}))))
        batch = next(loader)
        print(time.time(), flush=True)
        {ending}
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, env=environ
    )
    ended = time.time()
    assert done.returncode == code, done.stderr
    assert ended - float(done.stdout) < 5
