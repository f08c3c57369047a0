"""Batches from a cluster: those of the trainer's own process, wherever the trainer runs, and nothing is left behind."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import stoker
import yaml
from loader_data import DataSet, digests, engine_threads, good_data, settings_for
from stoker import Loader, Settings, Topology

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

from ray_cluster import RayCluster, is_alive, until  # noqa: E402
from stoker.ray.views import StoreMap  # noqa: E402

PLANTED = "sesame-open-7b1e"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("ray") / "data", 56)


@pytest.fixture(scope="module")
def alone(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings without a cluster."""
    return settings_for(data, tmp_path_factory.mktemp("scratch"), epochs=1)


@pytest.fixture(scope="module")
def expected(alone: Settings) -> list[list[str]]:
    """What comes out, by steps."""
    steps = digests(alone)
    assert len(steps) > 6
    return steps


@pytest.fixture
def cluster(ray_cluster: RayCluster) -> Iterator[RayCluster]:
    """Held to be left as it was: no actor, no object, no thread."""
    ray_cluster.connect()
    yield ray_cluster
    gc.collect()
    ray_cluster.settle()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("stoker")]
    assert not engine_threads()


@contextmanager
def loaders(settings: Settings, topologies: list[Topology]) -> Iterator[list[Loader]]:
    made = [Loader(settings, topology=topology) for topology in topologies]
    try:
        yield made
    finally:
        for loader in made:
            loader.close()


def at_once(work: Callable[[Loader], Any], made: list[Loader]) -> list[Any]:
    """Ranks take their batches side by side, since each waits for all."""
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(work, made))


def steps_of(loader: Loader, n: int | None = None) -> list[list[str]]:
    return [[batch.digest() for batch in step] for step in itertools.islice(loader.steps(), n)]


def test_one_line_of_settings_moves_a_run_to_a_cluster(
    cluster: RayCluster, alone: Settings, expected: list[list[str]], tmp_path: Path
) -> None:
    text = yaml.safe_dump(alone.to_dict())
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("ray:"))
    here, there = tmp_path / "here.yaml", tmp_path / "there.yaml"
    here.write_text(text)
    there.write_text(text + "ray: auto\n")
    assert digests(Settings.load(here)) == expected
    with Loader(Settings.load(there)) as loader:
        step = next(loader.steps())
        first = next(batch for batch in step if batch.image_patches is not None)
        assert first.image_patches is not None
        assert StoreMap().has(first.image_patches.reshape(-1)), "a view of the node's store"
        assert loader.describe(int(first.layout.sample_ids[0])).manifest == str(alone.data[0].manifest)
        assert [[b.digest() for b in step], *steps_of(loader)] == expected
        del step, first
        told, printed = loader.report().to_dict()["ray"], str(loader.report())
    assert sum(told["waits_s"].values()) > 0, "nothing was ready at first"
    assert told["choices"]["placement"] == "local"
    assert told["choices"]["retrieval"] == "lazy"
    assert "packs are made where they are used" in told["why"]["placement"]
    assert told["packs"] == told["mapped_packs"] == sum(map(len, expected))
    assert told["copied_bytes"] == told["asked_again"] == 0
    assert told["copies_per_pack"] <= 2
    assert told["local_packs"] == told["packs"], "placed on the rank's own node"
    assert "1 workers with 1 CPUs each, local; hand-over by reference, retrieval lazy" in printed


def test_ranks_get_what_they_get_without_a_cluster(cluster: RayCluster, alone: Settings) -> None:
    on_ray = alone.replace(ray={"run": "ranks"})
    with loaders(on_ray, [Topology(dp_rank=r, dp_size=2) for r in range(2)]) as made:
        got = at_once(steps_of, made)
    with loaders(alone, [Topology(dp_rank=r, dp_size=2) for r in range(2)]) as made:
        assert got == at_once(steps_of, made)


def test_peers_share_one_copy_in_their_nodes_store(
    cluster: RayCluster, alone: Settings, expected: list[list[str]]
) -> None:
    on_ray = alone.replace(ray={"run": "peers", "placement": "local"})
    with loaders(on_ray, [Topology(peer_rank=k, peer_count=3, job="peers") for k in range(3)]) as made:
        first = at_once(lambda loader: next(loader.steps()), made)
        assert [[b.digest() for b in step] for step in first] == [expected[0]] * 3
        rest = at_once(steps_of, made)
        assert rest == [expected[1:]] * 3
        # All packs are taken, and let go of but for the first step's.
        n_bytes = sum(batch.image_patches.nbytes for batch in first[0] if batch.image_patches is not None)
        del first[1:]
        n_packs = len(first[0])
        until(lambda: cluster.store_bytes() <= n_bytes + n_packs * 200_000, lambda: f"{cluster.store()}, {n_bytes}")
        del first
        told = [loader.report().to_dict()["ray"] for loader in made]
    assert all(t["packs"] == t["mapped_packs"] == sum(map(len, expected)) for t in told)


