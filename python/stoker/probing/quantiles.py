"""Quantiles of measured times. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SHARES", "quantile"]

SHARES = (
    *(0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95),
    *(0.96, 0.97, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 0.9995, 1.0),
)
"""Where a latency profile keeps the distribution: close together where the tail is."""


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed, linear between two neighbours (Hyndman and Fan's type 7).

    Args:
        ascending: At least one value, in order.
        share: From 0, the least, to 1, the largest.

    Raises:
        ValueError: Without a value, or for a share outside of [0, 1].
    """
    if not ascending:
        raise ValueError("there is no quantile of nothing")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share of all values lies between 0 and 1, not at {share}")
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])
