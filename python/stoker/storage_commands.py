"""``stoker probe``: your own storage, before a run waits for it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from stoker.data_commands import STATUS_FOUND, settings_of
from stoker.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stoker.settings import Settings

__all__ = ["probe"]

_MANIFEST = re.compile(r"\.(jsonl|ndjson|json)(\.gz|\.zst)?$", re.IGNORECASE)
_STATUS_INTERRUPTED = 130


def probe(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN.yaml|MANIFEST|URL",
            help="Settings file; a JSONL manifest, whose media are read; or one object: s3://, http(s)://, a path.",
        ),
    ],
    *,
    step_samples: Annotated[int, typer.Option("--step-samples", min=1, max=1 << 20, help="Samples of a step.")] = 512,
    step_s: Annotated[
        float | None, typer.Option("--step-s", min=0.001, help="Seconds that training takes for a step: would it wait?")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=3600, help="How long to measure, in all.")] = 20.0,
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", min=1, max=4096, help="The most requests in flight that are tried.")
    ] = 1024,
    media_root: Annotated[
        str,
        typer.Option("--media-root", metavar="DIR", help="Where relative media lie. Default: the manifest's folder."),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which of a manifest's objects are read.")] = 0,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the latency profile, which `stoker.testing` can replay."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to standard output; progress goes to standard error.")
    ] = False,
) -> None:
    """Measure your storage, and see what a training step will cost on it.

    Reads objects with the engine's own client, first one at a time, then 4, 16, 64 and more as long as the rate grows,
    and last with as many in flight as a run would have, for a long look at the slowest answers. No object is read
    twice while there are others. Says what limits the rate, what the engine will use, and, by simulation over the times
    that were measured, how long a step takes to fetch and whether training waits for it.

    Storage is what the settings file says, or the environment (AWS_*, the AWS profile files). Nothing is written to it,
    no bucket is listed, and Ctrl-C ends it at once with what was measured so far.

    Exit status: 0 measured, 1 with --step-s: a step would wait for more than 2 % of the time, 2 it could not be
    measured.
    """
    from stoker import _core
    from stoker.probing.cost import step_cost
    from stoker.probing.display import report_dict, show_report, telling
    from stoker.probing.measure import engine_concurrency, measure
    from stoker.probing.verdict import judge, profile_of
    from stoker.settings import resolve_speed

    console = Console(stderr=as_json, highlight=False)
    settings, urls = _settings_and_urls(target, media_root)
    settings = settings.replace(seed=seed) if seed else settings
    speed = resolve_speed(settings.speed, usable_cpus=_core.usable_cpus())
    with telling(console) as tell:
        measurement, storage = measure(
            settings,
            urls=urls,
            seconds=seconds,
            max_concurrency=max_concurrency,
            speed=speed,
            say=tell,
        )
    host = host_of(storage, settings)
    verdict = cost = None
    if any(phase.answers for phase in measurement.phases):
        verdict = judge(measurement, n_fetch_threads=speed.fetch_threads)
        cost = step_cost(
            measurement,
            verdict,
            samples=step_samples,
            train_s=step_s,
            concurrency=engine_concurrency([p for p in measurement.phases if p.answers], speed),
            prefetch_steps=speed.prefetch_steps,
            hedge_share=speed.hedge_share,
        )
        if save is not None:
            profile_of(measurement, verdict, host=host).save(save)
    if as_json:
        sys.stdout.write(json.dumps(report_dict(measurement, verdict, cost, speed, host=host)) + "\n")
    else:
        show_report(
            measurement,
            verdict,
            cost,
            speed,
            console,
            host=host,
            saved=save if verdict else None,
        )
    if measurement.is_interrupted:
        raise typer.Exit(_STATUS_INTERRUPTED)
    if cost is not None and cost.wait_ratio and cost.wait_ratio[speed.prefetch_steps][1] > 0.02:
        raise typer.Exit(STATUS_FOUND)


def _settings_and_urls(target: str, media_root: str) -> tuple[Settings, list[str]]:
    """What a target stands for: settings, and the objects if it is one (else the manifests' media)."""
    if target.endswith((".yaml", ".yml")):
        return settings_of(target, media_root=media_root), []
    address = target.split("?")[0] if "://" in target else target
    if _MANIFEST.search(address):
        return settings_of(target, "no model", media_root), []
    if "://" not in target:
        if not Path(target).is_file():
            raise InvalidArgumentError(f"there is no file {target}", "SETTINGS")
        target = str(Path(target).resolve())
    return settings_of(target, "no model"), [target]


def host_of(storage: str, settings: Settings) -> str:
    """The host behind what was read; never a user, a path or a query of its address.

    Args:
        storage: ``s3``, ``files``, or scheme and authority of an address.
        settings: Whose endpoint ``s3`` means.
    """
    if storage == "files":
        return "this machine"
    if storage != "s3":
        return urlsplit(storage).hostname or "?"
    endpoint = settings.storage.endpoint_url
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        endpoint = endpoint or os.environ.get(name, "")
    return urlsplit(endpoint).hostname or endpoint.split("/")[0] or "Amazon S3"
