"""Whether a cluster can serve a run: what its nodes are, and what is wrong with them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from stoker.ray.nodes import (
    NodeFacts,
    StoreUse,
    facts_of_nodes,
    living_nodes,
    read_own_node,
    store_of_nodes,
)

if TYPE_CHECKING:
    from stoker.settings import Settings

__all__ = ["Checkup", "Finding", "check_cluster"]

_LEAST_STORE = 1_000_000_000
_LEAST_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know."""

    is_wrong: bool
    """A run cannot be served well, or at all; else a hint."""
    node: str
    """Host; empty: of all."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """A cluster as it was found."""

    nodes: dict[str, dict[str, Any]]
    """By host or address: shape, versions and use of each node, as plain values."""
    findings: list[Finding]


def check_cluster(settings: Settings | None = None) -> Checkup:
    """Looks at every node; this process must be connected.

    Args:
        settings: Of a run: its files must be there on all nodes, its index directory should be shared.
    """
    nodes = living_nodes()
    paths, token = _paths(settings)
    try:
        facts = facts_of_nodes(nodes, [*paths, *([str(token)] if token else [])])
    finally:
        if token is not None:
            token.unlink(missing_ok=True)
    stores = store_of_nodes(nodes)
    shown, findings = {}, []
    me = read_own_node("")
    for node_id, node in nodes.items():
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        while name in shown:
            name += f" {node_id[:6]}"
        fact, store = facts[node_id], stores.get(node_id)
        shown[name] = _shape(node, fact, store)
        texts = _of_node(fact, store, int(node["Resources"].get("object_store_memory", 0)), me)
        if isinstance(fact, NodeFacts):
            texts += _of_paths(fact, paths, has_token=token is not None)
        findings += [Finding(is_wrong=is_wrong, node=name, text=text) for is_wrong, text in texts]
    findings += [Finding(is_wrong=wrong, node="", text=text) for wrong, text in _of_all(nodes, stores)]
    return Checkup(nodes=shown, findings=findings)


def _paths(settings: Settings | None) -> tuple[list[str], Path | None]:
    """What every node must have, and a file that tells whether it sees this index directory."""
    if settings is None:
        return [], None
    named = [settings.model, *(data.manifest for data in settings.data), *(data.media_root for data in settings.data)]
    named.append(settings.pack.cost_file)
    paths = [path for path in dict.fromkeys(named) if path and "://" not in path and not set(path) & set("*?[")]
    folder = settings.resolved_index_dir()
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f".seen-by-all-{secrets.token_hex(6)}"
    token.touch()
    return paths, token


def _shape(node: Mapping[str, Any], fact: NodeFacts | str, store: StoreUse | None) -> dict[str, Any]:
    has = node["Resources"]
    return {
        "node": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "cpus": has.get("CPU", 0.0),
        "gpus": has.get("GPU", 0.0),
        "labels": {k: v for k, v in (node.get("Labels") or {}).items() if not k.startswith("ray.io/")},
        "facts": None if isinstance(fact, str) else asdict(fact),
        "store": None if store is None else asdict(store),
    }


def _of_node(fact: NodeFacts | str, store: StoreUse | None, store_bytes: int, me: NodeFacts) -> list[tuple[bool, str]]:
    if isinstance(fact, str):
        if "No module named 'stoker" in fact:
            return [(True, f"Stoker is not installed there ({fact}): pip install 'stoker[ray]', the same version")]
        return [(True, fact)]
    said: list[tuple[bool, str]] = []
    for name in ("stoker", "ray"):
        there, here = getattr(fact, name), getattr(me, name)
        if there != here:
            said.append((True, f"has {name} {there or 'of unknown version'}, and this process {here or 'unknown'}"))
    if fact.python.split(".")[:2] != me.python.split(".")[:2]:
        said.append((True, f"has Python {fact.python}, and this process {me.python}: Ray takes only one of them"))
    if store_bytes > fact.shm_bytes:
        said.append(
            (
                True,
                f"its object store of {_gb(store_bytes)} GB does not fit into /dev/shm of {_gb(fact.shm_bytes)} GB, so "
                "it lies on a disk: enlarge /dev/shm (docker run --shm-size, an emptyDir of medium Memory in "
                "Kubernetes) or give Ray less (--object-store-memory)",
            )
        )
    if store_bytes < _LEAST_STORE:
        said.append(
            (
                False,
                f"its object store has {store_bytes / 1e6:.0f} MB, some {store_bytes / 12.7e6:.0f} packs of 4,096 "
                "visual tokens: little is made ahead (ray start --object-store-memory)",
            )
        )
    if store is not None and store.spilled:
        said.append((False, f"has written {store.spilled / 1e6:,.0f} MB of objects to its disk since it started"))
    if fact.open_files < _LEAST_FILES:
        said.append((False, f"a process there may open {fact.open_files} files (ulimit -n): give it {_LEAST_FILES}"))
    return said


def _of_paths(fact: NodeFacts, paths: list[str], *, has_token: bool) -> list[tuple[bool, str]]:
    said = [
        (True, f"does not see {path}, which the settings name")
        for path, is_there in zip(paths, fact.found, strict=False)
        if not is_there
    ]
    if has_token and not fact.found[-1]:
        said.append(
            (
                False,
                "does not see the index directory of this process: each node then scans the manifests for itself. Set "
                "index_dir to a folder that all share",
            )
        )
    return said


def _of_all(nodes: Mapping[str, Mapping[str, Any]], stores: Mapping[str, StoreUse]) -> list[tuple[bool, str]]:
    said = []
    if not any(node["Resources"].get("CPU", 0) for node in nodes.values()):
        said.append((True, "no node has CPUs for workers (ray start --num-cpus)"))
    if not stores:
        said.append((False, "use of the object stores is not known: pip install grpcio"))
    free = ray.available_resources().get("CPU", 0.0)
    total = sum(node["Resources"].get("CPU", 0.0) for node in nodes.values())
    if total and free < 1:
        said.append((False, f"all {total:g} CPUs of the cluster are taken; workers would share those of others"))
    return said


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}"
