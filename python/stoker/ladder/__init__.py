"""The ladder: the same data and the same emulated ranks, fed by one loader after another, each better than the last.

Nothing here is imported by the product.
"""

from __future__ import annotations

from stoker.ladder.emulation import RankModel
from stoker.ladder.result import LadderResult, RungResult, StepRecord

__all__ = ["LadderResult", "RankModel", "RungResult", "StepRecord"]
