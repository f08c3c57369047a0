"""The page of cases says what the tests' markers say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from case_catalogue import CATALOGUE
from robustness_doc import Held, collect, markers_of, render

ROOT = Path(__file__).resolve().parent.parent

SOURCE = """
import pytest

@pytest.mark.case("IMG-07", "accepted")
@pytest.mark.case("IMG-08", "refused")
def test_a(): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.case("JSL-01", "3 rows")), 2])
def test_b(x): ...

ROWS = [pytest.param(1, marks=[pytest.mark.case("JSL-02", "3 rows")])]
"""


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    assert page == render(collect(ROOT / "tests")), (
        "run `make docs` (or run tools/robustness_doc.py) and commit docs/robustness.md"
    )


def test_markers_are_found_wherever_they_stand() -> None:
    assert set(markers_of(SOURCE, "test_x.py")) == {
        Held("IMG-07", "accepted", "test_x.py::test_a"),
        Held("IMG-08", "refused", "test_x.py::test_a"),
        Held("JSL-01", "3 rows", "test_x.py::test_b"),
        Held("JSL-02", "3 rows", "test_x.py"),
    }


def test_a_marker_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="two literal texts"):
        list(markers_of("@pytest.mark.case(NAME, 'x')\ndef test_a(): ...\n", "test_x.py"))
    with pytest.raises(KeyError):
        render([Held("IMG-99", "accepted", "test_x.py")])


def test_the_catalogue_has_every_case_of_the_generator() -> None:
    """Files that make_cases.py writes for pictures, rows, texts and storage belong to a case that the page lists."""
    source = (ROOT / "tools" / "cases" / "make_cases.py").read_text(encoding="utf-8")
    missing = [
        f"{kind}-{n:02}"
        for kind in ("IMG", "JSL", "TXT", "NET")
        for n in range(1, 100)
        if f'"{kind}-{n:02}"' in source and f"{kind}-{n:02}" not in CATALOGUE
    ]
    assert missing == []
