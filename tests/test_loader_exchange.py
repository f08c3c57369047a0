"""Ranks share what they measure: each header is read once per job, whatever the exchange, and plans stay equal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_data import engine_threads, eventually, good_data, ledger, settings_for
from stoker import CancelledError, InvalidArgumentError, Loader, Settings, StokerError
from stoker.exchange import TorchStore, choose
from stoker.testing import Behaviour, Fault, StorageServer

N_ROWS = 32


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a launcher leaves the environment; one process has all ranks here, so none is named."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture
def process_group() -> Iterator[None]:
    import torch.distributed as distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def each_rank(settings: Settings | list[Settings], dp_size: int, work: Any) -> list[Any]:
    """What `work(loader)` gives of each rank, in threads, none closed before all are done."""
    of_rank = settings if isinstance(settings, list) else [settings] * dp_size
    out: list[Any] = [None] * dp_size
    done = threading.Barrier(dp_size)

    def run(rank: int) -> None:
        with Loader(of_rank[rank], dp_rank=rank, dp_size=dp_size) as loader:
            try:
                out[rank] = work(loader)
            except BaseException as error:  # an exception in a thread would be lost
                out[rank] = error
            done.wait(30)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(dp_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def epoch(loader: Loader) -> tuple[list[str], int]:
    """Digests of a rank's batches, and the header reads that it sent."""
    digests = [batch.digest() for batch in loader]
    return digests, loader.report().values["pipeline"]["fetch"]["header_requests"]


@pytest.mark.usefixtures("launched", "process_group")
@pytest.mark.parametrize(("kind", "dp_size"), [("dir", 4), ("tcp", 2), ("torch", 2)])
def test_each_header_is_read_once_and_batches_are_those_of_one_rank(tmp_path: Path, kind: str, dp_size: int) -> None:
    settings = settings_for(good_data(tmp_path / "data", N_ROWS), tmp_path, epochs=1, exchange=kind)
    with Loader(settings.replace(index_dir=str(tmp_path / "of its own"))) as alone:
        expected, n_headers = epoch(alone)
    # Without an index in common, unless the exchange is in it.
    folders = [tmp_path / ("index" if kind == "dir" else f"index-{rank}") for rank in range(dp_size)]
    found = each_rank([settings.replace(index_dir=str(folder)) for folder in folders], dp_size, epoch)
    assert Counter(digest for digests, _ in found for digest in digests) == Counter(expected)
    assert sum(n for _, n in found) == n_headers > 0
    assert engine_threads() == []


@pytest.mark.usefixtures("launched")
def test_nodes_may_keep_the_data_in_different_folders(tmp_path: Path) -> None:
    here, there = good_data(tmp_path / "data", 16), tmp_path / "mounted" / "elsewhere"
    shutil.copytree(here.folder, there)
    settings = settings_for(here, tmp_path, epochs=1, exchange="tcp", index_dir=str(tmp_path / "index-0"))
    other = settings.replace(data=[{"manifest": str(there / here.manifest.name)}], index_dir=str(tmp_path / "index-1"))
    with Loader(settings.replace(index_dir=str(tmp_path / "of its own"))) as alone:
        expected, n_headers = epoch(alone)
    found = each_rank([settings, other], 2, epoch)
    assert Counter(digest for digests, _ in found for digest in digests) == Counter(expected)
    assert sum(n for _, n in found) == n_headers


def test_a_folder_keeps_few_files_however_long_the_run(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 16, sizes=True)
    settings = settings_for(data, tmp_path, window_samples=4, exchange="dir", speed={"prefetch_steps": 0})

    def most_files(loader: Loader) -> int:
        most = 0
        for n, _ in enumerate(loader.steps()):
            most = max(most, sum(len(files) for _, _, files in os.walk(tmp_path / "index" / "exchange")))
            if n == 40:
                break
        return most

    assert max(each_rank(settings, 2, most_files)) < 120


@pytest.mark.usefixtures("launched")
def test_an_outage_while_measuring_costs_no_row_and_changes_no_plan(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 24)
    local = settings_for(data, tmp_path, epochs=1, outage_limit_s=30.0)
    with Loader(local) as loader:
        expected, _ = epoch(loader)
    remote = local.replace(data=[{"manifest": str(data.manifest), "media_root": "s3://data"}], exchange="tcp")
    faults = (
        Fault(kind="error", first=2, share=0.5),
        Fault(kind="reset", first=1, share=0.3),
    )
    with StorageServer(tmp_path, behaviour=Behaviour(faults=faults, seed=5)) as server:
        found = each_rank(remote.replace(storage=server.settings()), 2, epoch)
    assert Counter(digest for digests, _ in found for digest in digests) == Counter(expected)


