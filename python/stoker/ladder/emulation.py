"""How long an emulated rank trains on what it got.

A rank that is not there can still be waited for: what a training step costs follows from the lengths of the samples
alone. The coefficients are data; put others in for another model or GPU, never to make a ratio look right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["RankModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """One rank: a group of GPUs that work in parallel, each on its own micro-batches.

    The defaults are Qwen3-VL-8B (hidden 4096, 36 layers; vision tower of 27 layers), forward and backward, causal
    attention within the sample, on H100 GPUs at 40 % of 989.4 TFLOP/s.
    """

    flops_per_token: float = 45.4e9
    flops_per_squared_token: float = 0.885e6
    """Attention: times the square of each sample's length."""
    flops_per_patch: float = 2.72e9
    flops_per_squared_patch: float = 0.373e6
    """Vision attention: times the square of each image's patches."""
    flops_per_s: float = 989.4e12 * 0.40
    """Of one GPU."""
    n_gpus: int = 8

    def flops(self, sample_tokens: Iterable[int], image_patches: Iterable[int]) -> float:
        """Returns the cost of samples of these lengths with images of these many patches."""
        return sum(self.flops_per_token * n + self.flops_per_squared_token * n * n for n in sample_tokens) + sum(
            self.flops_per_patch * n + self.flops_per_squared_patch * n * n for n in image_patches
        )

    def step_s(self, micro_batch_flops: Sequence[float]) -> float:
        """Returns how long the rank trains on a step's micro-batches.

        They go to its GPUs in turn (the first to the first, as data-parallel ranks take theirs); the rank is done when
        its last GPU is.
        """
        per_gpu = [sum(micro_batch_flops[gpu :: self.n_gpus]) for gpu in range(self.n_gpus)]
        return max(per_gpu) / self.flops_per_s

    def deal(self, sample_flops: Sequence[float]) -> list[float]:
        """Returns the cost per GPU when samples are dealt one by one, each to the GPU that has least so far.

        For a loader that makes no packs; kinder to it than dealing blindly.
        """
        loads = [0.0] * self.n_gpus
        for flops in sample_flops:
            least = min(range(self.n_gpus), key=loads.__getitem__)
            loads[least] += flops
        return loads
