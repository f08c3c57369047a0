"""Finds the fenced blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\S*)[ \t]*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: ```` ```language note ```` and what stands in it."""

    page: str
    line: int
    """Of the opening fence, from 1."""
    language: str
    note: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page in order.

    Raises:
        ValueError: A fence is never closed.
    """
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        match = _FENCE.match(line)
        if match is None:
            body.append(line)
        elif opened is None:
            opened, body = (number, match[1], match[2].strip()), []
        else:
            start, language, note = opened
            found.append(Block(page=page.name, line=start, language=language, note=note, text="\n".join(body) + "\n"))
            opened = None
    if opened is not None:
        raise ValueError(f"{page.name}:{opened[0]}: this block is never closed")
    return found
