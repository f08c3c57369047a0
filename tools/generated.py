"""What the scripts that write committed files share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def write_or_compare(path: Path, text: str, argv: Sequence[str], command: str) -> int:
    """Writes a generated file; with ``--check`` in `argv` only compares.

    Args:
        path: The committed file.
        text: What it should hold.
        argv: The script's arguments.
        command: What a developer runs when the two differ, such as ``make docs``.

    Returns:
        The script's exit status: 1 where the file differs.
    """
    if "--check" not in argv:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path.name} is not what the build makes it: run `{command}` and commit it", file=sys.stderr)
    return 1
