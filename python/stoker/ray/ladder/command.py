"""The command `stoker ladder --ray`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from stoker.errors import InvalidArgumentError, UnavailableError
from stoker.ladder.display import Display
from stoker.ladder.emulation import RankModel
from stoker.ladder.own import python_serial_of
from stoker.ray.ladder.climb import RayPlan, climb
from stoker.ray.ladder.report import text, write_report
from stoker.settings import Settings

__all__ = ["ClusterOptions", "climb_here", "climb_on_virtual", "main"]

# Of the data that is made here: one pack of some 10 MB for a GPU and step, which an H100 trains on for 0.6 s.
_TOKENS_PER_PACK = 4096
_MEMORY_LIMIT = "512MiB"

_NIC_MBIT_S = 200.0
_STORE_BYTES = 500_000_000
_CARD = "e0"  # of a virtual node in the cluster's network


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What the command was asked for; plain values, since it may go on in another process."""

    run: str | None
    """Settings file; None: data made here, which all nodes must be able to read from this one."""
    output: str
    rungs: tuple[str, ...]
    steps: int | None = None
    n_ranks: int = 1
    gpus_per_rank: int = 1
    gpu_speed: float = 1.0
    """Of each emulated GPU, in H100s."""
    address: str = "auto"
    nic_mbit_s: float | None = None
    interfaces: tuple[str, ...] = ()
    storage_host: str = "127.0.0.1"
    """Address that the storage server listens at, if the data is made here."""
    data_folder: str = ""
    as_json: bool = False
    facts: dict[str, Any] | None = None
    """For the report."""


def climb_here(options: ClusterOptions) -> None:
    """Climbs on the cluster that this process reaches, and prints what it found.

    Raises:
        UnavailableError: RAY: there is no cluster.
        RankFailedError: See `climb`.
    """
    console = Console(stderr=options.as_json, width=None if sys.stdout.isatty() else 200)
    connected_before = ray.is_initialized()
    _connect(options.address)
    try:
        with _data(options, console) as (settings, changes):
            plan = RayPlan(
                settings=settings,
                python_serial=python_serial_of(settings),
                rungs=options.rungs,
                steps=options.steps,
                n_ranks=options.n_ranks,
                model=_model(options),
                nic_bytes_s=None if options.nic_mbit_s is None else options.nic_mbit_s * 1e6 / 8,
                interfaces=options.interfaces,
                **changes,
            )
            with Display(console, plan) as display:
                result = climb(plan, display)
    finally:
        if not connected_before:
            ray.shutdown()
    paths = write_report(result, Path(options.output))
    console.print(text(result), markup=False, highlight=False, soft_wrap=True)
    for path in paths.values():
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    if options.as_json:
        sys.stdout.write(json.dumps(result.to_dict()) + "\n")
        sys.stdout.flush()
    if not result.plain.digests_agree:
        raise SystemExit(1)


def _model(options: ClusterOptions) -> RankModel:
    one = RankModel(n_gpus=options.gpus_per_rank)
    return RankModel(n_gpus=options.gpus_per_rank, flops_per_s=one.flops_per_s * options.gpu_speed)


def _connect(address: str) -> None:
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnavailableError(
            f"there is no Ray cluster at {address}: {reason} Start one (`ray start --head`), name another by "
            "--address, or use --virtual-cluster",
            "RAY",
        ) from None


@contextlib.contextmanager
def _data(options: ClusterOptions, console: Console) -> Iterator[tuple[Settings, dict[str, Any]]]:
    """Yields settings, and what else a plan should know of them."""
    facts = options.facts or {}
    if options.run is not None:
        yield Settings.load(options.run), {"facts": lambda: {"settings": options.run, **facts}}
        return
    from stoker.demo.run import DemoOptions, served

    n_packs = options.n_ranks * options.gpus_per_rank * 4  # one for each GPU of the large scale
    demo = DemoOptions(folder=Path(options.data_folder))
    say = _once(console)
    with served(
        demo, packs_per_step=n_packs, tokens_per_pack=_TOKENS_PER_PACK, host=options.storage_host, say=say
    ) as data:
        settings = data.settings.replace(speed={"memory_limit": _MEMORY_LIMIT})
        changes: dict[str, Any] = {"facts": lambda: {**data.facts(), **facts}}
        if not options.interfaces:
            changes["storage_bytes"] = data.bytes_sent
        yield settings, changes


def _once(console: Console) -> Callable[[str, int, int], None]:
    said: set[str] = set()

    def say(what: str, done: int, total: int) -> None:
        if what not in said:
            said.add(what)
            console.print(f"{what}: {total}", markup=False, highlight=False)

    return say


def climb_on_virtual(options: ClusterOptions, *, n_nodes: int) -> int:
    """Makes a cluster of network namespaces, and climbs from its first node; returns the exit status.

    Raises:
        UnavailableError: RAY: this machine or this user cannot.
        InvalidArgumentError: Too few nodes.
    """
    from stoker.ray.cluster.virtual import NodeSpec, VirtualCluster

    if n_nodes < 2:
        raise InvalidArgumentError(f"a virtual cluster for the ladder has at least 2 nodes, not {n_nodes}", "SETTINGS")
    nic_mbit_s = options.nic_mbit_s or _NIC_MBIT_S
    specs = [
        NodeSpec(name="head" if i == 0 else f"node{i}", cpus=2, nic_mbit=nic_mbit_s, store_bytes=_STORE_BYTES)
        for i in range(n_nodes)
    ]
    console = Console(stderr=options.as_json)
    console.print(
        f"virtual cluster: {n_nodes} nodes on this machine's {len(os.sched_getaffinity(0))} cores, network cards of "
        f"{nic_mbit_s:g} Mbit/s",
        markup=False,
        highlight=False,
    )
    with VirtualCluster(specs) as cluster:
        inside = asdict(options) | {
            "address": cluster.address,
            "nic_mbit_s": nic_mbit_s,
            "interfaces": (_CARD,),
            "storage_host": cluster.nodes[0].storage_ip,
            "facts": {
                "virtual_cluster": f"{n_nodes} network namespaces on one machine; its storage is reached by a network "
                "of its own, without a limit",
            },
        }
        # The settings file may hold credentials; its name alone is on the command line.
        process = cluster.run_on("head", [sys.executable, "-m", "stoker.ray.ladder.command", json.dumps(inside)])
        return _wait(process)


def _wait(process: subprocess.Popen[Any]) -> int:
    """Ctrl-C reaches the process too, as one of this terminal's group; it says so itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            raise


def main(argv: list[str]) -> int:
    """Goes on with what another process was asked for."""
    from stoker.errors import StokerError
    from stoker.ladder.ranks import RankFailedError

    values = json.loads(argv[0])
    for name in ("rungs", "interfaces"):
        values[name] = tuple(values[name])
    try:
        climb_here(ClusterOptions(**values))
    except KeyboardInterrupt:
        return 130
    except (StokerError, RankFailedError, OSError, ValueError) as error:
        Console(stderr=True).print(f"stoker: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
