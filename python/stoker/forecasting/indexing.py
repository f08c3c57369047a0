"""Runs `stoker index`, and makes of what it found what people want to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker import _core
from stoker.loader import core_settings
from stoker.settings import Settings

__all__ = ["PACK_LENGTHS", "run_index", "suggestion", "summary"]

PACK_LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""For which over-long rows are counted, beside the settings' own."""

_TICK_MS = 100
_LEFT_OUT = 0.001
_ROWS_PER_PACK = 8


def run_index(
    settings: Settings,
    *,
    media: bool,
    ledger: Path | None,
    n_examples: int,
    tell: Callable[[str, int, int | None], None],
) -> dict[str, Any]:
    """Fills the index and returns the `summary`. A Ctrl-C ends it at once; what is in the index then stays there.

    Args:
        settings: The run's.
        media: Read the headers of media whose size the rows do not say.
        ledger: File that gets a line for every row that a run would leave out.
        n_examples: Of these rows, for each code.
        tell: Gets what is going on, rows done and rows in all, ten times a second.

    Raises:
        StokerError: What kept it from being done.
    """
    core = _core.CoreIndexer.create(
        core_settings(settings),
        reads_headers=media,
        ledger=str(ledger) if ledger is not None else "",
        n_examples=n_examples,
        pack_lengths=list(PACK_LENGTHS),
    )
    try:
        while not core.wait_within(_TICK_MS):
            report = core.report()
            if core.progress():
                tell(core.progress(), 0, None)
            else:
                tell(f"{report['rejected']} would be left out", report["rows"], report["rows_in_all"] or None)
    finally:
        core.stop()
    return summary(core.report(), settings)


def summary(report: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What was found, with rates, means, shares, and a suggestion for the length of packs. Pure."""
    reasons = {name: sentence for name, _, sentence in _core.reasons()}
    codes = {*report["rejected_by_code"], *report["media"]["rejected_by_code"]}
    n = max(1, report["rows_with_length"])
    histograms = ("tokens", "target_tokens", "patches", "media_per_row", "pixels", "gflop")
    gflop = report["gflop_language"] + report["gflop_vision"]
    return {
        "index_dir": str(settings.resolved_index_dir()),
        "rows": report["rows"],
        "rows_known": report["rows_known"],
        "elapsed_s": report["elapsed_s"],
        "rows_per_s": report["rows"] / report["elapsed_s"] if report["elapsed_s"] > 0 else 0.0,
        "rejected": report["rejected"],
        "rejected_by_code": report["rejected_by_code"],
        "examples": report["examples"],
        "meaning": {code: reasons[code] for code in codes},
        "media": report["media"],
        "rows_with_length": report["rows_with_length"],
        **{name: with_mean(report[name]) for name in histograms},
        "vision_share": report["gflop_vision"] / gflop if gflop else 0.0,
        "over_long": [
            {"tokens_per_pack": length, "rows": rows, "share": rows / n} for length, rows in report["longer_than"]
        ],
        "suggestion": suggestion(report, settings),
    }


def with_mean(histogram: Mapping[str, Any]) -> dict[str, Any]:
    """A histogram with the mean of its values."""
    return {**histogram, "mean": histogram["total"] / max(1, histogram["n"])}


def suggestion(report: Mapping[str, Any], settings: Settings) -> dict[str, Any] | None:
    """What length of packs would suit the rows; None without any.

    The shortest of `PACK_LENGTHS` that at most one row in a thousand is too long for and that holds eight mean rows, so
    that packs can be filled and made even; and as many packs as keep the tokens of a step.
    """
    n, tokens = report["rows_with_length"], report["tokens"]
    if not n:
        return None
    over = dict(report["longer_than"])
    fits = [
        length
        for length in PACK_LENGTHS
        if over[length] <= _LEFT_OUT * n and length >= _ROWS_PER_PACK * tokens["total"] / tokens["n"]
    ]
    length = fits[0] if fits else PACK_LENGTHS[-1]
    per_step = settings.pack.tokens_per_pack * settings.pack.packs_per_step
    return {
        "tokens_per_pack": length,
        "packs_per_step": max(1, round(per_step / length)),
        "left_out": over[length],
        "rows_per_pack": length / (tokens["total"] / tokens["n"]),
    }
