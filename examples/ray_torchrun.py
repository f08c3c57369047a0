"""torchrun on the nodes of a Ray cluster, which prepares the batches (the settings say ``ray: auto``).

torchrun --nproc-per-node 2 examples/ray_torchrun.py run.yaml
"""

import sys

import stoker
import stoker.torch
import torch
import torch.distributed as dist


def main(settings_file: str) -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # nccl where there are GPUs
    settings = stoker.Settings.load(settings_file)
    with stoker.Loader(settings, dp_rank=dist.get_rank(), dp_size=dist.get_world_size()) as loader:
        for batch in stoker.torch.batches(loader):
            # loss = model(**batch.inputs).loss; loss.backward(); optimizer.step()
            n_targets = torch.tensor(batch.counts.target_tokens)
            dist.all_reduce(n_targets)
            print(f"rank {loader.dp_rank} step {batch.counts.step} tokens {batch.counts.tokens}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
