"""A rank that waits for data longer than it may says for what, before the others' collectives give up."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import stoker
from loader_data import DataSet, good_data, settings_for
from stoker import Loader, Settings, Topology
from stoker.testing import Behaviour, Fault, StorageServer

SILENT = Fault(kind="silence", match="*/images/*")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("stalls") / "data", 24, sizes=True)


@pytest.fixture
def server(data: DataSet) -> Iterator[StorageServer]:
    with StorageServer(data.folder.parent) as running:
        yield running


def remote(data: DataSet, server: StorageServer, scratch: Path, **changes: Any) -> Settings:
    return settings_for(f"s3://{data.folder.name}/rows.jsonl", scratch, storage=server.settings()).replace(**changes)


def end_of(loader: Loader) -> stoker.StokerError:
    with pytest.raises(stoker.StokerError) as ended:
        for _ in loader:
            pass
    return ended.value


@pytest.mark.case(
    "LDR-05", "told with rank, host, stage, media and seconds; DATA_STALL at `stall_limit_s`, with a state"
)
def test_a_wait_is_told_of_then_ends_the_run(
    data: DataSet, server: StorageServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "stoker")
    settings = remote(data, server, tmp_path, stall_warning_s=0.2, stall_limit_s=1.5, exchange="none")
    with Loader(settings, dp_rank=1, dp_size=2) as loader:
        next(loader.steps())
        state = loader.state_dict()
        server.behave(Behaviour(faults=(SILENT,)))
        error = end_of(loader)
        assert error.code == "DATA_STALL"
        assert isinstance(error, stoker.UnavailableError)
        told = [line for line in caplog.messages if "has waited" in line]
        assert 2 <= len(told) <= 4  # after 0.2 s, then whenever it has lasted twice as long
        for line in (*told, error.message):
            assert f"rank 1 of 2 on {platform.node()} has waited" in line
            assert "stage fetch: s3://data/images/" in line
        assert end_of(loader).message == error.message
        assert loader.state_dict()["step"] >= state["step"] == 1
    server.behave(Behaviour())
    with Loader(settings, dp_rank=1, dp_size=2) as loader:
        loader.load_state_dict(state)
        assert next(loader).counts.step == 1


def test_what_planning_waits_for_is_told_too(data: DataSet, server: StorageServer, tmp_path: Path) -> None:
    settings = remote(data, server, tmp_path, media={"sizes": "ignore"}, stall_limit_s=0.5)
    with Loader(settings) as loader:
        while not loader._core.open_within(100):
            pass
        server.behave(Behaviour(faults=(SILENT,)))
        error = end_of(loader)
    assert error.code == "DATA_STALL"
    assert "stage plan" in error.message
    assert "s3://data/images/" in error.message


def test_peers_end_with_the_rank_that_waits(data: DataSet, server: StorageServer, tmp_path: Path) -> None:
    settings = remote(data, server, tmp_path, stall_limit_s=1.0)
    server.behave(Behaviour(faults=(SILENT,)))
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(Loader(settings, topology=Topology(peer_rank=k, peer_count=2, job=str(tmp_path))))
            for k in range(2)
        ]
        errors: list[stoker.StokerError] = []
        trainers = [threading.Thread(target=lambda one=one: errors.append(end_of(one))) for one in loaders]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
    assert [error.code for error in errors] == ["DATA_STALL", "DATA_STALL"]


def test_a_slow_trainer_is_no_stall(data: DataSet, server: StorageServer, tmp_path: Path) -> None:
    server.behave(Behaviour(faults=(Fault(kind="stall", match="*/images/*", after_bytes=10, stall_s=0.1),)))
    settings = remote(data, server, tmp_path, stall_limit_s=3.0, epochs=1)
    with Loader(settings) as loader:
        assert sum(1 for _ in loader) > 4  # waits of a batch each, not summed up
