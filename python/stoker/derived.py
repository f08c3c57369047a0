"""Arrays that follow from a pack's own: made when they are asked for, never carried along. For `Batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "IGNORED_LABEL",
    "Shifted",
    "media_offsets",
    "mm_token_type_ids",
    "row_width",
    "rows_of",
    "sequence_ids",
    "shifted",
    "vision_metadata",
]

IGNORED_LABEL = -100
Grid = tuple[int, int, int]


class Shifted(NamedTuple):
    """What a place of the pack is to predict, as Megatron and torchtitan take it."""

    labels: npt.NDArray[np.int64]
    """(T): the label of the next place; -100 at the last."""
    loss_mask: npt.NDArray[np.float32]
    """(T): 1 where there is a label, else 0."""
    loss_weights: npt.NDArray[np.float32] | None
    """(T): the weight of that label, if the settings deliver weights."""


def shifted(labels: npt.NDArray[np.int64], weights: npt.NDArray[np.float32] | None) -> Shifted:
    """Moves labels one place to the left over the whole pack.

    No label crosses from one sample into the one before, since the first label of every sample is -100.
    """
    moved = np.full_like(labels, IGNORED_LABEL)
    moved[:-1] = labels[1:]
    moved_weights = None
    if weights is not None:
        moved_weights = np.zeros_like(weights)
        moved_weights[:-1] = weights[1:]
    return Shifted(moved, (moved != IGNORED_LABEL).astype(np.float32), moved_weights)


def sequence_ids(begins: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], n_tokens: int) -> npt.NDArray[np.int32]:
    """(n_tokens): the number of the sample that a token belongs to, from 0; -1 for what only fills up."""
    out = np.full(n_tokens, -1, np.int32)
    for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        out[begin : begin + length] = number
    return out


def mm_token_type_ids(input_ids: npt.NDArray[np.int64], image_id: int, video_id: int) -> npt.NDArray[np.int32]:
    """(T): 0 text, 1 a visual token of an image, 2 of a clip, as the processors of transformers have it."""
    out = np.zeros(len(input_ids), np.int32)
    out[input_ids == image_id] = 1
    out[input_ids == video_id] = 2
    return out


def media_offsets(grids: Sequence[Grid]) -> npt.NDArray[np.int64]:
    """(k + 1): where each image or clip begins among the patches of its kind, then their number."""
    return np.cumsum([0, *(t * h * w for t, h, w in grids)], dtype=np.int64)


def vision_metadata(grids: Sequence[Grid], merge: int) -> dict[str, Any]:
    """What a vision tower of transformers otherwise works out from the grids, which waits for the device.

    Returns:
        cu_seqlens int32 (frames + 1), boundaries of attention; max_seqlen; position_ids int64 (P, 2), row and column of
        each patch, in the order of the patches.
    """
    sizes = [h * w for t, h, w in grids for _ in range(t)]
    places = []
    for t, h, w in grids:
        # (h, w) -> blocks of merge x merge patches, which stand together
        y, x = np.mgrid[:h, :w]
        blocks = [a.reshape(h // merge, merge, w // merge, merge).swapaxes(1, 2).ravel() for a in (y, x)]
        places.append(np.tile(np.stack(blocks, axis=1), (t, 1)))
    return {
        "cu_seqlens": np.cumsum([0, *sizes], dtype=np.int32),
        "max_seqlen": max(sizes),
        "position_ids": np.concatenate(places).astype(np.int64),
    }


def row_width(lengths: npt.NDArray[np.int32], multiple_of: int) -> int:
    """The longest sample, rounded up."""
    return -(-int(lengths.max()) // multiple_of) * multiple_of


def rows_of(
    array: npt.NDArray[Any], begins: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], width: int, fill: int
) -> npt.NDArray[Any]:
    """(..., T) -> (..., n, width): one row per sample, filled up on the right."""
    out = np.full((*array.shape[:-1], len(lengths), width), fill, array.dtype)
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        out[..., row, :length] = array[..., begin : begin + length]
    return out
