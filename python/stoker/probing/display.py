"""Shows a probe while it runs, and what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker.probing.cost import StepCost
from stoker.probing.measure import Measurement, Objects, Phase
from stoker.probing.quantiles import quantile
from stoker.probing.verdict import Verdict
from stoker.settings import ResolvedSpeed

__all__ = ["report_dict", "show_report", "telling"]

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_FIRST, _LAST = ("p50", "p90", "p99", "p99.9", "max"), ("p50", "p99", "max")
_FIRST_HEAD, _LAST_HEAD = ("".join(f"{name:>7}" for name in names) for names in (_FIRST, _LAST))
_HEADS = (
    f"{'':31}ms to the first byte{'':19}to the last",
    f"in flight answers/s    MB/s{_FIRST_HEAD}    {_LAST_HEAD}",
)


@contextlib.contextmanager
def telling(console: Console) -> Iterator[Callable[[str, Phase | None], None]]:
    """Yields what tells people how far it is: each phase is a line, and on a terminal the one under way is named."""
    is_headed = False
    status = console.status("") if console.is_terminal else None

    def tell(doing: str, ended: Phase | None) -> None:
        nonlocal is_headed
        if status is not None and doing:
            status.update(doing)
        if ended is None:
            return
        if not is_headed:
            is_headed = True
            for head in _HEADS:
                console.print(head, markup=False, soft_wrap=True)
        console.print(_line(ended), markup=False, soft_wrap=True)

    with status if status is not None else contextlib.nullcontext():
        yield tell


def _line(phase: Phase) -> str:
    def times(values: tuple[float, ...], names: tuple[str, ...]) -> str:
        ascending = sorted(values)
        return "".join(f"{1e3 * quantile(ascending, _SHARES[n]):7.1f}" if ascending else f"{'-':>7}" for n in names)

    line = (
        f"{phase.concurrency:9d} {phase.requests_per_s:9.1f} {phase.bytes_per_s / 1e6:7.1f}"
        f"{times(phase.first_byte_s, _FIRST)}    {times(phase.took_s, _LAST)}"
    )
    troubles = [f"{code} {n}" for code, n in sorted(phase.failed_tries.items())]
    if phase.unanswered:
        troubles.append(f"{phase.unanswered} cut off at its end")
    return line + ("  " + ", ".join(troubles) if troubles else "")


def show_report(
    measurement: Measurement,
    verdict: Verdict | None,
    cost: StepCost | None,
    speed: ResolvedSpeed,
    console: Console,
    *,
    host: str,
    saved: Path | None,
) -> None:
    """Prints what was found, behind the phases' lines."""

    def say(name: str, text: str) -> None:
        console.print(f"{name:<12}{text}", markup=False, soft_wrap=True)

    objects = measurement.objects
    if measurement.steady is not None:
        console.print(
            _line(measurement.steady) + "  (a longer look: what follows is made of it)",
            markup=False,
            soft_wrap=True,
        )
    console.print()
    say("storage", f"{host}: {_objects_said(objects)}")
    repeated = sum(phase.repeated for phase in _all(measurement))
    if repeated:
        say(
            "",
            f"{repeated} requests asked for what had been read before: a cache on the way makes them faster than yours",
        )
    if verdict is None or cost is None:
        say("limit", "too little was measured to say")
        return
    say("limit", verdict.sentence)
    say("engine", _engine_said(verdict, cost, speed, are_local=objects.are_local))
    headers = (
        f" and {cost.header_reads} header reads, since rows do not say width and height" if cost.header_reads else ""
    )
    say("step", f"{cost.samples} samples: {cost.objects} objects{headers}; simulated over what was measured,")
    say("", f"in seconds, without and with second requests for late answers ({100 * speed.hedge_share:g} %):")
    say("", f"  alone, with nothing read ahead     {cost.cold_s[0]:8.3f} {cost.cold_s[1]:8.3f}")
    for depth, (plain, hedged) in cost.steady_s.items():
        say("", f"  {_ahead(depth):<33}{plain:10.3f} {hedged:8.3f}")
    if cost.train_s is not None:
        say("wait", f"of a trainer that takes {cost.train_s:g} s a step, as a share of its time:")
        for depth, (plain, hedged) in cost.wait_ratio.items():
            say("", f"  {_ahead(depth):<33}{plain:10.3f} {hedged:8.3f}")
        say("", _wait_said(cost, speed))
    if saved is not None:
        say("saved", str(saved))


