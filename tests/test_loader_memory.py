"""Memory: bounded, refused when too small, said when the trainer holds it, and never taken back from a batch."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from loader_data import DataSet, encoded, good_data, settings_for, taken
from stoker import Batch, InvalidArgumentError, Loader, Settings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Rows in which nearly every token is visual: the largest packs that there can be."""
    made = DataSet(tmp_path_factory.mktemp("data"))
    for n in range(24):
        made.chat(n, [made.good_image(n, height=256, width=(256, 384, 512)[n % 3])])
    return made.write()


@pytest.fixture(scope="module")
def tiny(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Four packs a step; a pack takes 1.3 MB at most."""
    return settings_for(data, tmp_path_factory.mktemp("scratch"))


def limit_named(message: str) -> int:
    """The bytes that a MEMORY_LIMIT sentence asks for."""
    return int(message.split("must be at least ")[1].split(" MB")[0]) << 20


def test_a_limit_that_is_too_small_is_refused_with_what_would_do(tiny: Settings) -> None:
    with Loader(tiny.replace(speed={"memory_limit": "1MiB"})) as loader:
        with pytest.raises(InvalidArgumentError, match=r"holds the 4 micro-batches.*speed\.memory_limit") as error:
            next(loader)
    assert error.value.code == "MEMORY_LIMIT"
    enough = limit_named(error.value.message)
    with Loader(tiny.replace(speed={"memory_limit": enough})) as loader:
        assert len(taken(loader, 8)) == 8
    with Loader(tiny.replace(speed={"memory_limit": enough - (2 << 20)})) as loader:
        with pytest.raises(InvalidArgumentError):
            next(loader)


@pytest.fixture(scope="module")
def least(tiny: Settings) -> int:
    """The smallest limit that is taken, in bytes."""
    with Loader(tiny.replace(speed={"memory_limit": 1})) as loader:
        with pytest.raises(InvalidArgumentError) as error:
            next(loader)
    return limit_named(error.value.message)


@pytest.mark.timeout(30)
def test_the_smallest_limit_does_while_the_trainer_holds_a_step(tiny: Settings, least: int) -> None:
    with Loader(tiny.replace(speed={"memory_limit": least, "prefetch_steps": 8, "cpu_threads": 4})) as loader:
        for _ in range(8):
            step = taken(loader, 4)
            assert len({b.digest() for b in step}) == 4
            memory = loader.report().values["pipeline"]["memory"]
            assert memory["peak_bytes"] <= memory["limit_bytes"] == least
            held = [step.pop() for _ in range(4)]  # gone before the next step, as after an optimizer's step
            del held


@pytest.mark.timeout(30)
def test_encoded_objects_larger_than_their_patches_do_not_block(tmp_path: Path, least: int) -> None:
    data = DataSet(tmp_path / "data")
    noise = np.random.default_rng(1).integers(0, 256, size=(256, 512, 3), dtype=np.uint8)
    from PIL import Image

    for n in range(16):  # padded to 3 MB: an encoded object may be much larger than what becomes of it
        body = encoded(Image.fromarray(noise), "JPEG") + bytes(3 << 20)
        data.chat(n, [data.image(f"{n}.jpg", body)])
    settings = settings_for(data.write(), tmp_path, speed={"memory_limit": least, "prefetch_steps": 4})
    with Loader(settings) as loader:
        step = taken(loader, 4)
        more = taken(loader, 1)
        assert len({b.digest() for b in [*step, *more]}) == 5


@pytest.mark.timeout(30)
def test_a_trainer_that_holds_everything_is_told(tiny: Settings, least: int) -> None:
    settings = tiny.replace(speed={"memory_limit": least}, outage_limit_s=0.5)
    with Loader(settings) as loader:
        held: list[Batch] = []
        with pytest.raises(InvalidArgumentError, match="the trainer holds batches of") as error:
            held.extend(loader)
        assert error.value.code == "MEMORY_LIMIT"


@pytest.mark.timeout(30)
def test_memory_that_another_thread_gives_back_lets_the_run_go_on(tiny: Settings, least: int) -> None:
    with Loader(tiny.replace(speed={"memory_limit": least}, outage_limit_s=20.0)) as loader:
        held = []
        while loader.report().values["batches"] < 4 or not _waits_for_memory(loader):
            held.append(next(loader))
        timer = threading.Timer(0.3, held.clear)
        timer.start()
        assert next(loader).counts.tokens > 0
        timer.join()


def _waits_for_memory(loader: Loader) -> bool:
    memory = loader.report().values["pipeline"]["memory"]
    used = memory["in_use_bytes"] - memory["encoded_in_use_bytes"]
    return bool(used + (1 << 20) > memory["limit_bytes"] - memory["encoded_limit_bytes"])


def test_a_batch_outlives_the_loader(tiny: Settings) -> None:
    loader = Loader(tiny)
    first, *_, last = taken(loader, 12)
    arrays = {
        "input_ids": first.input_ids,
        "labels": first.labels,
        "position_ids": first.position_ids,
        "image_patches": first.image_patches,
        "cu_seqlens": first.layout.cu_seqlens,
        "sample_ids": first.layout.sample_ids,
    }
    copies = {name: array.copy() for name, array in arrays.items() if array is not None}
    digest = last.digest()
    loader.close()
    del loader, first
    gc.collect()
    for name, copy in copies.items():
        np.testing.assert_array_equal(arrays[name], copy)
    assert last.digest() == digest


def test_a_held_batch_never_changes(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        held = taken(loader, 1)[0]
        view = held.image_patches
        assert view is not None
        copy, digest = view.copy(), held.digest()
        del held
        for _ in range(40):
            next(loader)
        np.testing.assert_array_equal(view, copy)
        assert digest


def test_arrays_are_views_and_read_only(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        batch = next(loader)
        for name in ("input_ids", "labels", "position_ids", "image_patches"):
            one, other = getattr(batch, name), getattr(batch, name)
            assert one.ctypes.data == other.ctypes.data
            assert one.ctypes.data % 64 == 0
            assert not one.flags.writeable


def test_blocks_are_used_again(tiny: Settings) -> None:
    with Loader(tiny.replace(speed={"prefetch_steps": 1})) as loader:
        for _ in range(100):
            next(loader)
        early = loader.report().values["pipeline"]["memory"]["blocks_mapped"]
        for _ in range(200):
            next(loader)
        memory = loader.report().values["pipeline"]["memory"]
    assert early < 40
    assert memory["blocks_mapped"] - early <= 8  # a size class not met before; one new block in 25 batches at most
    assert memory["peak_bytes"] <= memory["limit_bytes"]


def test_everything_is_given_back(tiny: Settings) -> None:
    with Loader(tiny.replace(speed={"prefetch_steps": 0})) as loader:
        batches = taken(loader, 4)
        in_use = loader.report().values["pipeline"]["memory"]["in_use_bytes"]
        arrays = [b.input_ids for b in batches]
        del batches
        gc.collect()
        assert loader.report().values["pipeline"]["memory"]["in_use_bytes"] == in_use, "an array keeps its block"
        del arrays
        gc.collect()
        assert loader.report().values["pipeline"]["memory"]["in_use_bytes"] == 0


def test_a_finite_run_ends_while_its_batches_are_held(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 12), tmp_path, epochs=1)
    with Loader(settings) as loader:
        held = list(loader)
    assert len({b.digest() for b in held}) == len(held) or any(b.counts.target_tokens == 0 for b in held)
