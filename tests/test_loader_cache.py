"""Media kept on a local disk: the same batches, fewer bytes from storage, and never an old version."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, encoded, eventually, good_data, picture, settings_for
from stoker import InvalidArgumentError, Loader, Settings
from stoker.testing import StorageServer

N_MEDIA = 100
BLOCK = 4096
LIMIT = N_MEDIA // 4 * 2 * BLOCK
"""Disk for a quarter of them: each takes two blocks."""


@pytest.fixture(scope="module")
def server() -> Iterator[StorageServer]:
    with StorageServer() as started:
        yield started


def remote(server: StorageServer, data: DataSet, scratch: Path, bucket: str) -> Settings:
    """One pass over a data set, from the server."""
    server.put_folder(bucket, data.folder)
    return settings_for(f"s3://{bucket}/rows.jsonl", scratch, storage=server.settings(), epochs=1)


def run(settings: Settings, n_written: int = 0) -> tuple[list[list[str]], dict[str, Any]]:
    """Digests of all batches, and what the cache says of itself once so many objects are written."""
    with Loader(settings) as loader:
        found = [[batch.digest() for batch in step] for step in loader.steps()]
        for _ in eventually(5):
            cache = loader.report().values["pipeline"]["cache"]
            if cache["written"] >= n_written:
                break
        assert str(loader.report()).count("answered with") == 1
    return found, cache


def statuses(server: StorageServer) -> Counter[int]:
    """Answers to requests for media."""
    return Counter(seen.status for seen in server.requests() if not seen.name.endswith(".jsonl"))


def test_cold_and_warm_the_batches_are_the_same(server: StorageServer, tmp_path: Path) -> None:
    plain = remote(server, good_data(tmp_path / "data", 20), tmp_path, "good")
    server.reset_stats()
    expected = digests(plain)
    n_media = len({seen.name for seen in server.requests() if not seen.name.endswith(".jsonl")})
    cached = plain.replace(cache={"dir": tmp_path / "cache", "limit": "1GiB"})
    cold, first = run(cached, n_media)
    assert cold == expected
    assert first["written"] == n_media
    for validate in ("always", "never"):
        server.reset_stats()
        headers_anew = {"index_dir": str(tmp_path / f"index-{validate}")}
        warm, second = run(cached.replace(cache={"validate": validate}, **headers_anew))
        assert warm == expected
        assert second["hits"] > n_media  # headers too
        assert second["misses"] == second["changed"] == second["damaged"] == second["written"] == 0
        assert statuses(server) == ({304: second["hits"]} if validate == "always" else {})


def test_every_epoch_finds_the_share_that_fits(server: StorageServer, tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(N_MEDIA):
        name = data.image(f"{n}.jpg", encoded(picture(256, 256, n), "JPEG", quality=75))
        assert BLOCK < (data.folder / name).stat().st_size < 1.9 * BLOCK
        data.chat(n, [{"type": "image", "image": name, "height": 256, "width": 256}])
    cached = remote(server, data.write(), tmp_path, "many").replace(cache={"dir": tmp_path / "cache", "limit": LIMIT})
    run(cached)
    for epoch in (1, 2):
        server.reset_stats()
        _, cache = run(cached.replace(seed=epoch))  # another order
        asked = statuses(server)
        assert asked.total() == N_MEDIA
        assert 0.2 < asked[304] / N_MEDIA <= 0.25
        assert cache["used_bytes"] <= LIMIT
        assert 0.12 < cache["share"] < 0.4  # three deviations of 25 objects' places


def test_a_changed_object_is_never_the_old_one(server: StorageServer, tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 12)
    plain = remote(server, data, tmp_path, "changing")
    cached = plain.replace(cache={"dir": tmp_path / "cache", "limit": "1GiB"})
    before, _ = run(cached, 10)
    for path in (data.folder / "images").iterdir():
        server.put("changing", f"images/{path.name}", encoded(picture(256, 256, 1000), "PNG"))
    anew = {"media": {"sizes": "ignore"}, "index_dir": str(tmp_path / "index-anew")}  # nobody remembers their sizes
    after, cache = run(cached.replace(**anew))
    assert after == digests(plain.replace(**anew))
    assert after != before
    assert cache["changed"] > 10


def test_a_cache_is_no_part_of_the_fingerprint(server: StorageServer, tmp_path: Path) -> None:
    plain = remote(server, good_data(tmp_path / "data", 12), tmp_path, "resumed")
    with Loader(plain) as loader:
        steps = loader.steps()
        next(steps)
        state = loader.state_dict()
        rest = [batch.digest() for step in steps for batch in step]
    with Loader(plain.replace(cache={"dir": tmp_path / "cache", "limit": "1GiB"})) as loader:
        loader.load_state_dict(state)
        assert [batch.digest() for batch in loader] == rest


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"dir": "somewhere"}, "cache.limit must be the disk that the cache may take"),
        ({"dir": "s3://bucket/cache", "limit": "1GiB"}, "cache.dir must be a folder on a local disk"),
        ({"dir": "somewhere", "limit": "plenty"}, "no amount of memory"),
        ({"dir": "somewhere", "limit": 1, "validate": "once"}, "it takes always, never"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, cache: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        settings_for("rows.jsonl", tmp_path, cache=cache)


def test_a_folder_that_cannot_be_made_is_said_at_the_start(server: StorageServer, tmp_path: Path) -> None:
    plain = remote(server, good_data(tmp_path / "data", 12), tmp_path, "refused")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match=r"cache\.dir: .*/file/cache: Not a directory"):
        Loader(plain.replace(cache={"dir": tmp_path / "file" / "cache", "limit": "1GiB"}))


def test_relative_folders_are_taken_from_the_settings_file(tmp_path: Path) -> None:
    made = Settings.from_dict(
        {"data": [{"manifest": "a.jsonl"}], "model": "m", "cache": {"dir": "kept", "limit": 1}}, base=tmp_path
    )
    assert made.cache.dir == str(tmp_path / "kept")


_SOAK_S = 60.0
_RUN = """
import json, sys
from stoker import Loader, Settings
with Loader(Settings.from_dict(json.loads(sys.stdin.read()))) as loader:
    for batch in loader:
        print(batch.digest(), flush=True)
