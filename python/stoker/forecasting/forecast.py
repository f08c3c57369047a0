"""What a plan comes to: the engine's sums as fill, imbalance, step times and shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker import _core
from stoker.costs import read_costs
from stoker.loader import core_settings
from stoker.settings import Settings

__all__ = ["H100_FLOPS_PER_S", "MEETINGS", "Asked", "forecast", "summary"]

H100_FLOPS_PER_S = 989.4e12 * 0.40
"""Of one rank: an H100 at 40 % of its peak."""
MEETINGS = {
    "per_step": "at the end of a step",
    "per_micro_batch": "after each micro-batch",
    "per_phase": "in vision and language of each micro-batch",
}
"""Where ranks meet, and so wait for the slowest: the more sharded the weights, the more often."""

_TICK_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be forecast."""

    dp_sizes: tuple[int, ...]
    steps: int | None
    """The walk ends with so many, or with `epochs`, whichever comes first."""
    epochs: int | None
    measure: bool = False
    """Read headers of media whose size is not known."""
    compare: bool = False
    longest: int = 5
    flops_per_s: float = H100_FLOPS_PER_S


def forecast(settings: Settings, asked: Asked, tell: Callable[[str, int, int | None], None]) -> dict[str, Any]:
    """Walks the order, plans it and returns the `summary`. A Ctrl-C ends it at once.

    Args:
        settings: The run's.
        asked: What is wanted.
        tell: Gets what is going on, positions walked and, where it is known, to be walked, ten times a second.

    Raises:
        StokerError: What kept it from being done; SETTINGS for a dp_size that does not divide packs_per_step.
    """
    core = _core.CoreForecaster.create(
        core_settings(settings),
        dp_sizes=list(asked.dp_sizes),
        n_steps=asked.steps,
        n_epochs=asked.epochs,
        reads_headers=asked.measure,
        compares=asked.compare,
        n_longest=asked.longest,
    )
    try:
        while not core.wait_within(_TICK_MS):
            tell(*_so_far(core, asked))
    finally:
        core.stop()
    return summary(core.report(), settings, asked)


def _so_far(core: Any, asked: Asked) -> tuple[str, int, int | None]:
    report = core.report()
    done, most = report["positions"], report["positions_at_most"]
    if core.progress():
        return core.progress(), 0, None
    total = most if most < 2**62 else None
    if asked.steps is not None and report["steps"] > 0:
        by_steps = done * asked.steps // report["steps"]
        total = by_steps if total is None else min(total, by_steps)
    return f"{report['steps']} steps planned", done, total


def summary(report: Mapping[str, Any], settings: Settings, asked: Asked) -> dict[str, Any]:
    """The engine's sums as what people and programs want to know. Pure."""
    positions, per_epoch = report["positions"], report["positions_per_epoch"]
    usable = positions - report["rejected"]
    is_fitted = _is_fitted(settings)
    flops_per_s = 1e15 if is_fitted else asked.flops_per_s  # picoseconds come as thousands of FLOPs
    return {
        "packs": {
            "tokens_per_pack": settings.pack.tokens_per_pack,
            "packs_per_step": settings.pack.packs_per_step,
            "window_samples": settings.resolved_window_samples(),
        },
        "walked": {
            "positions": positions,
            "positions_known": report["positions_known"],
            "positions_per_epoch": per_epoch,
            "steps": report["steps"],
            "is_finite": report["is_finite"],
            "elapsed_s": report["elapsed_s"],
            "positions_per_s": positions / report["elapsed_s"] if report["elapsed_s"] > 0 else 0.0,
        },
        "data": {
            "usable": usable,
            "left_out": report["rejected"],
            "left_out_by_code": report["rejected_by_code"],
            "over_long": report["over_long"],
            "cut": report["cut"],
            "unsized_samples": report["unsized_samples"],
            "unsized_media": report["unsized_media"],
            "sample_tokens": report["sample_tokens"],
            "longest": report["longest"],
        },
        "flops_per_s": flops_per_s,
        "is_fitted": is_fitted,
        "policies": [_policy(p, settings, positions, per_epoch, flops_per_s) for p in report["policies"]],
    }


def _is_fitted(settings: Settings) -> bool:
    """Whether costs are times that were measured, so that no speed makes seconds of them."""
    file = settings.pack.cost_file
    return bool(file) and read_costs(file).unit == "ps"


def _policy(
    sums: Mapping[str, Any], settings: Settings, positions: int, per_epoch: int, flops_per_s: float
) -> dict[str, Any]:
    packs, per_step = max(1, sums["packs"]), settings.pack.packs_per_step
    a_step = per_step / packs
    return {
        "policy": sums["policy"],
        "packs": sums["packs"],
        "fill": sums["tokens"] / (packs * settings.pack.tokens_per_pack),
        "padding": 1.0 - sums["tokens"] / max(1, sums["padded_tokens"]),
        "longest_pack": sums["pack_tokens"]["most"],
        "packs_with_dummy": sums["packs_with_dummy"],
        "empty_packs": sums["empty_packs"],
        "steps_per_epoch": sums["packs"] * per_epoch / max(1, positions) / per_step,
        "per_step": {name: sums[name] * a_step for name in ("samples", "tokens", "target_tokens", "images", "clips")},
        "ranks": [_ranks(r, per_step, flops_per_s) for r in sums["ranks"]],
    }


def _ranks(sums: Mapping[str, Any], packs_per_step: int, flops_per_s: float) -> dict[str, Any]:
    n, flops = max(1, sums["steps"]), sums["flops"]
    return {
        "dp_size": sums["dp_size"],
        "micro_batches": packs_per_step // sums["dp_size"],
        "steps": sums["steps"],
        "imbalance": sums["imbalance"],
        "busy_s": flops["busy"] / n / flops_per_s,
        "step_s": {name: flops[name] / n / flops_per_s for name in MEETINGS},
        "lost": {name: _lost(flops["busy"], flops[name]) for name in MEETINGS},
        "steps_s": [[value / flops_per_s for value in step] for step in sums["step_flops"]],
    }


def _lost(busy: float, step: float) -> float:
    return 1.0 - busy / step if step > 0 else 0.0
