"""``stoker plan`` and ``stoker index``: what a run will be like, and what it would otherwise find out on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stoker.data_commands import STATUS_FOUND, settings_of
from stoker.errors import InvalidArgumentError

__all__ = ["index", "plan"]

_Run = Annotated[str, typer.Argument(metavar="RUN.yaml", help="Settings file.")]
_Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to standard output; progress goes to standard error.")
]
_STEPS = 200


def plan(
    run: _Run,
    *,
    dp_size: Annotated[
        list[int] | None,
        typer.Option(
            "--dp-size",
            min=1,
            max=1 << 20,
            metavar="N",
            help="Data-parallel ranks; may be repeated. Default: one a pack.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, max=1 << 40, help=f"Steps to plan. Default: {_STEPS}, or an epoch if that is less."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, max=1_000_000, help="Plan so many whole epochs.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Read headers of media whose size neither row nor index says.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show what other ways of packing and dealing would give.")
    ] = False,
    tokens_per_pack: Annotated[
        int | None, typer.Option("--tokens-per-pack", help="As if pack.tokens_per_pack were this.")
    ] = None,
    packs_per_step: Annotated[
        int | None, typer.Option("--packs-per-step", help="As if pack.packs_per_step were this.")
    ] = None,
    tflops: Annotated[
        float, typer.Option("--tflops", min=0.001, help="TFLOP/s that a rank reaches: an H100 at 40 % of its peak.")
    ] = 395.8,
    longest: Annotated[int, typer.Option("--longest", min=0, max=1000, help="Long samples to name.")] = 5,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.svg|FILE.html", help="Draw it: what ranks lose, and when.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """See what a run will be like at any number of ranks, before any pixel is read.

    Walks the run's own order, packs it as the run will, and says how full the packs are, how evenly language and vision
    are spread over the ranks, what a step takes, how much of it ranks wait for each other, how many steps an epoch has,
    and which samples are longest. No GPU and no rank is needed: 1,024 of them are a number.

    No media are read. Sizes come from the rows (width, height) or from the index, which `stoker index` fills; samples
    with media of unknown size are counted without these, and how many there are is said first.

    Exit status: 0 planned, 1 planned, but sizes are missing so that the figures are too low, 2 it could not be planned.
    """
    from stoker.forecasting.display import show_forecast
    from stoker.forecasting.forecast import Asked, forecast
    from stoker.forecasting.picture import write_picture
    from stoker.forecasting.progress import telling

    if steps is not None and epochs is not None:
        raise InvalidArgumentError("give --steps or --epochs", "SETTINGS")
    if picture is not None and picture.suffix.lower() not in {".svg", ".html", ".htm"}:
        raise InvalidArgumentError(f"--picture draws FILE.svg or FILE.html, not {picture.name}", "SETTINGS")
    settings = settings_of(run)
    changed = {"tokens_per_pack": tokens_per_pack, "packs_per_step": packs_per_step}
    changes = {name: value for name, value in changed.items() if value is not None}
    if changes:
        settings = settings.replace(pack=changes)
    console = Console(stderr=as_json, highlight=False)
    asked = Asked(
        dp_sizes=tuple(dict.fromkeys(dp_size or [settings.pack.packs_per_step])),
        steps=_STEPS if steps is None and epochs is None else steps,
        epochs=1 if steps is None and epochs is None else epochs,
        measure=measure,
        compare=compare,
        longest=longest,
        flops_per_s=tflops * 1e12,
    )
    with telling(console) as tell:
        result = forecast(settings, asked, tell)
    if picture is not None:
        write_picture(result, picture)
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show_forecast(result, console)
        if picture is not None:
            console.print(f"picture     {picture}", markup=False, soft_wrap=True)
    if result["data"]["unsized_samples"]:
        raise typer.Exit(STATUS_FOUND)


def index(
    run: _Run,
    *,
    no_media: Annotated[
        bool, typer.Option("--no-media", help="Leave headers of media out: only line starts and lengths of texts.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="CPU threads. Default: speed.cpu_threads.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Headers in flight. Default: speed.fetch_concurrency.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="Write every row that is left out to this JSONL file."),
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Rows left out that are shown of each code.")] = 3,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the statistics as one page.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Fill the index of a run ahead, and see what its data are like.

    Finds where every row begins, how long every text is, and, by the first bytes of each object, how large the media
    are whose size the rows do not say. A run with these settings, its other ranks and `stoker plan` find it in the
    index directory and do not look again. Nor does this command: killed, it goes on where it was, and when texts are
    read another way (template, labels) the sizes of media stay known.

    Says how long rows are, how large their media, what they cost a trainer, which rows a run would leave out, and
    which length of packs would suit them.

    Exit status: 0 a run would use every row, 1 it would leave some out, 2 the index could not be made.
    """
    from stoker.forecasting.indexing import run_index
    from stoker.forecasting.progress import telling
    from stoker.forecasting.statistics import page, show_statistics

    console = Console(stderr=as_json, highlight=False)
    settings = settings_of(run)
    speed = {"cpu_threads": workers, "fetch_concurrency": concurrency}
    settings = settings.replace(speed={name: value for name, value in speed.items() if value is not None})
    with telling(console) as tell:
        result = run_index(settings, media=not no_media, ledger=ledger, n_examples=examples, tell=tell)
    if html is not None:
        html.write_text(page(result, settings), encoding="utf-8")
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show_statistics(result, settings, console, ledger)
        if html is not None:
            console.print(f"page        {html}", markup=False, soft_wrap=True)
    if result["rejected"]:
        raise typer.Exit(STATUS_FOUND)
