"""What the rungs are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PACKED", "RUNGS", "RayRung", "rungs_from"]

PACKED = "packed"
"""Stands for a placement of all workers on one node, which hosts no rank if there is such a node."""

_VALUE = {"placement": PACKED, "handover": "value", "retrieval": "eager"}
_PACK_EAGER = {"placement": PACKED, "handover": "reference", "retrieval": "eager"}
_PACK_LAZY = {"placement": PACKED, "handover": "reference", "retrieval": "lazy"}
_SPREAD_EAGER = {"placement": "spread", "handover": "reference", "retrieval": "eager"}
_SPREAD_LAZY = {"placement": "spread", "handover": "reference", "retrieval": "lazy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRung:
    """One way to feed the ranks."""

    name: str
    about: str
    steps: int
    """Measured ones, by default: few where each takes long."""
    is_large: bool = False
    """At the large scale: four times the ranks."""
    is_python: bool = False
    """The loop that people start with; no batch of its can be compared."""
    speed: Mapping[str, Any] | None = None
    """Changes of the engine's speed settings."""
    ray: Mapping[str, Any] | None = None
    """The settings' section ``ray``, without ``address`` and ``run``; None: the engine runs in the rank's process."""


RUNGS = {
    rung.name: rung
    for rung in (
        RayRung(
            name="python-serial",
            about="the loop people start with, in the rank's process",
            steps=2,
            is_python=True,
        ),
        RayRung(
            name="concurrent",
            about="the engine in the rank's process, nothing ahead of use",
            steps=3,
            speed={"prefetch_steps": 0},
        ),
        RayRung(
            name="prefetch",
            about="the engine in the rank's process, the next steps made ready while the rank trains",
            steps=4,
            speed={},
        ),
        RayRung(
            name="ray-on-demand",
            about="workers on one other node, nothing ahead of use: here the bytes of a pack can be counted exactly",
            steps=3,
            speed={"prefetch_steps": 0},
            ray=_PACK_LAZY,
        ),
        RayRung(
            name="ray-by-value",
            about="workers on one other node; the coordinator gets each pack and hands it on",
            steps=5,
            ray=_VALUE,
        ),
        RayRung(
            name="ray-by-reference",
            about="the same workers; the coordinator hands on the pack's reference",
            steps=5,
            ray=_PACK_EAGER,
        ),
        RayRung(
            name="ray-spread-lazy",
            about="workers on every node, packs mapped without a copy: at this scale it should change little",
            steps=5,
            ray=_SPREAD_LAZY,
        ),
        RayRung(
            name="scale-pack-eager",
            about="four times the ranks; workers on one node, packs copied when they are handed over",
            steps=12,
            is_large=True,
            ray=_PACK_EAGER,
        ),
        RayRung(
            name="scale-pack-lazy",
            about="workers on one node, packs pulled ahead of use and mapped without a copy",
            steps=12,
            is_large=True,
            ray=_PACK_LAZY,
        ),
        RayRung(
            name="scale-spread-eager",
            about="workers on every node, packs copied when they are handed over",
            steps=12,
            is_large=True,
            ray=_SPREAD_EAGER,
        ),
        RayRung(
            name="scale-spread-lazy",
            about="workers on every node, packs pulled ahead of use and mapped without a copy",
            steps=12,
            is_large=True,
            ray=_SPREAD_LAZY,
        ),
        RayRung(
            name="scale-auto",
            about="the defaults: every choice made from the cluster's shape",
            steps=12,
            is_large=True,
            ray={},
        ),
    )
}
"""Lowest first."""


def rungs_from(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the rungs that comma-separated lists name, lowest first; all if they name none.

    Raises:
        ValueError: There is no such rung.
    """
    found = {name.strip() for given in names for name in given.split(",") if name.strip()}
    for name in sorted(found):
        if name not in RUNGS:
            raise ValueError(f"there is no rung {name!r} on a cluster; there are {', '.join(RUNGS)}")
    return tuple(name for name in RUNGS if not found or name in found)
