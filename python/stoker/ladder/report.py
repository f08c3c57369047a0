"""Writes a climb down: one JSON file, one picture (SVG), one HTML page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from stoker.ladder.climb import RUNGS
from stoker.ladder.result import LadderResult, RungResult

__all__ = ["draw", "write_files", "write_report"]

_COLOURS = {"train": "#2e7d32", "wait": "#c62828", "barrier": "#9e9e9e"}
_LABELS = {"train": "training", "wait": "waiting for data", "barrier": "waiting for the other rank"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; width: 100%; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; white-space: normal; }
code { font-size: .9em; }
svg { max-width: 100%; height: auto; }
.bad { color: #c62828; font-weight: bold; }
"""


def write_report(result: LadderResult, folder: Path) -> dict[str, Path]:
    """Writes ``ladder.json``, ``ladder.svg`` and ``ladder.html`` into a folder, which is made if need be."""
    texts = {"json": json.dumps(result.to_dict(), indent=1), "svg": draw(result), "html": _page(result)}
    return write_files(folder, texts)


def write_files(folder: Path, texts: Mapping[str, str]) -> dict[str, Path]:
    """Writes a report's files, by their endings, into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"ladder.{kind}" for kind in texts}
    for kind, text in texts.items():
        paths[kind].write_text(text, encoding="utf-8")
    return paths


def draw(result: LadderResult) -> str:
    """Returns the picture: per rung one bar, a whole training step, divided into training and waiting."""
    left = max(130, 20 + round(7.4 * max(len(rung.name) for rung in result.rungs)))
    width, row, top = 560 - left, 46, 44
    height = top + row * len(result.rungs) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" width="700" height="{height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="14" fill="#222">',
        "<title>Share of each training step spent waiting for data</title>",
        f'<rect width="700" height="{height}" fill="#fff"/>',
    ]
    x = float(left)
    for kind, label in _LABELS.items():
        parts.append(f'<rect x="{x:.0f}" y="14" width="12" height="12" fill="{_COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="25">{label}</text>')
        x += 42 + 7.2 * len(label)
    for i, rung in enumerate(result.rungs):
        y = top + row * i
        parts.append(f'<text x="{left - 10}" y="{y + 23}" text-anchor="end">{escape(rung.name)}</text>')
        x = float(left)
        for kind, share in _shares(rung).items():
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 4}" width="{share * width:.1f}" height="{row - 16}" '
                f'fill="{_COLOURS[kind]}">'
                f"<title>{_LABELS[kind]}: {100 * share:.1f} %</title></rect>"
            )
            x += share * width
        parts.append(
            f'<text x="{left + width + 10}" y="{y + 17}">wait {100 * rung.wait_ratio:.1f} %</text>'
            f'<text x="{left + width + 10}" y="{y + 32}" font-size="12" fill="#555">step {rung.step_s:.2f} s</text>'
        )
    axis_y = top + row * len(result.rungs) + 16
    for percent in (0, 25, 50, 75, 100):
        parts.append(
            f'<text x="{left + width * percent / 100:.0f}" y="{axis_y}" font-size="12" fill="#555" '
            f'text-anchor="middle">{percent} %</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _shares(rung: RungResult) -> dict[str, float]:
    barrier = max(0.0, 1.0 - rung.gpu_busy - rung.wait_ratio)
    return {"train": rung.gpu_busy, "wait": rung.wait_ratio, "barrier": barrier}


def _page(result: LadderResult) -> str:
    head = (
        "rung", "steps", "data<br>s/step", "train<br>s/step", "wait<br>ratio", "GPU<br>busy", "first<br>step s",
        "samples/s", "tokens/s", "CPU<br>s/step", "CPU ms<br>/sample", "digest",
    )  # fmt: skip
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(rung))}</tr>" for rung in result.rungs)
    abouts = "".join(f"<li><b>{rung.name}</b>: {escape(RUNGS[rung.name].about)}.</li>" for rung in result.rungs)
    compared = [rung for rung in result.rungs if rung.digest is not None]
    verdict = ""
    if len(compared) > 1 and result.digests_agree:
        verdict = (
            f"<p>The engine delivered the same batches, bit for bit, on {len(compared)} rungs (digest over all "
            f"micro-batches of all ranks of the first {compared[0].digest_steps} steps).</p>"
        )
    elif not result.digests_agree:
        verdict = '<p class="bad">The engine rungs delivered different batches. This is a fault of Stoker.</p>'
    model = result.facts.get("rank_model", {})
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stoker: the ladder</title><style>{_STYLE}</style></head><body>
<h1>The ladder</h1>
<p>The same data and the same emulated ranks, fed in {len(result.rungs)} ways. A bar is one training step.</p>
{draw(result)}
<table><thead><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr></thead><tbody>{rows}</tbody></table>
{verdict}
<ul>{abouts}</ul>
<h2>How it was measured</h2>
<p>{result.facts.get("ranks")} rank processes stand for {model.get("n_gpus")} GPUs each. A rank asks for its step's
micro-batches (the time until it has them is its wait), then sleeps as long as its slowest GPU would train on them:
<code>{model.get("flops_per_token", 0):.3g} tokens + {model.get("flops_per_squared_token", 0):.3g} tokens² +
{model.get("flops_per_patch", 0):.3g} patches + {model.get("flops_per_squared_patch", 0):.3g} patches²</code> FLOP per
sample, squares per sample and per image, at {model.get("flops_per_s", 0):.3g} FLOP/s per GPU. Then it meets the other
ranks at a barrier, as data-parallel training does. Each rung's first step, with the start of its loader, is kept apart.
Data is what a rank waits for per step, so only what training does not hide; wait ratio is wait / step time, GPU busy is
training / step time, both means over ranks. CPU is that of the rank processes.</p>
<h2>On what</h2>
<table><tbody>{_fact_rows(result.facts)}</tbody></table>
<script type="application/json" id="ladder">{_embedded(result)}</script>
</body></html>
"""


def _cells(rung: RungResult) -> tuple[str, ...]:
    return (
        escape(rung.name),
        str(rung.steps),
        f"{rung.data_s_per_step:.3f}",
        f"{rung.train_s_per_step:.3f}",
        f"{rung.wait_ratio:.3f}",
        f"{100 * rung.gpu_busy:.1f} %",
        f"{rung.first_step_s:.2f}",
        f"{rung.samples_per_s:.1f}",
        f"{rung.tokens_per_s:,.0f}",
        f"{rung.cpu_s_per_step:.2f}",
        f"{rung.cpu_ms_per_sample:.1f}",
        f"<code>{rung.digest}</code>" if rung.digest else "-",
    )


def _fact_rows(facts: dict[str, Any]) -> str:
    rows = []
    for name, value in facts.items():
        shown = value if isinstance(value, dict) else {"": value}
        cells = ", ".join(f"{key} {inner}".strip() for key, inner in shown.items())
        rows.append(f'<tr><td>{escape(name)}</td><td class="text">{escape(cells)}</td></tr>')
    return "".join(rows)


def _embedded(result: LadderResult) -> str:
    return json.dumps(result.to_dict()).replace("<", "\\u003c")
