"""One finished pack, as numpy sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stoker import derived
from stoker.derived import Shifted
from stoker.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stoker._core import BatchCounts, CoreBatch

__all__ = ["Batch", "Layout", "Padded", "Shifted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a pack is made up. n samples, dummies included, then perhaps a tail that only fills up.

    With ``pack.align_samples_to`` each sample is filled up to a multiple: sample i lies at ``cu_seqlens_padded[i]``,
    its own tokens first, ``lengths[i]`` of them. Without, `cu_seqlens` and `cu_seqlens_padded` are the same.
    """

    cu_seqlens: npt.NDArray[np.int32]
    """(n + 1): sums of the samples' own lengths, without what fills them up; Megatron's ``cu_seqlens_q``."""
    cu_seqlens_padded: npt.NDArray[np.int32]
    """(n + 1): where each sample begins, and where the last one ends; Megatron's ``cu_seqlens_q_padded``."""
    max_seqlen: int
    """Tokens of the longest sample, with what fills it up."""
    n_tokens: int
    """T, the tail included."""
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
    def lengths(self) -> npt.NDArray[np.int32]:
        """(n): tokens of each sample, without what fills it up."""
        return np.diff(self.cu_seqlens)

    @property
    def n_pad_segments(self) -> int:
        """1 if there is a tail (``pack.pad_to``), else 0. It is no sample: the arrays above do not have it."""
        return int(self.n_tokens > self.cu_seqlens_padded[-1])

    @property
    def cu_segments(self) -> npt.NDArray[np.int32]:
        """(n + 1 + n_pad_segments): `cu_seqlens_padded`, then the tail's end.

        For attention of variable length over the whole row, which must end at T; the longest segment is
        ``np.diff(cu_segments).max()``.
        """
        if not self.n_pad_segments:
            return self.cu_seqlens_padded
        return np.append(self.cu_seqlens_padded, np.int32(self.n_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """A pack as one row per sample: B rows of L tokens, filled up on the right. Pixels and grids are the pack's."""

    input_ids: npt.NDArray[np.int64]
    """(B, L)"""
    labels: npt.NDArray[np.int64]
    """(B, L), -100 in the filling."""
    attention_mask: npt.NDArray[np.int64]
    """(B, L): 1, and 0 in the filling."""
    position_ids: npt.NDArray[np.int64]
    """(4, B, L), 0 in the filling, as transformers has it."""
    loss_weights: npt.NDArray[np.float32] | None
    """(B, L), 0 in the filling; None unless the settings deliver weights."""


class Batch:
    """One pack = one micro-batch of this rank.

    T tokens, P patches of k images, V patches of clips, p patch size, t temporal patch size.

    Arrays are views into one block of memory, which is used again only when the batch and every array or tensor made
    from it are gone. They are read-only: the block may be one that other processes read too (peers of the rank, a
    node's object store). `dlpack` gives copies that may be written into.
    """

    def __init__(self, core: CoreBatch) -> None:
        self._core = core

    @property
    def counts(self) -> BatchCounts:
        """Plain integers, known without reading an array.

        Attributes:
            tokens: T, of which pad_tokens only fill up (samples, and the tail).
            target_tokens: Labels of this pack that are not -100; exact.
            step_target_tokens: The same over all ranks and micro-batches of the step, as planned. A sample of any rank
                that turns out bad after planning makes it too large; is_step_target_upper_bound says so of this pack
                only. Where the loss must be exact all the same, sum target_tokens over micro-batches and ranks.
            patches, video_patches: Of images, of clips.
            cost: As planned, in thousands of floating-point operations.
            step, micro_batch, micro_batches_in_step: Where it stands; the last is the same for every rank and step.
        """
        return self._core.counts

    @property
    def n_samples(self) -> int:
        """Samples in the pack, dummies included."""
        return self._core.n_samples

    def dlpack(self, name: str, *, writable: bool = False) -> Any:
        """An object with ``__dlpack__`` for one array; for ``torch.from_dlpack`` and the like.

        Args:
            name: input_ids, labels, loss_weights, position_ids, image_patches, image_grid_thw, video_patches,
                video_grid_thw, cu_seqlens, cu_seqlens_padded, sample_ids, image_counts or video_counts.
            writable: A copy of its own. Otherwise the block itself, without a copy, and not to be written into: torch
                has no tensors that are read-only, so nothing would stop it from changing what others read, and where
                the memory came from another process a write ends this one (SIGSEGV).
        """
        return np.array(self._numpy(name)) if writable else self._core.array(name)

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
        """(T), unshifted; -100 is ignored, as in what only fills up and in dummies."""
        return self._numpy("labels")

    @property
    def loss_weights(self) -> npt.NDArray[np.float32] | None:
        """(T), unshifted: what the loss of the label at the same place counts; 0 where the label is -100.

        None unless ``labels.weights`` is ``deliver``.
        """
        return self._numpy("loss_weights") if self._core.has_loss_weights else None

    @property
    def position_ids(self) -> npt.NDArray[np.int64]:
        """(4, T): text positions restarting at 0 in each sample and in the tail, then M-RoPE t, h, w.

        What fills up a sample counts on from it, so that the sample stays one segment.
        """
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
            cu_seqlens_padded=self._numpy("cu_seqlens_padded"),
            max_seqlen=self._core.max_seqlen,
            n_tokens=self.counts.tokens,
            sample_ids=self._numpy("sample_ids"),
            image_counts=self._numpy("image_counts"),
            video_counts=self._numpy("video_counts"),
        )

    @property
    def pad_token_id(self) -> int:
        """The id of what only fills up; not the sign of it, since texts may hold the same token."""
        return self._core.pad_token_id

    # --- made when asked for

    @cached_property
    def image_patch_offsets(self) -> npt.NDArray[np.int64]:
        """(k + 1): image i has the patches from entry i to entry i + 1."""
        return derived.media_offsets(self.image_grid_thw)

    @cached_property
    def video_patch_offsets(self) -> npt.NDArray[np.int64]:
        """(clips + 1), as `image_patch_offsets`."""
        return derived.media_offsets(self.video_grid_thw)

    @property
    def sequence_ids(self) -> npt.NDArray[np.int32]:
        """(T): which sample a token belongs to, 0 to n - 1; -1 for what only fills up a sample or the pack."""
        layout = self.layout
        return derived.sequence_ids(layout.cu_seqlens_padded[:-1], layout.lengths, layout.n_tokens)

    @property
    def mm_token_type_ids(self) -> npt.NDArray[np.int32]:
        """(T): 0 text, 1 visual tokens of images, 2 of clips."""
        return derived.mm_token_type_ids(self.input_ids, self._core.image_token_id, self._core.video_token_id)

    @property
    def shifted(self) -> Shifted:
        """Labels, loss mask and weights moved one place to the left, of the same length T."""
        return derived.shifted(self.labels, self.loss_weights)

    def vision_metadata(self) -> dict[str, Any]:
        """What transformers' vision tower would otherwise work out from the grids; for its forward.

        Returns:
            image_cu_seqlens int32 (frames + 1), image_max_seqlen int, image_position_ids int64 (P, 2); the same of
            clips as video_...; only what there is.
        """
        grids = {"image": self.image_grid_thw, "video": self.video_grid_thw}
        return {
            f"{kind}_{name}": value
            for kind, some in grids.items()
            if some
            for name, value in derived.vision_metadata(some, self._core.merge).items()
        }

    def padded(self, *, pad_to_multiple_of: int = 1, pad_token_id: int | None = None) -> Padded:
        """Copies the pack into one row per sample, dummies included, for models without attention over packs.

        Args:
            pad_to_multiple_of: Rounds L, the length of the longest sample, up.
            pad_token_id: Fills rows; the tokenizer's own by default.

        Raises:
            InvalidArgumentError: If `pad_to_multiple_of` is below 1.
        """
        rows = _Rows(self, pad_to_multiple_of)
        weights = self.loss_weights
        return Padded(
            input_ids=rows(self.input_ids, self.pad_token_id if pad_token_id is None else pad_token_id),
            labels=rows(self.labels, derived.IGNORED_LABEL),
            attention_mask=rows(np.ones(self.layout.n_tokens, np.int64), 0),
            position_ids=rows(self.position_ids, 0),
            loss_weights=None if weights is None else rows(weights, 0),
        )

    def rows(self, array: npt.NDArray[Any], *, fill: int, pad_to_multiple_of: int = 1) -> npt.NDArray[Any]:
        """Any (..., T) array of this pack as `padded` has it: (..., B, L), `fill` behind each sample."""
        return _Rows(self, pad_to_multiple_of)(array, fill)

    def digest(self) -> str:
        """32 hexadecimal digits over every array: equal batches, equal digests. Runs without the interpreter's lock."""
        return self._core.digest()

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            "a batch cannot be pickled, since it is a view of the engine's memory: hand on copies of its arrays, or "
            "make a loader in each process",
            "FORKED",
        )

    def __repr__(self) -> str:
        c = self.counts
        return (
            f"Batch(step={c.step}, micro_batch={c.micro_batch}, n_samples={self.n_samples}, tokens={c.tokens}, "
            f"patches={c.patches})"
        )


class _Rows:
    """From the places of a pack to those of its padded form."""

    def __init__(self, batch: Batch, multiple_of: int) -> None:
        if multiple_of < 1:
            raise InvalidArgumentError("pad_to_multiple_of must be at least 1", "SETTINGS")
        self._begins = batch.layout.cu_seqlens_padded[:-1]
        self._lengths = batch.layout.lengths
        self._width = derived.row_width(self._lengths, multiple_of)

    def __call__(self, array: npt.NDArray[Any], fill: int) -> npt.NDArray[Any]:
        return derived.rows_of(array, self._begins, self._lengths, self._width, fill)
