"""``stoker inspect``, ``stoker check`` and ``stoker parity``: your own data, before it trains anything.

Exit status of all three: 0 all is well, 1 something was found, 2 the question could not be answered.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stoker.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stoker.settings import Settings

__all__ = ["check", "inspect", "parity"]

_Target = Annotated[
    str, typer.Argument(metavar="RUN.yaml|MANIFEST", help="Settings file, or a JSONL manifest (then give --model).")
]
_Model = Annotated[
    str, typer.Option("--model", metavar="DIR", help="Checkpoint folder. Default: what the settings file says.")
]
_MediaRoot = Annotated[
    str, typer.Option("--media-root", metavar="DIR", help="Where relative media lie. Default: the manifest's folder.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output, and nothing else.")]

STATUS_FOUND = 1
STATUS_NOT_DONE = 2


def settings_of(target: str, model: str = "", media_root: str = "") -> Settings:
    """The settings of a run, or those that a manifest alone stands for.

    Raises:
        InvalidArgumentError: If there is no such file, or a manifest comes without a model.
    """
    from stoker.settings import Settings

    sys.path.insert(0, os.getcwd())  # for the user's own code, as `python -m` has it
    if "://" not in target and not Path(target).exists() and not set(target) & set("*?["):
        raise InvalidArgumentError(f"there is no file {target}", "SETTINGS")
    if target.endswith((".yaml", ".yml")):
        settings = Settings.load(target)
        if media_root:
            settings = settings.replace(data=[{**d, "media_root": media_root} for d in settings.to_dict()["data"]])
        return settings.replace(model=model) if model else settings
    if not model:
        raise InvalidArgumentError(
            f"{target} is a manifest: say with --model which checkpoint folder it is for, or give a settings file "
            "(RUN.yaml)",
            "SETTINGS",
        )
    return Settings.from_dict({"data": [{"manifest": target, "media_root": media_root}], "model": model})


def inspect(
    target: _Target,
    *,
    row: Annotated[int | None, typer.Option("--row", min=0, help="Row, from 0, over all manifests.")] = None,
    line: Annotated[int | None, typer.Option("--line", min=1, help="Line of the manifest, from 1.")] = None,
    row_id: Annotated[str | None, typer.Option("--id", help="The row whose `id` this is.")] = None,
    model: _Model = "",
    media_root: _MediaRoot = "",
    as_json: _Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write one page with the pictures.")
    ] = None,
    all_tokens: Annotated[bool, typer.Option("--tokens", help="List every token, not only the ends.")] = False,
) -> None:
    """Look at one sample as the model will see it.

    Shows the turns as the chat template renders them, with the ⟦trained⟧ tokens marked; tokens, ids and positions; each
    picture's way from the file to patches; length and cost; and where the row lies. Without --row, --line or --id it
    is the first row. The sample goes through the loader's own steps, so what is shown is what a run would get.

    Exit status: 0 a run would use the sample, 1 it would leave it out (and why is said), 2 it could not be looked at.
    """
    from stoker.inspecting.find import find_sample
    from stoker.inspecting.html import page
    from stoker.inspecting.terminal import show

    if sum(given is not None for given in (row, line, row_id)) > 1:
        raise InvalidArgumentError("give one of --row, --line and --id", "SETTINGS")
    sample = find_sample(settings_of(target, model, media_root), row=row, line=line, row_id=row_id)
    if html is not None:
        html.write_text(page(sample), encoding="utf-8")
    if as_json:
        sys.stdout.write(json.dumps(sample.to_dict()) + "\n")
    else:
        console = Console(highlight=False)
        show(sample, console, all_tokens=all_tokens)
        if html is not None:
            console.print(f"\nwritten     {html}", markup=False, soft_wrap=True)
    if sample.features.bad is not None:
        raise typer.Exit(STATUS_FOUND)


def check(
    target: _Target,
    *,
    model: _Model = "",
    media_root: _MediaRoot = "",
    media: Annotated[
        str,
        typer.Option(
            "--media",
            metavar="all|N|none",
            help="Whose media's headers are read: every row's, those of about N rows spread evenly, or none.",
        ),
    ] = "1000",
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FILE", help="Write every rejected row to this JSONL file.")
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Rejected rows shown of each code.")] = 3,
    as_json: _Json = False,
) -> None:
    """Check a whole data set before a run, without decoding a pixel.

    Every row is read, rendered and tokenised as a run would, in constant memory: what rows look like, which would be
    left out and why, how long samples are, whether media exist and are pictures. Pixels that are damaged behind a sound
    header are not found here.

    Exit status: 0 a run would use every row, 1 some would be left out, 2 the check could not be done.
    """
    from stoker.checking.display import run_check, show_report

    console = Console(stderr=as_json, highlight=False)
    settings = settings_of(target, model, media_root)
    report = run_check(settings, n_media_rows=_media_rows(media), ledger=ledger, n_examples=examples, console=console)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        show_report(report, settings, console, ledger)
    if report["rejected"]:
        raise typer.Exit(STATUS_FOUND)


def _media_rows(text: str) -> int | None:
    if text == "all":
        return None
    if text == "none":
        return 0
    if text.isdecimal():
        return int(text)
    raise InvalidArgumentError(f"--media takes all, none or a number of rows, not {text!r}", "SETTINGS")


def parity(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN.yaml|MANIFEST|DIR", help="Settings file, JSONL manifest, or a folder with one manifest."
        ),
    ],
    *,
    model: _Model = "",
    media_root: _MediaRoot = "",
    samples: Annotated[int, typer.Option("--samples", min=1, help="Rows to compare, spread evenly.")] = 20,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Compare under this `reference`, not the settings' own.")
    ] = "",
    as_json: _Json = False,
) -> None:
    """Prove on your own rows that the batches are what the reference processor gives.

    Runs the installed transformers processor of the checkpoint folder and Stoker on the same rows, and compares ids,
    labels, grids, pixels (bit for bit) and positions, field by field. A difference is explained: where it begins, both
    values, and which setting causes it. Where the two decode a file differently on purpose (orientation, transparency,
    16 bits), both are given the same decoded picture and the difference is listed apart.

    Needs `pip install 'stoker[reference]'`; for the torchvision backend and clips torchvision, too, and for qvu+hf
    qwen-vl-utils. Nothing is downloaded and no weights are read.

    Exit status: 0 equal, 1 something differs, 2 it could not be compared.
    """
    from stoker.parity.compare import compare_rows
    from stoker.parity.display import show_comparison

    console = Console(highlight=False)
    at = Path(target)
    if "://" not in target and at.is_dir():
        found = sorted([*at.glob("*.yaml"), *at.glob("*.yml")]) or sorted(at.glob("*.jsonl*"))
        if len(found) != 1:
            raise InvalidArgumentError(
                f"{target} has {len(found)} settings files or manifests: name the one that is meant", "SETTINGS"
            )
        target = str(found[0])
    settings = settings_of(target, model, media_root)
    if profile:
        settings = settings.replace(reference=profile, content_tokens="auto")
    comparison = compare_rows(settings, n_samples=samples)
    if as_json:
        sys.stdout.write(json.dumps(comparison.to_dict()) + "\n")
    else:
        show_comparison(comparison, console)
    if not comparison.is_equal:
        raise typer.Exit(STATUS_FOUND)
