"""Who owns a tensor's memory, and who may use a loader."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stoker
import stoker.torch
import torch
from golden_samples import MODEL, write_rows

NUMBERS = [0, 1, 2, 3, 5, 9]
TENSORS = ("input_ids", "labels", "position_ids", "image_grid_thw", "pixel_values")


def settings_for(folder: Path, **changes: Any) -> stoker.Settings:
    return stoker.Settings.from_dict(
        {
            "data": [{"manifest": str(write_rows(folder, NUMBERS))}],
            "model": str(MODEL),
            "pack": {"tokens_per_pack": 512, "packs_per_step": 2},
            "window_samples": 12,
            "index_dir": str(folder / "index"),
            "speed": {"memory_limit": "256MiB"},
            **changes,
        }
    )


def tensors_of(batch: stoker.torch.TorchBatch) -> dict[str, Any]:
    return {name: batch.inputs[name] for name in TENSORS if name in batch.inputs}


def copies_of(batch: stoker.torch.TorchBatch) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in tensors_of(batch).items()}


def test_tensors_are_the_engines_memory(tmp_path: Path) -> None:
    with stoker.Loader(settings_for(tmp_path)) as loader:
        batch = next(loader)
        inputs = stoker.torch.inputs.packed(batch)
        assert "image_patches" in inputs
        for name, tensor in inputs.items():
            array = getattr(batch, name)
            if name == "image_grid_thw":
                array = batch._numpy(name)
            assert tensor.data_ptr() == array.ctypes.data, name
            assert tensor.is_contiguous() or name == "position_ids"


def test_tensors_outlive_the_batch_and_the_loader(tmp_path: Path) -> None:
    loader = stoker.Loader(settings_for(tmp_path))
    batch = next(iter(stoker.torch.batches(loader)))
    core = next(loader)
    kept, patches = tensors_of(batch), torch.from_dlpack(core.dlpack("image_patches"))
    copies, patches_copy = copies_of(batch), patches.clone()
    gone = weakref.ref(loader)
    del batch, core, loader
    gc.collect()
    assert gone() is None, "a tensor holds the memory, not the loader"
    filler = [torch.full_like(tensor, 7) for tensor in kept.values()]  # what is free is written over
    assert len(filler) == len(kept)
    for name, tensor in kept.items():
        assert torch.equal(tensor, copies[name]), name
    assert torch.equal(patches, patches_copy)


def test_held_batches_stay_as_they_were_while_others_come(tmp_path: Path) -> None:
    """More packs than ever are alive at one time go by, so their memory is used over and over again."""
    with stoker.Loader(settings_for(tmp_path)) as loader:
        run = iter(stoker.torch.batches(loader))
        held = []
        for _ in range(3):
            batch = next(run)
            held.append((tensors_of(batch), copies_of(batch)))
        del batch
        for _ in range(40):
            next(run)
        blocks = loader.report().to_dict()["pipeline"]["memory"]["blocks_mapped"]
        for tensors, copies in held:
            for name, tensor in tensors.items():
                assert torch.equal(tensor, copies[name]), name
    assert blocks < 43, "nothing was used twice, so this proves nothing"


def test_one_tensor_of_a_batch_is_enough_to_keep_its_memory(tmp_path: Path) -> None:
    with stoker.Loader(settings_for(tmp_path)) as loader:
        run = iter(stoker.torch.batches(loader))
        kept = next(run).inputs["labels"]
        copy = kept.clone()
        for _ in range(20):
            next(run)
        gc.collect()
        assert torch.equal(kept, copy)


def test_time_on_the_trainers_thread_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stoker.Loader(settings_for(tmp_path)) as loader:
        counted: list[float] = []
        monkeypatch.setattr(loader, "add_wait", counted.append)
        next(iter(stoker.torch.batches(loader)))
        assert len(counted) == 1
        assert 0 < counted[0] < 60


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"target": "megatron"}, "target 'megatron' is not served"),
        ({"form": "ragged"}, "form 'ragged' is not served"),
        ({"device": "meta"}, "device 'meta' is not served"),
        ({"pad_to_multiple_of": 0}, "at least 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_served_is_named(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    with stoker.Loader(settings_for(tmp_path)) as loader:
        with pytest.raises(stoker.InvalidArgumentError, match=sentence) as caught:
            stoker.torch.batches(loader, **wrong)
        assert caught.value.code == "SETTINGS"


# --- forks and workers


def in_forked_child(work: Any) -> str:
    """Runs `work` in a forked child; returns what it says, or the code of the error that it raises."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # whatever happens, the child ends
        try:
            said = str(work())
        except stoker.StokerError as error:
            said = error.code
        except BaseException as error:
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("has_begun", [False, True], ids=["not_begun", "in_the_middle"])
def test_a_forked_child_is_told(tmp_path: Path, has_begun: bool) -> None:
    with stoker.Loader(settings_for(tmp_path)) as loader:
        before = next(loader).digest() if has_begun else None
        assert in_forked_child(lambda: next(loader)) == "FORKED"
        assert in_forked_child(lambda: next(iter(stoker.torch.batches(loader)))) == "FORKED"
        assert in_forked_child(loader.close) == "None", "closing there does nothing, and does not hang"
        after = next(loader).digest()  # the parent goes on
    with stoker.Loader(settings_for(tmp_path)) as loader:
        expected = [next(loader).digest(), next(loader).digest()]
    assert [before, after] == expected if has_begun else after == expected[0]


class Wrapped(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """What people try first."""

    def __init__(self, loader: stoker.Loader | None, settings: stoker.Settings) -> None:
        self.loader = loader
        self.settings = settings

    def __iter__(self) -> Iterator[str]:
        loader = self.loader
        try:
            loader = loader or stoker.Loader(self.settings)
            yield next(loader).digest()
        except stoker.StokerError as error:
            yield error.code


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("is_made_before", [True, False], ids=["made_before", "made_in_the_worker"])
def test_a_worker_of_a_dataloader_is_told(tmp_path: Path, is_made_before: bool) -> None:
    settings = settings_for(tmp_path)
    loader = stoker.Loader(settings) if is_made_before else None
    workers = torch.utils.data.DataLoader(Wrapped(loader, settings), batch_size=None, num_workers=1, timeout=60)
    assert list(workers) == ["FORKED"]
    if loader is not None:
        loader.close()


def test_a_loader_is_no_dataset_that_a_dataloader_would_shard(tmp_path: Path) -> None:
    with stoker.Loader(settings_for(tmp_path)) as loader:
        assert not isinstance(loader, torch.utils.data.DataLoader | torch.utils.data.Dataset)
        assert not isinstance(stoker.torch.batches(loader), torch.utils.data.DataLoader | torch.utils.data.Dataset)
