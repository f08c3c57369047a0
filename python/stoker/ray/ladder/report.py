"""Writes the climb down: the table for people, ``ladder.json``, ``ladder.svg`` and ``ladder.md``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stoker.ladder.report import draw, write_files
from stoker.ray.ladder.result import RayLadderResult, RayRungResult, verdicts
from stoker.ray.ladder.rungs import RUNGS

__all__ = ["table", "text", "write_report"]


def _of_cluster(shown: Callable[[RayRungResult], str]) -> Callable[[RayRungResult], str]:
    return lambda rung: shown(rung) if rung.uses else "-"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _busiest(rung: RayRungResult) -> str:
    """Share of its capacity that the busiest NIC carried."""
    shares = [
        max(use.received_bytes, use.sent_bytes) / use.span_s / use.nic_bytes_s
        for use in rung.uses
        if use.nic_bytes_s and use.span_s > 0
    ]
    return f"{100 * max(shares):.0f} %" if shares else "-"


_COLUMNS: dict[str, Callable[[RayRungResult], str]] = {
    "rung": lambda r: r.result.name,
    "ranks": lambda r: str(r.n_ranks),
    "wait ratio": lambda r: f"{r.result.wait_ratio:.3f}",
    "GPU busy": lambda r: f"{r.result.gpu_busy:.3f}",
    "step s": lambda r: f"{r.result.step_s:.2f}",
    "train s": lambda r: f"{r.result.train_s_per_step:.2f}",
    "samples/s": lambda r: f"{r.result.samples_per_s:.1f}",
    "MB/s all NICs": _of_cluster(lambda r: f"{r.received_bytes / max(use.span_s for use in r.uses) / 1e6:.1f}"),
    "busiest NIC": _busiest,
    "crossings": lambda r: _or_dash(r.crossings_per_pack, ".2f"),
    "copies": lambda r: _or_dash(r.copies_per_pack, ".2f"),
    "B/token": lambda r: _or_dash(r.wire_bytes_per_visual_token, ",.0f"),
    "CPU cores": _of_cluster(lambda r: f"{r.cpu_s / max(use.span_s for use in r.uses):.2f}"),
    "bound by": lambda r: r.bound_by,
    "digest": lambda r: r.result.digest[:7] if r.result.digest else "-",
}


def table(rungs: tuple[RayRungResult, ...], *, as_markdown: bool = False) -> str:
    """Returns the table, a line for each rung."""
    rows = [list(_COLUMNS), *([shown(rung) for shown in _COLUMNS.values()] for rung in rungs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    left = {0, len(_COLUMNS) - 2, len(_COLUMNS) - 1}
    lines = [
        [cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    if not as_markdown:
        return "\n".join("  ".join(line).rstrip() for line in lines)
    rule = ["-" * w if i in left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def text(result: RayLadderResult, *, as_markdown: bool = False) -> str:
    """Returns all that is shown: the table, which bound holds with the arithmetic, what was to be seen."""
    parts = [table(result.rungs, as_markdown=as_markdown), ""]
    parts += ["Seconds that one step takes if only this bound it; the first holds:", ""]
    width = max(len(rung.result.name) for rung in result.rungs)
    for rung in result.rungs:
        name = f"- `{rung.result.name}`:" if as_markdown else f"{rung.result.name.ljust(width)} "
        said = "; ".join(f"{bound.name}: {bound.arithmetic}" for bound in rung.bounds)
        enough = "suffice" if rung.suffices else "do not suffice"
        parts.append(f"{name} {said}. NICs and cores together {enough}.")
    why = result.rungs[-1].choices.get("why")
    if why:
        parts += ["", f"What {result.rungs[-1].result.name} chose, and why:", ""]
        parts += [f"{'- ' if as_markdown else '  '}{name}: {reason}" for name, reason in why.items()]
    parts.append("")
    for verdict in verdicts(result.rungs):
        parts.append(f"{'- ' if as_markdown else ''}{'seen' if verdict.holds else 'MISSED'}: {verdict.text}")
    if not result.plain.digests_agree:
        parts.append("The rungs delivered different batches. This is a fault of Stoker.")
    return "\n".join(parts)


def write_report(result: RayLadderResult, folder: Path) -> dict[str, Path]:
    """Writes ``ladder.json``, ``ladder.svg`` and ``ladder.md`` into a folder, which is made if need be."""
    texts = {"json": json.dumps(result.to_dict(), indent=1), "svg": draw(result.plain), "md": _page(result)}
    return write_files(folder, texts)


def _page(result: RayLadderResult) -> str:
    abouts = [f"- `{rung.result.name}`: {RUNGS[rung.result.name].about}." for rung in result.rungs]
    facts = [
        f"- {name}: {', '.join(f'{k} {v}' for k, v in value.items()) if isinstance(value, dict) else value}"
        for name, value in result.facts.items()
    ]
    return "\n".join([text(result, as_markdown=True), "", *abouts, "", "On what:", "", *facts, ""])
