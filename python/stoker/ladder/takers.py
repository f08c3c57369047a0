"""What a rank asks for its data: the engine, or the loop that people start with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.ladder.emulation import RankModel

__all__ = ["Taker", "TakerFactory", "Weighed", "weigh_samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What one step's data amounts to, for one rank."""

    train_s: float
    """What the rank's model makes of it."""
    n_samples: int
    n_tokens: int
    n_patches: int
    digests: Callable[[], tuple[str, ...]]
    """Computes one digest per micro-batch; takes a while."""


def weigh_samples(model: RankModel, samples: Sequence[tuple[int, Sequence[int]]]) -> Weighed:
    """What single samples amount to, each (tokens, patches of its images); there is no digest to compare."""
    flops = [model.flops([n_tokens], patches) for n_tokens, patches in samples]
    return Weighed(
        train_s=max(model.deal(flops)) / model.flops_per_s,
        n_samples=len(samples),
        n_tokens=sum(n_tokens for n_tokens, _ in samples),
        n_patches=sum(sum(patches) for _, patches in samples),
        digests=tuple,
    )


class Taker(Protocol):
    """Gives a rank its data, step by step."""

    def take(self) -> Any:
        """Blocks until the next step's data is there, and returns it. What this takes is the rank's wait."""

    def weigh(self, data: Any) -> Weighed:
        """Counts what `take` returned; done while the rank trains."""

    def report(self) -> dict[str, Any]:
        """Returns plain values about the whole run; empty where there is nothing to say."""

    def close(self) -> None:
        """Ends all that runs in the background."""


class TakerFactory(Protocol):
    """Makes a rank's taker, in the rank's process: pickled on the way there, imports what it needs when called."""

    def __call__(self, *, model: RankModel, rank: int, n_ranks: int) -> Taker:
        """Starts it."""