ABLATION = list(itertools.product(["reference", "value"], ["lazy", "eager"], ["local", "pack", "spread"]))
SHORT = [ABLATION[i] for i in (4, 11)]  # what no other test here has: eager, by value, workers on one or all nodes


def check_ablation(cluster: RayCluster, alone: Settings, expected: list[list[str]], *chosen: str) -> None:
    handover, retrieval, placement = chosen
    on_ray = alone.replace(ray={"handover": handover, "retrieval": retrieval, "placement": placement})
    with Loader(on_ray) as loader:
        assert steps_of(loader) == expected
        told = loader.report().to_dict()["ray"]
    assert (told["choices"]["handover"], told["choices"]["retrieval"]) == (handover, retrieval)
    if retrieval == "eager":
        assert told["mapped_packs"] == 0
        assert told["copied_bytes"] > 0
    elif handover == "reference":
        assert told["mapped_packs"] == told["packs"]
    assert told["local_packs"] + told["network_packs"] == told["packs"] == sum(map(len, expected))


@pytest.mark.parametrize("chosen", SHORT, ids="-".join)
def test_no_choice_changes_a_batch(
    cluster: RayCluster, alone: Settings, expected: list[list[str]], chosen: tuple[str, str, str]
) -> None:
    check_ablation(cluster, alone, expected, *chosen)


@pytest.mark.soak
@pytest.mark.parametrize("chosen", [c for c in ABLATION if c not in SHORT], ids="-".join)
def test_no_choice_changes_a_batch_all(
    cluster: RayCluster, alone: Settings, expected: list[list[str]], chosen: tuple[str, str, str]
) -> None:
    check_ablation(cluster, alone, expected, *chosen)


def test_a_state_goes_on_in_and_out_of_a_cluster(
    cluster: RayCluster, alone: Settings, expected: list[list[str]]
) -> None:
    on_ray = alone.replace(ray={})
    with Loader(alone) as loader:
        assert steps_of(loader, 2) == expected[:2]
        state = json.loads(json.dumps(loader.state_dict()))
    with Loader(on_ray) as loader:
        loader.load_state_dict(state, expect_step=2)
        assert steps_of(loader, 2) == expected[2:4]
        state = json.loads(json.dumps(loader.state_dict()))
        ahead = loader.state_for(steps=3)
    for saved, step in ((state, 4), (ahead, 3)):
        with Loader(alone) as loader:
            loader.load_state_dict(saved, expect_step=step)
            assert steps_of(loader) == expected[step:]
    with Loader(on_ray.replace(seed=99)) as loader, pytest.raises(stoker.InvalidArgumentError, match="seed"):
        loader.load_state_dict(state)


def test_packs_without_pictures_are_mapped_too(cluster: RayCluster, tmp_path: Path) -> None:
    texts = DataSet(tmp_path / "texts")
    for n in range(24):
        texts.chat(n, [], answer=f"Number {n}.")
    alone = settings_for(texts.write(), tmp_path, epochs=1)
    with Loader(alone.replace(ray={})) as loader:
        assert steps_of(loader) == digests(alone)
        told = loader.report().to_dict()["ray"]
    assert told["packs"] == told["mapped_packs"] > 0
    assert told["copied_bytes"] == 0


def test_a_lost_coordinator_ends_the_run_with_a_state_to_go_on_from(
    cluster: RayCluster, alone: Settings, expected: list[list[str]]
) -> None:
    on_ray = alone.replace(ray={"run": "lost"})
    with Loader(on_ray) as loader:
        got = steps_of(loader, 2)
        pids = [actor["Pid"] for actor in cluster.actors() if actor["Name"].startswith("stoker-lost-")]
        assert len(pids) == 1
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(stoker.UnavailableError, match="resume from the last checkpoint") as raised:
            got.extend([batch.digest() for batch in step] for step in loader.steps())
        assert raised.value.code == "COORDINATOR_LOST"
        state = loader.state_dict()
    assert got == expected[: len(got)], "what came before the end is whole steps of the run"
    assert state["step"] == len(got)
    with Loader(on_ray) as loader:
        loader.load_state_dict(state)
        assert steps_of(loader) == expected[len(got) :]


