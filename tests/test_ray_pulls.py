"""Packs on their way into a trainer: in order, bounded by bytes, and never after close."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from stoker.ray.counting import Tally, plain
from stoker.ray.protocol import PackHandle
from stoker.ray.pulling import Pulls

IN_STEP = 2


def handle(number: int, n_bytes: int = 10) -> PackHandle:
    return PackHandle(
        number=number,
        step=number // IN_STEP,
        micro_batch=number % IN_STEP,
        micro_batches_in_step=IN_STEP,
        delivery=b"",
        n_bytes=n_bytes,
        ref=[],
        made_on="",
    )


class Trainer:
    """What stands around `Pulls`: fetches are let go one by one, and packs are held until let go of."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.changed = threading.Condition()
        self.begun: list[int] = []
        self.may_end: set[int] = set()
        self.is_open = is_open
        self.got: list[int] = []
        self.held = 0
        self.most_here = 0
        self.errors: list[BaseException] = []

    def fetch(self, pack: PackHandle) -> PackHandle:
        with self.changed:
            self.begun.append(pack.number)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.is_open or pack.number in self.may_end, timeout=20)
        return pack

    def put(self, pack: PackHandle, came_at: float) -> None:
        with self.changed:
            self.got.append(pack.number)
            self.held += pack.n_bytes
            self.changed.notify_all()

    def let_end(self, *numbers: int) -> None:
        with self.changed:
            self.may_end.update(numbers)
            self.changed.notify_all()

    def open(self) -> None:
        with self.changed:
            self.is_open = True
            self.changed.notify_all()

    def until(self, reached: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, timeout=20), (self.begun, self.got, self.errors)


@contextmanager
def pulls(trainer: Trainer, *, limit_bytes: int = 1000, n_threads: int = 3, **more: Any) -> Iterator[Pulls]:
    made = Pulls(
        fetch=more.get("fetch", trainer.fetch),
        put=trainer.put,
        held_bytes=lambda: trainer.held,
        limit_bytes=limit_bytes,
        n_threads=n_threads,
        on_error=trainer.errors.append,
    )
    try:
        yield made
    finally:
        trainer.open()
        assert made.close(within_s=20)


def test_packs_are_handed_on_in_order_whatever_order_they_come_in() -> None:
    numbers = list(range(60))
    trainer = Trainer(is_open=False)
    with pulls(trainer, n_threads=8) as pulling:
        for n in range(0, 60, 3):
            pulling.add(handle(i) for i in numbers[n : n + 3])
        pulling.set_step(100)
        shuffled = random.Random(5).sample(numbers, k=60)
        for number in shuffled:
            trainer.let_end(number)
        trainer.until(lambda: len(trainer.got) == 60)
        assert trainer.got == numbers
        assert pulling.drained_within(20)
        assert pulling.n_put == 60


def test_what_is_pulled_ahead_is_bounded_by_bytes_and_the_trainers_step_is_not() -> None:
    trainer = Trainer()
    with pulls(trainer, limit_bytes=35) as pulling:
        pulling.add(handle(i) for i in range(12))
        trainer.until(lambda: len(trainer.got) == 3)  # 30 bytes held; a fourth does not fit
        assert not pulling.drained_within(0.3)
        assert trainer.begun == [0, 1, 2]
        pulling.set_step(1)  # its packs 2 and 3 come whatever is held
        trainer.until(lambda: len(trainer.got) == 4)
        with trainer.changed:
            trainer.held = 0  # the trainer lets go of all
        trainer.until(lambda: len(trainer.got) == 7)
        assert trainer.got == list(range(7))
        assert trainer.held <= 35


def test_a_pack_larger_than_the_limit_comes_when_it_is_its_turn() -> None:
    trainer = Trainer()
    with pulls(trainer, limit_bytes=5) as pulling:
        pulling.add([handle(0, 50), handle(1, 50), handle(2, 50)])
        trainer.until(lambda: trainer.got == [0, 1])
        assert not pulling.drained_within(0.2)
        pulling.set_step(1)
        trainer.until(lambda: trainer.got == [0, 1, 2])


def test_an_error_ends_it_and_is_told_once() -> None:
    trainer = Trainer()

    def fetch(pack: PackHandle) -> PackHandle:
        if pack.number >= 1:
            raise OSError(f"pack {pack.number}")
        return pack

    with pulls(trainer, fetch=fetch) as pulling:
        pulling.add(handle(i) for i in range(6))
        assert pulling.drained_within(20)
    assert len(trainer.errors) == 1
    assert set(trainer.got) <= {0}


def test_close_ends_the_threads_and_drops_what_was_fetched() -> None:
    before = threading.active_count()
    trainer = Trainer(is_open=False)
    with pulls(trainer) as pulling:
        pulling.add(handle(i) for i in range(6))
        trainer.until(lambda: len(trainer.begun) == 3)
        assert not pulling.close(within_s=0), "fetches are going on"
        trainer.open()
        assert pulling.close(within_s=20)
        pulling.add([handle(6)])
        assert pulling.drained_within(0), "closed: nothing is waited for"
    assert trainer.got == []
    assert not trainer.errors
    assert threading.active_count() == before


def test_a_tally_tells_local_from_network_and_stragglers_from_the_usual() -> None:
    tally = Tally()
    for _ in range(20):
        tally.pulled(0.1, again=0)
        tally.handed_on(100, is_local=True, is_mapped=True, copies=1)
    tally.pulled(1.3, again=2)
    tally.handed_on(50, is_local=False, is_mapped=False, copies=3)
    counts = tally.snapshot()
    assert (counts.local_packs, counts.local_bytes, counts.network_packs, counts.network_bytes) == (20, 2000, 1, 50)
    assert (counts.mapped_packs, counts.copied_bytes, counts.asked_again) == (20, 50, 2)
    assert counts.straggler_s == pytest.approx(1.0)
    assert plain(counts)["copies_per_pack"] == pytest.approx(23 / 21)
    assert plain(Tally().snapshot())["copies_per_pack"] == 0.0


@pytest.mark.parametrize(
    ("seconds", "came_at", "for_handle", "for_pull"),
    [(0.0, 5.0, 0, 0), (2.0, 7.0, 0, 2), (2.0, 9.5, 1.5, 0.5), (2.0, 10.0, 2, 0), (2.0, 8.0, 0, 2)],
)
def test_a_wait_is_for_the_pack_to_be_made_and_then_for_its_way(
    seconds: float, came_at: float, for_handle: float, for_pull: float
) -> None:
    tally = Tally()
    tally.waited(seconds, came_at=came_at, now=10.0)
    counts = tally.snapshot()
    assert (counts.wait_handle_s, counts.wait_pull_s) == pytest.approx((for_handle, for_pull))


def test_an_array_of_this_process_lies_in_no_store() -> None:
    from stoker.ray.views import StoreMap

    assert not StoreMap().has(np.zeros(100, np.uint8))
