"""``stoker ray ...``: clusters made, looked at and taken down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from stoker.errors import UnavailableError
from stoker.ray.cluster.file import ClusterFile

__all__ = ["down", "exec_on", "status", "up"]

_File = Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="The cluster's description.")]
_MaybeFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CLUSTER.yaml]", help="The cluster's description. Default: the cluster of this node."),
]
_Address = Annotated[
    str, typer.Option("--address", metavar="HOST:PORT", help="The cluster to look at. Default: that of this node.")
]
_Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to standard output; progress goes to standard error.")
]

_STATUS_FOUND = 1

EXAMPLES = {
    "up": """
        stoker ray up cluster.yaml

        stoker ray up --run run.yaml
    """,
    "down": "stoker ray down cluster.yaml",
    "status": """
        stoker ray status

        stoker ray status cluster.yaml --every 5

        stoker ray status --once --json
    """,
    "exec": "stoker ray exec cluster.yaml gpu-1 -- torchrun train.py",
}


def up(
    cluster: _MaybeFile = None,
    *,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN.yaml", help="Also look for this run's files and index on every node."),
    ] = None,
    address: _Address = "auto",
    as_json: _Json = False,
) -> None:
    """Start the cluster that a file describes, or see whether the present one can serve.

    With a file, Ray is started on each of its nodes: over ssh, on this machine (`host: local`), or on virtual nodes of
    this machine with network cards as slow as you like (`virtual: true`, needs root). The head comes first:

        nodes:
          - {host: 10.0.0.1, cpus: 32, gpus: 8, store: 200GiB}
          - {host: me@10.0.0.2, cpus: 60, store: 100GiB, labels: {kind: cpu}}

    On nodes with GPUs, give Ray the CPUs that the trainers leave: the workers take them. Then start the trainers on
    their nodes as always, with `ray: auto` in RUN.yaml.

    Then, and without a file, every node is asked what it is: versions of Stoker, Ray and Python, CPUs, object store and
    whether it lies in memory, limits, and with `--run` whether it sees the run's files and shares its index directory.

    Exit status: 0 it can serve, 1 something is wrong (said with the node and what to do), 2 not done.
    """
    from stoker.ray.cluster import hosts

    console = Console(stderr=as_json, highlight=False)
    if cluster is not None:
        file = ClusterFile.load(cluster)
        address = hosts.up(file, lambda line: console.print(line, markup=False, soft_wrap=True))
        console.print(f"the cluster {file.name} is up at {address}", markup=False, soft_wrap=True)
        if file.virtual or not file.nodes[0].is_local:
            _again_on_head(
                file, ["up", *(["--run", str(run.resolve())] if run else []), *(["--json"] if as_json else [])]
            )
    _connect(address)
    _check(run, console, as_json=as_json)


def down(cluster: _File) -> None:
    """End the cluster that `stoker ray up` started from a file. Other clusters on its nodes go on.

    Exit status: 0 it is gone, 2 something is left (said with the node).
    """
    from stoker.ray.cluster import hosts

    console = Console(highlight=False)
    hosts.down(ClusterFile.load(cluster), lambda line: console.print(line, markup=False, soft_wrap=True))


def status(
    cluster: _MaybeFile = None,
    *,
    run: Annotated[str, typer.Option("--name", metavar="RUN", help="Only runs with this in their name.")] = "",
    every: Annotated[float, typer.Option("--every", min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, say it, and leave.")] = False,
    address: _Address = "auto",
    as_json: _Json = False,
) -> None:
    """See what the runs on a cluster do: who prepares what, who waits for what, and how full stores and NICs are.

    For each node: how busy its CPUs are, how full its object store is and whether it ever spilled to disk, what its
    network card sends and receives. For each run: each rank with the share of its time that it waits, and for which
    pack, made where; each worker with what it makes, and how many times the median it takes for a pack (a slow node
    shows here); bytes moved from node to node.

    A rank that waits while CPUs are busy wants more workers; while a NIC is full, another placement; while neither is,
    look at what it waits for. On a terminal the table stays and follows; elsewhere lines are printed every time, or
    with `--json` one object a line. Ends with Ctrl-C, or after one look with `--once`.

    Exit status: 0, or 2 if there is no such cluster.
    """
    if cluster is not None:
        options = [
            "--name",
            run,
            "--every",
            str(every),
            *(["--once"] if once else []),
            *(["--json"] if as_json else []),
        ]
        _again_on_head(ClusterFile.load(cluster), ["status", *options])
    _connect(address)
    from stoker.ray.status import Snapshot, as_dict, plain_lines, take_snapshot, to_tables

    def looks() -> Iterator[tuple[Snapshot, Snapshot | None]]:
        before: Snapshot | None = None
        while True:
            now = take_snapshot(run)
            if before is not None or not once:
                yield now, before
            if once and before is not None:
                return
            before = now
            time.sleep(min(every, 1.0) if once else every)

    console = Console(highlight=False)
    if console.is_terminal and not as_json and not once:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            for now, before in looks():
                live.update(_shown(to_tables(now, before)), refresh=True)
    for now, before in looks():
        if as_json:
            sys.stdout.write(json.dumps(as_dict(now, before)) + "\n")
            sys.stdout.flush()
        elif console.is_terminal:
            console.print(_shown(to_tables(now, before)))
        else:
            sys.stdout.write("\n".join(plain_lines(to_tables(now, before))) + "\n")
            sys.stdout.flush()


def exec_on(
    cluster: _File,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Host or address of the node, as the file has it.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")],
) -> None:
    """Run a program on a node of a cluster: over ssh, or in a virtual node's network.

    Exit status: the program's.
    """
    _on_node(ClusterFile.load(cluster), node, command)


def _again_on_head(file: ClusterFile, arguments: list[str]) -> None:
    """Does the same on the head, since a process must be on a node to ask the others; does not come back."""
    _on_node(file, file.nodes[0].host, [file.python, "-m", "stoker", "ray", *arguments])


def _on_node(file: ClusterFile, node: str, argv: list[str]) -> None:
    from stoker.ray.cluster import hosts

    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment.setdefault("RAY_AUTH_MODE", "disabled")
    sys.stdout.flush()
    done = subprocess.run(hosts.command_on(file, node, argv), env=environment, check=False)
    raise typer.Exit(done.returncode)


def _connect(address: str) -> None:
    try:
        from stoker.ray.meeting import connect
    except ImportError:
        raise UnavailableError("Ray is not installed here: pip install 'stoker[ray]'", "RAY") from None
    connect(address)


def _check(run: Path | None, console: Console, *, as_json: bool) -> None:
    from stoker.ray.checkup import check_cluster
    from stoker.settings import Settings

    checkup = check_cluster(None if run is None else Settings.load(run))
    if as_json:
        found = [asdict(finding) for finding in checkup.findings]
        sys.stdout.write(json.dumps({"nodes": checkup.nodes, "findings": found}) + "\n")
    else:
        table = RichTable("node", "CPUs", "GPUs", "object store", "memory", "Stoker", "Ray")
        for name, node in checkup.nodes.items():
            facts, store = node["facts"], node["store"]
            table.add_row(
                name,
                f"{node['cpus']:g}",
                f"{node['gpus']:g}",
                "-" if store is None else f"{store['size'] / 1e9:.2f} GB",
                "-" if facts is None else f"{facts['memory_bytes'] / 1e9:.0f} GB",
                "-" if facts is None else facts["stoker"] or "from a folder",
                "-" if facts is None else facts["ray"],
            )
        console.print(table)
        for finding in checkup.findings:
            where = f"{finding.node}: " if finding.node else ""
            console.print(
                f"{'wrong' if finding.is_wrong else 'hint'}: {where}{finding.text}", markup=False, soft_wrap=True
            )
        n_wrong = sum(finding.is_wrong for finding in checkup.findings)
        console.print("it can serve" if not n_wrong else f"{n_wrong} to mend")
    if any(finding.is_wrong for finding in checkup.findings):
        raise typer.Exit(_STATUS_FOUND)


def _shown(tables: list[Any]) -> Group:
    parts: list[Any] = []
    for table in tables:
        if table.columns:
            drawn = RichTable(title=table.title, title_justify="left")
            for i, column in enumerate(table.columns):
                drawn.add_column(column, justify="left" if i == 0 else "right")
            for row in table.rows:
                drawn.add_row(*map(Text, row))
            parts.append(drawn)
        else:
            parts.append(Text(table.title, style="bold"))
        parts += [Text(note) for note in table.notes]
    return Group(*parts)


def make_app() -> typer.Typer:
    """``stoker ray``, with its commands."""
    from stoker.cli import told

    app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
    commands: dict[str, Callable[..., None]] = {"up": up, "down": down, "status": status, "exec": exec_on}
    for name, command in commands.items():
        epilog = "Examples:\n\n" + "\n\n".join(f"`{line.strip()}`" for line in EXAMPLES[name].strip().split("\n\n"))
        app.command(name, epilog=epilog)(told(command))
    return app