def test_a_loader_that_is_dropped_or_forked_leaves_nothing(cluster: RayCluster, alone: Settings) -> None:
    loader = Loader(alone.replace(ray={}))
    batch = next(loader)
    digest = batch.digest()
    pid = os.fork()
    if pid == 0:  # the child: no thread of the parent's is here
        code = 1
        try:
            loader.describe(0)
        except stoker.InvalidArgumentError as error:
            code = 0 if error.code == "FORKED" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(stoker.InvalidArgumentError, match="cannot be pickled"):
        loader.__getstate__()
    del loader
    gc.collect()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("stoker-ray")]
    assert batch.digest() == digest, "a batch outlives its loader"
    del batch


def test_a_new_attempt_waits_for_the_end_of_the_one_before(
    cluster: RayCluster, alone: Settings, expected: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no launcher counts attempts, both have one name."""
    from stoker.ray import meeting
    from stoker.ray.coordinator import create
    from stoker.ray.protocol import Hello

    monkeypatch.setattr(meeting, "coordinator_name", lambda *_: "stoker-twice")
    on_ray = alone.replace(outage_limit_s=60.0, ray={"rank_timeout_s": 1.0})
    before = create("stoker-twice")
    node_id = ray.get_runtime_context().get_node_id()
    killed = Hello(
        client_id="killed",
        dp_rank=0,
        dp_size=1,
        peer_rank=0,
        peer_count=1,
        node_id=node_id,
        host="h",
        pid=1,
        settings_hash=meeting.settings_hash(on_ray),
        version=version("stoker"),
    )
    assert ray.get(before.open.remote(on_ray, on_ray.ray), timeout=60) is None
    ray.get(before.hello.remote(killed), timeout=60)
    del before
    with Loader(on_ray) as loader:
        assert steps_of(loader, 2) == expected[:2]


def test_a_rank_without_rank_0_says_whom_it_waits_for(cluster: RayCluster, alone: Settings) -> None:
    on_ray = alone.replace(outage_limit_s=1.0, ray={"run": "nobody", "rank_timeout_s": 1.0})
    with Loader(on_ray, dp_rank=1, dp_size=2) as loader:
        with pytest.raises(stoker.UnavailableError, match="Is rank 0 there, with the same settings") as raised:
            next(loader)
        assert raised.value.code == "COORDINATOR_LOST"


def test_secrets_are_in_no_log_report_or_name(cluster: RayCluster, alone: Settings, tmp_path: Path) -> None:
    on_ray = alone.replace(
        storage={"secret_access_key": PLANTED, "access_key_id": "AKIAPLANTED", "session_token": PLANTED},
        ray={"run": "secret", "runtime_env": {"env_vars": {"STOKER_TEST_PLANTED": PLANTED}}},
    )
    with Loader(on_ray) as loader:
        next(loader)
        actors = str(cluster.actors())
        assert "stoker-secret-" in actors
        told = json.dumps(loader.report().to_dict(), default=str)
        coordinator = ray.get_actor(loader.report().to_dict()["ray"]["coordinator"], namespace="stoker")
        status = json.dumps(ray.get(coordinator.status.remote(), timeout=20), default=str)
        del coordinator
    assert PLANTED not in actors + told + status + repr(on_ray)
    logs = [path for path in cluster.folder.rglob("*") if path.is_file() and not path.is_socket()]
    assert logs, "nothing is tested"
    planted = [path.name for path in logs if PLANTED.encode() in path.read_bytes()]
    assert [name for name in planted if "runtime_env" not in name] == []


# --- trainers that Ray did not start


class Ranks:
    """Processes as torchrun starts them."""

    def __init__(self, settings: Settings, folder: Path, n: int, *, steps: int = -1, tp: int = 1) -> None:
        file = folder / "run.yaml"
        file.write_text(yaml.safe_dump(settings.to_dict()))
        self.out = [folder / f"rank{r}.jsonl" for r in range(n)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "ray_rank.py"), str(file), str(self.out[r]), str(steps)],
                env={
                    **os.environ,
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                    "WORLD_SIZE": str(n),
                    "LOCAL_WORLD_SIZE": str(n),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(20000 + os.getpid() % 10000),
                    "TORCHELASTIC_RUN_ID": folder.name,
                    "STOKER_TEST_TP": str(tp),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for r in range(n)
        ]

    def told(self, rank: int) -> list[Any]:
        """What a rank has written so far."""
        return [json.loads(line) for line in self.out[rank].read_text().splitlines()] if self.out[rank].exists() else []

    def until_they_wait(self) -> None:
        until(
            lambda: all("waits" in self.told(r) for r in range(len(self.out))),
            lambda: f"{[self.told(r) for r in range(len(self.out))]}",
            60,
        )

    def end(self, timeout_s: float = 60) -> list[str]:
        """What each printed."""
        try:
            return [p.communicate(timeout=timeout_s)[0].decode() for p in self.processes]
        finally:
            for p in self.processes:
                p.kill()


def test_trainers_that_ray_did_not_start_connect_to_the_cluster(
    cluster: RayCluster, alone: Settings, tmp_path: Path
) -> None:
    ranks = Ranks(alone.replace(ray={}), tmp_path, 2)
    with loaders(alone, [Topology(dp_rank=r, dp_size=2) for r in range(2)]) as made:
        here = at_once(steps_of, made)
    printed = ranks.end()
    for rank in range(2):
        *steps, last = ranks.told(rank)
        assert steps == here[rank], printed
        assert last["ray"]["packs"] == sum(map(len, steps))
    assert printed == ["", ""], "Ray prints nothing into a trainer's output"


def test_ctrl_c_ends_a_trainer_within_a_second_and_a_killed_one_leaves_nothing(
    cluster: RayCluster, alone: Settings, tmp_path: Path
) -> None:
    slack_s = 1.5 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))  # the interpreter's own end, and Ray's
    signals = (signal.SIGINT, signal.SIGKILL)
    for number in signals:
        (tmp_path / number.name).mkdir()
    runs = [
        Ranks(alone.replace(epochs=None, ray={"rank_timeout_s": 2.0}), tmp_path / number.name, 1, steps=2)
        for number in signals
    ]
    for number, ranks in zip(signals, runs, strict=True):
        ranks.until_they_wait()
        assert cluster.actors()
        began = time.monotonic()
        ranks.processes[0].send_signal(number)
        ranks.processes[0].wait(timeout=20)
        assert time.monotonic() - began < 1.0 + slack_s
        printed = ranks.end()[0]
        if number == signal.SIGINT:
            assert printed.rstrip().endswith("KeyboardInterrupt")
        assert not is_alive(ranks.processes[0].pid)


# --- trainers that Ray started, on several nodes


class Trainer:
    """A process of a trainer, as an actor."""

    def run(self, settings: dict[str, Any], topology: Topology) -> tuple[list[list[str]], dict[str, Any]]:
        """Digests by steps, and what is told of the cluster."""
        with Loader(Settings.from_dict(settings), topology=topology) as loader:
            return steps_of(loader), loader.report().to_dict()["ray"]


def test_each_nodes_ranks_are_served_there_and_peers_on_two_nodes_get_each_pack_once(
    cluster: RayCluster, alone: Settings, expected: list[list[str]]
) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    trainers = [
        ray.remote(Trainer)
        .options(num_cpus=1, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False))
        .remote()
        for node in cluster.nodes
    ]

    def run(topologies: list[Topology], **ray_settings: Any) -> list[Any]:
        values = alone.replace(ray=ray_settings).to_dict()
        calls = [t.run.remote(values, topology) for t, topology in zip(trainers, topologies, strict=True)]
        return list(ray.get(calls, timeout=120))

    ranks = run([Topology(dp_rank=r, dp_size=2) for r in range(2)], run="ranks-by-node")
    with loaders(alone, [Topology(dp_rank=r, dp_size=2) for r in range(2)]) as made:
        assert [steps for steps, _ in ranks] == at_once(steps_of, made)
    for _, told in ranks:
        assert told["choices"]["placement"] == "local"
        assert told["choices"]["workers"] == 2
    n_packs = sum(map(len, expected))
    peers = run([Topology(peers_in_all=2)] * 2, run="peers-by-node", placement="pack", workers=1)
    assert [steps for steps, _ in peers] == [expected] * 2
    assert sorted(told["network_packs"] for _, told in peers) == [0, n_packs]
    for trainer in trainers:
        ray.kill(trainer)
