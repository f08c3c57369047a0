"""However a run fails, nothing that it says or writes holds a secret, plain, percent-encoded or in base64."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from loader_data import DataSet, good_data, settings_for
from raw_server import answering, ok
from stoker import Loader, Settings, StokerError
from stoker.cli import app
from stoker.testing import StorageServer
from typer.testing import CliRunner

SECRETS = {
    "key id": "AKIAIOSFODNN7SECRET1",
    "secret key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYSECRETKEY1",
    "session token": "FwoGZXIvYXdzEJr//SECRET+TOKEN/abc==",
    "proxy password": "p+roxy/SECRET pass",
    "signed query": "X-Amz-Signature=0123SECRETsignature89",
    "user of a URL": "url/SECRET+user",
}
KEYS = {
    "access_key_id": SECRETS["key id"],
    "secret_access_key": SECRETS["secret key"],
    "session_token": SECRETS["session token"],
}


pytestmark = pytest.mark.filterwarnings("ignore:state_dict")  # inside a step too


def forms(secret: str) -> set[str]:
    """What a secret looks like on its way: itself, encoded for a URL, in base64 at any place of a longer text."""
    found = {secret, quote(secret, safe=""), quote(secret, safe="").lower(), quote(secret), secret.replace(" ", "+")}
    for n_before in range(3):
        coded = base64.b64encode(b"x" * n_before + secret.encode()).decode()
        # Digits at the ends also depend on what stands around the secret.
        found.add(coded[(0, 2, 3)[n_before] : len(coded) // 4 * 4 - 4])
    return found


def leaks(text: str) -> list[str]:
    return [
        f"{name} in {text[max(0, text.find(form) - 150) : text.find(form) + 80]!r}"
        for name, secret in SECRETS.items()
        for form in forms(secret)
        if form in text
    ]


def test_the_search_finds_what_is_there() -> None:
    for name, secret in SECRETS.items():
        for planted in (
            secret,
            quote(secret, safe=""),
            base64.b64encode(secret.encode()).decode(),
            base64.b64encode(f"user:{secret}!".encode()).decode(),
            base64.b64encode(f"users:{secret}".encode()).decode(),
        ):
            assert leaks(f"... {planted} ...")[0].startswith(name)
    assert leaks("Nothing, and the Authorization header AWS4-HMAC-SHA256 Credential=.../20260101/") == []


class Everything:
    """What a run says and leaves behind."""

    def __init__(self, scratch: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        self._scratch, self._caplog, self._capfd = scratch, caplog, capfd
        caplog.set_level(logging.DEBUG)
        self._texts: list[str] = []

    def of_run(self, settings: Settings) -> str:
        """Loads, checks and inspects; returns all of it."""
        say = self._texts.append
        loader = Loader(settings)
        try:
            for n, batch in enumerate(loader):
                say(f"{batch!r} {loader.state_dict()} {json.dumps(loader.state_dict())}")
                if n == 20:
                    break
        except StokerError as error:
            say("".join(traceback.format_exception(error)) + f"{error!r} {error.args} {error.code}")
        with contextlib.suppress(StokerError):
            say(json.dumps(loader.state_dict()))
        say(f"{loader.report()} {loader.report().values}")
        loader.close()
        say(f"{settings!r} {settings} {settings.to_dict(hide_secrets=True)} {loader!r}")
        run = self._scratch / "run.yaml"
        run.write_text(json.dumps(settings.to_dict()))
        for command in (["check", str(run), "--json", "--media", "all"], ["inspect", str(run), "--row", "0", "--json"]):
            done = CliRunner().invoke(app, command)
            say(done.output + (repr(done.exception) if done.exception else ""))
        run.unlink()
        for path in settings.resolved_index_dir().rglob("*"):
            say(str(path))
            if path.is_file() and path.parent.name != "mirror":  # that is the user's own manifest
                say(path.read_bytes().decode("utf-8", "replace"))
        out, err = self._capfd.readouterr()
        return "\n".join([*self._texts, self._caplog.text, out, err])


@pytest.fixture
def everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Callable[[Settings], str]:
    return Everything(tmp_path, caplog, capfd).of_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Good rows, and pictures behind signed URLs and URLs with a user, none of which can be used."""
    data = good_data(tmp_path_factory.mktemp("data"), 12)
    user, query = SECRETS["user of a URL"], SECRETS["signed query"]
    for n, picture in enumerate(
        [
            f"http://127.0.0.1:PORT/gone.png?{query}",
            f"http://{quote(user, safe='')}:{quote(SECRETS['proxy password'], safe='')}@127.0.0.1:PORT/gone.png",
            f"http://127.0.0.1:PORT/moved.png?{query}",
            f"http://127.0.0.1:PORT/page.png?{query}#{user}",
            f"ftp://{quote(user, safe='')}@127.0.0.1/x.png?{query}",
        ]
    ):
        data.chat(100 + n, [picture])
    return data.write()


