"""Writes ``python/stoker/_core.pyi`` from the installed extension; ``--check`` only compares.

The stub is committed so that type checkers and readers need no build; a test compares it with what the build generates.
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated import write_or_compare
from nanobind.stubgen import StubGen

STUB = Path(__file__).resolve().parent.parent / "python" / "stoker" / "_core.pyi"


def generate() -> str:
    """Returns the text of the stub for ``stoker._core`` as it is installed."""
    from stoker import _core

    generator = StubGen(_core)
    generator.put(_core)
    return str(generator.get())


def main(argv: list[str]) -> int:
    return write_or_compare(STUB, generate(), argv, "make stubs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
