"""Coordinator, pack workers and loaders that packs are put into, joined in one process as Ray joins them over many."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import DataSet, digests, good_data, ledger, settings_for
from stoker import Settings, _core
from stoker.errors import BadSampleError, CancelledError, InvalidArgumentError, StokerError
from stoker.loader import core_settings
from stoker.topology import Topology

N_STEPS = 4
_TICK_MS = 20
_PATIENCE_S = 30.0


@dataclass
class Came:
    """What the ranks of a run got."""

    digests: list[list[list[str]]]
    """By rank, step and micro-batch."""
    states: list[list[_core.LoaderState]]
    """By rank: after each step."""
    report: dict[str, Any] = field(default_factory=dict)
    """The coordinator's."""
    bad: Counter[str] = field(default_factory=Counter)
    """Samples not used, as the ranks' loaders count them."""


def opened(engine: Any) -> Any:
    """Waits until an engine is open."""
    end = time.monotonic() + _PATIENCE_S
    while not engine.open_within(1000):
        assert time.monotonic() < end, engine.progress()
    return engine


def coordinator_of(settings: Settings, dp_size: int, state: _core.LoaderState | None = None) -> _core.CoreCoordinator:
    """A coordinator that has begun."""
    made: _core.CoreCoordinator = opened(
        _core.CoreCoordinator.create(core_settings(settings, Topology(dp_rank=0, dp_size=dp_size)))
    )
    if state is None:
        state = _core.LoaderState()
        state.fingerprint = made.fingerprint
    made.start(state, [])
    return made


def next_task(coordinator: _core.CoreCoordinator) -> _core.TaskInfo:
    """The next task of a run that has one."""
    end = time.monotonic() + _PATIENCE_S
    while (task := coordinator.next_task_within(1000)) is None:
        assert time.monotonic() < end
    return task


def _train(loader: _core.CoreLoader, came: tuple[list[list[str]], list[_core.LoaderState]], n_steps: int) -> None:
    steps, states = came
    step: list[str] = []
    while len(steps) < n_steps:
        batch = loader.next_within(200)
        if batch is None:
            if loader.is_at_end:
                return
            continue
        step.append(batch.digest())
        if batch.counts.micro_batch + 1 == batch.counts.micro_batches_in_step:
            steps.append(step)
            states.append(loader.state()[0])
            step = []


def remote(
    settings: Settings, n_steps: int, *, dp_size: int = 1, state: _core.LoaderState | None = None, n_workers: int = 2
) -> Came:
    """Runs a job whose packs are planned, made and trained on in three places, and counts what came."""
    topology = Topology(dp_rank=0, dp_size=dp_size)
    coordinator = opened(_core.CoreCoordinator.create(core_settings(settings, topology)))
    workers = [opened(_core.CorePackWorker.create(core_settings(settings))) for _ in range(n_workers)]
    assert {worker.fingerprint for worker in workers} == {coordinator.fingerprint}
    hands, loaders = [], []
    for rank in range(dp_size):
        hand = _core.CoreHandOver.create()
        core = core_settings(settings, Topology(dp_rank=rank, dp_size=dp_size))
        core.set_hand_over(hand)
        hand.welcome(coordinator.welcome())
        loaders.append(opened(_core.CoreLoader.create(core)))
        hands.append(hand)
        if state is not None:
            loaders[-1].load_state(state, [])
    came = Came([[] for _ in hands], [[] for _ in hands])
    with concurrent.futures.ThreadPoolExecutor(dp_size + 4) as threads:
        trainers = [
            threads.submit(_train, loader, (came.digests[rank], came.states[rank]), n_steps)
            for rank, loader in enumerate(loaders)
        ]
        try:
            starts = [hand.start_within(10_000) for hand in hands]
            coordinator.start(starts[0], [])
            under_way: deque[tuple[_core.TaskInfo, concurrent.futures.Future[_core.MadePack]]] = deque()
            n_tasks, wanted, has_ended = 0, -1, False
            end = time.monotonic() + _PATIENCE_S
            while not all(trainer.done() for trainer in trainers):
                assert time.monotonic() < end
                if all(step is not None for step in (h.wanted_within(wanted, 0) for h in hands)):
                    wanted += 1
                    coordinator.want_step(wanted)
                task = coordinator.next_task_within(_TICK_MS) if len(under_way) < 6 and not has_ended else None
                if task is not None:
                    made = threads.submit(workers[n_tasks % n_workers].make, task.message)
                    n_tasks += 1
                    under_way.append((task, made))
                elif under_way:
                    task, made = under_way.popleft()
                    pack = made.result()
                    delivery = coordinator.deliver(task.sequence, pack.made)
                    if not hands[task.rank].is_closed:
                        hands[task.rank].put(delivery, pack.pixels, pack.tail)
                elif coordinator.is_at_end and not has_ended:
                    has_ended = True
                    ends = [coordinator.end() for _ in hands]
                    for hand, message in zip(hands, ends, strict=True):
                        hand.end(message)
        finally:
            for loader in loaders if sys.exc_info()[0] else []:
                loader.close()
        for trainer in trainers:
            trainer.result()
    came.report = coordinator.report()
    for loader in loaders:
        came.bad.update(loader.report()["bad_samples"])
    for engine in (*loaders, *workers, coordinator):
        engine.close()
    return came


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Rows, some bad: two that are no rows, one picture that is missing, one that only decoding finds damaged."""
    made = good_data(tmp_path_factory.mktemp("data"), 43)
    cut = (made.folder / made.good_image(77)).read_bytes()
    size = {"height": 256, "width": 256}
    made.chat(1002, [{"type": "image", "image": made.image("images/cut.jpg", cut[: len(cut) // 2]), **size}])
    made.row(b"{broken")
    made.chat(1001, ["images/nowhere.jpg"])
    made.row({"messages": []})
    return made.write()


@pytest.fixture(scope="module")
def tiny(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings for them."""
    return settings_for(data, tmp_path_factory.mktemp("scratch"), bad_samples={"max_fraction": 0.5})