def echo(status: str, path: str, headers: dict[str, str]) -> bytes:
    """An answer that repeats all that it got, in head and body."""
    got = "".join(f"{name}: {value}; " for name, value in headers.items()).replace("<", "&lt;").replace("&", "&amp;")
    coded = base64.b64encode(got.encode()).decode()
    body = (
        f"<Error><Code>InternalError</Code><Message>{got} {path} {quote(got)} {coded}</Message>"
        f"<Region>{got}</Region><Endpoint>{got}</Endpoint></Error>"
    )
    head = f"HTTP/1.1 {status} {got}\r\nx-amz-bucket-region: {got}\r\n"
    head += f"Location: http://{headers['host']}/again{path}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode("latin-1", "replace")


@contextlib.contextmanager
def storage_that(
    answer: Callable[[str, dict[str, str]], bytes], data: DataSet, scratch: Path, *, wants_tls: bool = False
) -> Iterator[Settings]:
    """Settings for a run whose manifest is there, and whose pictures on S3 meet `answer`."""
    with answering(answer) as (endpoint, asked):
        rows = DataSet(scratch / "here")
        port = endpoint.rpartition(":")[2]
        rows.lines = [line.replace(b"PORT", port.encode()) for line in data.lines]
        yield settings_for(
            rows.write(),
            scratch,
            epochs=1,
            shuffle="none",
            storage={"endpoint_url": endpoint, "region": "us-east-1", **KEYS},
            outage_limit_s=0.1,
            bad_samples={"max_fraction": 1.0},
        ).replace(data=[{"manifest": str(rows.manifest), "media_root": "s3://bucket/"}])
        assert asked or wants_tls, "nothing was asked for: the test tests nothing"


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        ("500", ["OUTAGE", "FETCH_SERVER"]),
        ("403", ["FETCH_DENIED"]),
        ("401", ["FETCH_CREDENTIALS"]),
        ("301", ["FETCH_REDIRECT"]),
        ("400", []),
        ("404", ["MEDIA_NOT_FOUND"]),
        ("200", []),
    ],
)
def test_a_store_that_repeats_what_it_was_sent(
    status: str, codes: list[str], everything: Callable[[Settings], str], data: DataSet, tmp_path: Path
) -> None:
    with storage_that(lambda path, headers: echo(status, path, headers), data, tmp_path) as settings:
        said = everything(settings)
    for code in codes:
        assert code in said
    assert leaks(said) == []


@pytest.mark.parametrize(
    "code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"]
)
def test_refused_keys(code: str, everything: Callable[[Settings], str], data: DataSet, tmp_path: Path) -> None:
    def refuse(path: str, headers: dict[str, str]) -> bytes:
        return echo("403", path, headers).replace(b"InternalError", code.encode())

    with storage_that(refuse, data, tmp_path) as settings:
        said = everything(settings)
    assert code in said
    assert leaks(said) == []


