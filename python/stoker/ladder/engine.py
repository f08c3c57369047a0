"""The engine as a rank's source of data: one `stoker.Loader` per rank."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from stoker.ladder.emulation import RankModel
from stoker.ladder.takers import Weighed

__all__ = ["Engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Makes the taker of an engine rung."""

    settings: Any
    """A `stoker.Settings`."""

    def __call__(self, *, model: RankModel, rank: int, n_ranks: int) -> _Loader:
        """Starts the loader."""
        return _Loader(self.settings, model, rank, n_ranks)


class _Loader:
    def __init__(self, settings: Any, model: RankModel, rank: int, n_ranks: int) -> None:
        import stoker

        self._model = model
        self._loader = stoker.Loader(settings, dp_rank=rank, dp_size=n_ranks)
        self._steps = iter(self._loader.steps())

    def take(self) -> Any:
        """Returns the step's micro-batches."""
        return next(self._steps)

    def weigh(self, data: Any) -> Weighed:
        """Counts from the layout and the grids; pixels and ids are not looked at."""
        image_patches = [[int(t) * int(h) * int(w) for t, h, w in batch.image_grid_thw] for batch in data]
        lengths = [
            [int(end) - int(start) for start, end in itertools.pairwise(ends)]
            for ends in (batch.layout.cu_seqlens for batch in data)
        ]
        costs = [self._model.flops(tokens, patches) for tokens, patches in zip(lengths, image_patches, strict=True)]
        return Weighed(
            train_s=self._model.step_s(costs),
            n_samples=sum(int(batch.n_samples) for batch in data),
            n_tokens=sum(int(batch.counts.tokens) for batch in data),
            n_patches=sum(sum(patches) for patches in image_patches),
            digests=lambda: tuple(batch.digest() for batch in data),
        )

    def report(self) -> dict[str, Any]:
        """Returns the loader's own report."""
        values: dict[str, Any] = self._loader.report().to_dict()
        return values

    def close(self) -> None:
        """Ends the engine's threads."""
        self._loader.close()
