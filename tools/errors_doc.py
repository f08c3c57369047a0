"""Writes ``docs/errors.md`` from the engine's own list of reasons; ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from generated import write_or_compare

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

HEAD = """# Errors

<!-- Made by `make docs` from the engine's list (core/base/reasons.def). Edit it there. -->

Every error of Stoker is a `stoker.errors.StokerError` with `.message`, which names file, line and cause where they are
known, and `.code`, one of the fixed names below. The class says what to do. A line of the ledger of bad samples carries
the same codes.
"""

ACTIONS = {
    "invalid_argument": (
        "InvalidArgumentError",
        "The settings, the data as a whole, or the call are wrong. Nothing was lost: read the message, correct, start "
        "again.",
    ),
    "bad_sample": (
        "BadSampleError",
        "One sample can never be used. With `bad_samples: {policy: skip}` it is counted, written to the ledger and "
        "stepped over; the error is raised only with `policy: stop`.",
    ),
    "unavailable": (
        "UnavailableError",
        "Something outside did not answer. The engine retries by itself, and no sample is given up for it; the error "
        "comes when that took too long. Resume from the last state once the cause is gone.",
    ),
    "exhausted": (
        "ExhaustedError",
        "Over a limit of memory: raise the limit that the message names, or make packs smaller.",
    ),
    "cancelled": ("CancelledError", "The loader was closed or interrupted while something waited in it."),
    "internal": ("InternalError", "A bug of ours. Please report it with the message."),
}


def render(reasons: list[tuple[str, str, str]]) -> str:
    """Returns the page for ``[(name, action, sentence)]``.

    Raises:
        KeyError: An action has no paragraph here.
    """
    parts = [HEAD]
    for action in dict.fromkeys([*ACTIONS, *(action for _, action, _ in reasons)]):
        rows = [(name, text) for name, a, text in reasons if a == action]
        if not rows:
            continue
        class_name, paragraph = ACTIONS[action]
        parts.append(f"\n## {class_name}\n\n{paragraph}\n\n| code | meaning |\n|---|---|\n")
        parts.extend(f"| `{name}` | {text.replace('|', chr(92) + '|')} |\n" for name, text in rows)
    return "".join(parts)


def main(argv: list[str]) -> int:
    from stoker import _core

    return write_or_compare(PAGE, render(_core.reasons()), argv, "make docs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