@pytest.mark.parametrize("dp_size", [1, 2, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pack": {"form": "samples", "samples_per_pack": 3}},
        {"pack": {"pad_to": "tokens_per_pack", "align_samples_to": 16}, "shuffle": "chunked"},
        {"labels": {"weights": "deliver"}, "speed": {"prefetch_steps": 0}},
    ],
    ids=["packed", "samples", "chunked", "weights"],
)
def test_batches_are_those_of_loaders_in_process(
    tiny: Settings, tmp_path: Path, changes: dict[str, Any], dp_size: int
) -> None:
    settings = tiny.replace(index_dir=str(tmp_path), **changes)
    expected = [digests(settings, N_STEPS, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    came = remote(settings.replace(index_dir=str(tmp_path / "other")), N_STEPS, dp_size=dp_size)
    assert came.digests == expected
    assert len({d for rank in expected for step in rank for d in step}) == N_STEPS * 4


@pytest.mark.parametrize("dp_size", [1, 4])
@pytest.mark.parametrize(
    "changes",
    [{}, {"shuffle": "none", "window_samples": 3, "pack": {"form": "samples", "samples_per_pack": 1}}],
    ids=["shuffled", "no pack after the last bad rows"],
)
def test_an_epoch_writes_the_same_ledger(tiny: Settings, tmp_path: Path, changes: dict[str, Any], dp_size: int) -> None:
    def ledger_lines(settings: Settings) -> list[dict[str, Any]]:
        return sorted(ledger(settings), key=lambda line: line["order_index"])

    here = tiny.replace(index_dir=str(tmp_path / "here"), epochs=1, **changes)
    there = here.replace(index_dir=str(tmp_path / "there"))
    expected = [digests(here, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    came = remote(there, 1000, dp_size=dp_size)
    assert came.digests == expected
    assert ledger_lines(there) == ledger_lines(here)
    assert {line["code"] for line in ledger(there)} >= {"JSON_SYNTAX", "MEDIA_NOT_FOUND", "IMG_TRUNCATED"}
    assert came.bad == Counter(line["code"] for line in ledger(there)) == Counter(came.report["bad_samples"])
    assert came.bad.total() == 4
    assert came.report["packs_delivered"] == came.report["packs_handed_out"] == 4 * len(expected[0])


@pytest.mark.parametrize("dp_size", [1, 4])
def test_goes_on_with_another_number_of_ranks(tiny: Settings, tmp_path: Path, dp_size: int) -> None:
    settings = tiny.replace(index_dir=str(tmp_path))
    whole = remote(settings, 3, dp_size=2)
    rest = remote(settings, 2, dp_size=dp_size, state=whole.states[0][0])
    merged = [{d for rank in whole.digests for d in rank[step]} for step in (1, 2)]
    assert [{d for rank in rest.digests for d in rank[step]} for step in (0, 1)] == merged


def test_a_task_is_small_and_its_pack_in_order(tiny: Settings) -> None:
    coordinator = coordinator_of(tiny, 4)
    coordinator.want_step(0)
    tasks = [next_task(coordinator) for _ in range(12)]
    assert [task.sequence for task in tasks] == list(range(12))
    assert [(task.step, task.micro_batch, task.rank) for task in tasks] == [
        (step, 0, rank) for step in range(3) for rank in range(4)
    ]
    assert all(task.is_last_of_step and task.micro_batches_in_step == 1 and task.cost > 0 for task in tasks)
    n_samples = sum(task.n_samples for task in tasks)
    assert sum(len(task.message) for task in tasks) < 60 * n_samples + 64 * len(tasks)
    assert coordinator.next_task_within(100) is None, "further than prefetch_steps ahead"
    coordinator.want_step(1)
    assert next_task(coordinator).step == 3
    with pytest.raises(StokerError, match="begun"):
        coordinator.start(_core.LoaderState(), [])
    coordinator.close()
    with pytest.raises(InvalidArgumentError) as closed:
        coordinator.next_task_within(0)
    assert closed.value.code == "CLOSED"


def test_pixels_are_a_view_that_outlives_its_worker(tiny: Settings) -> None:
    coordinator = coordinator_of(tiny, 1)
    worker = opened(_core.CorePackWorker.create(core_settings(tiny)))
    task = next_task(coordinator)
    made = worker.make(task.message)
    pixels = made.pixels
    assert isinstance(pixels, np.ndarray)
    assert (pixels.dtype, pixels.ndim, pixels.flags.writeable, pixels.ctypes.data % 64) == (np.uint8, 1, False, 0)
    assert made.n_bytes == pixels.nbytes + len(made.tail) <= task.n_bytes
    assert made.pixels.ctypes.data == pixels.ctypes.data, "a copy was made"
    before = pixels.tobytes()
    again = worker.make(task.message)
    assert (again.made, again.tail, again.pixels.tobytes()) == (made.made, made.tail, before)
    report = worker.report()
    assert (report["packs_made"], report["making"]) == (2, 0)
    assert report["pipeline"]["stages"]["prepare"]["items"] > 0
    worker.close()
    del worker, made, again
    gc.collect()
    assert pixels.tobytes() == before
    coordinator.close()


def test_a_member_that_kills_its_worker_is_given_up(tiny: Settings, tmp_path: Path) -> None:
    settings = tiny.replace(index_dir=str(tmp_path))
    coordinator = coordinator_of(settings, 1)
    worker = opened(_core.CorePackWorker.create(core_settings(settings)))
    task = next_task(coordinator)
    while task.n_samples < 2:
        coordinator.deliver(task.sequence, worker.make(task.message).made)
        coordinator.want_step(task.step + 1)
        task = next_task(coordinator)
    tried = worker.make(task.message, only=1)
    assert (tried.made, tried.tail, tried.n_bytes, len(tried.pixels)) == (b"", b"", 0, 0)
    made = worker.make(task.message, rejected=[0], why_rejected="killed twice by signal 11")
    coordinator.deliver(task.sequence, made.made)
    lost = [line for line in ledger(settings) if line["code"] == "WORKER_KILLED"]
    assert len(lost) == 1
    assert lost[0]["message"].endswith("killed twice by signal 11")
    assert lost[0]["manifest"] in str(settings.data[0].manifest)
    assert coordinator.report()["bad_samples"]["WORKER_KILLED"] == 1
    for engine in (coordinator, worker):
        engine.close()


@pytest.mark.parametrize(
    ("bad_samples", "error", "code"),
    [
        ({"max_fraction": 0.01}, InvalidArgumentError, "TOO_MANY_BAD"),
        ({"policy": "stop"}, BadSampleError, "WORKER_KILLED"),
    ],
)
def test_late_bad_samples_end_the_run_as_the_settings_say(
    tmp_path: Path, bad_samples: dict[str, Any], error: type[StokerError], code: str
) -> None:
    settings = settings_for(good_data(tmp_path / "data"), tmp_path, bad_samples=bad_samples, shuffle="none")
    coordinator = coordinator_of(settings, 1)
    worker = opened(_core.CorePackWorker.create(core_settings(settings)))
    task = next_task(coordinator)
    made = worker.make(task.message, rejected=[0])
    with pytest.raises(error, match=r"rows\.jsonl:\d+") as ended:
        coordinator.deliver(task.sequence, made.made)
    assert ended.value.code == code
    assert [line["code"] for line in ledger(settings)] == ["WORKER_KILLED"], "its line is written all the same"
    with pytest.raises(error):
        coordinator.next_task_within(0)
    for engine in (coordinator, worker):
        engine.close()


def test_a_later_run_measures_anew_what_no_worker_could_make(tiny: Settings, tmp_path: Path) -> None:
    # All rows in one window, which is measured before the first task: else how many are depends on the moment.
    indexed = tiny.replace(index_dir=str(tmp_path / "own"), epochs=1, window_samples=4096)

    def recalled(*, forgets: int = 0) -> int:
        coordinator = coordinator_of(indexed, 1)
        tasks = [next_task(coordinator) for _ in range(2)]
        for task in tasks[:forgets]:
            coordinator.forget_lengths(task.sequence)
        known = int(coordinator.report()["pipeline"]["samples_recalled"])
        forgotten.append(sum(task.n_samples for task in tasks[:forgets]))
        coordinator.close()
        return known

    forgotten: list[int] = []
    assert recalled() == 0
    all_known = recalled(forgets=1)
    assert all_known > forgotten[-1] > 0
    assert recalled() == all_known - forgotten[-2]


def test_what_was_made_of_another_task_is_refused(tiny: Settings) -> None:
    coordinator = coordinator_of(tiny, 2)
    worker = opened(_core.CorePackWorker.create(core_settings(tiny)))
    first, second = next_task(coordinator), next_task(coordinator)
    made = worker.make(first.message)
    for sequence, message in [(second.sequence, made.made), (first.sequence, made.made[:-1]), (first.sequence, b"")]:
        with pytest.raises(InvalidArgumentError) as refused:
            coordinator.deliver(sequence, message)
        assert refused.value.code == "PEER_MISMATCH"
    coordinator.deliver(first.sequence, made.made)
    for message in (b"", first.message[:-1], made.made):
        with pytest.raises(InvalidArgumentError) as refused:
            worker.make(message)
        assert refused.value.code == "PEER_MISMATCH"
    other = opened(_core.CorePackWorker.create(core_settings(tiny.replace(pack={"tokens_per_pack": 256}))))
    with pytest.raises(InvalidArgumentError):
        other.make(max((next_task(coordinator) for _ in range(4)), key=lambda task: task.n_bytes).message)
    for engine in (coordinator, worker, other):
        engine.close()


def test_close_ends_what_is_being_made(tiny: Settings) -> None:
    coordinator = coordinator_of(tiny, 1)
    messages = [next_task(coordinator).message for _ in range(8)]
    worker = opened(_core.CorePackWorker.create(core_settings(tiny)))
    n_made, ended = [0], []
    several = threading.Event()

    def make_on() -> None:
        try:
            while True:
                for message in messages:
                    worker.make(message)
                    n_made[0] += 1
                    if n_made[0] > 6:
                        several.set()
        except StokerError as error:
            ended.append(error)

    threads = [threading.Thread(target=make_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert several.wait(_PATIENCE_S)
    began = time.monotonic()
    worker.close()
    for thread in threads:
        thread.join(_PATIENCE_S)
    assert time.monotonic() - began < 1.5
    assert [(type(error), error.code) for error in ended] == [(CancelledError, "STOPPED")] * 3
    coordinator.close()


def test_a_sample_says_where_it_comes_from(tiny: Settings, data: DataSet) -> None:
    coordinator = coordinator_of(tiny.replace(shuffle="none"), 1)
    epoch, manifest, line, offset, media = coordinator.describe(4)
    assert (epoch, manifest, line, offset) == (0, str(data.manifest), 5, data.offset(5))
    assert media == [part["image"] for part in _pictures(data, 5)]
    coordinator.close()


def _pictures(data: DataSet, line: int) -> list[dict[str, Any]]:
    content = json.loads(data.lines[line - 1])["messages"][0]["content"]
    return [part for part in content if part["type"] == "image"]