"""


@pytest.mark.soak
def test_killed_processes_and_damaged_files_change_no_batch(server: StorageServer, tmp_path: Path) -> None:
    plain = remote(server, good_data(tmp_path / "data", 60), tmp_path, "soak")
    expected = [digest for step in digests(plain) for digest in step]
    folder = tmp_path / "cache"
    limit = 400_000  # about half of it all
    rng = random.Random(1)
    running: dict[subprocess.Popen[str], float] = {}
    n_whole = n_killed = n_damaged = 0
    end = time.monotonic() + _SOAK_S
    while time.monotonic() < end or running:
        while len(running) < 4 and time.monotonic() < end:
            validate = rng.choice(["always", "never"])
            settings = plain.replace(
                cache={"dir": folder, "limit": limit, "validate": validate},
                speed={"prefetch_steps": rng.choice([0, 4])},
            )
            child = subprocess.Popen(
                [sys.executable, "-c", _RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert child.stdin is not None
            child.stdin.write(json.dumps(settings.to_dict()))
            child.stdin.close()
            running[child] = time.monotonic() + rng.uniform(0.3, 6.0)
        for child, dies_at in list(running.items()):
            if child.poll() is None and time.monotonic() > dies_at:
                child.kill()
            if child.poll() is not None:
                assert child.stdout is not None
                found = child.stdout.read().split()
                killed = child.returncode < 0
                assert found == expected or (killed and found == expected[: len(found)])
                n_killed, n_whole = n_killed + killed, n_whole + (not killed)
                del running[child]
        entries = [path for path in folder.rglob("*") if len(path.name) == 62]
        if entries:
            victim = rng.choice(entries)
            try:
                body = bytearray(victim.read_bytes())
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
                victim.write_bytes(body if rng.random() < 0.5 else body[: rng.randrange(len(body))])
                n_damaged += 1
            except (FileNotFoundError, ValueError):  # evicted meanwhile, or cut to nothing before
                pass
        time.sleep(0.02)
    assert min(n_killed, n_whole, n_damaged) > 5
    run(plain.replace(cache={"dir": folder, "limit": limit}))
    left = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and len(path.name) > 10]
    assert sum(-(-size // BLOCK) * BLOCK for size in left) <= limit
    assert not list((folder / "stoker-objects-1" / "tmp").iterdir())
