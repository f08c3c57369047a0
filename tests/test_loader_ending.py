"""However a run ends, every thread of the engine is gone within a second, and who asks too late gets a typed error."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, engine_threads, eventually, good_data, settings_for, taken
from stoker import Batch, InvalidArgumentError, Loader, Settings, StokerError
from stoker.testing import Behaviour, Fault, StorageServer

WITHIN_S = 1.0
SLACK_S = 0.5 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))
"""On top of the second: a machine whose cores are busy with something else."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Some rows."""
    return good_data(tmp_path_factory.mktemp("data"), 32)


@pytest.fixture(scope="module")
def tiny(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings for them."""
    return settings_for(data, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def stalled(data: DataSet) -> Iterator[StorageServer]:
    """A server whose images begin to come and then stop for ever."""
    fault = Fault(kind="stall", match="*/images/*", after_bytes=100)
    with StorageServer(data.folder.parent, behaviour=Behaviour(faults=(fault,))) as server:
        yield server


def remote(tiny: Settings, server: StorageServer, data: DataSet) -> Settings:
    return tiny.replace(
        data=[{"manifest": f"s3://{data.folder.name}/rows.jsonl"}], storage=server.settings(), outage_limit_s=600.0
    )


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """None before, none after."""
    assert engine_threads() == []
    yield
    gc.collect()
    for _ in eventually(WITHIN_S + SLACK_S):
        if not engine_threads():
            break
    assert engine_threads() == []


def timed_end(end: Any) -> float:
    began = time.monotonic()
    end()
    assert engine_threads() == []
    return time.monotonic() - began


@pytest.mark.parametrize("n_taken", [0, 1, 6])
def test_close_ends_every_thread(tiny: Settings, n_taken: int) -> None:
    loader = Loader(tiny)
    taken(loader, n_taken)
    assert engine_threads() or n_taken == 0
    assert timed_end(loader.close) < WITHIN_S + SLACK_S
    loader.close()
    with pytest.raises(InvalidArgumentError) as error:
        next(loader)
    assert error.value.code == "CLOSED"
    with pytest.raises(InvalidArgumentError):
        loader.load_state_dict({})
    assert loader.report().values["batches"] == n_taken


def test_the_report_stays_after_the_end(tiny: Settings) -> None:
    loader = Loader(tiny)
    taken(loader, 9)
    loader.close()
    first = loader.report().values
    assert first["pipeline"]["stages"]["prepare"]["items"] > 0
    assert first["batches"] == 9
    assert loader.report().values == first


def test_closing_while_opening_waits_for_storage(tiny: Settings, data: DataSet, tmp_path: Path) -> None:
    with StorageServer(data.folder.parent, behaviour=Behaviour(faults=(Fault(kind="silence"),))) as server:
        loader = Loader(remote(tiny, server, data).replace(index_dir=str(tmp_path)))
        for _ in eventually(10):
            if server.stats()["in_flight"]:
                break
        assert timed_end(loader.close) < WITHIN_S + SLACK_S


def test_closing_while_the_store_stalls(tiny: Settings, data: DataSet, stalled: StorageServer) -> None:
    loader = Loader(remote(tiny, stalled, data))
    ended_with: list[BaseException] = []

    def wait() -> None:
        try:
            next(loader)
        except StokerError as error:
            ended_with.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()  # another thread is blocked in next() while this one closes
    for _ in eventually(10):
        if stalled.stats()["in_flight"]:
            break
    assert timed_end(loader.close) < WITHIN_S + SLACK_S
    waiter.join(WITHIN_S + SLACK_S)
    assert not waiter.is_alive()
    assert len(ended_with) == 1


def test_an_exception_in_the_training_loop(tiny: Settings) -> None:
    def train() -> None:
        with Loader(tiny) as loader:
            for i, _ in enumerate(loader):
                if i == 5:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert engine_threads() == []


def test_dropping_the_loader_ends_it(tiny: Settings) -> None:
    loader = Loader(tiny)
    taken(loader, 3)
    gone = weakref.ref(loader)
    began = time.monotonic()
    del loader
    gc.collect()
    assert gone() is None
    assert engine_threads() == []
    assert time.monotonic() - began < WITHIN_S + SLACK_S


def test_dropping_an_iterator_of_steps_ends_it(tiny: Settings) -> None:
    steps = Loader(tiny).steps()
    next(steps)
    del steps
    gc.collect()
    assert engine_threads() == []


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from loader_data import *
from stoker import Loader, Settings
import json, os, signal, threading
settings = Settings.from_dict(json.loads({settings!r}))
loader = Loader(settings)
{body}
"""


def script(settings: Settings, body: str) -> subprocess.Popen[str]:
    import json

    text = SCRIPT.format(
        tests=str(Path(__file__).parent), settings=json.dumps(settings.to_dict()), body=textwrap.dedent(body)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("where", ["main", "opening"])
def test_ctrl_c_in_a_blocked_next(
    tiny: Settings, data: DataSet, stalled: StorageServer, tmp_path: Path, where: str
) -> None:
    settings = remote(tiny, stalled, data)
    if where == "opening":
        stalled.behave(Behaviour(faults=(Fault(kind="silence"),)))
        settings = settings.replace(index_dir=str(tmp_path))
    stalled.reset_stats()
    try:
        process = script(settings, "print('asks', flush=True)\nnext(loader)")
        assert process.stdout is not None
        assert process.stdout.readline() == "asks\n"
        for _ in eventually(20):
            if stalled.stats()["in_flight"]:
                break
        assert engine_threads(process.pid), "the engine does not run: nothing is tested"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        took = time.monotonic() - began
    finally:
        stalled.behave(Behaviour(faults=(Fault(kind="stall", match="*/images/*", after_bytes=100),)))
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT), err
    assert "KeyboardInterrupt" in err
    assert took < WITHIN_S + 3 * SLACK_S  # the interpreter's own end is part of it


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("taken(loader, 3)", 0),
        ("taken(loader, 3); loader.itself = loader", 0),
        ("keep = taken(loader, 3); import atexit; atexit.register(lambda: keep[0].digest())", 0),
        ("", 0),
        ("for batch in loader: raise SystemExit(7)", 7),
        ("taken(loader, 1); 1 / 0", 1),
        ("steps = loader.steps(); next(steps)", 0),
        (
            "threading.Thread(target=list, args=(loader,), daemon=True).start(); taken(Loader(settings), 2)",
            0,
        ),
    ],
)
def test_the_interpreter_exits_without_close(tiny: Settings, body: str, code: int) -> None:
    process = script(tiny, body)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    for complaint in ("leak", "terminate called", "Segmentation", "Fatal"):
        assert complaint not in err, err


