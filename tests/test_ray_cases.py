"""Trouble that people reported with data and Ray, on a real cluster."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

import ray
from loader_data import DataSet, digests, good_data, ledger, settings_for
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_cluster import RayCluster, until
from stoker import Loader, Settings, StokerError
from stoker.ray.protocol import Ended
from test_error_cases import EVERY, MESSAGE, Ungiving, raise_error

runs = itertools.count()


def on_ray(settings: Settings, **more: Any) -> Settings:
    """The same run on the session's cluster."""
    run = f"cases{os.getpid()}-{next(runs)}"
    return settings.replace(ray={"run": run, "rank_timeout_s": 10.0, **more})


# --- LDR-01


@pytest.mark.soak
def test_a_store_on_a_disk_is_told(ray_cluster: RayCluster, tmp_path: Path, caplog: Any) -> None:
    ray_cluster.connect()
    settings = settings_for(good_data(tmp_path / "data", 24, sizes=True), tmp_path)
    expected = digests(settings, 3)
    folder = Path(tempfile.mkdtemp(prefix="stoker-store-", dir=tmp_path))
    with ray_cluster.extra_node(plasma_directory=str(folder), num_cpus=3) as node:
        trainer = on_node(Trainer, node.node_id)
        told = ray.get(trainer.run.remote(on_ray(settings, placement="local"), 0, 1, 3), timeout=90)
        assert told["digests"] == expected
        (said,) = [line for line in told["log"] if "lie on a disk" in line]
        assert str(folder) in said
        assert "--shm-size" in said
        del trainer
    ray_cluster.settle()


class _Trainer:
    """A rank in an actor, which runs on the node that a test wants."""

    def run(self, settings: Settings, rank: int, size: int, n_steps: int, *, n_workers: int = 1) -> dict[str, Any]:
        """Takes steps; the second when so many workers are ready. `later_packs` are those of the last three steps."""
        log: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("stoker").addHandler(handler)
        logging.getLogger("stoker").setLevel(logging.INFO)
        digests: list[list[str]] = []
        with Loader(settings, dp_rank=rank, dp_size=size) as loader:
            early: dict[str, Any] = {}
            for step in loader.steps():
                digests.append([batch.digest() for batch in step])
                report = loader.report().to_dict()["ray"]
                coordinator = ray.get_actor(report["coordinator"], namespace="stoker")
                if len(digests) == 1:
                    until(lambda: n_ready(coordinator) >= n_workers, "workers open", 60)  # noqa: B023
                if len(digests) == n_steps - 3:
                    early = report
                if len(digests) == n_steps:
                    break
            status = ray.get(coordinator.status.remote(), timeout=20)
        later = {name: report[name] - early[name] for name in ("local_packs", "network_packs")} if early else {}
        return {"digests": digests, "log": log, "ray": report, "later_packs": later, "status": status}

    def fail(self, kind: type[StokerError], code: str) -> None:
        raise_error(kind, code)

    def give(self) -> Ungiving:
        return Ungiving()

    def take(self, given: Any) -> str:
        return repr(given)


def n_ready(coordinator: Any) -> int:
    workers = ray.get(coordinator.status.remote(), timeout=20)["workers"]
    return sum(worker["state"] == "ready" for worker in workers)


Trainer: Any = ray.remote(num_cpus=0)(_Trainer)


def on_node(actor_class: Any, node_id: str) -> Any:
    return actor_class.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()


# --- LDR-06


def slow_training(cluster: RayCluster, scratch: Path, n_steps: int) -> int:
    """Steps of up to 12 MB with stores of 120 MB, 50 of them wanted ahead; returns the most that lay in the stores."""
    data = good_data(scratch / "data", 60)
    pack = {"tokens_per_pack": 1024, "packs_per_step": 4}
    settings = settings_for(
        data, scratch, pack=pack, window_samples=64, speed={"memory_limit": "256MiB", "prefetch_steps": 50}
    )
    spilled = {node_id: use.spilled_bytes for node_id, use in cluster.store().items()}
    expected = digests(settings, n_steps)
    got, most = [], 0
    with Loader(on_ray(settings, store_limit="32MiB")) as loader:
        for step in loader.steps():
            got.append([batch.digest() for batch in step])
            del step
            if len(got) == n_steps:
                break
            most = max(most, until_nothing_moves(cluster))
    assert got == expected
    assert {node_id: use.spilled_bytes for node_id, use in cluster.store().items()} == spilled
    return most


def until_nothing_moves(cluster: RayCluster) -> int:
    """Bytes in the stores, once the workers have come to a stop: as slow as a trainer can be."""
    seen, since = -1, time.monotonic()
    while time.monotonic() < since + 0.3:
        if seen != (now := cluster.store_bytes()):
            seen, since = now, time.monotonic()
        time.sleep(0.02)
    return seen


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_slow_trainer_of_2000_samples_never_fills_the_store(ray_cluster: RayCluster, tmp_path: Path) -> None:
    ray_cluster.connect()
    most = slow_training(ray_cluster, tmp_path, 160)
    print(f"{most / 1e6:.0f} MB in the stores at most")
    assert most <= 2 * ((32 << 20) + 13_000_000)
    ray_cluster.settle()


