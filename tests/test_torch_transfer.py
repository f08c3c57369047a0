"""The way to a CUDA device, with streams that only write down what they are told. The device itself is tested where
there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stoker
import stoker.torch
import torch
from golden_samples import MODEL, write_rows
from stoker.torch.transfer import SideStreamCopy


class FakeCuda:
    """Stands in for `torch.cuda` and logs, with the stream that is current, everything that is done."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "main"
        self.done: set[str] = set()
        self.n_events = 0

    def note(self, what: str) -> None:
        self.log.append(f"{self.current}: {what}")

    def Stream(self, device: str) -> FakeStream:
        assert device == "cuda:0"
        return FakeStream(self, "side")

    def Event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        self.n_events += 1
        return FakeEvent(self, f"event{self.n_events}")

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        outer, self.current = self.current, stream.name
        yield
        self.current = outer

    def current_stream(self, device: str) -> FakeStream:
        assert device == "cuda:0"
        return FakeStream(self, self.current)


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record_event(self) -> FakeEvent:
        self.cuda.log.append(f"{self.name} records copied")
        return FakeEvent(self.cuda, "copied")

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.log.append(f"{self.name} waits for {event.name}")


class FakeEvent:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record(self, stream: FakeStream) -> None:
        self.cuda.log.append(f"{stream.name} records {self.name}")

    def query(self) -> bool:
        return self.name in self.cuda.done

    def elapsed_time(self, end: FakeEvent) -> float:
        return 40.0 if (self.name, end.name) == ("event1", "event2") else 7.0  # milliseconds


class FakeTensor:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def pin_memory(self) -> FakeTensor:
        self.cuda.note(f"pin {self.name}")
        return FakeTensor(self.cuda, f"pinned {self.name}")

    def to(self, device: str, *, non_blocking: bool) -> FakeTensor:
        assert non_blocking
        self.cuda.note(f"copy {self.name} to {device}")
        return FakeTensor(self.cuda, self.name.removeprefix("pinned "))

    def record_stream(self, stream: FakeStream) -> None:
        self.cuda.log.append(f"{self.name} is used on {stream.name}")


def expansion(cuda: FakeCuda) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def finish(tensors: dict[str, Any]) -> dict[str, Any]:
        cuda.note("expand")
        return {"ids": tensors["ids"], "pixels": FakeTensor(cuda, "pixels")}

    return finish


def test_copy_and_expansion_are_on_the_side_and_the_user_waits_for_them() -> None:
    cuda = FakeCuda()
    copy = SideStreamCopy("cuda:0", lambda _: None, cuda=cuda)
    out = copy({"ids": FakeTensor(cuda, "ids"), "patches": FakeTensor(cuda, "patches")}, expansion(cuda))
    assert out.keys() == {"ids", "pixels"}
    assert cuda.log == [
        "side: pin ids",
        "side: copy pinned ids to cuda:0",
        "side: pin patches",
        "side: copy pinned patches to cuda:0",
        "side: expand",
        "side records copied",
        "main records event1",
        "main waits for copied",
        "main records event2",
        "ids is used on main",
        "pixels is used on main",
    ]
    assert cuda.current == "main"


def test_only_a_stall_that_is_over_is_counted_and_only_once() -> None:
    cuda = FakeCuda()
    waits: list[float] = []
    copy = SideStreamCopy("cuda:0", waits.append, cuda=cuda)
    tensors = {"ids": FakeTensor(cuda, "ids"), "patches": FakeTensor(cuda, "patches")}
    copy(tensors, expansion(cuda))
    assert waits == []
    copy(tensors, expansion(cuda))
    assert waits == [], "the device has not come that far, and nobody waits for it"
    cuda.done |= {"event1", "event2"}
    copy(tensors, expansion(cuda))
    assert waits == [0.040]
    cuda.done |= {"event3", "event4", "event5", "event6"}
    copy(tensors, expansion(cuda))
    assert waits == [0.040, 0.007, 0.007]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device_is_said_at_once(tmp_path: Path) -> None:
    settings = {"data": [{"manifest": str(write_rows(tmp_path, [0]))}], "model": str(MODEL), "index_dir": str(tmp_path)}
    with stoker.Loader(stoker.Settings.from_dict(settings)) as loader:
        with pytest.raises(stoker.InvalidArgumentError, match="sees no CUDA device"):
            stoker.torch.batches(loader, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gets_what_the_host_gets(tmp_path: Path) -> None:
    settings = stoker.Settings.from_dict(
        {
            "data": [{"manifest": str(write_rows(tmp_path, [1, 2, 3]))}],
            "model": str(MODEL),
            "epochs": 1,
            "shuffle": "none",
            "pack": {"tokens_per_pack": 512, "packs_per_step": 1},
            "index_dir": str(tmp_path / "index"),
        }
    )
    with stoker.Loader(settings) as loader:
        on_host = list(stoker.torch.batches(loader))
    with stoker.Loader(settings) as loader:
        on_device = list(stoker.torch.batches(loader, device="cuda"))
    assert len(on_host) == len(on_device) > 1
    for one, other in zip(on_host, on_device, strict=True):
        assert one.inputs.keys() == other.inputs.keys()
        for name, tensor in one.inputs.items():
            if name != "use_cache":
                assert other.inputs[name].is_cuda
                assert torch.equal(tensor, other.inputs[name].cpu()), name
