"""Runs the demonstration: data set, storage server, ladder, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.costs import QWEN3_VL_8B
from stoker.demo.dataset import DEFAULT_SEED, Dataset, make_dataset
from stoker.demo.photos import find_testdata
from stoker.ladder.climb import RUNGS, Plan
from stoker.ladder.emulation import RankModel
from stoker.ladder.own import python_serial_of
from stoker.settings import Settings
from stoker.testing import Behaviour, Latency, StorageServer, StorageServerError

__all__ = ["DemoOptions", "Served", "StorageServerError", "default_folder", "demo_settings", "served", "served_plan"]

_BUCKET = "demo"
_PREFIX = "chat/"
_TOKENS_PER_PACK = 16384
_WINDOW_SAMPLES = (
    512  # below the rows of the data set, so that the lowest rung does not read every header before it starts
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What may be changed about the demonstration."""

    folder: Path
    """For the data set; kept, so that the next run finds it."""
    n_samples: int = 640
    seed: int = DEFAULT_SEED
    rungs: tuple[str, ...] = tuple(RUNGS)
    steps: int | None = None
    n_ranks: int = 2
    gpus_per_rank: int = 8


def default_folder() -> Path:
    """Returns ``build/demo`` of the checkout, or a folder in the user's cache where there is no checkout."""
    testdata = find_testdata()
    if (testdata.parent / "CMakeLists.txt").is_file():
        return testdata.parent / "build" / "demo"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "stoker" / "demo"


def demo_settings(
    *, manifest: str, packs_per_step: int, seed: int, storage: dict[str, Any], cost_file: str
) -> dict[str, Any]:
    """Returns the settings of the demonstration, as a YAML file would hold them."""
    return {
        "data": [{"manifest": manifest}],
        "model": str(find_testdata() / "qwen3-vl"),
        "seed": seed,
        "window_samples": _WINDOW_SAMPLES,
        "pack": {"tokens_per_pack": _TOKENS_PER_PACK, "packs_per_step": packs_per_step, "cost_file": cost_file},
        "storage": storage,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The data set in a storage server that is up."""

    settings: Settings
    facts: Callable[[], dict[str, Any]]
    """What data and storage are, and what the storage has seen so far."""
    bytes_sent: Callable[[], int]
    """Of objects' bodies, so far."""


@contextmanager
def served(
    options: DemoOptions,
    *,
    packs_per_step: int,
    say: Any,
    tokens_per_pack: int = _TOKENS_PER_PACK,
    host: str = "127.0.0.1",
) -> Iterator[Served]:
    """Makes the data set, and puts it into a storage server.

    Args:
        options: What to do.
        packs_per_step: Over all ranks.
        say: Called with (what is being done, part done, parts in all) now and then, from any thread.
        tokens_per_pack: At most.
        host: Address that the storage server listens at.
    """
    dataset = make_dataset(
        options.folder,
        n_samples=options.n_samples,
        seed=options.seed,
        progress=lambda done, total: say("making pictures", done, total),
    )
    behaviour = Behaviour(latency=Latency(), seed=options.seed)
    with StorageServer(behaviour=behaviour, host=host) as server:
        server.put_folder(
            _BUCKET,
            dataset.folder,
            prefix=_PREFIX,
            progress=lambda done, total: say("putting objects", done, total),
        )
        server.reset_stats()
        costs = options.folder.with_name(
            "costs.json"
        )  # of the model that the ranks stand for; the folder's is a tiny one
        QWEN3_VL_8B.write(costs)
        values = demo_settings(
            manifest=f"s3://{_BUCKET}/{_PREFIX}{dataset.manifest.name}",
            packs_per_step=packs_per_step,
            seed=options.seed,
            storage=server.settings(),
            cost_file=str(costs),
        )
        values["pack"]["tokens_per_pack"] = tokens_per_pack
        yield Served(
            settings=Settings.from_dict(values),
            facts=lambda: {
                "data": _data_facts(dataset, tokens_per_pack),
                "storage": {**_storage_facts(behaviour, host), **_seen_by(server)},
            },
            bytes_sent=lambda: int(server.stats()["body_bytes_sent"]),
        )


@contextmanager
def served_plan(options: DemoOptions, *, say: Any) -> Iterator[Plan]:
    """Makes the data set, puts it into a storage server, and yields what is to be climbed there.

    Args:
        options: What to do.
        say: Called with (what is being done, part done, parts in all) now and then, from any thread.
    """
    # One micro-batch per GPU and step.
    with served(options, packs_per_step=options.n_ranks * options.gpus_per_rank, say=say) as data:
        yield Plan(
            settings=data.settings,
            python_serial=python_serial_of(data.settings),
            rungs=options.rungs,
            steps=options.steps,
            n_ranks=options.n_ranks,
            model=RankModel(n_gpus=options.gpus_per_rank),
            facts=data.facts,
        )


def _data_facts(dataset: Dataset, tokens_per_pack: int) -> dict[str, Any]:
    return {
        "samples": dataset.n_samples,
        "pictures": dataset.n_pictures,
        "megapixels": round(dataset.n_pixels / 1e6, 1),
        "megabytes": round(dataset.n_bytes / 1e6, 1),
        "tokens_per_pack": tokens_per_pack,
    }


def _storage_facts(behaviour: Behaviour, host: str) -> dict[str, Any]:
    latency = {} if behaviour.latency is None else asdict(behaviour.latency)
    where = "on loopback" if host.startswith("127.") else f"at {host}"
    return {"what": f"stoker.testing {where}, latency per request drawn, never blocking others", **latency}


def _seen_by(server: StorageServer) -> dict[str, Any]:
    stats = server.stats()
    return {
        "requests": stats["methods"],
        "most_in_flight": stats["max_in_flight"],
        "megabytes_sent": round(stats["body_bytes_sent"] / 1e6, 1),
        "cpu_s": round(stats["cpu_s"], 1),
    }
