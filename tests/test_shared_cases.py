"""Trouble with memory that a batch shares with others: processes, a device, later batches."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import stoker.torch
from loader_data import DataSet, digests, good_data, settings_for, taken
from stoker import Batch, Loader, Settings, Topology
from stoker.torch.transfer import SideStreamCopy

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("shared") / "data", 24)


# --- LDR-01


def peers(settings: Settings, scratch: Path) -> list[Loader]:
    return [Loader(settings, topology=Topology(peer_rank=k, peer_count=2, job=str(scratch))) for k in range(2)]


def run_peers(before: str, settings: Settings, scratch: Path) -> dict[str, Any]:
    """Two peers in a process of its own, in which `before` (Python) has been run; what they told."""
    program = f"""
import json, sys
{before}
from stoker import Loader, Settings, StokerError, Topology
settings = Settings.from_dict(json.loads(sys.argv[1]))
loaders = [Loader(settings, topology=Topology(peer_rank=k, peer_count=2, job=sys.argv[2])) for k in range(2)]
try:
    told = {{"digests": [next(loader).digest() for loader in loaders]}}
except StokerError as error:
    told = {{"code": error.code, "message": error.message}}
print(json.dumps(told))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(settings.to_dict()), str(scratch)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"  # -7 would be SIGBUS, -25 SIGXFSZ
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.case("LDR-01", "shared packs are reserved before use: SHM_TOO_SMALL 'need .. MB, free .. MB in ..'")
def test_no_room_for_shared_memory_is_an_error_with_numbers(data: DataSet, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    told = run_peers(limit, settings_for(data, tmp_path), tmp_path)
    assert told["code"] == "SHM_TOO_SMALL"
    assert "need " in told["message"]
    assert "free 0.1 MB in a memfd" in told["message"]


@pytest.mark.case("LDR-01", "packs that peers share lie in no mount, so the size of /dev/shm does not matter")
def test_shared_packs_lie_outside_of_dev_shm(data: DataSet, tmp_path: Path) -> None:
    loaders = peers(settings_for(data, tmp_path), tmp_path)
    with loaders[0], loaders[1]:
        assert len({next(loader).digest() for loader in loaders}) == 1
        fds = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and "stoker-pack" in os.readlink(fd)]
        assert fds
        assert os.stat("/dev/shm").st_dev not in {fd.stat().st_dev for fd in fds}


# --- LDR-17


@pytest.mark.case("LDR-17", "a write into a tensor of a shared pack is seen nowhere else; torch warns of nothing")
@pytest.mark.parametrize("form", ["packed", "padded"])
def test_writes_into_tensors_of_shared_packs_stay_where_they_are(data: DataSet, tmp_path: Path, form: Any) -> None:
    settings = settings_for(data, tmp_path)
    expected = [digest for step in digests(settings, 2) for digest in step]
    loaders = peers(settings, tmp_path)
    with loaders[0], loaders[1], warnings.catch_warnings():
        warnings.simplefilter("error")
        kept: list[list[Batch]] = [[], []]
        for _ in expected:
            for k, loader in enumerate(loaders):
                kept[k].append(next(loader))
        for batches in kept:
            for batch in batches:
                tensors = stoker.torch.inputs.packed(batch, writable=True)
                for name, tensor in tensors.items():
                    if not name.endswith("_patches"):
                        tensor.add_(1)
        assert [b.digest() for b in kept[0]] == [b.digest() for b in kept[1]] == expected
    # What a training loop is given is of that kind by itself, in the leader and in the follower alike.
    loaders = peers(settings, tmp_path / form)
    with loaders[0], loaders[1], warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = [iter(stoker.torch.batches(loader, form=form)) for loader in loaders]
        for _ in expected:
            one, other = (next(run) for run in runs)
            before = {name: t.clone() for name, t in other.inputs.items() if name != "use_cache"}
            for name in before:
                one.inputs[name].zero_()
            assert all(torch.equal(other.inputs[name], t) for name, t in before.items())
            for name in before:
                other.inputs[name].zero_()  # SIGSEGV, were it the leader's memory


@pytest.mark.case("LDR-17", "arrays are read-only; `writable=True` gives copies")
def test_arrays_are_read_only_and_copies_are_to_be_had(data: DataSet, tmp_path: Path) -> None:
    with Loader(settings_for(data, tmp_path)) as loader:
        batch = next(loader)
        digest = batch.digest()
        assert batch.image_patches is not None
        for array in (batch.input_ids, batch.labels, batch.position_ids, batch.image_patches, batch.layout.cu_seqlens):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        for name in ("input_ids", "image_patches", "cu_seqlens"):
            own = torch.from_dlpack(batch.dlpack(name, writable=True))
            assert np.array_equal(own.numpy(), np.from_dlpack(batch.dlpack(name)))
            own.zero_()
        assert batch.digest() == digest
        for writable in (False, True):  # a view costs nothing
            made = stoker.torch.inputs.packed(batch, writable=writable)
            assert np.shares_memory(made["labels"].numpy(), batch.labels) is not writable
        assert not loader.has_shared_memory


