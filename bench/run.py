"""Runs benchmark groups, prints a table per group, and writes ``build/bench/GROUP.json``.

A group is a module ``bench/NAME.py`` with ``def run() -> list[dict]``; each dict is one result: ``name``, ``value``,
``unit``, ``bar`` (what it is held against; null where there is none) and ``ok``. All values of a group come from one
run. A result that is not ok makes the command fail.

    python bench/run.py            every group
    python bench/run.py pixels     one
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
OUT = BENCH.parent / "build" / "bench"
FIELDS = ("name", "value", "unit", "bar", "ok")


def groups(folder: Path = BENCH) -> dict[str, Path]:
    """Returns the groups in a folder; private modules and this one are none."""
    names = [p for p in sorted(folder.glob("*.py")) if p.stem != "run" and not p.stem.startswith("_")]
    return {p.stem: p for p in names}


def load(name: str, path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Imports a group from its file and returns its ``run``."""
    spec = importlib.util.spec_from_file_location(f"stoker_bench_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    run: Callable[[], list[dict[str, Any]]] = module.run
    return run


def checked(name: str, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the results with exactly the fields of a report.

    Raises:
        ValueError: A result lacks a field, or the group measured nothing.
    """
    if not results:
        raise ValueError(f"group {name} measured nothing")
    for result in results:
        if set(result) != set(FIELDS):
            raise ValueError(f"group {name}: a result has {sorted(result)}, wanted {sorted(FIELDS)}")
        if not isinstance(result["ok"], bool):
            raise ValueError(f"group {name}: {result['name']}: ok is not a boolean")
    return [{field: result[field] for field in FIELDS} for result in results]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def table(name: str, results: list[dict[str, Any]]) -> str:
    """Returns the group as lines of aligned columns."""
    rows = [(name, "value", "unit", "bar", "")]
    rows += [
        (r["name"], _number(r["value"]), r["unit"], _number(r["bar"]), "" if r["ok"] else "FAILS") for r in results
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    )


def main(argv: list[str], *, folder: Path = BENCH, out: Path = OUT) -> int:
    known = groups(folder)
    wanted = argv or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        print(f"no benchmark group {', '.join(unknown)}; there are: {', '.join(known) or 'none'}", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(folder))  # groups share private modules
    n_failed = 0
    for name in wanted:
        results = checked(name, load(name, known[name])())
        report = json.dumps({"group": name, "results": results}, indent=2)
        (out / f"{name}.json").write_text(report + "\n", encoding="utf-8")
        print(table(name, results), end="\n\n", flush=True)
        n_failed += sum(not result["ok"] for result in results)
    if n_failed:
        print(f"{n_failed} results miss their bar", file=sys.stderr)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
