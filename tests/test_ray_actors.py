"""Coordinator and workers on a real cluster: the same batches as alone, whatever dies, and nothing left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

import ray
import ray_user_functions
import stoker
from loader_data import DataSet, digests, encoded, good_data, ledger, picture, settings_for
from PIL import Image
from ray_cluster import RayCluster, is_alive, until
from stoker.ray.coordinator import create
from stoker.ray.protocol import Beat, Ended, Hello, Joined, NotYet, PackHandle, Started, StepHandles

PHOTOS = Path(__file__).resolve().parent.parent / "testdata" / "photos"
_numbers = itertools.count()


class Run:
    """A run whose clients are this test: it asks what a rank's client asks."""

    def __init__(self, cluster: RayCluster, settings: stoker.Settings, n_ranks: int = 2, **ray_settings: Any) -> None:
        cluster.connect()
        self.n_ranks = n_ranks
        self.nodes = [node.node_id for node in cluster.nodes]
        given = {"rank_timeout_s": 60.0} | ray_settings
        self.settings = settings.replace(ray=given)
        with stoker.Loader(settings, dp_size=n_ranks) as alone:
            self.state = alone.state_dict()
        self.name = f"stoker-actors{os.getpid()}-{next(_numbers)}"
        self.actor = create(self.name)
        self.ask("open", self.settings, self.settings.ray)

    def ask(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self.actor, method).remote(*args), timeout=60)

    def until(self, method: str, *args: Any) -> Any:
        while isinstance(answer := self.ask(method, *args), NotYet):
            pass
        return answer

    def hello(self, rank: int, **more: Any) -> Hello:
        values = dict(
            client_id=f"c{rank}",
            dp_rank=rank,
            dp_size=self.n_ranks,
            peer_rank=0,
            peer_count=1,
            node_id=self.nodes[rank % len(self.nodes)],
            host=f"host{rank}",
            pid=os.getpid(),
            settings_hash={"seed": "1"},
            own_cpus=1.0,
        )
        return Hello(**(values | more))  # type: ignore[arg-type]

    def begin(self) -> Run:
        with ThreadPoolExecutor(self.n_ranks) as pool:
            joined = list(pool.map(lambda r: self.until("hello", self.hello(r)), range(self.n_ranks)))
            assert all(isinstance(answer, Joined) for answer in joined), joined
            started = list(pool.map(lambda r: self.until("start", f"c{r}", self.state, []), range(self.n_ranks)))
            assert all(isinstance(answer, Started) for answer in started), started
        return self

    def take(self, rank: int, first: int, *, step: int = 0) -> Any:
        return self.until("take", f"c{rank}", first, first, step)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ask("status")
        return status

    def leave(self) -> None:
        for rank in range(self.n_ranks):
            with contextlib.suppress(ray.exceptions.RayActorError):  # the run has ended
                self.ask("leave", f"c{rank}", "")


def payload(handle: PackHandle) -> list[bytes]:
    return [bytes(part) for part in ray.get(handle.ref[0], timeout=60)[:2]]


@contextmanager
def running(
    cluster: RayCluster, settings: stoker.Settings, *, begins: bool = True, **ray_settings: Any
) -> Iterator[Run]:
    """A run that its clients leave at the end; nothing of it is left then."""
    with clean(cluster):
        run = Run(cluster, settings, **ray_settings)
        try:
            yield run.begin() if begins else run
        except BaseException:
            ray.kill(run.actor)
            raise
        run.leave()


@contextmanager
def clean(cluster: RayCluster) -> Iterator[None]:
    """What stands in the stores before stands there after, and no actor or process is left."""
    cluster.connect()
    before = cluster.store_bytes()
    yield
    cluster.settle(n_bytes=before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataSet, Path]:
    folder = tmp_path_factory.mktemp("actors")
    return good_data(folder / "data", 40), folder


@pytest.fixture
def settings(data: tuple[DataSet, Path], tmp_path: Path) -> stoker.Settings:
    made, folder = data
    return settings_for(made, folder).replace(index_dir=str(tmp_path / "index"))


def ray_digests(settings: stoker.Settings, n_steps: int | None, n_ranks: int = 2, **more: Any) -> list[list[list[str]]]:
    """By rank, of loaders that get their batches from the cluster; all in this process."""
    run = {"run": f"actors{os.getpid()}-{next(_numbers)}", **more}
    on_ray = settings.replace(ray=run)
    with ThreadPoolExecutor(n_ranks) as pool:
        return list(pool.map(lambda rank: digests(on_ray, n_steps, dp_rank=rank, dp_size=n_ranks), range(n_ranks)))


