"""Prints a comparison."""

from __future__ import annotations

from rich.console import Console

from stoker.parity.compare import Comparison, Difference

__all__ = ["show_comparison"]

_MOST_LEFT_OUT = 5


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Says what was compared, what is equal, and explains the first difference of every field."""

    def say(text: str, style: str = "") -> None:
        shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
        console.print(shown, style=style or None, markup=False, soft_wrap=True)

    say(f"reference   {comparison.reference}")
    say(f"stoker      reference: {comparison.profile}")
    say(f"rows        {comparison.n_compared} compared of {comparison.n_rows} tried")
    for where, code, message in comparison.left_out[:_MOST_LEFT_OUT]:
        say(f"  left out  {where}: {code}: {message}")
    if len(comparison.left_out) > _MOST_LEFT_OUT:
        say(f"  left out  {len(comparison.left_out) - _MOST_LEFT_OUT} more (--json has all)")
    for note in comparison.notes:
        say(f"note        {note}")
    for each in comparison.fields.values():
        if not each.n_compared:
            continue
        equal = f"{each.n_equal} of {each.n_compared} identical"
        if each.n_equal == each.n_compared:
            say(f"{each.name:<20}{equal}", "green")
            continue
        if each.is_equal:
            say(f"{each.name:<20}{equal}; the others differ on purpose, and both sides were given the same picture")
        else:
            say(f"{each.name:<20}{equal}", "bold red")
        _explain(next((d for d in each.differences if not d.is_on_purpose), each.differences[0]), say)
    say("equal" if comparison.is_equal else "NOT EQUAL", "bold green" if comparison.is_equal else "bold red")


def _explain(difference: Difference, say: object) -> None:
    assert callable(say)
    say(f"  first at  {difference.where}, {difference.position}")
    say(f"  stoker    {difference.stoker}")
    say(f"  reference {difference.reference}")
    say(f"  because   {difference.cause}")
