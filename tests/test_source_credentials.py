"""Keys that botocore finds: single sign-on, roles, web identities, containers, processes; no batch is lost for them."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, engine_threads, eventually, good_data, settings_for, taken
from stoker import Loader, Settings, UnavailableError
from stoker.cli import app
from stoker.credentials import FoundKeys
from stoker.testing import StorageServer
from typer.testing import CliRunner

SECRET = "secret/of+KEY1/0123456789/abcdefghijkl"


def iso(seconds_ahead: float) -> str:
    """A moment as services write it."""
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds_ahead)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("data"), 32)


@pytest.fixture(scope="module")
def expected(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Digests of the first steps, from disk."""
    return digests(settings_for(data, tmp_path_factory.mktemp("scratch")), 8)


@pytest.fixture
def server(data: DataSet) -> Iterator[StorageServer]:
    with StorageServer(data.folder.parent, access_key_id="KEY1", secret_access_key=SECRET) as running:
        yield running


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home in which nothing of this machine counts; ``config`` in it is the AWS profile file."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "config").write_text("")
    return tmp_path


def without_keys(server: StorageServer, data: DataSet, scratch: Path, **changes: Any) -> Settings:
    storage = {"endpoint_url": server.endpoint_url, "region": server.region}
    return settings_for(f"s3://{data.folder.name}/rows.jsonl", scratch, **changes).replace(storage=storage)


class Process:
    """A ``credential_process`` that gives what stands in a file, and notes that it was asked."""

    def __init__(self, home: Path) -> None:
        self.answer = home / "answer.json"
        self._asked = home / "asked"
        self._asked.write_text("")
        script = home / "process.sh"
        script.write_text(f"#!/bin/sh\necho x >> {self._asked}\n. {home}/before.sh\ncat {self.answer}\n")
        script.chmod(0o755)
        self.before("")
        (home / "config").write_text(f"[default]\ncredential_process = {script}\n")

    def before(self, shell: str) -> None:
        """What it does before it answers."""
        (self.answer.parent / "before.sh").write_text(shell + "\n")

    def gives(self, key_id: str, secret: str, *, expires: str | None) -> None:
        answer = {"Version": 1, "AccessKeyId": key_id, "SecretAccessKey": secret, "SessionToken": "token/of+" + key_id}
        self.answer.write_text(json.dumps(answer if expires is None else {**answer, "Expiration": expires}))

    @property
    def n_asked(self) -> int:
        return len(self._asked.read_text().split())


@pytest.fixture
def process(aws: Path) -> Process:
    return Process(aws)


def test_keys_are_asked_for_ahead_of_their_end(
    process: Process, server: StorageServer, data: DataSet, tmp_path: Path, expected: list[list[str]]
) -> None:
    server.rotate("KEY1", SECRET, "token/of+KEY1")
    template = '{"Version": 1, "AccessKeyId": "KEY1", "SecretAccessKey": "%s", "SessionToken": "token/of+KEY1", %s}'
    process.before(
        'end=$(date -u -d "+3 seconds" +%Y-%m-%dT%H:%M:%SZ)\n'
        f"""cat > {process.answer} <<END\n{template % (SECRET, '"Expiration": "$end"')}\nEND"""
    )
    got: list[list[str]] = []
    with Loader(without_keys(server, data, tmp_path)) as loader:
        for step in loader.steps():
            got.append([batch.digest() for batch in step])
            if len(got) >= len(expected) and process.n_asked >= 2:
                break
    assert got[: len(expected)] == expected
    assert {seen.status for seen in server.requests()} <= {200, 206}, "no key was used beyond its end"


