"""Batches that are put into a loader from outside: the same to their digests, read where they lie, and let go of.

The client of a cluster is a stand-in here, in this process, between the engine's own coordinator and pack worker.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
from loader_data import DataSet, digests, engine_threads, eventually, good_data, settings_for, story
from stoker import Batch, Loader, Settings, Topology, _core
from stoker.loader import core_settings

MODULE = "stand_in_for_a_client"
ARRAYS = ("input_ids", "labels", "position_ids", "cu_seqlens", "sample_ids", "image_patches", "image_grid_thw")
SLACK_S = float(os.environ.get("STOKER_TEST_SLACK_S", "0"))


class Store(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that can be watched, as an object in a node's store: 64 bytes aligned, read-only."""


def stored(pixels: Any) -> Store:
    memory = np.zeros(pixels.size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    array = memory[first : first + pixels.size].view(Store)
    array[:] = pixels
    array.flags.writeable = False
    return array


class Client:
    """A whole run for one rank, behind the interface that the loader knows."""

    made: Client  # the last one

    def __init__(self, settings: Settings, topology: Topology, hand_over: _core.CoreHandOver) -> None:
        Client.made = self
        self.settings, self.topology, self.hand_over = settings, topology, hand_over
        self.addresses: list[int] = []
        self.stores: list[weakref.ref[Store]] = []
        self.fail_at = -1  # number of the pack that never comes
        self.wire_bytes = 0
        self.engines: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="client")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        assert self.hand_over.is_closed
        if self._thread.is_alive():
            self._thread.join(20)
        assert not self._thread.is_alive()
        for engine in self.engines:  # not before: the loader may ask where a sample comes from
            engine.close()

    def report(self) -> dict[str, Any]:
        return {"held_bytes": self.hand_over.held_bytes, "packs": len(self.stores)}

    def describe(self, sample_id: int) -> tuple[int, str, int, int, list[str]]:
        return self.coordinator.describe(sample_id)

    def _run(self) -> None:
        try:
            self._feed()
        except stoker.StokerError as error:
            self.hand_over.fail(error.code, error.message)
        except BaseException as error:
            self.hand_over.fail("INTERNAL", repr(error))

    def _feed(self) -> None:
        settings = core_settings(self.settings, Topology(dp_size=self.topology.dp_size))
        self.coordinator, worker = _core.CoreCoordinator.create(settings), _core.CorePackWorker.create(settings)
        self.engines = [self.coordinator, worker]
        while not (self.coordinator.open_within(20) and worker.open_within(20)):
            if self.hand_over.is_closed:
                return
            self.hand_over.say(self.coordinator.progress())
        self.hand_over.say("")
        self.hand_over.welcome(self.coordinator.welcome())
        while (state := self.hand_over.start_within(20)) is None:
            if self.hand_over.is_closed:
                return
        self.coordinator.start(state, [])
        self._bring(worker, state.step)

    def _bring(self, worker: _core.CorePackWorker, step: int) -> None:
        self.coordinator.want_step(step)
        wanted = step
        while not self.hand_over.is_closed:
            newer = self.hand_over.wanted_within(wanted, 0)
            if newer is not None:
                wanted = newer
                self.coordinator.want_step(wanted)
            task = self.coordinator.next_task_within(20)
            if task is None:
                if self.coordinator.is_at_end:
                    return self.hand_over.end(self.coordinator.end())
                continue
            if len(self.stores) == self.fail_at:
                raise stoker.UnavailableError("the worker is gone", "WORKER_LOST")
            made = worker.make(task.message)
            delivery = self.coordinator.deliver(task.sequence, made.made)
            if task.rank != self.topology.dp_rank:
                continue
            store = stored(made.pixels)
            self.addresses.append(store.ctypes.data)
            self.stores.append(weakref.ref(store))
            self.wire_bytes += store.size + len(made.tail) + len(delivery)
            self.hand_over.put(delivery, store, made.tail)
        return None


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType(MODULE)
    module.RankClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr("stoker.loader._RAY_CLIENT", MODULE)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "client"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("hand_over") / "data", 24)


def there(settings: Settings) -> Settings:
    return settings.replace(ray="auto")


def arrays(batch: Batch) -> dict[str, Any]:
    names = ARRAYS if batch.image_patches is not None else ARRAYS[:-2]
    return {name: np.from_dlpack(batch.dlpack(name)) for name in names}