# --- LDR-18


class LateCuda:
    """A device whose copies read their source only when somebody asks it to catch up, as a stream may."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []

    def Stream(self, *, device: str) -> Any:
        return self

    def Event(self, *, enable_timing: bool) -> Any:
        return self

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def current_stream(self, device: str) -> Any:
        return self

    def record_event(self) -> Any:
        return self

    def record(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def query(self) -> bool:
        return False

    def catch_up(self) -> None:
        while self.pending:
            self.pending.pop(0)()


class LateTensor:
    """A host's tensor on its way to a `LateCuda`."""

    def __init__(self, cuda: LateCuda, source: Any, *, can_pin: bool = True) -> None:
        self.cuda, self.source, self.can_pin = cuda, source, can_pin
        self.arrived: Any = None

    def pin_memory(self) -> LateTensor:
        if not self.can_pin:
            raise RuntimeError("CUDA error: out of memory")
        return LateTensor(self.cuda, self.source.clone())

    def to(self, device: str, *, non_blocking: bool) -> LateTensor:
        def copy(source: Any = self.source) -> None:
            there.arrived = source.clone()

        there = LateTensor(self.cuda, None)
        if non_blocking:
            self.cuda.pending.append(copy)
        else:
            copy()
        self.source = None
        return there

    def record_stream(self, stream: Any) -> None:
        pass


@pytest.mark.case("LDR-18", "what is kept never changes; a copy under way reads staging, never the pack's block")
@pytest.mark.parametrize("can_pin", [True, False])
def test_what_is_kept_or_on_its_way_never_changes(data: DataSet, tmp_path: Path, can_pin: bool) -> None:
    # Blocks are scarce, so that each is used again as soon as nobody holds it.
    settings = settings_for(data, tmp_path, speed={"memory_limit": "24MiB", "prefetch_steps": 2})
    cuda = LateCuda()
    copy = SideStreamCopy("cuda:0", lambda _: None, cuda=cuda)
    with Loader(settings) as loader:
        for _ in range(3):
            kept = next(loader)
            views = stoker.torch.inputs.packed(kept)
            wanted = {name: tensor.clone() for name, tensor in views.items()}
            sent = next(loader)
            tensors = stoker.torch.inputs.packed(sent)
            sent_wanted = {name: tensor.clone() for name, tensor in tensors.items()}
            late = {name: LateTensor(cuda, tensor, can_pin=can_pin) for name, tensor in tensors.items()}
            there = copy(late, lambda arrived: arrived)
            del sent, tensors, late, kept  # of the first only tensors live on, of the second nothing
            gc.collect()
            for _ in range(8):
                assert next(loader).counts.tokens
            assert all(torch.equal(views[name], tensor) for name, tensor in wanted.items())
            cuda.catch_up()
            for name, tensor in sent_wanted.items():
                assert torch.equal(there[name].arrived, tensor), name
        pool = loader.report().to_dict()["pipeline"]["memory"]
        assert pool["peak_bytes"] <= pool["limit_bytes"]


# --- LDR-19


@pytest.mark.case("LDR-19", "without page-locked memory copies go on from ordinary memory; one warning has the cause")
def test_memory_that_cannot_be_pinned_is_said_once(data: DataSet, tmp_path: Path, caplog: Any) -> None:
    cuda = LateCuda()
    copy = SideStreamCopy("cuda:0", lambda _: None, cuda=cuda)
    with Loader(settings_for(data, tmp_path)) as loader, caplog.at_level(logging.WARNING, "stoker"):
        for batch in taken(loader, 3):
            tensors = stoker.torch.inputs.packed(batch)
            wanted = {name: tensor.clone() for name, tensor in tensors.items()}
            late = {name: LateTensor(cuda, tensor, can_pin=False) for name, tensor in tensors.items()}
            there = copy(late, lambda arrived: arrived)
            assert not cuda.pending, "nothing may read the block behind the host's back"
            assert all(torch.equal(there[name].arrived, tensor) for name, tensor in wanted.items())
    (said,) = [record.getMessage() for record in caplog.records if "page-locked" in record.getMessage()]
    assert "CUDA error: out of memory" in said


@pytest.mark.case("LDR-19", "threads stay the same from pass to pass")
def test_a_new_pass_keeps_the_threads(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=3, speed={"prefetch_steps": 1})

    def threads() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    before = threads()
    with Loader(settings) as loader:
        batches = iter(loader)
        seen, passes = [], set[int]()
        for batch in itertools.chain([next(batches)], batches):
            passes |= {loader.describe(i).pass_ for i in batch.layout.sample_ids.tolist() if i >= 0}
            seen.append(threads() - before)
    assert passes == {0, 1, 2}
    assert set.union(*seen) == seen[0], "a thread was started after the first batch"