def in_child(loader: Loader, batch: Batch, answers: Any) -> None:
    try:
        next(loader)
        answers.send("no error")
    except InvalidArgumentError as error:
        answers.send((error.code, str(error)))
    loader.close()
    del loader
    gc.collect()
    answers.send(batch.digest())


def test_a_forked_child_gets_an_error_and_ends(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        batch = next(loader)
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(loader, batch, there))
        child.start()
        assert here.poll(10)
        code, message = here.recv()
        assert code == "FORKED"
        assert str(os.getpid()) in message
        assert here.poll(10)
        assert here.recv() == batch.digest()
        child.join(10)
        assert child.exitcode == 0
        assert len(taken(loader, 8)) == 8  # the parent goes on


def test_pickling_is_refused(tiny: Settings) -> None:
    with Loader(tiny) as loader, pytest.raises(InvalidArgumentError, match="cannot be pickled") as error:
        pickle.dumps(loader)
    assert error.value.code == "FORKED"


IN_DATALOADER = """
import torch.utils.data

class Rows(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        yield next(self.loader or Loader(settings)).counts.tokens

kept = []
for made in (loader, None):  # made outside, made in the worker
    loop = torch.utils.data.DataLoader(Rows(made), batch_size=None, num_workers=1, multiprocessing_context="fork")
    kept.append(iter(loop))
    try:
        next(kept[-1])
    except Exception as error:
        print(type(error).__name__, "FORKED" in str(error), flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
for batches in kept:  # torch would wait five seconds for each
    batches._workers[0].kill()
os._exit(0)
"""


def test_a_torch_dataloader_is_refused(tiny: Settings) -> None:
    pytest.importorskip("torch")
    out, err = script(tiny, IN_DATALOADER).communicate(timeout=60)
    assert out == "InvalidArgumentError True\n" * 2, err


def test_many_short_lives_leave_nothing(tiny: Settings) -> None:
    n_open = len(os.listdir("/proc/self/fd"))
    for i in range(12):
        loader = Loader(tiny)
        taken(loader, i % 3)
        if i % 2:
            loader.close()
        del loader
    gc.collect()
    assert engine_threads() == []
    assert len(os.listdir("/proc/self/fd")) <= n_open + 1