def test_windows_planned_differently_stop_every_rank(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 32)
    settings = settings_for(data, tmp_path, bad_samples={"max_fraction": 1.0}, exchange="dir")
    with Loader(settings, dp_rank=0, dp_size=2) as loader:
        next(loader)
    # Exchange and index may forget what was measured, not what was planned; and a node's mount lacks some files.
    shutil.rmtree(tmp_path / "index" / "lengths")
    for value in (tmp_path / "index" / "exchange").rglob("*-*-*"):
        value.unlink()
    for image in sorted((data.folder / "images").iterdir())[::3]:
        image.unlink()
    for rank in (1, 0):
        with Loader(settings, dp_rank=rank, dp_size=2) as loader:
            for _ in range(2):
                with pytest.raises(InvalidArgumentError, match=r"window 0 was planned as") as error:
                    next(loader)
                assert error.value.code == "PLAN_MISMATCH"
                assert str(tmp_path / "index" / "exchange") in str(error.value)


@pytest.mark.usefixtures("launched")
def test_ranks_whose_manifests_differ_are_told(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 32), tmp_path, exchange="tcp")
    old = settings_for(good_data(tmp_path / "old", 31), tmp_path, exchange="tcp")
    with Loader(settings, dp_rank=0, dp_size=2) as zero, Loader(old, dp_rank=1, dp_size=2) as one:
        next(zero)
        with pytest.raises(InvalidArgumentError, match=r"`data` of one rank is not as at rank 0") as error:
            next(one)
        assert error.value.code == "PLAN_MISMATCH"
        with pytest.raises(InvalidArgumentError, match=r"`data` of one rank is not as at rank 0"):
            for _ in zero:
                pass


def test_none_is_for_rows_with_sizes(tmp_path: Path) -> None:
    with_sizes = settings_for(good_data(tmp_path / "sized", 24, sizes=True), tmp_path, epochs=1, exchange="none")
    with Loader(with_sizes) as alone:
        expected, _ = epoch(alone)
    found = each_rank(with_sizes, 2, epoch)
    assert Counter(digest for digests, _ in found for digest in digests) == Counter(expected)
    without = settings_for(good_data(tmp_path / "data", 24), tmp_path, exchange="none")
    with Loader(without, dp_rank=1, dp_size=2) as loader:
        with pytest.raises(InvalidArgumentError, match=r"images/.*`exchange: none` needs rows that say") as error:
            next(loader)
        assert error.value.code == "SETTINGS"


@pytest.mark.usefixtures("launched")
def test_ranks_that_lose_rank_zero_go_on_and_close_at_once(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", N_ROWS), tmp_path, epochs=1, exchange="tcp")
    with Loader(settings) as alone:
        n_batches = len(epoch(alone)[0])
    with Loader(settings, dp_rank=0, dp_size=2) as zero, Loader(settings, dp_rank=1, dp_size=2) as one:
        next(zero)
        next(one)
        zero.close()
        waits = threading.Thread(target=lambda: list(one))
        waits.start()
        for _ in eventually(20):  # it looks for rank 0 for two seconds, then measures for itself
            if not waits.is_alive():
                break
        assert not waits.is_alive()
        assert one.report().values["batches"] == n_batches // 2


@pytest.mark.usefixtures("launched")
def test_a_rank_that_waits_for_rank_zero_can_be_closed(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 24), tmp_path, exchange="tcp")
    with Loader(settings, dp_rank=1, dp_size=2) as loader:

        def wait() -> None:
            with contextlib.suppress(CancelledError):
                next(loader)

        waits = threading.Thread(target=wait, daemon=True)
        waits.start()
        for _ in eventually(5):
            if "stoker-plan" in engine_threads():
                break
        closes = threading.Thread(target=loader.close)
        closes.start()
        closes.join(1.0)
        assert not closes.is_alive()
        waits.join(1.0)


_RANK = """
import json, sys
from stoker import Loader, Settings
with Loader(Settings.from_dict(json.loads(sys.argv[1])), dp_rank=int(sys.argv[2]), dp_size=2) as loader:
    for batch in loader:
        pass
"""


