"""Whatever is killed, whenever: the batches are those of the run that nobody disturbed, and nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

import ray
from loader_data import good_data, settings_for
from ray_cluster import RayCluster, RayNode, is_alive, until
from stoker import Loader, Settings

SCRIPT = Path(__file__).with_name("ray_trainer.py")
N_RANKS = 2
N_STEPS = 40
STEP_S = 0.03
RANK_TIMEOUT_S = 3.0


class Trainer:
    """A rank's process; its lines are read as they come."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: bool(self._lines), "a trainer process is ready", 60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._lines.append(json.loads(line))
            except ValueError:  # cut off by a kill, or said by another
                self.said.append(line)

    def begin(self, settings: Settings, state: dict[str, Any] | None, step_s: float) -> None:
        self._lines.clear()
        order = {
            "settings": settings.to_dict(hide_secrets=False),
            "rank": self.rank,
            "size": N_RANKS,
            "state": state,
            "n_steps": N_STEPS,
            "step_s": step_s,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    @property
    def steps(self) -> dict[int, list[str]]:
        return {line["step"]: line["digests"] for line in list(self._lines) if "step" in line}

    @property
    def end(self) -> dict[str, Any] | None:
        return next((line for line in list(self._lines) if "end" in line), None)

    @property
    def state(self) -> dict[str, Any] | None:
        """The last one that it has told: a trainer's checkpoint."""
        return next((line["state"] for line in reversed(list(self._lines)) if "step" in line), None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdin is not None
        self.process.stdin.close()


class Trainers:
    """All ranks of a job, in processes that live on from run to run."""

    def __init__(self, settings: Settings, wanted: list[list[list[str]]]) -> None:
        self._settings, self._wanted = settings, wanted
        self._n_runs = 0
        with ThreadPoolExecutor(N_RANKS) as pool:
            self.ranks = list(pool.map(Trainer, range(N_RANKS)))

    def begin(self, state: dict[str, Any] | None = None, *, step_s: float = STEP_S, **changes: Any) -> None:
        """Each run has a name of its own, as a restarted job has."""
        self._n_runs += 1
        run = {
            "run": f"kills{os.getpid()}-{self._n_runs}",
            "rank_timeout_s": RANK_TIMEOUT_S,
            "placement": "spread",
            **changes,
        }
        for rank in self.ranks:
            rank.begin(self._settings.replace(ray=run), state, step_s)

    def replace(self, rank: int) -> None:
        self.ranks[rank].kill()
        self.ranks[rank] = Trainer(rank)

    def coordinator(self) -> Any:
        return ray.get_actor(self.coordinator_name(), namespace="stoker")

    def have_ended(self) -> bool:
        return all(rank.end is not None for rank in self.ranks)

    def coordinator_name(self) -> str:
        def names() -> list[str]:
            return [
                actor["name"]
                for actor in ray.util.list_named_actors(all_namespaces=True)
                if actor["name"].startswith(f"stoker-kills{os.getpid()}-{self._n_runs}-")
            ]

        until(lambda: len(names()) == 1, lambda: f"a coordinator: {names()}, {self.told()}", 60)
        return names()[0]

    def status(self) -> dict[str, Any]:
        """Of the coordinator; what it would say of nothing, if it has ended with the run."""
        try:
            return dict(ray.get(self.coordinator().status.remote(), timeout=20))
        except ray.exceptions.RayActorError:
            until(self.have_ended, self.told, 20)
            return {"workers": [], "counters": {}}

    def until_step(self, step: int) -> None:
        """Until rank 0 has got it."""
        until(lambda: step in self.ranks[0].steps or self.ranks[0].end is not None, self.told, 120)
        assert step in self.ranks[0].steps, self.told()

    def until_ended(self, *, but: int = -1) -> list[dict[str, Any]]:
        """How each rank's run ended, but for one that was killed."""
        ranks = [rank for rank in self.ranks if rank.rank != but]
        until(lambda: all(rank.end is not None for rank in ranks), self.told, 120)
        self.check()
        return [rank.end for rank in ranks if rank.end is not None]

    def check(self) -> None:
        """What has come so far is as it should be."""
        for rank in self.ranks:
            for step, digests in rank.steps.items():
                assert digests == self._wanted[rank.rank][step], f"rank {rank.rank}, step {step}"

    def checkpoint(self) -> dict[str, Any] | None:
        """Of the job: the last that all ranks have reached."""
        states = [rank.state for rank in self.ranks]
        if any(state is None for state in states):
            return None
        return min((state for state in states if state is not None), key=lambda state: int(state["step"]))

    def told(self) -> str:
        return "; ".join(f"rank {r.rank}: steps {sorted(r.steps)[-1:]}, end {r.end}" for r in self.ranks)

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()


@pytest.fixture(scope="module")
def run_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("ray_kills")
    return settings_for(good_data(folder / "data", 30, sizes=True), folder)


@pytest.fixture(scope="module")
def wanted(run_settings: Settings) -> list[list[list[str]]]:
    """Digests by rank and step of the run that nobody disturbs, without a cluster."""
    loaders = [Loader(run_settings, dp_rank=rank, dp_size=N_RANKS) for rank in range(N_RANKS)]
    ranks = [loader.steps() for loader in loaders]
    steps = [[[batch.digest() for batch in next(rank)] for rank in ranks] for _ in range(N_STEPS)]
    for loader in loaders:
        loader.close()
    return [[step[rank] for step in steps] for rank in range(N_RANKS)]


@pytest.fixture(scope="module")
def trainers(ray_cluster: RayCluster, run_settings: Settings, wanted: list[list[list[str]]]) -> Iterator[Trainers]:
    ray_cluster.connect()
    made = Trainers(run_settings, wanted)
    yield made
    made.close()


def somewhere(rng: random.Random, first: int = 0) -> int:
    return rng.randrange(first, N_STEPS - 8)


def pause(rng: random.Random) -> None:
    time.sleep(rng.random() * 0.15)  # no wait for anything: it spreads the kills


# --- what the run survives


def check_worker_kills(cluster: RayCluster, trainers: Trainers, seed: int, n_kills: int) -> None:
    rng = random.Random(seed)
    trainers.begin(workers=3)
    killed: set[int] = set()

    def alive() -> list[int]:
        return [w["pid"] for w in trainers.status()["workers"] if w["pid"] and w["pid"] not in killed]

    for step in sorted(rng.randrange(N_STEPS // 2) for _ in range(n_kills)):
        trainers.until_step(step)
        pause(rng)
        until(lambda: len(alive()) > 0, "a worker is there", 60)
        pid = rng.choice(alive())
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)

        def is_noticed() -> bool:
            return trainers.have_ended() or trainers.status()["counters"].get("died", 0) == len(killed)

        until(is_noticed, "the death is noticed", 30)
    ends = trainers.until_ended()
    assert [end["end"] for end in ends] == ["done"] * N_RANKS, ends
    assert all(len(rank.steps) == N_STEPS for rank in trainers.ranks)
    cluster.settle()


def test_killed_workers_change_nothing(ray_cluster: RayCluster, trainers: Trainers) -> None:
    check_worker_kills(ray_cluster, trainers, seed=1, n_kills=2)


def check_node_kills(cluster: RayCluster, trainers: Trainers, seed: int, n_late: int) -> None:
    """Nodes lose power: one while its workers start, then others on which packs are made, and lie."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        early, *late = (stack.enter_context(cluster.extra_node()) for _ in range(1 + n_late))
        trainers.begin(workers=2 * (2 + n_late), step_s=STEP_S if n_late == 1 else 0.1)  # a death takes 1.2 s to tell

        def kill(node: RayNode) -> None:
            coordinator = record_of(cluster, trainers.coordinator_name())
            assert coordinator["Address"]["NodeID"] == cluster.head.node_id, "rank 0's node"
            status = trainers.status()
            assert {client["node"] for client in status["clients"]} <= {cluster.head.node_id}
            assert node.node_id in {worker["node"] for worker in status["workers"]}
            pause(rng)
            cluster.kill_node(node)

        until(lambda: len(trainers.status()["workers"]) > 0, "workers start", 60)
        kill(early)
        share = N_STEPS // n_late
        for i, node in enumerate(late):
            trainers.until_step(i * share + rng.randrange(share - 12))
            assert not trainers.have_ended(), trainers.told()
            kill(node)
        ends = trainers.until_ended()
        assert [end["end"] for end in ends] == ["done"] * N_RANKS, ends
    assert all(len(rank.steps) == N_STEPS for rank in trainers.ranks)
    cluster.settle()


def test_killed_nodes_change_nothing(ray_cluster: RayCluster, trainers: Trainers) -> None:
    check_node_kills(ray_cluster, trainers, seed=1, n_late=1)


# --- what the run does not survive: it ends with the reason, and goes on from a state


def check_ends(cluster: RayCluster, trainers: Trainers, victim: str, seed: int, n_kills: int) -> None:
    """The run is begun, killed, and resumed from the job's last checkpoint, until it has been killed so often."""
    rng = random.Random(seed)
    state: dict[str, Any] | None = None
    for turn in range(n_kills + 1):
        trainers.begin(state, rank_timeout_s=RANK_TIMEOUT_S)
        if turn == n_kills:
            break
        at = 0 if state is None else int(state["step"])
        trainers.until_step(min(at + rng.randrange(N_STEPS // (n_kills + 1)), N_STEPS - 4))
        pause(rng)
        rank = rng.randrange(N_RANKS)
        began = time.monotonic()
        if victim == "coordinator":
            os.kill(int(record_of(cluster, trainers.coordinator_name())["Pid"]), signal.SIGKILL)
            ends = trainers.until_ended()
        else:
            trainers.ranks[rank].process.send_signal(signal.SIGKILL)
            ends = trainers.until_ended(but=rank)
        assert time.monotonic() - began < 20
        trainers.check()
        codes = {end["end"] for end in ends}
        assert codes <= {"COORDINATOR_LOST" if victim == "coordinator" else "RANK_LOST", "done"}, ends
        state = trainers.checkpoint() or state
        if victim == "rank":
            trainers.replace(rank)
        if state is not None and int(state["step"]) >= N_STEPS:
            state = None  # it came to its end: once more from the beginning
    ends = trainers.until_ended()
    assert [end["end"] for end in ends] == ["done"] * N_RANKS, ends
    at = 0 if state is None else int(state["step"])
    assert all(sorted(rank.steps) == list(range(at, N_STEPS)) for rank in trainers.ranks)
    cluster.settle()


def record_of(cluster: RayCluster, name: str) -> dict[str, Any]:
    return next(actor for actor in cluster.actors() if actor["Name"] == name)


@pytest.mark.parametrize("victim", ["coordinator", "rank"])
def test_a_killed_coordinator_or_rank_ends_the_run_and_it_goes_on_from_its_state(
    ray_cluster: RayCluster, trainers: Trainers, victim: str
) -> None:
    check_ends(ray_cluster, trainers, victim, seed=1, n_kills=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", ["worker", "node", "coordinator", "rank"])
def test_twenty_kills(ray_cluster: RayCluster, trainers: Trainers, victim: str, seed: int) -> None:
    """Of each, with those of the ordinary tests besides."""
    if victim == "worker":
        check_worker_kills(ray_cluster, trainers, seed=100 + seed, n_kills=5)
    elif victim == "node":
        for turn in range(2):
            check_node_kills(ray_cluster, trainers, seed=100 * seed + turn, n_late=1 + turn)
    else:
        check_ends(ray_cluster, trainers, victim, seed=100 + seed, n_kills=5)


# --- what is only slow, or full


def test_a_worker_that_no_longer_moves_holds_nobody_up(ray_cluster: RayCluster, trainers: Trainers) -> None:
    trainers.begin(workers=2)
    trainers.until_step(8)
    worker = trainers.status()["workers"][0]
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        ends = trainers.until_ended()
        assert [end["end"] for end in ends] == ["done"] * N_RANKS, ends
        assert all(len(rank.steps) == N_STEPS for rank in trainers.ranks)
    finally:
        if is_alive(worker["pid"]):
            os.kill(worker["pid"], signal.SIGCONT)
    ray_cluster.settle()


@pytest.mark.case("LDR-06", "no more in the stores than `ray.store_limit`, copies and a step; nothing is spilled")
def test_a_slow_trainer_never_fills_the_object_stores(ray_cluster: RayCluster, run_settings: Settings) -> None:
    """What is made ahead has a bound, however long nobody takes it, and nothing is ever spilled."""
    ray_cluster.connect()
    limit = 20_000_000
    ahead = run_settings.replace(
        speed={**run_settings.to_dict()["speed"], "prefetch_steps": 64},
        ray={"run": "slow", "store_limit": limit, "placement": "spread"},
    )
    seen: list[int] = []

    def is_steady() -> bool:
        seen.append(ray_cluster.store_bytes())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    with Loader(ahead) as loader:
        steps = loader.steps()
        held = [next(steps)]
        until(is_steady, lambda: f"{seen[-40:]}", 60)
        pulled = int(loader.report().to_dict()["ray"]["choices"]["pull_bytes"])
        for _ in range(5):
            held = [next(steps)]
            seen.append(ray_cluster.store_bytes())
        n_step = sum(batch.image_patches.nbytes for batch in held[0] if batch.image_patches is not None)
        del held, steps
    assert max(seen) > limit, "made ahead"
    # What is made, and what the rank has pulled: in its node's store and, until it is let go of, in the worker's.
    assert max(seen) <= limit + 2 * pulled + 4 * n_step
    assert sum(use.spilled_bytes for use in ray_cluster.store().values()) == 0
    ray_cluster.settle()