@pytest.mark.case("NET-02", "keys of botocore are asked for afresh, once for all; batches the same")
def test_refused_keys_are_asked_for_afresh(
    process: Process, server: StorageServer, data: DataSet, tmp_path: Path, expected: list[list[str]]
) -> None:
    """The store ends keys in mid run that claim an hour."""
    server.rotate("KEY1", SECRET, "token/of+KEY1")
    process.gives("KEY1", SECRET, expires=iso(3600))
    got: list[list[str]] = []
    with Loader(without_keys(server, data, tmp_path)) as loader:
        steps = loader.steps()
        for n in range(len(expected)):
            if n == 2:
                process.gives("KEY2", "s2", expires=iso(3600))
                server.rotate("KEY2", "s2", "token/of+KEY2")
            got.append([batch.digest() for batch in next(steps)])
    assert got == expected
    assert process.n_asked == 2
    assert 400 in {seen.status for seen in server.requests()}, "nothing was refused: the test tests nothing"


def test_a_process_that_fails_is_named_without_its_secrets(
    process: Process, server: StorageServer, data: DataSet, tmp_path: Path
) -> None:
    process.before(f"echo 'session {SECRET}zz9A is over, log in again' >&2; exit 3")
    with pytest.raises(UnavailableError) as raised, Loader(without_keys(server, data, tmp_path)) as loader:
        taken(loader, 1)
    assert raised.value.code == "FETCH_CREDENTIALS"
    assert 'profile "default"' in raised.value.message
    assert "credential_process" in raised.value.message
    assert "log in again" in raised.value.message
    assert SECRET not in raised.value.message


def test_closing_while_a_process_hangs(process: Process, server: StorageServer, data: DataSet, tmp_path: Path) -> None:
    release = tmp_path / "release"
    process.before(f"while [ ! -e {release} ]; do sleep 0.05; done")
    try:
        loader = Loader(without_keys(server, data, tmp_path))
        for _ in eventually(10):
            if process.n_asked:
                break
        assert "stoker-keys" in engine_threads()
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < 1.5
        assert engine_threads() == []
    finally:
        release.touch()


