"""A pack as a model's forward takes it: tensors on the host, of the engine's own memory where a view will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stoker.batch import Batch
from stoker.derived import IGNORED_LABEL

__all__ = ["EXTRAS", "LOSS_WEIGHTS", "packed", "padded"]

LOSS_WEIGHTS = "loss_weights"
EXTRAS = ("sequence_ids", "mm_token_type_ids", "shifted_labels", "loss_mask", "shifted_loss_weights")
"""Arrays with one entry per token that `packed` and `padded` make on request."""


def packed(batch: Batch, *, extras: Sequence[str] = (), writable: bool = False) -> dict[str, Any]:
    """One row, samples end to end; the fourth row of positions, which restarts in each sample, keeps them apart.

    Returns:
        Views without a copy: input_ids (1, T), labels (1, T), position_ids (4, 1, T); with pictures image_patches (P,
        3, p, p) uint8 and image_grid_thw (k, 3), with clips video_patches (V, 3, t, p, p) and video_grid_thw; where
        the settings deliver them loss_weights float32 (1, T). No attention mask: a model that is given one no longer
        looks for the restarts. `extras` (1, T) are made. If `writable`, all but the patches are copies.
    """
    return {
        "input_ids": _tensor(batch, "input_ids", writable)[None],
        "labels": _tensor(batch, "labels", writable)[None],
        "position_ids": _tensor(batch, "position_ids", writable)[:, None],
        **({} if batch.loss_weights is None else {LOSS_WEIGHTS: _tensor(batch, LOSS_WEIGHTS, writable)[None]}),
        **_media(batch, writable),
        **{name: torch.from_numpy(array)[None] for name, (array, _) in _extras(batch, extras).items()},
    }


def padded(
    batch: Batch,
    *,
    pad_token_id: int | None = None,
    pad_to_multiple_of: int = 1,
    extras: Sequence[str] = (),
    writable: bool = False,
) -> dict[str, Any]:
    """One row per sample, filled up on the right, for models without attention over packs.

    Returns:
        Copies: input_ids, labels, attention_mask (B, L), position_ids (4, B, L) with 0 in the filling as the reference
            has it; loss_weights (B, L) with 0 there; media as in `packed`, in the order of the rows; `extras` (B, L).
            L is the longest sample, rounded up.
    """
    rows = batch.padded(pad_to_multiple_of=pad_to_multiple_of, pad_token_id=pad_token_id)
    out: dict[str, Any] = {
        "input_ids": torch.from_numpy(rows.input_ids),
        "labels": torch.from_numpy(rows.labels),
        "attention_mask": torch.from_numpy(rows.attention_mask),
        "position_ids": torch.from_numpy(rows.position_ids),
    }
    if rows.loss_weights is not None:
        out[LOSS_WEIGHTS] = torch.from_numpy(rows.loss_weights)
    for name, (array, fill) in _extras(batch, extras).items():
        out[name] = torch.from_numpy(batch.rows(array, fill=fill, pad_to_multiple_of=pad_to_multiple_of))
    return {**out, **_media(batch, writable)}


def _extras(batch: Batch, names: Sequence[str]) -> dict[str, tuple[Any, int]]:
    """By name: the array (T), and what stands behind a sample in the padded form."""
    out: dict[str, tuple[Any, int]] = {}
    if "sequence_ids" in names:
        out["sequence_ids"] = batch.sequence_ids, -1
    if "mm_token_type_ids" in names:
        out["mm_token_type_ids"] = batch.mm_token_type_ids, 0
    if {"shifted_labels", "loss_mask", "shifted_loss_weights"}.isdisjoint(names):
        return out
    made = batch.shifted
    if "shifted_labels" in names:
        out["shifted_labels"] = made.labels, IGNORED_LABEL
    if "loss_mask" in names:
        out["loss_mask"] = made.loss_mask, 0
    if "shifted_loss_weights" in names:
        # Where the settings deliver none, every label counts as much as the next.
        weights: Any = made.loss_mask if made.loss_weights is None else made.loss_weights
        out["shifted_loss_weights"] = np.copy(weights), 0
    return out


def _media(batch: Batch, writable: bool) -> dict[str, Any]:
    # Absent, never empty: the vision tower fails on nothing. Patches are expanded, which makes a copy, before anybody
    # sees them.
    out: dict[str, Any] = {}
    for kind, grids in (("image", batch.image_grid_thw), ("video", batch.video_grid_thw)):
        if grids:
            out[f"{kind}_patches"] = _tensor(batch, f"{kind}_patches", writable=False)
            out[f"{kind}_grid_thw"] = _tensor(batch, f"{kind}_grid_thw", writable)
    return out


def _tensor(batch: Batch, name: str, writable: bool) -> Any:
    return torch.from_dlpack(batch.dlpack(name, writable=writable))