def test_batches_are_those_of_a_loader_that_prepares_for_itself(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=1)
    with Loader(settings) as here, Loader(there(settings)) as loader:
        for mine in here:
            batch = next(loader)
            assert batch.digest() == mine.digest()
            theirs = arrays(mine)
            for name, array in arrays(batch).items():
                assert np.array_equal(array, theirs[name]), name
            if batch.counts.micro_batch + 1 == batch.counts.micro_batches_in_step:
                assert loader.state_dict() == here.state_dict()
            for id_ in batch.layout.sample_ids.tolist():
                if id_ >= 0:
                    assert loader.describe(id_) == here.describe(id_)
        assert next(loader, None) is None
        assert loader.normalisation == here.normalisation
        assert loader.clip_normalisation == here.clip_normalisation
        values, expected = loader.report().to_dict(), here.report().to_dict()
        for key in ("steps", "batches", "samples", "tokens", "target_tokens", "bytes", "bad_samples", "fill"):
            assert values[key] == expected[key], key
        assert (expected["ray"], values["pipeline"]) == (None, None)
        assert values["ray"]["packs"] == values["batches"]


@pytest.mark.parametrize("dp_rank", [0, 1])
def test_each_rank_gets_its_own(data: DataSet, tmp_path: Path, dp_rank: int) -> None:
    settings = settings_for(data, tmp_path, exchange="dir")
    expected = digests(settings.replace(ray=None), 3)  # of one rank that has them all
    got = digests(there(settings), 3, dp_rank=dp_rank, dp_size=2)
    assert [len(step) for step in got] == [2, 2, 2]
    assert all(set(mine) < set(step) for mine, step in zip(got, expected, strict=True))


