"""A pack as a model's forward takes it: tensors on the host, of the engine's own memory where a view will do."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from stoker.batch import Batch

__all__ = ["IGNORED_LABEL", "LOSS_WEIGHTS", "packed", "padded"]

IGNORED_LABEL = -100
LOSS_WEIGHTS = "loss_weights"


def packed(batch: Batch) -> dict[str, Any]:
    """One row, samples end to end; the fourth row of positions, which restarts in each sample, keeps them apart.

    Returns:
        Views without a copy: input_ids (1, T), labels (1, T), position_ids (4, 1, T); with pictures image_patches (P,
        3, p, p) uint8 and image_grid_thw (k, 3), with clips video_patches (V, 3, t, p, p) and video_grid_thw; where
        the settings deliver them loss_weights float32 (1, T). No attention mask: a model that is given one no longer
        looks for the restarts.
    """
    return {
        "input_ids": _view(batch, "input_ids")[None],
        "labels": _view(batch, "labels")[None],
        "position_ids": _view(batch, "position_ids")[:, None],
        **({} if batch.loss_weights is None else {LOSS_WEIGHTS: _view(batch, LOSS_WEIGHTS)[None]}),
        **_media(batch),
    }


def padded(batch: Batch, *, pad_token_id: int, pad_to_multiple_of: int = 1) -> dict[str, Any]:
    """One row per sample, filled up on the right, for models without attention over packs.

    Returns:
        Copies: input_ids, labels, attention_mask (B, L), position_ids (4, B, L) with 0 in the filling as the reference
            has it; loss_weights (B, L) with 0 there; media as in `packed`, in the order of the rows. L is the longest
            sample, rounded up.
    """
    ends = batch.layout.cu_seqlens.tolist()
    n_rows = len(ends) - 1
    width = -(-max(b - a for a, b in itertools.pairwise(ends)) // pad_to_multiple_of) * pad_to_multiple_of
    ids, labels, positions = (_view(batch, name) for name in ("input_ids", "labels", "position_ids"))
    out: dict[str, Any] = {
        "input_ids": torch.full((n_rows, width), pad_token_id, dtype=torch.int64),
        "labels": torch.full((n_rows, width), IGNORED_LABEL, dtype=torch.int64),
        "attention_mask": torch.zeros((n_rows, width), dtype=torch.int64),
        "position_ids": torch.zeros((4, n_rows, width), dtype=torch.int64),
    }
    weights = None if batch.loss_weights is None else _view(batch, LOSS_WEIGHTS)
    if weights is not None:
        out[LOSS_WEIGHTS] = torch.zeros((n_rows, width), dtype=torch.float32)
    for row, (a, b) in enumerate(itertools.pairwise(ends)):
        out["input_ids"][row, : b - a] = ids[a:b]
        out["labels"][row, : b - a] = labels[a:b]
        out["attention_mask"][row, : b - a] = 1
        out["position_ids"][:, row, : b - a] = positions[:, a:b]
        if weights is not None:
            out[LOSS_WEIGHTS][row, : b - a] = weights[a:b]
    return {**out, **_media(batch)}


def _media(batch: Batch) -> dict[str, Any]:
    # Absent, never empty: the vision tower fails on nothing.
    names = [f"image_{part}" for part in ("patches", "grid_thw") if batch.image_grid_thw]
    names += [f"video_{part}" for part in ("patches", "grid_thw") if batch.video_grid_thw]
    return {name: _view(batch, name) for name in names}


def _view(batch: Batch, name: str) -> Any:
    return torch.from_dlpack(batch.dlpack(name))