def test_a_program_ends_while_a_process_hangs(
    process: Process, server: StorageServer, data: DataSet, tmp_path: Path
) -> None:
    """It neither closes nor drops its loader."""
    release = tmp_path / "release"
    process.before(f"n=0; while [ ! -e {release} ] && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.05; done")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(without_keys(server, data, tmp_path).to_dict()))
    script = f"""
        import json, time, stoker
        loader = stoker.Loader(stoker.Settings.from_dict(json.load(open({str(settings)!r}))))
        while not open({str(tmp_path / "asked")!r}).read():
            time.sleep(0.01)
        print(time.time())
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
        )
        ended = time.time()
        assert done.returncode == 0, done.stderr
        assert ended - float(done.stdout) < 5
    finally:
        release.touch()


# --- services, on loopback


class Services(BaseHTTPRequestHandler):
    """Gives the server's keys: as a container's agent, as the token service, as single sign-on."""

    keys: tuple[str, str] = ("KEY1", SECRET)
    asked: list[str] = []  # noqa: RUF012 - made anew by the fixture

    def do_GET(self) -> None:
        self.asked.append(self.path)
        key_id, secret = self.keys
        if self.path.startswith("/container"):
            if self.headers.get("Authorization") != "pod-token":
                return self._answer(403, "{}")
            body = {"AccessKeyId": key_id, "SecretAccessKey": secret, "Token": "t", "Expiration": iso(3600)}
            return self._answer(200, json.dumps(body))
        if self.headers.get("x-amz-sso_bearer_token") != "sso-token":
            return self._answer(401, "{}")
        role = {
            "accessKeyId": key_id,
            "secretAccessKey": secret,
            "sessionToken": "t",
            "expiration": int((time.time() + 3600) * 1000),
        }
        return self._answer(200, json.dumps({"roleCredentials": role}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        action = dict(pair.split("=") for pair in body.split("&"))["Action"]
        self.asked.append(action)
        key_id, secret = self.keys
        self._answer(
            200,
            f"""<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>
            <AccessKeyId>{key_id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>t</SessionToken>
            <Expiration>{iso(3600)}</Expiration></Credentials></{action}Result></{action}Response>""",
        )

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def services() -> Iterator[str]:
    """Where they are."""
    Services.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Services) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def container(url: str, home: Path, environ: Callable[[str, str], None]) -> None:
    environ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url + "/container")
    environ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod-token")


def web_identity(url: str, home: Path, environ: Callable[[str, str], None]) -> None:
    (home / "token").write_text("the pod's token")
    environ("AWS_WEB_IDENTITY_TOKEN_FILE", str(home / "token"))
    environ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    environ("AWS_ENDPOINT_URL_STS", url)
    # Files come after a pod's identity.
    (home / "credentials").write_text("[default]\naws_access_key_id = WRONG\naws_secret_access_key = wrong\n")


def role_of_a_profile(url: str, home: Path, environ: Callable[[str, str], None]) -> None:
    (home / "config").write_text(
        "[profile reader]\nrole_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = base\n"
    )
    environ("AWS_PROFILE", "reader")
    environ("AWS_ENDPOINT_URL_STS", url)


def single_sign_on(url: str, home: Path, environ: Callable[[str, str], None]) -> None:
    (home / "config").write_text(
        "[default]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = reader\n"
        "[sso-session corp]\nsso_region = us-east-1\nsso_start_url = https://corp.invalid/start\n"
    )
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    token = {"startUrl": "https://corp.invalid/start", "accessToken": "sso-token", "expiresAt": iso(3600)}
    (cache / f"{hashlib.sha1(b'corp').hexdigest()}.json").write_text(json.dumps(token))
    environ("AWS_ENDPOINT_URL_SSO", url)


WAYS = [container, web_identity, role_of_a_profile, single_sign_on]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_keys(
    way: Callable[..., None],
    aws: Path,
    services: str,
    server: StorageServer,
    data: DataSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: list[list[str]],
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    way(services, aws, monkeypatch.setenv)
    server.rotate("KEY1", SECRET, "t")
    assert digests(without_keys(server, data, tmp_path), 2) == expected[:2]
    assert len(Services.asked) == 1


def test_check_and_inspect_ask_botocore_too(
    process: Process, server: StorageServer, data: DataSet, tmp_path: Path
) -> None:
    server.rotate("KEY1", SECRET, "token/of+KEY1")
    process.gives("KEY1", SECRET, expires=iso(3600))
    run = tmp_path / "run.yaml"
    run.write_text(json.dumps(without_keys(server, data, tmp_path).to_dict()))
    for command in (["check", str(run), "--media", "4"], ["inspect", str(run), "--row", "1", "--json"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    assert engine_threads() == []


# --- without botocore


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("", "no S3 credentials in the settings, the environment"),
        ("[default]\ncredential_process = /bin/true\n", "a process (credential_process)"),
        (
            "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
            "[profile base]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\n"
            "[sso-session corp]\nsso_region = us-east-1\nsso_start_url = https://corp.invalid/start\n",
            "a role (role_arn)",
        ),
        ("[default]\nsso_session = corp\n", "single sign-on (sso_session)"),
    ],
)
def test_without_botocore_the_extra_is_named(
    config: str,
    named: str,
    aws: Path,
    server: StorageServer,
    data: DataSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (aws / "config").write_text(config)
    (tmp_path / "botocore.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UnavailableError) as raised, Loader(without_keys(server, data, tmp_path)) as loader:
        taken(loader, 1)
    assert raised.value.code == "FETCH_CREDENTIALS"
    assert named in raised.value.message
    assert 'pip install "stoker[aws]"' in raised.value.message


def test_keys_of_the_engines_own_never_ask_botocore(
    process: Process, server: StorageServer, data: DataSet, tmp_path: Path, expected: list[list[str]]
) -> None:
    made = settings_for(f"s3://{data.folder.name}/rows.jsonl", tmp_path).replace(storage=server.settings())
    assert digests(made, 2) == expected[:2]
    assert process.n_asked == 0


def test_found_keys_do_not_show_themselves() -> None:
    keys = FoundKeys("KEY1", SECRET, "token", None, "botocore (sso)")
    assert SECRET not in f"{keys} {keys!r}"
