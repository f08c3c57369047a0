"""`stoker probe`: what it measures is what the storage does, it ends when it is told to, and it tells no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from loader_data import DataSet, good_data, settings_for
from stoker.cli import app
from stoker.probing.profile import LatencyProfile
from stoker.testing import Behaviour, Fault, Latency, StorageServer
from typer.testing import CliRunner, Result

N_OBJECTS = 3000
SECRET = "pleaseDoNotTell"


@pytest.fixture(scope="module")
def server() -> Iterator[StorageServer]:
    with StorageServer(anonymous_buckets=["open"]) as started:
        for n in range(N_OBJECTS):
            started.put("media", f"{n}.jpg", b"x" * 2000)
        started.put("open", "one.jpg", b"x" * 2000)
        yield started


def environment(server: StorageServer, scratch: Path, **changes: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": server.endpoint_url,
        "AWS_REGION": server.region,
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
        **changes,
    }


def probe(server: StorageServer, scratch: Path, target: object, *options: object, **changes: str) -> Result:
    arguments = ["probe", str(target), "--step-samples", "8", *map(str, options)]
    return CliRunner().invoke(app, arguments, env=environment(server, scratch, **changes))


def report_of(*arguments: Any) -> dict[str, Any]:
    done = probe(*arguments, "--json")
    assert done.exit_code in (0, 1), done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = DataSet(tmp_path_factory.mktemp("data"))
    for n in range(N_OBJECTS // 2):
        data.chat(
            n, [{"type": "image", "image": f"s3://media/{2 * n + k}.jpg", "height": 9, "width": 9} for k in (0, 1)]
        )
    return data.write().manifest


def test_a_profile_is_what_the_storage_was_told_to_do_and_its_replay_is_the_same(
    server: StorageServer, manifest: Path, tmp_path: Path
) -> None:
    told = Latency(median_s=0.05, sigma=0.5, tails=())
    found = []
    for n in range(2):
        server.behave(Behaviour(latency=told, seed=n))
        file = tmp_path / f"{n}.json"
        report = report_of(server, tmp_path, manifest, "--seconds", 1.6, "--max-concurrency", 64, "--save", file)
        assert report["steady"]["repeated"] == 0
        profile = LatencyProfile.load(file)
        assert profile.requests > 200
        found.append(dict(profile.first_byte_s))
        told = Latency.from_profile(file)
    # A quantile of some 600 draws is uncertain by a tenth (two standard errors at p90, of two probes), and the server
    # adds some milliseconds each time.
    slack_s = 0.006 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))
    for share, drawn in ((0.1, 0.0263), (0.5, 0.0500), (0.9, 0.0949)):
        assert abs(found[0][share] - drawn) < 0.1 * drawn + slack_s
        assert abs(found[1][share] - found[0][share]) < 0.1 * drawn + slack_s


def test_it_says_what_limits_and_what_a_step_costs(server: StorageServer, manifest: Path, tmp_path: Path) -> None:
    server.behave(Behaviour(latency=Latency(median_s=0.05, sigma=0.1, tails=()), seed=1))
    run = tmp_path / "run.yaml"
    settings = settings_for(
        str(manifest), tmp_path, storage=server.settings(), speed={"fetch_concurrency": 4, "prefetch_steps": 1}
    )
    run.write_text(yaml.safe_dump(settings.to_dict()))
    options = (run, "--seconds", 0.9, "--max-concurrency", 4)
    report = report_of(server, tmp_path, *options, "--step-s", 60)
    assert report["engine"] == {"fetch_concurrency": 4, "prefetch_steps": 1, "hedge_share": 0.02}
    assert report["objects"]["media"] == 2 * report["objects"]["rows"]
    assert report["step"]["objects"] == 16
    assert report["step"]["header_reads"] == 0, "the rows say their sizes"
    assert [p["concurrency"] for p in report["phases"]] == [1, 4]
    assert report["steady"]["concurrency"] == 4
    assert report["step"]["cold_s"][0] == pytest.approx(4 * 0.055, rel=0.3)  # four rounds of four
    assert report["step"]["wait_ratio"]["1"] == [0.0, 0.0]

    done = probe(server, tmp_path, *options, "--step-s", 0.02)
    assert done.exit_code == 1, "a step waits, and the exit status says so"
    for said in (
        "in flight",
        "latency: half of the first bytes",
        "4 requests in flight (speed.fetch_concurrency)",
        "it waits",
    ):
        assert said in done.output


@pytest.mark.parametrize("kind", ["error", "reset", "missing"])
def test_errors_are_counted_by_reason(server: StorageServer, tmp_path: Path, kind: str) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(500):
        data.chat(n, [f"s3://media/{'no' if kind == 'missing' and n % 4 == 0 else ''}{n}.jpg"])
    faults = () if kind == "missing" else (Fault(kind="error" if kind == "error" else "reset", share=0.1),)
    server.behave(Behaviour(latency=Latency(median_s=0.002, sigma=0.1, tails=()), faults=faults, seed=4))
    report = report_of(server, tmp_path, data.write().manifest, "--seconds", 0.8, "--max-concurrency", 4)
    failed = report["steady"]["failed_tries"]
    code = {"error": "FETCH_THROTTLED", "reset": "FETCH_CONNECT", "missing": "MEDIA_NOT_FOUND"}[kind]
    assert set(failed) == {code}
    assert report["steady"]["throttled"] == (failed[code] if kind == "error" else 0)
    if kind == "error":
        assert report["verdict"]["limit"] == "throttled"


def test_one_object_by_every_kind_of_address(server: StorageServer, tmp_path: Path) -> None:
    server.behave(Behaviour())
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(9 << 20))
    known = {
        "s3://media/1.jpg": ("127.0.0.1", "one object, read again and again"),
        f"{server.endpoint_url}/open/one.jpg" + "?k=" + SECRET: ("127.0.0.1", "one object"),
        str(large): ("this machine", "one large object in 2 parts"),
    }
    for target, (host, said) in known.items():
        file = tmp_path / "p.json"
        done = probe(server, tmp_path, target, "--seconds", 0.5,
                     "--max-concurrency", 4, "--save", file)  # fmt: skip
        assert done.exit_code == 0, done.output
        assert f"{host}: {said}" in done.output
        assert "had been read before" in done.output
        assert LatencyProfile.load(file).host == host
        for told in (done.output, file.read_text()):
            assert SECRET not in told
            assert server.secret_access_key not in told


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ("s3://media/nothing.jpg", {}, "MEDIA_NOT_FOUND"),
        ("s3://nobucket/nothing.jpg", {}, "bucket"),
        ("s3://media/1.jpg", {"AWS_SECRET_ACCESS_KEY": "wrong" + SECRET}, "FETCH_"),
        ("no/such/file.jpg", {}, "there is no file"),
        ("no/such/rows.jsonl", {}, "there is no file"),
        ("ftp://media/1.jpg", {}, "MEDIA_SCHEME"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(
    server: StorageServer, tmp_path: Path, target: str, changes: dict[str, str], said: str
) -> None:
    server.behave(Behaviour())
    done = probe(server, tmp_path, target, "--seconds", 1, **changes)
    assert done.exit_code == 2
    assert said in done.output
    assert SECRET not in done.output


def test_rows_without_media_are_said(server: StorageServer, tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    data.chat(0, [])
    done = probe(server, tmp_path, data.write().manifest)
    assert done.exit_code == 2
    assert "name no media" in done.output


def test_files_of_a_manifest(server: StorageServer, tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 12)
    report = report_of(server, tmp_path, data.manifest, "--seconds", 0.5)
    assert report["host"] == "this machine"
    assert report["verdict"]["limit"] == "files"
    assert report["objects"]["sized"] > 0


def test_ctrl_c_ends_it_with_what_was_measured(server: StorageServer, manifest: Path, tmp_path: Path) -> None:
    server.behave(Behaviour(latency=Latency(median_s=0.01), seed=1))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "stoker", "probe", str(manifest), "--seconds", "5", "--max-concurrency", "16"],
        env={**os.environ, **environment(server, tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("        1 "):
            break
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    took = time.monotonic() - began
    assert process.returncode == 130, err
    assert "limit " in out, out
    assert took < 1.0 + 1.5 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))  # the interpreter's own end is part
