"""The user's own code: what it changes, what its faults do, and that it never keeps a loader from ending."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import user_functions
from loader_data import DataSet, digests, engine_threads, eventually, good_data, ledger, settings_for, taken
from stoker import InvalidArgumentError, Loader, Settings

SLACK_S = 1.0 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("data"), 24)


@pytest.fixture(scope="module")
def tiny(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_for(
        data, tmp_path_factory.mktemp("scratch"), epochs=1, shuffle="none", pack={"tokens_per_pack": 768}
    )


def with_code(settings: Settings, **code: str) -> Settings:
    paths = {name: f"user_functions:{function}" for name, function in code.items()}
    return settings.replace(user_code={"row": "", "picture": "", "version": "1", **paths})


def test_a_row_function_changes_rows_before_their_lengths(data: DataSet, tiny: Settings, tmp_path: Path) -> None:
    user_functions.threads.clear()
    by_code = digests(with_code(tiny, row="shout"))
    changed = DataSet(data.folder)
    changed.lines = [json.dumps(user_functions.shout(json.loads(line))).encode() for line in data.lines]
    (data.folder / "changed.jsonl").write_bytes(b"\n".join(changed.lines) + b"\n")
    assert by_code == digests(tiny.replace(data=[{"manifest": str(data.folder / "changed.jsonl")}]))
    assert by_code != digests(tiny)
    assert threading.get_ident() in user_functions.threads  # this test's own calls
    assert len(user_functions.threads) >= 2  # and the loader's threads'


def test_its_time_is_shown(tiny: Settings) -> None:
    with Loader(with_code(tiny, row="shout", picture="mirrored")) as loader:
        taken(loader, 4)
        report = loader.report()
    assert report.values["user_code"]["calls"] > 0
    assert report.values["user_code"]["busy_s"] > 0
    assert "user code  busy" in str(report)


def test_without_it_no_python_runs(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        taken(loader, 2)
        assert loader.report().values["user_code"] is None
        assert "user code" not in str(loader.report())


def test_a_picture_function_sees_the_upright_picture(data: DataSet, tiny: Settings) -> None:
    line = next(line for line in data.lines if b"images/" in line)
    plain = stoker.prepare(line, tiny)
    mirrored = stoker.prepare(line, with_code(tiny, picture="mirrored"))
    assert plain.image_patches is not None
    assert mirrored.image_patches is not None
    assert mirrored.image_grid_thw == plain.image_grid_thw
    assert not np.array_equal(mirrored.image_patches, plain.image_patches)
    if plain.media[0].target_size == plain.media[0].upright_size:  # unscaled: a mirrored patch is a mirrored patch
        (_, _, w) = plain.image_grid_thw[0]
        last_of_row = 4 * (w // 2 - 1) + 1
        np.testing.assert_array_equal(mirrored.image_patches[0], plain.image_patches[last_of_row][:, :, ::-1])


def test_a_declared_size_is_planned_with(data: DataSet, tiny: Settings) -> None:
    line = next(line for line in data.lines if b"images/" in line)
    (media, *_) = stoker.prepare(line, with_code(tiny, picture="cropped")).media
    height, width = media.upright_size
    assert media.prepared_size == (height // 2, width)
    assert len(digests(with_code(tiny, picture="cropped"))) > 0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ({"row": "picky"}, "LookupError: I do not like this one"),
        ({"row": "careless"}, "user_code.row gave a NoneType"),
        ({"picture": "undeclared"}, "it must keep the size, or declare it"),
        ({"picture": "as_float"}, "user_code.picture gave float32"),
    ],
)
def test_its_exceptions_are_bad_samples(tiny: Settings, tmp_path: Path, code: dict[str, str], said: str) -> None:
    settings = with_code(tiny, **code).replace(index_dir=str(tmp_path), bad_samples={"max_fraction": 1.0})
    n_samples = 0
    with Loader(settings) as loader:
        try:
            n_samples = sum(int((b.layout.sample_ids >= 0).sum()) for b in loader)
        except InvalidArgumentError:  # NO_DATA, where every row goes wrong
            n_samples = 0
    lines = ledger(settings)
    assert n_samples + len(lines) == 24
    assert lines
    assert {line["code"] for line in lines} == {"USER_CODE"}
    assert all(said in line["message"] for line in lines)
    if "LookupError" in said:
        assert "user_functions.py, line " in lines[0]["message"]


def test_name_and_version_are_in_the_fingerprint(tiny: Settings) -> None:
    with Loader(with_code(tiny, row="patient")) as loader:
        state = loader.state_dict()
    for other in (
        with_code(tiny, row="patient").replace(user_code={"version": "2"}),
        with_code(tiny, row="shout"),
        tiny,
    ):
        with Loader(other) as loader, pytest.raises(InvalidArgumentError, match="`user_code`"):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ({"row": "no_such_module:f", "version": "1"}, "No module named 'no_such_module'"),
        ({"row": "user_functions:nothing", "version": "1"}, "nothing"),
        ({"row": "user_functions:not_callable", "version": "1"}, "is a int, no function"),
        ({"row": "user_functions", "version": "1"}, "package.module:function"),
        ({"picture": "user_functions:mirrored"}, "user_code.version"),
    ],
)
def test_a_wrong_setting_says_so(tiny: Settings, code: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said.replace("(", r"\(")) as error:
        Loader(tiny.replace(user_code=code))
    assert error.value.code == "SETTINGS"


# --- ending


def begun(settings: Settings) -> tuple[Loader, threading.Thread]:
    """A loader whose user code is running, and a thread that waits in its next()."""
    user_functions.reached.clear()
    loader = Loader(settings)

    def wait() -> None:
        try:
            next(loader)
        except stoker.StokerError:
            pass

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert user_functions.reached.wait(20)
    return loader, waiter


@pytest.mark.parametrize("function", ["forever", "patient"])
def test_closing_while_it_runs(tiny: Settings, function: str) -> None:
    loader, waiter = begun(with_code(tiny, row=function))
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < SLACK_S
    assert engine_threads() == []
    waiter.join(SLACK_S)
    assert not waiter.is_alive()


def test_reporting_while_another_thread_closes(tiny: Settings) -> None:
    loader, waiter = begun(with_code(tiny, row="patient"))
    closer = threading.Thread(target=loader.close)
    closer.start()
    for _ in range(50):
        loader.report()
    closer.join(10)
    waiter.join(10)
    assert not closer.is_alive()
    assert not waiter.is_alive()


def test_dropping_the_loader_while_it_runs(tiny: Settings) -> None:
    user_functions.reached.clear()
    loader: Any = Loader(with_code(tiny, row="patient"))
    taken(loader, 1)
    del loader
    gc.collect()
    for _ in eventually(SLACK_S):
        if not engine_threads():
            break
    assert engine_threads() == []


def test_ctrl_c_while_it_runs(tiny: Settings) -> None:
    """As the interpreter's own thread meets it: an exception in the loop while workers wait for the interpreter."""

    def train() -> None:
        with Loader(with_code(tiny, row="patient")) as loader:
            next(loader)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert engine_threads() == []