def test_media_that_cannot_be_used(everything: Callable[[Settings], str], data: DataSet, tmp_path: Path) -> None:
    """The server's pictures on S3 are good, those behind signed URLs are not."""

    def answer(path: str, headers: dict[str, str]) -> bytes:
        if path.startswith("/bucket/"):
            return ok((data.folder / path.removeprefix("/bucket/")).read_bytes())
        if path.startswith("/moved"):
            return echo("302", path, headers)
        return ok(b"<html></html>") if path.startswith("/page") else echo("404", path, headers)

    with storage_that(answer, data, tmp_path) as settings:
        said = everything(settings.replace(outage_limit_s=0.5))
    assert "/gone.png" in said
    assert leaks(said) == []


@pytest.mark.parametrize(("scheme", "is_setting"), [("http", False), ("https", False), ("https", True)])
def test_a_proxy_that_refuses(
    scheme: str,
    is_setting: bool,
    everything: Callable[[Settings], str],
    data: DataSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str, headers: dict[str, str]) -> bytes:
        return echo("407", path, headers)

    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with storage_that(refuse, data, tmp_path) as settings:
        address = settings.storage.endpoint_url.removeprefix("http://")
        proxy = f"http://me:{quote(SECRETS['proxy password'], safe='')}@{address}"
        for name in () if is_setting else ("http_proxy", "https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy)
        given = {"proxy": proxy} if is_setting else {}
        said = everything(settings.replace(storage={"endpoint_url": f"{scheme}://storage.invalid", **given}))
    assert "407" in said or "proxy" in said.lower()
    assert leaks(said) == []


def test_a_certificate_that_is_none(everything: Callable[[Settings], str], data: DataSet, tmp_path: Path) -> None:
    unsafe = DataSet(data.folder)
    unsafe.chat(1, [f"https://127.0.0.1:PORT/tls.png?{SECRETS['signed query']}"])
    with storage_that(lambda path, headers: b"", unsafe, tmp_path, wants_tls=True) as settings:
        said = everything(settings)
    assert "tls.png" in said
    assert leaks(said) == []


def test_an_outage(everything: Callable[[Settings], str], data: DataSet, tmp_path: Path) -> None:
    with storage_that(lambda path, headers: b"", data, tmp_path) as settings:
        said = everything(settings)
        nowhere = everything(settings.replace(storage={"endpoint_url": "http://127.0.0.1:1"}))
    assert "OUTAGE" in said
    assert "FETCH_CONNECT" in nowhere
    assert leaks(said + nowhere) == []


def test_wrong_keys_at_a_store_that_checks_them(
    everything: Callable[[Settings], str], data: DataSet, tmp_path: Path
) -> None:
    bucket = data.folder.name
    with StorageServer(
        data.folder.parent, access_key_id=KEYS["access_key_id"], session_token=KEYS["session_token"]
    ) as s:
        settings = settings_for(
            f"s3://{bucket}/rows.jsonl", tmp_path, storage={**s.settings(), **KEYS}, outage_limit_s=0.1
        )
        said = everything(settings)
    assert "SignatureDoesNotMatch" in said
    assert leaks(said) == []


def test_settings_that_do_not_fit_are_shown_without_secrets(data: DataSet, tmp_path: Path) -> None:
    plain = settings_for(data, tmp_path, storage=KEYS).to_dict()
    wrongs: list[dict[str, Any]] = [
        {"region": "a b", **KEYS},
        {"secret_access_key": SECRETS["secret key"], "access_key_id": ""},
        {"endpoint_url": f"http://{SECRETS['user of a URL']}@host"},
        {"session_token": 7, "secret_access_key": SECRETS["secret key"]},
        {"secret_access_keys": SECRETS["secret key"]},
        {"proxy": f"ftp://me:{SECRETS['proxy password']}@host"},
        {"proxy": [SECRETS["proxy password"]]},
        {"secret_access_key": [SECRETS["secret key"]]},
        {"access_key_id": {"id": SECRETS["key id"]}},
        {"addressing": "paths", **KEYS},
    ]
    for wrong in wrongs:
        with pytest.raises(StokerError) as raised:
            Loader(Settings.from_dict({**plain, "storage": {**plain["storage"], **wrong}})).close()
        assert leaks("".join(traceback.format_exception(raised.value))) == [], wrong
