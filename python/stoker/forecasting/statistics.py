"""The statistics page of `stoker index`, on a terminal or as HTML that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker.settings import Settings

__all__ = ["page", "show_statistics"]

_BAR = 40
# name in the summary -> (label, unit and of what)
_HISTOGRAMS = {
    "tokens": ("tokens", "of a row, media expanded"),
    "target_tokens": ("trained", "tokens of a row"),
    "media_per_row": ("media", "images and clips of a row"),
    "patches": ("patches", "of a row that has any"),
    "pixels": ("pixels", "of an image or a frame, upright"),
    "gflop": ("cost", "of a row, in GFLOP forward and backward (Qwen3-VL-8B)"),
}


def show_statistics(result: Mapping[str, Any], settings: Settings, console: Console, ledger: Path | None) -> None:
    """Prints what `stoker index` found."""

    def say(text: str = "") -> None:
        shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
        console.print(shown, markup=False, soft_wrap=True)

    known = f", {result['rows_known']} were in the index" if result["rows_known"] else ""
    say(f"rows        {result['rows']} in {result['elapsed_s']:.1f} s ({result['rows_per_s']:.0f} rows/s){known}")
    _say_rejected(result, say, ledger)
    media = result["media"]
    if media["images"] or media["clips"]:
        unknown = f", the sizes of {media['without_size']} pictures are not known" if media["without_size"] else ""
        say(f"media       {media['images']} images, {media['clips']} clips{unknown}")
    for name, (label, what) in _HISTOGRAMS.items():
        _say_histogram(label, what, result[name], say, bars=name in {"tokens", "pixels"})
    if result["gflop"]["n"]:
        say(f"vision      {100 * result['vision_share']:.1f} % of the cost")
    for line in _pack_lines(result, settings):
        say(line)
    say(f"index       {result['index_dir']}")


def _say_rejected(result: Mapping[str, Any], say: Callable[[str], None], ledger: Path | None) -> None:
    if not result["rejected"]:
        return
    say(f"left out    {result['rejected']} rows ({100 * result['rejected'] / max(1, result['rows']):.3g} %)")
    for code, n in sorted(result["rejected_by_code"].items(), key=lambda item: -item[1]):
        say(f"  {code}: {n} row{'s' if n != 1 else ''}: {result['meaning'][code]}")
        for row in result["examples"].get(code, []):
            blamed = f"{row['media']}: " if row["media"] and row["media"] not in row["message"] else ""
            say(f"    {row['manifest']}:{row['line']} (byte {row['byte_offset']}): {blamed}{row['message']}")
    say(f"all of them {ledger if ledger is not None else 'with --ledger FILE'}")


def _say_histogram(label: str, what: str, h: Mapping[str, Any], say: Callable[[str], None], *, bars: bool) -> None:
    if not h["n"]:
        return
    say(f"{label:<12}{what}: {_quantiles(h)}")
    if not bars:
        return
    octaves = _octaves(h)
    most = max(octaves.values())
    for bits, n in octaves.items():
        begin, end = (1 << bits) >> 1, 1 << bits
        say(f"  {begin:>10} to {end - 1:<10} {n:>10}  {'#' * -(-n * _BAR // most)}")


def _quantiles(h: Mapping[str, Any]) -> str:
    shares = f"half up to {h['p50']}, 90 % up to {h['p90']}, 99 % up to {h['p99']}"
    return f"mean {h['mean']:.1f}, {shares}, most {h['most']}"


def _octaves(histogram: Mapping[str, Any]) -> dict[int, int]:
    """Counts by the bits of a value, from the least to the most without a gap."""
    counts: dict[int, int] = {}
    for begin, _, n in histogram["buckets"]:
        counts[int(begin).bit_length()] = counts.get(int(begin).bit_length(), 0) + n
    return {bits: counts.get(bits, 0) for bits in range(min(counts), max(counts) + 1)}


def _pack_lines(result: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    suggested = result["suggestion"]
    if suggested is None:
        return
    own = settings.pack.tokens_per_pack
    for i, row in enumerate(result["over_long"]):
        mark = "  <- the settings" if row["tokens_per_pack"] == own else ""
        yield (
            f"{'' if i else 'over-long':<12}{row['tokens_per_pack']:>7} tokens a pack: {row['rows']} rows are longer "
            f"({100 * row['share']:.3g} %){mark}"
        )
    yield (
        f"suggestion  pack: {{tokens_per_pack: {suggested['tokens_per_pack']}, packs_per_step: "
        f"{suggested['packs_per_step']}}}: {suggested['rows_per_pack']:.1f} mean rows in a pack, "
        f"{suggested['left_out']} rows are longer, a step keeps its tokens"
    )


# --- HTML

_WIDTH, _HEIGHT, _GAP = 640, 150, 20
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
"""


def page(result: Mapping[str, Any], settings: Settings) -> str:
    """The statistics as one HTML page with the histograms in it."""
    figures = "".join(
        f"<h2>{escape(label.capitalize())} <small>{escape(what)}</small></h2>{_bars(result[name])}"
        for name, (label, what) in _HISTOGRAMS.items()
        if result[name]["n"]
    )
    codes = "".join(
        f"<tr><td>{escape(code)}</td><td>{n}</td><td>{escape(result['meaning'][code])}</td></tr>"
        for code, n in sorted(result["rejected_by_code"].items(), key=lambda item: -item[1])
    )
    left_out = f"<h2>Left out</h2><table><tbody>{codes}</tbody></table>" if codes else ""
    packs = "".join(f"<p>{escape(line)}</p>" for line in _pack_lines(result, settings))
    # What stands in a script must not end it.
    embedded = json.dumps(result).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stoker: a data set</title><style>{_STYLE}</style></head><body>
<h1>{result["rows"]} rows</h1>
<p>{result["media"]["images"]} images, {result["media"]["clips"]} clips, {result["rejected"]} rows left out.</p>
{figures}
<h2>Packs</h2>
{packs}
{left_out}
<script type="application/json" id="index">{embedded}</script>
</body></html>
"""


def _bars(histogram: Mapping[str, Any]) -> str:
    octaves = _octaves(histogram)
    most = max(octaves.values())
    width = _WIDTH / len(octaves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + _GAP}" width="{_WIDTH}" '
        f'height="{_HEIGHT + _GAP}" role="img" font-family="system-ui, sans-serif" font-size="11" fill="#555">'
    ]
    for i, (bits, n) in enumerate(octaves.items()):
        high = n / most * (_HEIGHT - 14)
        begin, end = (1 << bits) >> 1, (1 << bits) - 1
        middle = (i + 0.5) * width
        parts.append(
            f'<rect x="{i * width + 1:.1f}" y="{_HEIGHT - high:.1f}" width="{width - 2:.1f}" height="{high:.1f}" '
            f'fill="#1565c0"><title>{begin} to {end}: {n}</title></rect>'
            f'<text x="{middle:.1f}" y="{_HEIGHT - high - 3:.1f}" text-anchor="middle">{n}</text>'
            f'<text x="{middle:.1f}" y="{_HEIGHT + 14}" text-anchor="middle">{_short(begin)}</text>'
        )
    h = histogram
    caption = (
        f"mean {h['mean']:.1f}, half up to {h['p50']}, 90 % up to {h['p90']}, 99 % up to {h['p99']}, most {h['most']}"
    )
    return "".join([*parts, "</svg>", f"<p>{caption}</p>"])


def _short(n: int) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if n >= size:
            return f"{n // size}{unit}"
    return str(n)
