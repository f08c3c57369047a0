"""Inside Ray Train: its workers' loaders take their batches from the same cluster, attempt by attempt."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loader_data import digests, good_data, settings_for
from stoker import Loader, Settings

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

from ray_cluster import RayCluster, until  # noqa: E402

N_RANKS = 2
FAILS_AFTER = 2  # steps


def train(config: dict[str, Any]) -> None:
    """What each worker runs. If asked to, rank 1 fails once, and the next attempt goes on from what rank 0 saved."""
    from ray import train as ray_train

    context = ray_train.get_context()
    rank, folder = context.get_world_rank(), Path(config["folder"])
    saved = folder / "state.json"
    state = json.loads(saved.read_text()) if saved.exists() else None
    loader = Loader(Settings.from_dict(config["settings"]), dp_rank=rank, dp_size=context.get_world_size())
    if state is not None:
        loader.load_state_dict(state)
    told = []
    for step in loader.steps():
        told.append([batch.digest() for batch in step])
        if config["fails"] and state is None and len(told) == FAILS_AFTER:
            if rank == 0:
                saved.write_text(json.dumps(loader.state_dict()))
            ray_train.report({})  # a barrier: the state is written
            (folder / f"first{rank}.json").write_text(json.dumps(told))
            if rank == 1:
                raise RuntimeError("this worker fails on purpose")
    coordinator = loader.report().to_dict()["ray"]["coordinator"]
    (folder / f"last{rank}.json").write_text(json.dumps({"steps": told, "coordinator": coordinator}))
    loader.close()


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["runs", "fails once"])
def test_workers_of_ray_train_get_their_batches_and_resume_after_a_failure(
    ray_cluster: RayCluster, tmp_path: Path, fails: bool
) -> None:
    pytest.importorskip("pandas", reason="Ray Train imports pandas")
    pytest.importorskip("pyarrow", reason="Ray Train imports pyarrow")
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray_cluster.connect()
    alone = settings_for(good_data(tmp_path / "data", 48), tmp_path, epochs=1)
    with ThreadPoolExecutor(N_RANKS) as pool:
        expected = list(pool.map(lambda rank: digests(alone, dp_rank=rank, dp_size=N_RANKS), range(N_RANKS)))
    # Workers of the attempt that fails are killed and take no leave: their coordinator waits so long.
    on_ray = alone.replace(ray={"rank_timeout_s": 5.0})
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "settings": on_ray.to_dict(), "fails": fails},
        scaling_config=ScalingConfig(num_workers=N_RANKS, use_gpu=False),
        run_config=RunConfig(
            name="qwen-on-ray", storage_path=str(tmp_path / "train"), failure_config=FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    names = (["first"] if fails else []) + ["last"]
    told = {name: [json.loads((tmp_path / f"{name}{r}.json").read_text()) for r in range(N_RANKS)] for name in names}
    for rank in range(N_RANKS):
        first = told["first"][rank] if fails else []
        assert first == expected[rank][: len(first)]
        assert len(first) == (FAILS_AFTER if fails else 0)
        assert first + told["last"][rank]["steps"] == expected[rank]
    coordinators = {told["last"][rank]["coordinator"] for rank in range(N_RANKS)}
    assert len(coordinators) == 1
    assert coordinators.pop().startswith("stoker-qwen-on-ray-")
    until(lambda: not any("stoker" in actor["Name"] for actor in ray_cluster.actors()), "the coordinator ends")
    _end_what_ray_train_leaves(ray_cluster)
    ray_cluster.settle()


def _end_what_ray_train_leaves(cluster: RayCluster) -> None:
    """Actors for data sets: some end with the driver, and a detached one does not."""
    for named in ray.util.list_named_actors(all_namespaces=True):
        ray.kill(ray.get_actor(named["name"], namespace=named["namespace"]))
    cluster.disconnect()
