"""What a cluster's nodes are and count: each tells of itself, and its raylet of its object store."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ray

__all__ = ["NodeFacts", "StoreUse", "facts_of_nodes", "living_nodes", "own_version", "read_own_node", "store_of_nodes"]

_SIOCGIFADDR = 0x8915
_ASK_S = 20.0
_STORE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself. Bytes, and counters since it started."""

    host: str
    python: str
    ray: str
    stoker: str
    nic: str
    """Interface of the address by which the cluster knows it; empty if none has it."""
    nic_sent: int
    nic_received: int
    cpu_busy_s: float
    """Over all cores of the machine."""
    n_cores: int
    memory_bytes: int
    memory_free: int
    shm_bytes: int
    """Size of /dev/shm, where the object store lies."""
    open_files: int
    """Limit of a process."""
    at_s: float
    """When this was read, by the node's monotonic clock."""
    found: tuple[bool, ...] = ()
    """Of the paths asked for, which are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """A node's object store, as its raylet counts. Bytes."""

    used: int
    size: int
    n_objects: int
    spilled: int
    """Written to disk since it started, because the store was full."""


def read_own_node(ip: str, paths: Sequence[str] = ()) -> NodeFacts:
    """Facts of the node that this runs on.

    Args:
        ip: Its address in the cluster.
        paths: Files or folders to look for.
    """
    nic = _interface_of(ip)
    received, sent = _carried(nic)
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    ticks = [int(t) for t in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    shm = os.statvfs("/dev/shm")
    return NodeFacts(
        host=socket.gethostname(),
        python=".".join(map(str, sys.version_info[:3])),
        ray=ray.__version__,
        stoker=own_version(),
        nic=nic,
        nic_sent=sent,
        nic_received=received,
        cpu_busy_s=(sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"),  # but idle and waiting for a disk
        n_cores=os.cpu_count() or 1,
        memory_bytes=_kilobytes(memory["MemTotal"]),
        memory_free=_kilobytes(memory["MemAvailable"]),
        shm_bytes=shm.f_blocks * shm.f_frsize,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        at_s=time.monotonic(),
        found=tuple(os.path.exists(path) for path in paths),
    )


def own_version() -> str:
    """Of the installed Stoker; empty where it runs from a folder."""
    try:
        return version("stoker")
    except PackageNotFoundError:
        return ""


def living_nodes() -> dict[str, dict[str, Any]]:
    """Ray's records of the nodes that it takes to be alive, by node id."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def facts_of_nodes(nodes: dict[str, dict[str, Any]], paths: Sequence[str] = ()) -> dict[str, NodeFacts | str]:
    """Asks every node, by a task that takes no CPU; in place of an answer, what is wrong in words.

    Args:
        nodes: Of `living_nodes`.
        paths: Files or folders to look for on each.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(read_own_node)
    refs = {
        node_id: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(
            node["NodeManagerAddress"], list(paths)
        )
        for node_id, node in nodes.items()
    }
    done, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=_ASK_S) if refs else ([], [])
    answered = set(done)
    facts: dict[str, NodeFacts | str] = {}
    for node_id, ref in refs.items():
        if ref not in answered:
            ray.cancel(ref, force=True)
            facts[node_id] = f"no answer within {_ASK_S:g} s"
            continue
        try:
            facts[node_id] = ray.get(ref)
        except Exception as error:
            text = str(getattr(error, "cause", None) or error).strip()
            facts[node_id] = text.splitlines()[-1] if text else type(error).__name__
    return facts


def store_of_nodes(nodes: dict[str, dict[str, Any]]) -> dict[str, StoreUse]:
    """Asks the raylets; a node that does not answer is left out, and so are all where grpcio is not installed.

    Args:
        nodes: Of `living_nodes`.
    """
    try:
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc
    except ImportError:
        return {}

    def ask(node: dict[str, Any]) -> StoreUse | None:
        channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", options=[])
        try:
            stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
            request = node_manager_pb2.GetNodeStatsRequest(include_memory_info=False)
            stats = stub.GetNodeStats(request, timeout=_STORE_S).store_stats
        except Exception:  # of gRPC: it does not answer, or refuses
            return None
        finally:
            channel.close()
        return StoreUse(
            used=stats.object_store_bytes_used,
            size=stats.object_store_bytes_avail,
            n_objects=stats.num_local_objects,
            spilled=stats.spilled_bytes_total,
        )

    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(nodes, pool.map(ask, nodes.values()), strict=True))
    return {node_id: use for node_id, use in answers.items() if use is not None}


def _interface_of(ip: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == ip:
                return name
    return ""


def _carried(nic: str) -> tuple[int, int]:
    """Bytes (received, sent) by the kernel's counters, of this process's network namespace."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == nic:
            fields = figures.split()
            return int(fields[0]), int(fields[8])
    return 0, 0


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024