@pytest.mark.soak
@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("kind", ["dir", "tcp"])
def test_the_share_of_a_rank_that_is_killed_is_taken_over(tmp_path: Path, kind: str) -> None:
    data = good_data(tmp_path / "data", N_ROWS)
    settings = settings_for(data, tmp_path, epochs=1, outage_limit_s=60.0)
    with Loader(settings) as alone:
        expected, _ = epoch(alone)
    stalls = Behaviour(faults=(Fault(kind="silence"),))
    with StorageServer(tmp_path, behaviour=stalls) as stalled, StorageServer(tmp_path) as good:
        remote = settings.replace(data=[{"manifest": str(data.manifest), "media_root": "s3://data"}], exchange=kind)
        order = json.dumps(remote.replace(storage=stalled.settings()).to_dict())
        # The service of `tcp` lives here, in rank 0's process.
        with Loader(remote.replace(storage=good.settings()), dp_rank=0, dp_size=2) as zero:
            zero.state_dict()
            with subprocess.Popen([sys.executable, "-c", _RANK, order, "1"]) as killed:
                for _ in eventually(30):
                    if stalled.stats()["requests"] > 0:
                        break
                killed.send_signal(signal.SIGKILL)
            found = [batch.digest() for batch in zero]
    assert len(found) == len(expected) // 2
    assert not Counter(found) - Counter(expected)


@pytest.mark.soak
def test_a_rank_whose_storage_is_out_holds_up_the_others_for_half_a_minute_at_most(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", N_ROWS)
    settings = settings_for(data, tmp_path, epochs=1, outage_limit_s=90.0, exchange="dir")
    with Loader(settings) as alone:
        expected, _ = epoch(alone)
    out = Behaviour(faults=(Fault(kind="error"),))
    with StorageServer(tmp_path, behaviour=out) as failing, StorageServer(tmp_path) as good:
        remote = settings.replace(data=[{"manifest": str(data.manifest), "media_root": "s3://data"}])
        with (
            Loader(remote.replace(storage=failing.settings()), dp_rank=1, dp_size=2) as one,
            Loader(remote.replace(storage=good.settings()), dp_rank=0, dp_size=2) as zero,
        ):

            def wait() -> None:
                with contextlib.suppress(StokerError):
                    next(one)

            waits = threading.Thread(target=wait, daemon=True)
            waits.start()
            for _ in eventually(30):
                if failing.stats()["requests"] > 0:
                    break
            found = [batch.digest() for batch in zero]
            failing.behave(Behaviour())
            waits.join(60)
            found += [batch.digest() for batch in one]
            assert ledger(settings) == []
    assert len(found) == len(expected) - 1  # one is the thread's
    assert not Counter(found) - Counter(expected)


def test_auto_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "RANK", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "STOKER_EXCHANGE_SECRET"):
        monkeypatch.delenv(name, raising=False)
    settings = settings_for("rows.jsonl", tmp_path)
    assert choose(settings, 0, 1).kind == "none"
    assert choose(settings, 0, 2).kind == "dir"
    with pytest.raises(InvalidArgumentError, match="MASTER_ADDR"):
        choose(settings.replace(exchange="tcp"), 0, 2)
    with pytest.raises(InvalidArgumentError, match="init_process_group"):
        choose(settings.replace(exchange="torch"), 0, 2)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("STOKER_EXCHANGE_SECRET", "s3cret")
    zero = choose(settings, 0, 2)
    assert (zero.kind, zero.host, zero.is_host) == ("tcp", "10.0.0.1", True)
    assert "s3cret" not in repr(zero)
    monkeypatch.setenv("RANK", "3")
    assert not choose(settings, 0, 2).is_host  # a peer of rank 0
    with pytest.raises(InvalidArgumentError, match="exchange_port"):
        settings.replace(exchange_port=70000)


def test_torch_stores_answer_as_the_engine_asks(tmp_path: Path) -> None:
    import torch.distributed as distributed

    stores = [
        distributed.HashStore(),
        distributed.FileStore(str(tmp_path / "store"), 1),
        distributed.TCPStore("127.0.0.1", 0, is_master=True),
    ]
    for store in stores:
        asked = TorchStore(distributed.PrefixStore("a", store))
        assert asked.compare_set("k", b"\0never", b"\0never") == b"\0never"
        assert asked.compare_set("k", b"", b"\xff\0v") == b"\xff\0v"
        assert asked.compare_set("k", b"", b"other") == b"\xff\0v"
        assert asked.compare_set("k", b"\0never", b"\0never") == b"\xff\0v"
        assert asked.compare_set("k", b"\xff\0v", b"next") == b"next"
        asked.erase("k")
