"""Runs a check with its progress, and prints what it found."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker import _core
from stoker.loader import core_settings
from stoker.settings import Settings

__all__ = ["run_check", "show_report"]

_TICK_MS = 100
_SAY_EVERY_S = 10.0  # without a terminal
_BAR = 40


def run_check(
    settings: Settings, *, n_media_rows: int | None, ledger: Path | None, n_examples: int, console: Console
) -> dict[str, Any]:
    """Walks every row; returns what was found. A Ctrl-C ends it at once.

    Raises:
        StokerError: What kept the check from being done.
    """
    core = _core.CoreChecker.create(
        core_settings(settings), n_media_rows, str(ledger) if ledger is not None else "", n_examples
    )
    try:
        with _telling(console) as tell:
            while not core.wait_within(_TICK_MS):
                tell(core)
    finally:
        core.stop()
    report: dict[str, Any] = core.report()
    reasons = {name: sentence for name, _, sentence in _core.reasons()}
    report["meaning"] = {
        code: reasons[code] for code in {*report["rejected_by_code"], *report["media"]["rejected_by_code"]}
    }
    report["rows_per_s"] = report["rows"] / report["elapsed_s"] if report["elapsed_s"] > 0 else 0.0
    return report


@contextlib.contextmanager
def _telling(console: Console) -> Iterator[Callable[[Any], None]]:
    if not console.is_terminal:
        told = time.monotonic()

        def tell_line(core: Any) -> None:
            nonlocal told
            if time.monotonic() - told < _SAY_EVERY_S:
                return
            told = time.monotonic()
            console.print(core.progress() or _so_far(core.report()), markup=False, soft_wrap=True)

        yield tell_line
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def tell_bar(core: Any) -> None:
            report = core.report()
            total = report["rows_in_all"] or None
            progress.update(task, description=core.progress() or _so_far(report), completed=report["rows"], total=total)

        yield tell_bar


def _so_far(report: Mapping[str, Any]) -> str:
    return f"{report['rows']} of {report['rows_in_all']} rows, {report['rejected']} would be left out"


def show_report(report: Mapping[str, Any], settings: Settings, console: Console, ledger: Path | None) -> None:
    """Prints the report."""

    def say(text: str = "") -> None:
        shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
        console.print(shown, markup=False, soft_wrap=True)

    n_rows, n_rejected = report["rows"], report["rejected"]
    say(f"rows        {n_rows} in {report['elapsed_s']:.1f} s ({report['rows_per_s']:.0f} rows/s)")
    say(f"usable      {n_rows - n_rejected}")
    if n_rejected:
        say(f"left out    {n_rejected} ({100 * n_rejected / n_rows:.3g} %): {_verdict(report, settings)}")
    say("shapes")
    for shape, n in sorted(report["shapes"].items(), key=lambda item: -item[1]):
        say(f"  {n:>10}  {shape}")
    _say_media(report["media"], say)
    _say_histogram("tokens", "of usable rows whose length is known, media expanded", report["tokens"], say)
    if report["tokens"]["n"] != report["text_tokens"]["n"]:
        _say_histogram("text tokens", "of all usable rows, one for each media", report["text_tokens"], say)
    _say_histogram("trained", "tokens of usable rows", report["target_tokens"], say, bars=False)
    _say_histogram("pixels", "of media whose size is known, upright", report["media_pixels"], say)
    if report["tokens"]["total"]:
        packs = -(-report["tokens"]["total"] // settings.pack.tokens_per_pack)
        at_least = "at least 1 pack" if packs == 1 else f"at least {packs} packs"
        say(
            f"a pass      {report['tokens']['total']} tokens, {report['patches']} patches: {at_least} of "
            f"{settings.pack.tokens_per_pack} tokens, {packs / settings.pack.packs_per_step:.1f} steps of "
            f"{settings.pack.packs_per_step} packs"
        )
    if n_rejected:
        _say_rejected(report, say, ledger)


def _verdict(report: Mapping[str, Any], settings: Settings) -> str:
    share, limit = report["rejected"] / report["rows"], settings.bad_samples.max_fraction
    if settings.bad_samples.policy == "stop":
        return "a run would stop at the first (bad_samples.policy: stop)"
    if share > limit:
        return f"a run would stop, bad_samples.max_fraction is {limit:g}"
    return f"a run would leave them out and go on, bad_samples.max_fraction is {limit:g}"


def _say_media(media: Mapping[str, Any], say: Callable[[str], None]) -> None:
    if not media["mentions"]:
        return
    say(
        f"media       {media['mentions']} in the rows, headers of {media['headers_read']} read, "
        f"{sum(media['rejected_by_code'].values())} cannot be used, size of {media['without_size']} not known"
    )
    for code, n in sorted(media["rejected_by_code"].items(), key=lambda item: -item[1]):
        say(f"  {n:>10}  {code}")


def _say_histogram(
    name: str, what: str, histogram: Mapping[str, Any], say: Callable[[str], None], *, bars: bool = True
) -> None:
    if not histogram["n"]:
        return
    h = histogram
    say(
        f"{name:<12}{what}: least {h['least']}, half up to {h['p50']}, 90 % up to {h['p90']}, 99 % up to {h['p99']}, "
        f"most {h['most']}, mean {h['total'] / h['n']:.1f}"
    )
    if not bars:
        return
    octaves: dict[int, int] = {}
    for begin, _, n in h["buckets"]:
        octaves[int(begin).bit_length()] = octaves.get(int(begin).bit_length(), 0) + n
    most = max(octaves.values())
    for bits in range(min(octaves), max(octaves) + 1):
        n = octaves.get(bits, 0)
        begin, end = (1 << bits) >> 1, 1 << bits
        say(f"  {begin:>10} to {end - 1:<10} {n:>10}  {'#' * -(-n * _BAR // most)}")


def _say_rejected(report: Mapping[str, Any], say: Callable[[str], None], ledger: Path | None) -> None:
    say("left out, and why")
    for code, n in sorted(report["rejected_by_code"].items(), key=lambda item: -item[1]):
        say(f"  {code}: {n} row{'s' if n != 1 else ''}: {report['meaning'][code]}")
        for row in report["examples"].get(code, []):
            media = f"{row['media']}: " if row["media"] and row["media"] not in row["message"] else ""
            say(f"    {row['manifest']}:{row['line']} (byte {row['byte_offset']}): {media}{row['message']}")
    if ledger is not None:
        say(f"all of them {ledger}")
    else:
        say("all of them with --ledger FILE")