def _all(measurement: Measurement) -> tuple[Phase, ...]:
    return (*measurement.phases, *([measurement.steady] if measurement.steady else []))


def _ahead(depth: int) -> str:
    return f"{depth} step{'' if depth == 1 else 's'} ahead"


def _objects_said(objects: Objects) -> str:
    if objects.are_parts:
        return f"one large object in {objects.objects} parts of 4 MiB"
    if not objects.rows:
        return "one object, read again and again" if objects.objects == 1 else f"{objects.objects} objects"
    said = f"{objects.objects} objects, {objects.media / objects.rows:.2f} mentions a row in {objects.rows} rows"
    return said + (f", {objects.inline} media stand in their rows" if objects.inline else "")


def _engine_said(verdict: Verdict, cost: StepCost, speed: ResolvedSpeed, *, are_local: bool) -> str:
    if are_local:
        return "files are read on up to 16 threads, whatever speed.fetch_concurrency says"
    begins, most = speed.fetch_concurrency, speed.max_fetch_concurrency
    said = (
        f"{begins} requests in flight (speed.fetch_concurrency)"
        if begins >= most
        else f"begins with {begins} requests in flight, doubles that (to {most} at most) while it brings a fifth "
        f"more, and comes to {cost.concurrency} here"
    )
    if verdict.limit == "throttled":
        return f"{said}; of a prefix that throttles it keeps fewer in flight by itself"
    if verdict.requests_per_s is None and cost.concurrency >= most:
        return f"{said}; the rate would still grow beyond, so a larger speed.fetch_concurrency is a means if steps wait"
    if begins >= most and verdict.requests_per_s is not None and most > 2 * verdict.knee:
        return f"{said}; the rate is as good with {verdict.knee}, so that the others only wait inside the storage"
    return said


def _wait_said(cost: StepCost, speed: ResolvedSpeed) -> str:
    ratio = cost.wait_ratio[speed.prefetch_steps][1]
    if ratio <= 0.02:
        return f"with the engine's settings ({_ahead(speed.prefetch_steps)}) it does not wait for storage ({ratio:.3f})"
    return f"with the engine's settings ({_ahead(speed.prefetch_steps)}) it waits {100 * ratio:.1f} % of the time"


def report_dict(
    measurement: Measurement, verdict: Verdict | None, cost: StepCost | None, speed: ResolvedSpeed, *, host: str
) -> dict[str, Any]:
    """All of it as plain values; of the single times their quantiles."""

    def phase_dict(phase: Phase) -> dict[str, Any]:
        values = asdict(phase)
        for name in ("first_byte_s", "took_s", "object_bytes"):
            ascending = sorted(values[name])
            values[name] = {k: quantile(ascending, share) for k, share in _SHARES.items()} if ascending else {}
        return values | {"requests_per_s": phase.requests_per_s, "bytes_per_s": phase.bytes_per_s}

    return {
        "host": host,
        "objects": asdict(measurement.objects),
        "phases": [phase_dict(phase) for phase in measurement.phases],
        "steady": phase_dict(measurement.steady) if measurement.steady else None,
        "is_interrupted": measurement.is_interrupted,
        "verdict": asdict(verdict) if verdict else None,
        "engine": {
            "fetch_concurrency": cost.concurrency if cost else speed.fetch_concurrency,
            "prefetch_steps": speed.prefetch_steps,
            "hedge_share": speed.hedge_share,
        },
        "step": asdict(cost) if cost else None,
    }
