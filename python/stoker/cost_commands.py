"""``stoker fit-costs``: what tokens and patches cost a trainer, from its step times."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["fit_costs"]


def fit_costs(
    records: Annotated[
        Path,
        typer.Argument(
            help="JSONL, a step a line: tokens, tokens_squared, patches, patches_squared, seconds.",
            exists=True,
            dir_okay=False,
        ),
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Writes the file that pack.cost_file names.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to standard output, and nothing else.")
    ] = False,
) -> None:
    """Find what tokens and patches cost your trainer, from measured step times.

    Plans are balanced by costs that are reckoned from the model's size. Where a trainer's times say otherwise (an
    attention without its fast kernel, a frozen vision tower), record what each step held, which `stoker.costs.work_of`
    says, and how long it took. This finds the four costs that say those times best, none of them negative.
    """
    from stoker.costs import fit_costs as fit
    from stoker.costs import read_records

    found = fit(read_records(records))
    if output is not None:
        found.costs.write(output)
    if as_json:
        said = {
            **dataclasses.asdict(found.costs),
            "per_step_s": found.per_step_s,
            "mean_error": found.mean_error,
            "n_steps": found.n_steps,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        return
    console = Console(highlight=False)
    for name, value in dataclasses.asdict(found.costs).items():
        if name != "unit":
            console.print(f"{name:<24} {value:>14,} ps")
    console.print(f"every step beside        {found.per_step_s * 1e3:>14.1f} ms")
    console.print(f"{found.n_steps} steps, said to within {found.mean_error:.1%} on average")
    if output is not None:
        console.print(f"pack.cost_file: {output}", soft_wrap=True)
