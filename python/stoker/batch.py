"""One finished pack, as numpy sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from stoker._core import BatchCounts, CoreBatch

__all__ = ["Batch", "Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a pack is made up. n samples."""

    cu_seqlens: npt.NDArray[np.int32]
    """(n + 1): where each sample begins, then the total."""
    max_seqlen: int
    sample_ids: npt.NDArray[np.int64]
    """(n): position in the order, for `Loader.describe`; -1 for a dummy."""
    image_counts: npt.NDArray[np.int32]
    """(n): images per sample."""
    video_counts: npt.NDArray[np.int32]
    """(n): clips per sample."""
    label_shift: int = 0
    """The label at place i, and its weight, is that of the input id at i + label_shift. 0: not shifted, as Hugging Face
    models take labels, which shift them themselves."""

    @property
    def cu_seqlens_padded(self) -> npt.NDArray[np.int32]:
        """Physical boundaries; equal to `cu_seqlens`, since samples are not padded inside a pack."""
        return self.cu_seqlens


class Batch:
    """One pack = one micro-batch of this rank.

    T tokens, P patches of k images, V patches of clips, p patch size, t temporal patch size.

    Arrays are views into one block of memory, which is used again only when the batch and every array or tensor made
    from it are gone. They are not to be written into.
    """

    def __init__(self, core: CoreBatch) -> None:
        self._core = core

    @property
    def counts(self) -> BatchCounts:
        """Plain integers: tokens, target_tokens, step_target_tokens, patches, video_patches, cost, step and so on."""
        return self._core.counts

    @property
    def n_samples(self) -> int:
        """Samples in the pack, dummies included."""
        return self._core.n_samples

    def dlpack(self, name: str) -> Any:
        """An object with ``__dlpack__`` for one array, which takes no copy; for ``torch.from_dlpack`` and the like.

        Args:
            name: input_ids, labels, loss_weights, position_ids, image_patches, image_grid_thw, video_patches,
                video_grid_thw, cu_seqlens, sample_ids, image_counts or video_counts.
        """
        return self._core.array(name)

    def _numpy(self, name: str) -> npt.NDArray[Any]:
        array = np.from_dlpack(self._core.array(name))
        array.flags.writeable = False
        return array

    @property
    def input_ids(self) -> npt.NDArray[np.int64]:
        """(T), placeholders expanded."""
        return self._numpy("input_ids")

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """(T), unshifted; -100 is ignored."""
        return self._numpy("labels")

    @property
    def loss_weights(self) -> npt.NDArray[np.float32] | None:
        """(T), unshifted: what the loss of the label at the same place counts; 0 where the label is -100.

        None unless ``labels.weights`` is ``deliver``.
        """
        return self._numpy("loss_weights") if self._core.has_loss_weights else None

    @property
    def position_ids(self) -> npt.NDArray[np.int64]:
        """(4, T): text positions restarting at 0 in each sample, then M-RoPE t, h, w."""
        return self._numpy("position_ids")

    @property
    def image_patches(self) -> npt.NDArray[np.uint8] | None:
        """(P, 3, p, p) in the model's patch order, without the temporal copy; None in a pack without images."""
        return self._numpy("image_patches") if self._core.n_images else None

    @cached_property
    def image_grid_thw(self) -> list[tuple[int, int, int]]:
        """(t, h, w) in patches of each image, on the host."""
        grids = self._numpy("image_grid_thw").tolist() if self._core.n_images else []
        return [(t, h, w) for t, h, w in grids]

    @property
    def video_patches(self) -> npt.NDArray[np.uint8] | None:
        """(V, 3, t, p, p) in the model's patch order, frames of a temporal patch side by side; None without clips."""
        return self._numpy("video_patches") if self._core.n_clips else None

    @cached_property
    def video_grid_thw(self) -> list[tuple[int, int, int]]:
        """(t, h, w) in patches of each clip, on the host."""
        grids = self._numpy("video_grid_thw").tolist() if self._core.n_clips else []
        return [(t, h, w) for t, h, w in grids]

    @cached_property
    def layout(self) -> Layout:
        """How the pack is made up."""
        return Layout(
            cu_seqlens=self._numpy("cu_seqlens"),
            max_seqlen=self._core.max_seqlen,
            sample_ids=self._numpy("sample_ids"),
            image_counts=self._numpy("image_counts"),
            video_counts=self._numpy("video_counts"),
        )

    def digest(self) -> str:
        """32 hexadecimal digits over every array: equal batches, equal digests. Runs without the interpreter's lock."""
        return self._core.digest()

    def __repr__(self) -> str:
        c = self.counts
        return (
            f"Batch(step={c.step}, micro_batch={c.micro_batch}, n_samples={self.n_samples}, tokens={c.tokens}, "
            f"patches={c.patches})"
        )
