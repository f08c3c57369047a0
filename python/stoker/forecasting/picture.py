"""Draws a forecast: what ranks lose to imbalance by policy and dp_size, and their step times over the steps (SVG)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stoker.forecasting.display import speed_said

__all__ = ["draw", "write_picture"]

_WIDTH = 760
_LEFT = 190
_PLOT = 430
_ROW = 17
_LOST = {"per_step": ("#1565c0", "at the end of a step"), "per_phase": ("#c62828", "in each phase of each micro-batch")}
_BAND, _MEAN = "#90caf9", "#0d47a1"
_STRIP = 110
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
"""


def write_picture(result: Mapping[str, Any], path: Path) -> None:
    """Writes the picture as SVG, or, to a name that ends in .html, a page that needs nothing else."""
    is_page = path.suffix.lower() in {".html", ".htm"}
    path.write_text(_page(result) if is_page else draw(result), encoding="utf-8")


def draw(result: Mapping[str, Any]) -> str:
    """Returns the picture: bars of the share of a step that is lost, then the most ranks' times over the steps."""
    dp_sizes = [ranks["dp_size"] for ranks in result["policies"][0]["ranks"]]
    parts, y = _bars(result, dp_sizes)
    strips, y = _strips(result, dp_sizes.index(max(dp_sizes)), y + 24)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        "<title>Step time lost to imbalance, and step times of the ranks</title>",
        f'<rect width="{_WIDTH}" height="{y}" fill="#fff"/>',
    ]
    return "\n".join([*head, *parts, *strips, "</svg>\n"])


def _bars(result: Mapping[str, Any], dp_sizes: Sequence[int]) -> tuple[list[str], int]:
    most = max(
        (ranks["lost"][name] for policy in result["policies"] for ranks in policy["ranks"] for name in _LOST),
        default=0.0,
    )
    scale = _PLOT / max(most, 0.01)
    parts = ['<text x="10" y="22" font-size="15">Share of a step lost while ranks wait for each other</text>']
    x = 10.0
    for colour, label in _LOST.values():
        parts.append(f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="44">meeting {label}</text>')
        x += 90 + 6.6 * len(label)
    y = 58
    for k, dp_size in enumerate(dp_sizes):
        parts.append(f'<text x="10" y="{y + 14}" font-weight="bold">{dp_size} ranks</text>')
        y += 20
        for policy in result["policies"]:
            lost = policy["ranks"][k]["lost"]
            parts.append(f'<text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(policy["policy"])}</text>')
            for i, (name, (colour, label)) in enumerate(_LOST.items()):
                parts.append(
                    f'<rect x="{_LEFT}" y="{y + 2 + 6 * i}" width="{max(0.5, lost[name] * scale):.1f}" height="6" '
                    f'fill="{colour}"><title>{label}: {100 * lost[name]:.1f} %</title></rect>'
                )
            at = _LEFT + max(lost[name] for name in _LOST) * scale + 8
            shown = " / ".join(f"{100 * lost[name]:.1f}" for name in _LOST)
            parts.append(f'<text x="{at:.0f}" y="{y + 13}" font-size="11" fill="#555">{shown} %</text>')
            y += _ROW
        y += 6
    return parts, y


def _strips(result: Mapping[str, Any], k: int, y: int) -> tuple[list[str], int]:
    shown = (result["policies"][0]["policy"], "as they come")
    ranks_of = {p["policy"]: p["ranks"][k] for p in result["policies"] if p["policy"] in shown}
    steps = [step for ranks in ranks_of.values() for step in ranks["steps_s"]]
    if not steps:
        return [], y
    top = max(max(step[2], step[3]) for step in steps)
    dp_size = result["policies"][0]["ranks"][k]["dp_size"]
    parts = [
        f'<text x="10" y="{y}" font-size="15">Seconds of a step, {dp_size} ranks: '
        f'<tspan fill="{_MEAN}">mean</tspan>, <tspan fill="#42a5f5">least to most</tspan>, '
        f'<tspan fill="{_LOST["per_phase"][0]}">with sharded weights</tspan></text>'
    ]
    y += 14
    for name, ranks in ranks_of.items():
        parts += _strip(name, ranks["steps_s"], top, y)
        y += _STRIP + 16
    return parts, y


def _strip(name: str, steps: Sequence[Sequence[float]], top: float, y: int) -> list[str]:
    width = _WIDTH - _LEFT - 20

    def at(i: float, value: float) -> str:
        return f"{_LEFT + width * i / max(1, len(steps)):.1f},{y + _STRIP - value / top * (_STRIP - 6):.1f}"

    def line(column: int) -> str:
        return " ".join(f"{at(i, step[column])} {at(i + 1, step[column])}" for i, step in enumerate(steps))

    below = " ".join(f"{at(i + 1, steps[i][0])} {at(i, steps[i][0])}" for i in range(len(steps) - 1, -1, -1))
    base = y + _STRIP
    return [
        f'<text x="{_LEFT - 10}" y="{y + _STRIP // 2}" text-anchor="end">{escape(name)}</text>',
        f'<line x1="{_LEFT}" y1="{base}" x2="{_LEFT + width}" y2="{base}" stroke="#999"/>',
        f'<text x="{_LEFT - 10}" y="{y + 12}" text-anchor="end" font-size="11" fill="#555">{top:.2f} s</text>',
        f'<polygon points="{line(2)} {below}" fill="{_BAND}"/>',
        f'<polyline points="{line(1)}" fill="none" stroke="{_MEAN}"/>',
        f'<polyline points="{line(3)}" fill="none" stroke="{_LOST["per_phase"][0]}"/>',
    ]


def _page(result: Mapping[str, Any]) -> str:
    head = ("policy", "ranks", "fill", "total", "language", "vision", "busy s", "step s", "lost", "lost, sharded")
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(policy, ranks)) + "</tr>"
        for policy in result["policies"]
        for ranks in policy["ranks"]
    )
    walked, packs = result["walked"], result["packs"]
    # What stands in a script must not end it.
    embedded = json.dumps(result).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stoker: a plan</title><style>{_STYLE}</style></head><body>
<h1>A plan, before any pixel is read</h1>
<p>{walked["positions"]} positions of the order, {walked["steps"]} steps of {packs["packs_per_step"]} packs of
{packs["tokens_per_pack"]} tokens. Imbalance is the most that a rank computes / the mean, over a step; seconds
{escape(speed_said(result))}.</p>
{draw(result)}
<table><thead><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr></thead><tbody>{rows}</tbody></table>
<script type="application/json" id="plan">{embedded}</script>
</body></html>
"""


def _cells(policy: Mapping[str, Any], ranks: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        policy["policy"],
        str(ranks["dp_size"]),
        f"{policy['fill']:.3f}",
        *(f"{ranks['imbalance'][phase]['mean']:.3f}" for phase in ("total", "language", "vision")),
        f"{ranks['busy_s']:.3f}",
        f"{ranks['step_s']['per_step']:.3f}",
        f"{100 * ranks['lost']['per_step']:.1f} %",
        f"{100 * ranks['lost']['per_phase']:.1f} %",
    )