# --- LDR-08


@pytest.mark.case("LDR-08", "a sample that kills its worker twice, alone, is WORKER_KILLED; the run goes on")
def test_a_sample_that_kills_its_worker_is_given_up(
    ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_cluster.connect()
    data = DataSet(tmp_path / "data")
    for n in range(12):
        height, width = (288, 352) if n == 5 else (256, 256)
        image = {"type": "image", "image": data.good_image(n, height=height, width=width)}
        data.chat(n, [{**image, "height": height, "width": width}])
    settings = settings_for(
        data.write(),
        tmp_path,
        epochs=1,
        user_code={"picture": "user_functions:deadly", "version": "1"},
        bad_samples={"max_fraction": 0.5},
    )
    with monkeypatch.context() as here:
        here.setenv("STOKER_TEST_MERELY_RAISES", "1")
        expected = digests(settings.replace(bad_samples={"max_fraction": 0.5, "ledger": str(tmp_path / "here.jsonl")}))
    with Loader(on_ray(settings, workers=1)) as loader:
        got = [[batch.digest() for batch in step] for step in loader.steps()]
        report = loader.report().to_dict()
    assert got == expected
    (line,) = ledger(settings)
    assert (line["line"], line["code"]) == (6, "WORKER_KILLED")
    assert report["bad_samples"] == {"WORKER_KILLED": 1}
    ray_cluster.settle()


# --- LDR-09


def check_each_node_has_a_worker(cluster: RayCluster, scratch: Path) -> None:
    """Each of its nodes hosts a rank."""
    nodes = [node.node_id for node in cluster.nodes]
    n = len(nodes)
    settings = settings_for(good_data(scratch / "data", 24, sizes=True), scratch)
    shared = on_ray(settings)
    trainers = [on_node(Trainer, node_id) for node_id in nodes]
    told = ray.get([t.run.remote(shared, rank, n, 9, n_workers=n) for rank, t in enumerate(trainers)], timeout=120)
    assert [each["digests"] for each in told] == [digests(settings, 9, dp_rank=rank, dp_size=n) for rank in range(n)]
    assert sorted(worker["node"] for worker in told[0]["status"]["workers"]) == sorted(nodes)
    assert {each["ray"]["choices"]["placement"] for each in told} == {"local"}
    # What was made before all workers were open came from those that were.
    assert [each["later_packs"]["network_packs"] for each in told] == [0] * n
    assert min(each["later_packs"]["local_packs"] for each in told) > 0
    planned = "\n".join(line for line in told[0]["log"] if line.startswith("ray: "))
    assert f"{n} workers, placement local" in planned


@pytest.mark.case("LDR-09", "one worker on each, whose packs cross no network; rank 0 logs the plan")
def test_each_node_with_ranks_has_a_worker(ray_cluster: RayCluster, tmp_path: Path) -> None:
    ray_cluster.connect()
    check_each_node_has_a_worker(ray_cluster, tmp_path)
    ray_cluster.settle()


@pytest.mark.soak
def test_each_of_four_nodes_with_ranks_has_a_worker(ray_cluster: RayCluster, tmp_path: Path) -> None:
    ray_cluster.connect()
    with ray_cluster.extra_node(), ray_cluster.extra_node():
        check_each_node_has_a_worker(ray_cluster, tmp_path)
    ray_cluster.settle()


# --- LDR-20


@pytest.mark.case("LDR-20", "every error comes out of a Ray actor with code and message, and is caught by its class")
def test_every_error_comes_whole_out_of_an_actor(ray_cluster: RayCluster) -> None:
    ray_cluster.connect()
    actor = Trainer.remote()
    for (kind, code), ref in [(each, actor.fail.remote(*each)) for each in EVERY]:
        with pytest.raises(kind) as raised:
            ray.get(ref, timeout=30)
        error = raised.value
        cause = getattr(error, "cause", error)
        assert (type(cause), cause.code, cause.message) == (kind, code, MESSAGE)
        assert (error.code, error.message) == (code, MESSAGE)
        # What the actors of a run say to each other.
        told = ray.get(ray.put(Ended.of(kind(MESSAGE, code)))).error()
        assert (type(told), told.code, told.message) == (kind, code, MESSAGE)
    del actor
    ray_cluster.settle()


@pytest.mark.case("LDR-20", "what cannot be handed to an actor, or by one, is an error within 5 s")
def test_a_hand_over_that_fails_is_an_error_at_once(ray_cluster: RayCluster, tmp_path: Path) -> None:
    ray_cluster.connect()
    actor = Trainer.remote()
    ray.get(actor.take.remote(1), timeout=60)
    began = time.monotonic()
    with pytest.raises(Exception, match="this has a socket in it"):
        ray.get(actor.give.remote(), timeout=5)
    with Loader(settings_for(good_data(tmp_path / "data", 8), tmp_path)) as loader:
        for given, what in ((loader, "a loader cannot be pickled"), (next(loader), "a batch cannot be pickled")):
            with pytest.raises(Exception, match=what):
                ray.get(actor.take.remote(given), timeout=5)
    assert time.monotonic() - began < 5
    del actor
    ray_cluster.settle()