def test_a_state_resumes_there_and_here(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    expected = digests(settings, 6)
    with Loader(there(settings)) as loader:
        run = loader.steps()
        first = [[batch.digest() for batch in next(run)] for _ in range(3)]
        state = loader.state_dict()
        assert loader.state_for(steps=2)["step"] == 2
    assert first == expected[:3]
    for resumed in (settings, there(settings)):
        with Loader(resumed) as loader:
            loader.load_state_dict(state)
            run = loader.steps()
            assert [[batch.digest() for batch in next(run)] for _ in range(3)] == expected[3:]
    with (
        Loader(there(settings.replace(seed=9))) as other,
        pytest.raises(stoker.InvalidArgumentError, match="`seed`"),
    ):
        other.load_state_dict(state)


def test_pixels_are_read_where_they_lie_and_let_go_of_with_the_last_array(data: DataSet, tmp_path: Path) -> None:
    loader = Loader(there(settings_for(data, tmp_path)))
    batch = next(batch for batch in loader if batch.image_patches is not None)
    number = batch.counts.step * 4 + batch.counts.micro_batch
    client = Client.made
    store = client.stores[number]
    patches, ids = batch.image_patches, batch.input_ids
    assert patches is not None
    assert patches.ctypes.data == client.addresses[number]
    assert not patches.flags.writeable
    assert not ids.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        patches[0] = 0
    expected, rows = patches.copy(), patches[1:3]
    hand_over = client.hand_over
    loader.close()
    del loader, batch, patches
    Client.made = None  # type: ignore[assignment]
    del client
    gc.collect()
    assert store() is not None
    assert hand_over.held_bytes > expected.nbytes
    assert np.array_equal(rows, expected[1:3])
    dropper = threading.Thread(target=lambda last: last.clear(), args=([rows],))
    del rows
    dropper.start()
    dropper.join()
    del dropper
    gc.collect()
    assert store() is None
    assert 0 < hand_over.held_bytes < expected.nbytes + 64 * ids.nbytes
    del ids
    gc.collect()
    assert hand_over.held_bytes == 0


def test_a_trainer_that_holds_nothing_leaves_nothing(data: DataSet, tmp_path: Path) -> None:
    with Loader(there(settings_for(data, tmp_path, epochs=1))) as loader:
        while next(loader, None) is not None:
            assert sum(store() is not None for store in Client.made.stores) <= 4 * 4  # prefetched, and the last one
        gc.collect()
        assert [store for store in Client.made.stores if store() is not None] == []
        assert Client.made.hand_over.held_bytes == 0


def test_what_ends_the_run_there_ends_it_here_and_the_state_is_left(data: DataSet, tmp_path: Path) -> None:
    with Loader(there(settings_for(data, tmp_path))) as loader:
        Client.made.fail_at = 10
        told, error = story(loader)
        assert error is not None
        assert (error.code, error.message) == ("WORKER_LOST", "the worker is gone")
        assert len(told) <= 10
        for _ in range(2):
            assert story(loader)[1] is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a state inside a step
            assert loader.state_dict()["step"] == len(told) // 4


def test_what_cannot_be_opened_there_is_told_here(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(str(tmp_path / "no-such.jsonl"), tmp_path)
    with pytest.raises(stoker.StokerError) as here, Loader(settings) as loader:
        next(loader)
    with pytest.raises(stoker.StokerError) as told, Loader(there(settings)) as loader:
        next(loader)
    assert (told.value.code, told.value.message) == (here.value.code, here.value.message)


def test_what_is_no_buffer_is_refused() -> None:
    hand_over = _core.CoreHandOver.create()
    with pytest.raises(TypeError):
        hand_over.put(b"", "text", b"")
    with pytest.raises((BufferError, ValueError)):
        hand_over.put(b"", np.zeros(64, np.uint8)[::2], b"")
    for message in (b"", b"\0" * 8, os.urandom(200)):
        with pytest.raises(stoker.InvalidArgumentError) as refused:
            hand_over.put(message, np.zeros(64, np.uint8), b"")
        assert refused.value.code == "PEER_MISMATCH"
        with pytest.raises(stoker.InvalidArgumentError):
            hand_over.welcome(message)
        with pytest.raises(stoker.InvalidArgumentError):
            hand_over.end(message)
    hand_over.fail("NO_SUCH_CODE", "a client of a later version")
    assert hand_over.held_bytes == 0


def test_without_ray_the_error_says_what_to_install(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(stoker.InvalidArgumentError, match=r"pip install \"stoker\[ray\]\""):
        Loader(there(settings_for(data, tmp_path)))


def test_a_client_that_cannot_start_leaves_no_thread(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: Client) -> None:
        raise stoker.UnavailableError("there is no cluster", "RAY")

    monkeypatch.setattr(Client, "start", start)
    with pytest.raises(stoker.UnavailableError, match="there is no cluster"):
        Loader(there(settings_for(data, tmp_path)))
    assert engine_threads() == []


def test_closing_while_opening_or_waiting_is_quick(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "_feed", lambda self: None)  # brings nothing
    loader = Loader(there(settings_for(data, tmp_path)))
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(story(loader)[1]))
    waiting.start()
    began = time.monotonic()
    loader.close()
    waiting.join()
    assert ended[0] is not None
    assert time.monotonic() - began < 1.0 + SLACK_S
    with pytest.raises(stoker.InvalidArgumentError) as closed:
        next(loader)
    assert closed.value.code == "CLOSED"


INTERRUPTED = """
import sys, types
import stoker
class RankClient:  # brings nothing
    def __init__(self, settings, topology, hand_over): hand_over.say("waits for ever")
    def start(self): ...
    def close(self): ...
sys.modules["nothing"] = types.ModuleType("nothing")
sys.modules["nothing"].RankClient = RankClient
stoker.loader._RAY_CLIENT = "nothing"
loader = stoker.Loader(stoker.Settings.load(sys.argv[1]))
print("ready", flush=True)
next(loader)
"""


def test_ctrl_c_is_heard_within_a_second(data: DataSet, tmp_path: Path) -> None:
    settings = tmp_path / "run.yaml"
    settings.write_text(f"data: [{{manifest: {data.manifest}}}]\nmodel: /nowhere\nray: auto\n")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(settings)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    for _ in eventually(20):
        if "stoker-open" in engine_threads(process.pid):
            break
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in err
    assert time.monotonic() - began < 1.0 + SLACK_S


def test_few_bytes_go_over_the_wire(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=1, pack={"tokens_per_pack": 4096, "packs_per_step": 1})
    with Loader(there(settings)) as loader:
        n_visual = sum(batch.counts.patches // 4 for batch in loader)
    assert Client.made.wire_bytes / n_visual < 3100