def test_photographs_come_as_from_the_loader_alone(ray_cluster: RayCluster, tmp_path: Path) -> None:
    photos = DataSet(tmp_path / "photos")
    names = [photos.image(path.name, path.read_bytes()) for path in sorted(PHOTOS.iterdir())]
    for n in range(24):
        photos.chat(n, [names[n % len(names)]] if n % 3 else [])
    settings = settings_for(photos.write(), tmp_path).replace(
        pack={"tokens_per_pack": 2048, "packs_per_step": 4}, bad_samples={"max_fraction": 0.9}, epochs=2, shuffle="none"
    )
    alone = [digests(settings, dp_rank=rank, dp_size=2) for rank in (0, 1)]
    assert sum(len(step) for rank in alone for step in rank) >= 8
    with clean(ray_cluster):
        assert ray_digests(settings, None) == alone


def test_a_sample_that_kills_its_worker_twice_is_given_up_and_no_other(ray_cluster: RayCluster, tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 16)
    marked = data.image("marked.png", encoded(Image.new("RGB", (256, 256), ray_user_functions.MARK), "PNG"))
    line = data.chat(99, [marked])
    data.write()
    base = settings_for(data, tmp_path).replace(epochs=1, shuffle="none", bad_samples={"max_fraction": 0.9})

    def with_code(name: str, where: str) -> stoker.Settings:
        return base.replace(
            user_code={"picture": f"ray_user_functions:{name}", "version": "1"}, index_dir=str(tmp_path / where)
        )

    alone = with_code("refusing", "alone")
    wanted = [digests(alone, dp_rank=rank, dp_size=2) for rank in (0, 1)]
    assert [entry["line"] for entry in ledger(alone)] == [line]
    on_ray = with_code("deadly", "on_ray")
    with clean(ray_cluster):
        assert ray_digests(on_ray, None) == wanted
    (entry,) = ledger(on_ray)
    assert (entry["code"], entry["line"]) == ("WORKER_KILLED", line)
    assert "2 workers died that prepared only this sample" in entry["message"]


