"""Writes ``python/stoker/_core.pyi`` from the installed extension; ``--check`` only compares.

The stub is committed so that type checkers and readers need no build; a test compares it with what the build generates.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nanobind.stubgen import StubGen

STUB = Path(__file__).resolve().parent.parent / "python" / "stoker" / "_core.pyi"


def generate() -> str:
    """Returns the text of the stub for ``stoker._core`` as it is installed."""
    from stoker import _core

    generator = StubGen(_core)
    generator.put(_core)
    return str(generator.get())


def main(argv: list[str]) -> int:
    text = generate()
    if "--check" not in argv:
        STUB.write_text(text, encoding="utf-8")
        return 0
    if STUB.is_file() and STUB.read_text(encoding="utf-8") == text:
        return 0
    print(f"{STUB.name} differs from the extension: run `make stubs` and commit it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
