"""Shows how far a walk over a data set is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console

__all__ = ["telling"]

_SAY_EVERY_S = 10.0  # without a terminal


@contextlib.contextmanager
def telling(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yields what takes (what is going on, rows done, rows in all or None) as often as one likes."""
    if not console.is_terminal:
        began = told = time.monotonic()

        def tell_line(what: str, done: int, total: int | None) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told < _SAY_EVERY_S:
                return
            told = now
            console.print(_line(what, done, total, now - began), markup=False, soft_wrap=True)

        yield tell_line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, rows="")
        began = time.monotonic()

        def tell_bar(what: str, done: int, total: int | None) -> None:
            rows = f"{done} rows, {done / max(time.monotonic() - began, 0.1):,.0f}/s" if done else ""
            progress.update(task, description=what, completed=done, total=total, rows=rows)

        yield tell_bar


def _line(what: str, done: int, total: int | None, elapsed_s: float) -> str:
    if not done:
        return what
    rate = done / max(elapsed_s, 0.1)
    left = f" of {total}, {(total - done) / rate:,.0f} s left" if total is not None and total >= done else ""
    return f"{what}: {done} rows{left} ({rate:,.0f} rows/s)"
