"""Shows the climb: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from stoker.ladder.result import RungResult, StepRecord, summarise

__all__ = ["Display", "Shown", "result_table"]

# Ten columns in 80 characters: what prints to a pipe gets no more.
_COLUMNS = (
    "rung",
    "steps",
    "data\ns/step",
    "train\ns/step",
    "wait\nratio",
    "GPU\nbusy",
    "samples\n/s",
    "tokens\n/s",
    "CPU\ns/step",
    "digest",
)
_DIGEST_SHOWN = 7


class Shown(Protocol):
    """What the display must know of a plan."""

    @property
    def in_ladder_order(self) -> tuple[str, ...]:
        """The rungs, lowest first."""

    def about(self, name: str) -> str:
        """Returns what a rung is, in words."""

    def steps_of(self, name: str) -> int:
        """Returns the number of a rung's steps, the first included."""

    def ranks_of(self, name: str) -> int:
        """Returns the number of ranks that a rung feeds."""


class Display:
    """Listens to a climb. Use as a context manager.

    Threads: the climber's.
    """

    def __init__(self, console: Console, plan: Shown) -> None:
        self._console = console
        self._plan = plan
        self._done: dict[str, RungResult] = {}
        self._running: str | None = None
        self._records: list[StepRecord] = []
        self._live = Live(self._table(), console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def rung_started(self, name: str) -> None:
        """A rung begins."""
        self._running, self._records = name, []
        self._show(f"{name}: {self._plan.about(name)}; {self._plan.steps_of(name) - 1} steps after the first")

    def step_done(self, name: str, record: StepRecord) -> None:
        """One rank has finished a step; a line is shown when all have."""
        self._records.append(record)
        of_step = [r for r in self._records if r.step == record.step]
        if len(of_step) == self._plan.ranks_of(name):
            wait_s = sum(r.wait_s for r in of_step) / len(of_step)
            train_s = sum(r.train_s for r in of_step) / len(of_step)
            n_samples = sum(r.n_samples for r in of_step)
            self._show(
                f"{name}: step {record.step}/{self._plan.steps_of(name) - 1}  waited {wait_s:.3f} s, "
                f"trained {train_s:.3f} s, {n_samples} samples{' (not measured)' if record.step == 0 else ''}"
            )

    def rung_done(self, result: RungResult) -> None:
        """A rung has its result."""
        self._done[result.name] = result
        self._running, self._records = None, []
        self._show(f"{result.name}: wait ratio {result.wait_ratio:.3f}, GPU busy {result.gpu_busy:.3f}")

    def _show(self, line: str) -> None:
        if self._live is not None:
            self._live.update(self._table())
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = _empty_table()
        for name in self._plan.in_ladder_order:
            if name in self._done:
                table.add_row(*_cells(self._done[name]))
            elif name == self._running:
                table.add_row(*self._running_cells(name), style="yellow")
            else:
                table.add_row(name, "waiting", style="dim")
        return table

    def _running_cells(self, name: str) -> tuple[str, ...]:
        n_steps = self._plan.steps_of(name)
        n_done = min(sum(r.rank == rank for r in self._records) for rank in range(self._plan.ranks_of(name)))
        if n_done < 2:
            return (name, "starting" if n_done == 0 else f"0/{n_steps - 1}")
        so_far = summarise(name, [r for r in self._records if r.step < n_done], digest_steps=0)
        return (name, f"{n_done - 1}/{n_steps - 1}", *_cells(so_far)[2:-1], "")


def result_table(console: Console, rungs: tuple[RungResult, ...]) -> None:
    """Prints the finished table."""
    table = _empty_table()
    for rung in rungs:
        table.add_row(*_cells(rung))
    console.print(table)


def _empty_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for i, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if i in (0, len(_COLUMNS) - 1) else "right", no_wrap=True)
    return table


def _cells(rung: RungResult) -> tuple[str, ...]:
    return (
        rung.name,
        str(rung.steps),
        f"{rung.data_s_per_step:.3f}",
        f"{rung.train_s_per_step:.3f}",
        f"{rung.wait_ratio:.3f}",
        f"{rung.gpu_busy:.3f}",
        f"{rung.samples_per_s:.1f}",
        f"{rung.tokens_per_s:,.0f}",
        f"{rung.cpu_s_per_step:.2f}",
        "-" if rung.digest is None else rung.digest[:_DIGEST_SHOWN],
    )
