"""Writes ``docs/robustness.md`` from the tests' ``case`` markers; ``--check`` only compares.

A test that holds a case says so where it stands, in literals:

    @pytest.mark.case("IMG-07", "accepted; counter `jpeg_extraneous`")
    pytest.param(..., marks=pytest.mark.case("JSL-03", "3 rows"))

The second argument is the result that the test proves. A test that is skipped or expected to fail proves nothing and
must not carry one; tests/conftest.py refuses ids that the catalogue (tools/case_catalogue.py) does not know.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from case_catalogue import CATALOGUE
from generated import write_or_compare

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "robustness.md"

HEAD = """# Robustness

<!-- Made by `make docs` from the tests' case markers (tools/robustness_doc.py). Edit the markers there. -->

What happens to data that people really have. Each line is held by the test named last, which every change must pass.
The inputs are made by `tools/cases/make_cases.py` or by the test itself. Codes are explained in [errors](errors.md);
what is "counted" stands in `loader.report()`.
"""

TITLES = {
    "IMG": "Pictures",
    "JSL": "Rows and references",
    "TXT": "Texts and turns",
    "NET": "Storage",
    "LDR": "Order, resume, memory and processes",
    "PCK": "Packs",
    "X": "Further cases",
}


@dataclass(frozen=True, slots=True)
class Held:
    """One marker."""

    case_id: str
    result: str
    test: str


def _marker_of(node: ast.AST) -> tuple[str, str] | None:
    """(id, result) if `node` is a call of ``pytest.mark.case``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "case"):
        return None
    if not (isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "mark"):
        return None
    try:
        case_id, result = (str(ast.literal_eval(arg)) for arg in node.args)
    except ValueError as error:
        raise ValueError(f"line {node.lineno}: a case marker takes two literal texts, id and result") from error
    return case_id, result


def markers_of(source: str, file: str) -> Iterator[Held]:
    """Yields every case marker in the text of a test module."""
    tree = ast.parse(source)
    for top in tree.body:
        name = top.name if isinstance(top, ast.FunctionDef | ast.ClassDef) else ""
        for node in ast.walk(top):
            if found := _marker_of(node):
                yield Held(*found, f"{file}::{name}" if name else file)


def collect(tests: Path) -> list[Held]:
    """All markers of the tests, in a fixed order."""
    found: list[Held] = []
    for path in sorted(tests.glob("test_*.py")):
        found += markers_of(path.read_text(encoding="utf-8"), path.name)
    return sorted(found, key=lambda held: (held.case_id, held.test))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def render(found: list[Held]) -> str:
    """Returns the page.

    Raises:
        KeyError: A marker names a case that the catalogue does not have.
    """
    by_case: dict[str, list[Held]] = {case_id: [] for case_id in CATALOGUE}
    for held in found:
        by_case[held.case_id].append(held)
    n_held = sum(bool(held) for held in by_case.values())
    parts = [HEAD, f"\n{n_held} of {len(by_case)} cases are held by a test.\n"]
    for prefix, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| case | input | wanted | result | test |\n|---|---|---|---|---|\n")
        for case_id, (given, wanted) in CATALOGUE.items():
            if case_id.split("-")[0] != prefix:
                continue
            results = "; ".join(dict.fromkeys(held.result for held in by_case[case_id])) or "**open**"
            tests = ", ".join(dict.fromkeys(f"`{held.test}`" for held in by_case[case_id]))
            parts.append(f"| {case_id} | {_cell(given)} | {_cell(wanted)} | {_cell(results)} | {tests} |\n")
    return "".join(parts)


def main(argv: list[str]) -> int:
    return write_or_compare(PAGE, render(collect(ROOT / "tests")), argv, "make docs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
