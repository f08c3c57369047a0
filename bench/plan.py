"""Planning: how even and how full packs are beside other ways of packing, and how long a plan takes.

`plan_bench` draws the mixture that planning is designed against (33 % text only, 60 % images, 7 % clips; packs of
16,384 tokens) and counts 200 steps at each number of ranks. Imbalance is the most that a rank has / the mean over
ranks, per step, as a mean over steps; of the language model, of the vision tower, and of both together. Beside it, the
share of a step in which ranks wait when they meet in every phase (sharded weights). Times are CPU time on one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IMBALANCE_BARS = {"total": 1.05, "language": 1.15, "vision": 1.15}
FILL_BAR = 0.97
PLANNING_BAR_MS = 100.0


def executable() -> Path:
    """Returns the newest built plan_bench; STOKER_BENCH_DIR names its folder where that is not below build/."""
    folder = os.environ.get("STOKER_BENCH_DIR")
    found = [Path(folder) / "plan_bench"] if folder else sorted((ROOT / "build").glob("*/bench/plan_bench"))
    built = [path for path in found if path.is_file()]
    if not built:
        raise FileNotFoundError("no plan_bench is built: `make bench` builds it")
    return max(built, key=lambda path: path.stat().st_mtime)


def _lines(part: str) -> list[dict[str, Any]]:
    done = subprocess.run([str(executable()), part], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _result(name: str, value: float, unit: str, bar: float | None = None, *, ok: bool = True) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": ok}


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    """All of it in one table; the results below hold what has a bar."""
    lines = [
        f"{title:<28} {'ranks':>5} {'micro':>5} {'total':>7} {'lang.':>7} {'vision':>7} {'fill':>7} {'padding':>8} "
    ]
    lines[0] += f"{'dummies':>8} {'lost, phases':>13}"
    lines += [
        f"{row['name']:<28} {row['dp_size']:>5} {row['micro_batches']:>5} {row['total']:>7.3f} {row['language']:>7.3f} "
        f"{row['vision']:>7.3f} {row['fill']:>7.3f} {row['padding']:>8.1%} {row['dummies']:>8.1%} "
        f"{row['lost_per_phase']:>13.1%}"
        for row in rows
    ]
    sys.stdout.write("\n".join(lines) + "\n\n")


def _held(row: dict[str, Any]) -> list[dict[str, Any]]:
    where = f"{row['dp_size']} ranks" + (f" x {row['micro_batches']}" if row["micro_batches"] > 1 else "")
    out = [
        _result(f"{where}: {phase}", row[phase], "max / mean", bar, ok=row[phase] <= bar)
        for phase, bar in IMBALANCE_BARS.items()
    ]
    fill = _result(f"{where}: fill", row["fill"], "of a pack", FILL_BAR, ok=row["fill"] >= FILL_BAR)
    return [*out, fill]


def run() -> list[dict[str, Any]]:
    """Plans; see the module's text."""
    compared = _lines("compare")
    _table("policy", compared)
    variants = _lines("variants")
    _table("setting", variants)
    out = [result for row in compared if row["name"] == "ours" for result in _held(row)]
    out += [_result(f"fill, {row['name']}, {row['dp_size']} ranks", row["fill"], "of a pack") for row in variants]
    for row in _lines("speed"):
        bar = PLANNING_BAR_MS if row["name"] == "plan 100000 samples, default" else None
        out.append(_result(row["name"], row["ms"], "ms CPU", bar, ok=bar is None or row["ms"] <= bar))
    return out
