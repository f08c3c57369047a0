"""Ray Train: the batches of each of its workers are prepared on the cluster (the settings say ``ray: auto``).

python examples/ray_train.py run.yaml 2
"""

import sys
from typing import Any

import ray.train
import stoker
import stoker.torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train(config: dict[str, Any]) -> None:
    """What each worker runs."""
    context = ray.train.get_context()
    settings = stoker.Settings.load(config["settings"])
    with stoker.Loader(settings, dp_rank=context.get_world_rank(), dp_size=context.get_world_size()) as loader:
        for batch in stoker.torch.batches(loader):
            # loss = model(**batch.inputs).loss; loss.backward(); optimizer.step()
            print(f"rank {loader.dp_rank} step {batch.counts.step} tokens {batch.counts.tokens}", flush=True)
            ray.train.report({"step": batch.counts.step, "tokens": batch.counts.tokens})


if __name__ == "__main__":
    scaling = ScalingConfig(num_workers=int(sys.argv[2]))
    TorchTrainer(train, train_loop_config={"settings": sys.argv[1]}, scaling_config=scaling).fit()
