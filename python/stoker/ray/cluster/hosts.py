"""Starts and ends Ray on the hosts of a cluster file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stoker.errors import UnavailableError
from stoker.plain_values import parse_bytes
from stoker.ray.cluster import end_node
from stoker.ray.cluster.file import ClusterFile, NodeEntry
from stoker.ray.cluster.virtual import NodeSpec, VirtualCluster

__all__ = ["command_on", "down", "up"]

_START_S = 180.0
_END_S = 60.0


def up(cluster: ClusterFile, say: Callable[[str], None]) -> str:
    """Starts Ray on all nodes, the head first; what was started ends again if one fails.

    Args:
        cluster: Of the file.
        say: Told what is done.

    Returns:
        host:port of the cluster.

    Raises:
        UnavailableError: RAY: a node could not be reached or does not start; the message has its words.
    """
    if cluster.virtual:
        say(f"starting {len(cluster.nodes)} virtual nodes on this machine")
        return VirtualCluster([_spec(node) for node in cluster.nodes], name=cluster.name, keep=True).start().address
    head, *others = cluster.nodes
    try:
        say(f"{head.host}: starting the head at {cluster.address}")
        _start(cluster, head)
        with ThreadPoolExecutor(max_workers=32) as pool:
            for node, _ in zip(others, pool.map(lambda node: _start(cluster, node), others), strict=True):
                say(f"{node.host}: has joined")
    except BaseException:
        down(cluster, say)
        raise
    return cluster.address


def down(cluster: ClusterFile, say: Callable[[str], None]) -> None:
    """Ends this cluster's processes on all nodes, the head last; those of other clusters go on.

    Raises:
        UnavailableError: RAY: a node could not be reached, or something on it does not end; the others are ended.
        InvalidArgumentError: SETTINGS: there is no such virtual cluster.
    """
    if cluster.virtual:
        VirtualCluster.attach(cluster.name).close()
        say(f"the virtual cluster {cluster.name} is removed")
        return
    failed = []
    for node in reversed(cluster.nodes):
        try:
            code = Path(end_node.__file__).read_text()
            n_ended = _run(cluster, node, [cluster.python, "-", cluster.address], _END_S, code).strip()
            say(f"{node.host}: {n_ended} processes ended")
        except UnavailableError as error:
            failed.append(error.message)
    if failed:
        raise UnavailableError("; ".join(failed), "RAY")


def command_on(cluster: ClusterFile, host: str, argv: list[str]) -> list[str]:
    """The command that runs a program on a node of the cluster.

    Raises:
        InvalidArgumentError: SETTINGS: there is no such node, or the cluster is not up.
    """
    if cluster.virtual:
        return VirtualCluster.attach(cluster.name).command_on(host, argv)
    node = next((node for node in cluster.nodes if host in (node.host, node.ip)), None)
    if node is None:
        raise UnavailableError(f"the cluster has no node {host}", "RAY")
    return cluster.ssh_command(node, argv)


def _start(cluster: ClusterFile, node: NodeEntry) -> None:
    is_head = node is cluster.nodes[0]
    argv = [
        *([] if node.is_local else ["env", *_variables(cluster)]),
        *(
            cluster.python,
            "-m",
            "ray.scripts.scripts",
            "start",
            f"--node-ip-address={node.ip}",
            "--disable-usage-stats",
        ),
        *(
            ["--head", f"--port={cluster.port}", "--include-dashboard=false"]
            if is_head
            else [f"--address={cluster.address}"]
        ),
        *([f"--num-cpus={node.cpus}"] if node.cpus is not None else []),
        *([f"--num-gpus={node.gpus}"] if node.gpus is not None else []),
        *([f"--object-store-memory={parse_bytes(node.store)}"] if node.store is not None else []),
        *([f"--resources={json.dumps(dict(node.resources))}"] if node.resources else []),
        *([f"--labels={','.join(f'{k}={v}' for k, v in node.labels.items())}"] if node.labels else []),
    ]
    _run(cluster, node, argv, _START_S)


def _variables(cluster: ClusterFile) -> list[str]:
    # A token that happens to lie on the head would else be asked of nodes that have none.
    variables = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"), **cluster.environment}
    return [f"{name}={value}" for name, value in variables.items()]


def _run(cluster: ClusterFile, node: NodeEntry, argv: list[str], timeout_s: float, code: str = "") -> str:
    own = dict(variable.split("=", 1) for variable in _variables(cluster)) if node.is_local else {}
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | own
    try:
        done = subprocess.run(
            cluster.ssh_command(node, argv),
            input=code,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{node.host}: not done after {timeout_s:g} s", "RAY") from None
    except OSError as error:
        raise UnavailableError(f"{node.host}: {error}", "RAY") from None
    if done.returncode != 0:
        text = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise UnavailableError(f"{node.host}: ended with {done.returncode}: {text}", "RAY")
    return done.stdout


def _spec(node: NodeEntry) -> NodeSpec:
    return NodeSpec(
        name=node.host,
        cpus=1 if node.cpus is None else node.cpus,
        gpus=node.gpus or 0,
        nic_mbit=node.nic_mbit,
        store_bytes=200_000_000 if node.store is None else parse_bytes(node.store),
        resources=node.resources,
        labels=node.labels,
        cores=node.cores,
        nice=node.nice,
    )
