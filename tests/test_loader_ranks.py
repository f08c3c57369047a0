"""Several ranks: they notice when they see different data, and write one ledger together."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from loader_data import DataSet, good_data, ledger, settings_for
from stoker import InvalidArgumentError, Loader, Settings


def test_ranks_of_one_process_plan_at_the_same_time(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 24), tmp_path)
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Loader(settings, dp_rank=rank, dp_size=4) as loader:
                for _ in range(6):
                    next(loader)
        except BaseException as error:  # an assertion in a thread would be lost
            problems.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_the_ledger_of_all_ranks_has_every_bad_row_once(tmp_path: Path, dp_size: int) -> None:
    data = DataSet(tmp_path / "data")
    bad = set()
    for n in range(40):
        if n % 4 == 1:
            bad.add(data.row(b"{broken"))
        elif n % 4 == 2:
            page = data.image(f"{n}.jpg", b"<html>")
            bad.add(data.chat(n, [{"type": "image", "image": page, "height": 256, "width": 256}]))
        else:
            data.chat(n, [data.good_image(n)])
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    n_counted = 0
    for rank in range(dp_size):
        with Loader(settings, dp_rank=rank, dp_size=dp_size) as loader:
            for _ in loader:
                pass
            n_counted += sum(loader.report().values["bad_samples"].values())
    entries = ledger(settings)
    keys = [(entry["pass"], entry["order_index"]) for entry in entries]
    assert len(set(keys)) == len(keys) == len(bad)
    assert {entry["line"] for entry in entries} == bad
    assert n_counted == len(bad)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 3), (0, 0), (0, 8)])
def test_ranks_that_cannot_be(tmp_path: Path, rank: int, size: int) -> None:
    settings = settings_for(DataSet(tmp_path / "data", [b"{}"]).write(), tmp_path)
    with pytest.raises(InvalidArgumentError) as error:
        Loader(settings, dp_rank=rank, dp_size=size)
    assert error.value.code == "SETTINGS"


def test_an_index_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    settings: Settings = settings_for(good_data(tmp_path / "data", 8), tmp_path)
    file = tmp_path / "file"
    file.write_text("no folder")
    with Loader(settings.replace(index_dir=str(file))) as loader:
        with pytest.raises(InvalidArgumentError) as error:
            next(loader)
        assert error.value.code == "INDEX_DIR"
        assert str(file) in str(error.value)
