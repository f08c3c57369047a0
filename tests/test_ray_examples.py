"""The examples of training loops on Ray give each rank the batches of a run without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")
pytest.importorskip("torch")

import ray
import yaml
from loader_data import good_data, settings_for
from ray_cluster import RayCluster
from stoker import Loader, Settings

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def tokens_of(settings: Settings, rank: int) -> list[tuple[int, int]]:
    """(step, tokens) of each batch, without Ray."""
    with Loader(settings.replace(ray=None), dp_rank=rank, dp_size=2) as loader:
        return [(batch.counts.step, batch.counts.tokens) for batch in loader]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, EXAMPLES / "ray_train.py"], marks=pytest.mark.soak, id="Ray Train"),
        pytest.param([*TORCHRUN, EXAMPLES / "ray_torchrun.py"], id="torchrun"),
    ],
)
def test_an_example_trains_on_the_batches_of_the_run(
    ray_cluster: RayCluster, tmp_path: Path, command: list[str | Path]
) -> None:
    settings = settings_for(good_data(tmp_path / "data", 12), tmp_path, epochs=1, ray={"address": "auto"})
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(settings.to_dict()))
    more = ["2"] if "ray_train.py" in str(command[-1]) else []
    done = subprocess.run(
        [*command, str(file), *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    # What workers print is in the cluster's logs, since this one brings nothing of it to the driver.
    logs = [path.read_text(errors="replace") for path in ray_cluster.folder.rglob("logs/**/*") if path.is_file()]
    printed = "\n".join(logs) if more else done.stdout
    told = set(re.findall(r"rank (\d) step (\d+) tokens (\d+)", printed))
    for rank in range(2):
        of_rank = sorted((int(step), int(n)) for r, step, n in told if int(r) == rank)
        assert of_rank == sorted(set(tokens_of(settings, rank)))
    ray_cluster.connect()
    for left in ray.util.list_named_actors(all_namespaces=True):  # what Ray Train leaves
        ray.kill(ray.get_actor(left["name"], namespace=left["namespace"]))
    ray_cluster.settle()
