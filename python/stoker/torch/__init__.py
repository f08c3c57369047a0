"""Batches as PyTorch models take them.

``for batch in stoker.torch.batches(loader, device="cuda"): model(**batch.inputs)``
"""

from __future__ import annotations

from stoker.torch.micro_batches import Batches, TorchBatch, batches
from stoker.torch.pixels import Normalisation, expand

__all__ = ["Batches", "Normalisation", "TorchBatch", "batches", "expand"]