def test_what_ends_a_run_ends_all_ranks_at_one_step(ray_cluster: RayCluster, tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 24)
    damaged = encoded(picture(256, 256, 7), "JPEG")
    data.chat(99, [data.image("damaged.jpg", damaged[: len(damaged) * 2 // 3])])
    settings = settings_for(data.write(), tmp_path).replace(
        shuffle="none",
        epochs=3,
        bad_samples={"policy": "stop", "max_fraction": 0.9},
        speed={"cpu_threads": 2, "prefetch_steps": 16, "memory_limit": "256MiB"},
    )
    has_ended = threading.Event()
    on_ray = settings.replace(ray={"run": f"actors{os.getpid()}-{next(_numbers)}"})

    def until_the_end(rank: int) -> tuple[int, str, dict[str, Any]]:
        n_steps = 0
        with stoker.Loader(on_ray, dp_rank=rank, dp_size=2) as loader:
            try:
                for _ in loader.steps():
                    n_steps += 1
                    if rank == 1:  # the slower one
                        assert has_ended.wait(60)
            except stoker.BadSampleError as error:
                has_ended.set()
                with warnings.catch_warnings(action="ignore"):  # the state may be inside a step
                    return n_steps, error.code, loader.state_dict()
        raise AssertionError("the run did not end")

    with clean(ray_cluster), ThreadPoolExecutor(2) as pool:
        first, second = pool.map(until_the_end, (0, 1))
    assert first == second
    assert first[0] == first[2]["step"] > 0
    assert first[1] == "IMG_TRUNCATED"


def test_what_differs_between_ranks_ends_the_run_for_all(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    with running(ray_cluster, settings, begins=False) as run:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(run.until, "hello", run.hello(0))
            until(lambda: bool(run.status()["clients"]), "rank 0 is here")
            second = run.until("hello", run.hello(1, settings_hash={"seed": "2"}))
            for answer in (first.result(60), second):
                assert isinstance(answer, Ended)
                with pytest.raises(stoker.InvalidArgumentError, match="PLAN_MISMATCH: `seed` of the settings differs"):
                    raise answer.error()


def test_a_process_of_another_attempt_is_told_to_look_again(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    with running(ray_cluster, settings) as run:
        answer = run.ask("hello", run.hello(1, client_id="of the next attempt"))
        assert isinstance(answer, NotYet)
        assert answer.is_stale


def test_a_status_says_what_a_rank_waits_for_and_where_it_is(
    ray_cluster: RayCluster, settings: stoker.Settings
) -> None:
    with running(ray_cluster, settings, workers=1) as run:
        handles = run.take(0, 0)
        assert isinstance(handles, StepHandles)
        del handles
        (worker,) = run.status()["workers"]
        os.kill(worker["pid"], signal.SIGSTOP)
        try:
            # Behind all that may have been made before it was stopped.
            answers: list[Any] = []
            waiting = threading.Thread(target=lambda: answers.append(_take_on(run)))
            waiting.start()
            said = f"being made by worker {worker['worker']} (host {worker['host']}, node {worker['node'][:8]}, pid "

            def late() -> list[dict[str, Any]]:
                return [client for client in run.status()["clients"] if said in client["waits_for"]]

            until(lambda: bool(late()), lambda: str(run.status()), 30)
            for client in late():
                assert (client["node"], client["host"]) == (run.nodes[client["rank"]], f"host{client['rank']}")
        finally:
            os.kill(worker["pid"], signal.SIGCONT)
        waiting.join(60)
        assert answers


def _take_on(run: Run) -> int:
    """Takes with all ranks, a step after the other, for so long that something must be made meanwhile."""
    taken = [0] * run.n_ranks
    for step in range(12):
        for rank in range(run.n_ranks):
            while taken[rank] < 2 * (step + 1):
                handles = run.take(rank, taken[rank], step=step)
                assert isinstance(handles, StepHandles), handles
                taken[rank] += len(handles.packs)
                del handles
    return sum(taken)


def test_a_lost_payload_is_made_again_once_and_is_the_same(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    with running(ray_cluster, settings) as run:
        (first, *_) = run.take(0, 0).packs
        was = payload(first)
        again = run.until("again", "c0", 0, first.attempt, "a test")
        assert isinstance(again, PackHandle)
        assert (again.number, again.attempt, again.delivery) == (0, first.attempt + 1, first.delivery)
        assert payload(again)[0] == was[0]
        assert len(payload(again)[1]) > 0
        # A peer that lost the same one gets what was made for the first.
        third = run.until("again", "c0", 0, first.attempt, "a test")
        assert third.attempt == again.attempt
        counters = run.status()["counters"]
        assert counters["payloads_lost"] == 1
        del first, again, third, _


def test_by_value_the_payload_comes_through_the_coordinator_and_only_then(
    ray_cluster: RayCluster, settings: stoker.Settings
) -> None:
    with running(ray_cluster, settings, handover="value") as run:
        by_value = run.until("take_value", "c0", 0, 0, 0).packs
        seen = run.status()["counters"]["payload_bytes_seen"]
        assert seen >= sum(len(p.payload[0]) + len(p.payload[1]) for p in by_value) > 0
        by_reference = run.take(0, 0).packs
        assert not by_value[0].ref
        assert payload(by_reference[0]) == list(map(bytes, by_value[0].payload))
        assert run.status()["counters"]["payload_bytes_seen"] == seen
        del by_value, by_reference


def test_a_slow_trainer_never_fills_the_stores(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    deep = settings.replace(speed={"cpu_threads": 2, "prefetch_steps": 64, "memory_limit": "256MiB"})
    limit = 4_000_000
    ray_cluster.connect()
    spilled = sum(use.spilled_bytes for use in ray_cluster.store().values())
    before = ray_cluster.store_bytes()
    with running(ray_cluster, deep, store_limit=limit) as run:
        until(lambda: run.status()["counters"].get("held_back_by_store_limit", 0) > 0, lambda: str(run.status()), 20)
        until(lambda: run.status()["packs"]["running"] == 0, "what was begun is made", 60)
        packs = run.status()["packs"]
        assert packs["waiting"] > 20, "the plan goes on for 64 steps"
        assert packs["store_bytes"] <= limit
        assert ray_cluster.store_bytes() - before <= 1.2 * limit
        assert sum(use.spilled_bytes for use in ray_cluster.store().values()) == spilled


def test_a_rank_that_is_silent_ends_the_run_with_its_name(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    with running(ray_cluster, settings, rank_timeout_s=3.0) as run:
        answer: Any = None

        def told() -> bool:
            nonlocal answer
            answer = run.ask("beat", Beat(client_id="c0", step=0))
            return answer is not None

        until(told, "the run ends", 30)
        assert isinstance(answer, Ended)
        with pytest.raises(stoker.UnavailableError, match=r"RANK_LOST: nothing was heard of rank 1 \(host host1"):
            raise answer.error()
        taken = run.ask("take", "c0", 0, 0, 0)
        assert taken == answer, "the same reason for all that ask"


def test_workers_end_with_their_coordinator(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    with running(ray_cluster, settings) as run:
        until(lambda: all(w["pid"] for w in run.status()["workers"]), "the workers are open", 60)
        pids = [w["pid"] for w in run.status()["workers"]]
        ray.kill(run.actor)
        until(lambda: not any(map(is_alive, pids)), "the workers end", 30)


def test_credentials_stand_nowhere_in_the_cluster(ray_cluster: RayCluster, settings: stoker.Settings) -> None:
    secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
    with_keys = settings.replace(storage={"access_key_id": "AKIAIOSFODNN7EXAMPLE", "secret_access_key": secret})
    with running(ray_cluster, with_keys) as run:
        run.take(0, 0)
        assert secret not in str(run.status())
    found = [
        str(path)
        for path in ray_cluster.folder.rglob("*")
        if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes()
    ]
    assert found == []
