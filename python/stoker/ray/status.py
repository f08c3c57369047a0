"""``stoker ray status``: what the runs on a cluster do, from their coordinators and from each node's counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ray

from stoker.ray.nodes import NodeFacts, StoreUse, facts_of_nodes, living_nodes, store_of_nodes
from stoker.ray.placement import NIC_LABEL
from stoker.ray.protocol import NAMESPACE

__all__ = ["Snapshot", "Table", "as_dict", "plain_lines", "take_snapshot", "to_tables"]

_ANSWER_S = 10.0
_WAITS_S = 1.0  # a rank that has waited so long is told of


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One look at a cluster."""

    at_s: float
    """Monotonic clock of the process that looked."""
    nodes: dict[str, dict[str, Any]]
    """Ray's record of each living node, by node id."""
    facts: dict[str, NodeFacts | str]
    """What each said of itself, or what is wrong with it."""
    stores: dict[str, StoreUse]
    runs: list[dict[str, Any]]
    """What each coordinator said: see `coordinator.Coordinator.status`; only ``run`` and ``state`` of one that does
    not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """For people: cells are text, the first column is a name."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def take_snapshot(run: str = "") -> Snapshot:
    """Looks once; this process must be connected.

    Args:
        run: Only runs whose coordinator's name has this in it.
    """
    nodes = living_nodes()
    runs = _ask_coordinators(run)
    return Snapshot(
        at_s=time.monotonic(), nodes=nodes, facts=facts_of_nodes(nodes), stores=store_of_nodes(nodes), runs=runs
    )


def _ask_coordinators(run: str) -> list[dict[str, Any]]:
    names = sorted(
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE and actor["name"].startswith("stoker-") and run in actor["name"]
    )
    asked: dict[str, Any] = {}
    for name in names:
        try:
            asked[name] = ray.get_actor(name, namespace=NAMESPACE).status.remote()
        except ValueError:  # it has ended since
            continue
    runs = []
    end = time.monotonic() + _ANSWER_S
    for name, ref in asked.items():
        try:
            runs.append(dict(ray.get(ref, timeout=max(0.1, end - time.monotonic()))))
        except ray.exceptions.GetTimeoutError:
            runs.append({"run": name, "state": f"its coordinator does not answer within {_ANSWER_S:g} s"})
        except ray.exceptions.RayError as error:
            runs.append({"run": name, "state": f"its coordinator has ended: {str(error).strip().splitlines()[0]}"})
    return runs


def as_dict(now: Snapshot, before: Snapshot | None = None) -> dict[str, Any]:
    """All of it as plain values, for ``--json``; rates where there is a snapshot to compare with."""
    names = _names(now)
    nodes = []
    for node_id, node in now.nodes.items():
        facts, store = now.facts.get(node_id, "not asked"), now.stores.get(node_id)
        nodes.append(
            {
                "node": node_id,
                "name": names[node_id],
                "address": node["NodeManagerAddress"],
                "cpus": node["Resources"].get("CPU", 0.0),
                "error": facts if isinstance(facts, str) else None,
                "facts": None if isinstance(facts, str) else asdict(facts),
                "store": None if store is None else asdict(store),
                **_rates(node_id, now, before),
            }
        )
    waits = [_wait_ratios(run, now, before) for run in now.runs]
    runs = [
        run
        | ({"clients": [c | {"wait_ratio": ratio.get(_key(c))} for c in run["clients"]]} if "clients" in run else {})
        for run, ratio in zip(now.runs, waits, strict=True)
    ]
    return {"nodes": nodes, "runs": runs}


def to_tables(now: Snapshot, before: Snapshot | None = None) -> list[Table]:
    """The same for people: the nodes, then each run."""
    tables = [_node_table(now, before)]
    for run in now.runs:
        tables += _run_tables(run, now, before)
    if not now.runs:
        tables[0].notes.append("no run of Stoker is on this cluster")
    return tables


def _node_table(now: Snapshot, before: Snapshot | None) -> Table:
    names = _names(now)
    workers = Counter(w["node"] for run in now.runs for w in run.get("workers", []))
    ranks = Counter(c["node"] for run in now.runs for c in run.get("clients", []) if not c["has_left"])
    table = Table(
        title="nodes",
        columns=("node", "ranks", "workers", "CPU", "object store", "spilled", "sends", "receives", "NIC"),
    )
    for node_id in now.nodes:
        facts, store = now.facts.get(node_id), now.stores.get(node_id)
        rates = _rates(node_id, now, before)
        used = None if rates["cpu_share"] is None else f"{rates['cpu_share']:.0%}"
        table.rows.append(
            (
                names[node_id],
                str(ranks[node_id]),
                str(workers[node_id]),
                used or "-",
                "-" if store is None else f"{_mb(store.used)} of {_mb(store.size)} MB",
                "-" if store is None else f"{_mb(store.spilled)} MB",
                _rate(rates["sent_bytes_per_s"]),
                _rate(rates["received_bytes_per_s"]),
                "-" if rates["nic_share"] is None else f"{rates['nic_share']:.0%} full",
            )
        )
        if isinstance(facts, str):
            table.notes.append(f"{names[node_id]}: {facts}")
        if store is not None and store.spilled:
            table.notes.append(
                f"{names[node_id]} has written {_mb(store.spilled)} MB of objects to its disk, because its object "
                "store was full: lower ray.store_limit, or give it more (ray start --object-store-memory)"
            )
    if not now.stores:
        table.notes.append("use of the object stores is not known: pip install grpcio")
    return table


def _run_tables(run: Mapping[str, Any], now: Snapshot, before: Snapshot | None) -> list[Table]:
    head = Table(title=f"run {run['run']}", columns=())
    head.notes.append(_headline(run))
    if run.get("ended"):
        head.notes.append(f"it ended: {run['ended']}")
    head.notes.extend([*run.get("warnings", ()), *(f"a worker died: {line}" for line in run.get("deaths", ()))])
    head.notes.extend(
        f"straggling: a pack of step {pack['step']} of rank {pack['rank']} is at {pack['where']} for "
        f"{pack['seconds']} s" + (", its second start" if pack["is_second"] else "")
        for pack in run.get("straggling", ())
    )
    if "clients" not in run:
        return [head]
    names = _names(now)

    def name(node_id: str) -> str:
        return names.get(node_id, f"{node_id[:8]}, which is gone")

    ratios = _wait_ratios(run, now, before)
    ranks = Table(
        title="ranks", columns=("rank", "node", "step", "waits", "pulled", "made on its node", "held", "heard")
    )
    for client in run["clients"]:
        ratio = ratios.get(_key(client))
        rank = f"{client['rank']}" + (f".{client['peer']}" if client.get("peer") else "")
        ranks.rows.append(
            (
                rank,
                name(client["node"]),
                "left" if client["has_left"] else str(client["step"]),
                "-" if ratio is None else f"{ratio:.1%} of its time",
                f"{_mb(client.get('pulled_bytes', 0))} MB",
                f"{_mb(client.get('local_bytes', 0))} MB",
                f"{_mb(client.get('held_bytes', 0))} MB",
                f"{client['heard_s_ago']:.0f} s ago",
            )
        )
        if client.get("waits_s", 0.0) > _WAITS_S and not client["has_left"]:
            ranks.notes.append(f"rank {rank} has waited {client['waits_s']:.0f} s for {client['waits_for']}")
    workers = Table(title="workers", columns=("worker", "node", "pid", "state", "packs", "a pack takes"))
    for worker in run["workers"]:
        times = worker.get("times_median", 0.0)
        workers.rows.append(
            (
                worker["worker"],
                name(worker["node"]),
                str(worker["pid"]),
                worker["state"],
                str(worker["packs"]),
                f"{times:.1f} x the median" if times else "-",
            )
        )
    moved = Table(title="bytes between nodes", columns=("from", "to", "sum"))
    for entry in run.get("bytes_from_to", ()):
        moved.rows.append((name(entry["from"]), name(entry["to"]), f"{_mb(entry['bytes'])} MB"))
    return [head, ranks, workers, *([moved] if moved.rows else [])]


def _headline(run: Mapping[str, Any]) -> str:
    parts = [str(run["state"])]
    if packs := run.get("packs"):
        parts.append(f"{packs['running']} packs are being made, {packs['waiting']} wait for a worker")
        parts.append(f"packs hold {_mb(packs['store_bytes'])} of {_mb(packs['store_limit'])} MB of object store")
    if choices := run.get("choices"):
        parts.append(f"{choices['placement']}, {choices['handover']}, {choices['retrieval']}")
    counters = run.get("counters", {})
    told = {
        "retried_after_death": "packs made again because a worker died",
        "retried_after_loss": "packs made again because they were lost",
        "second_starts": "straggling packs started a second time",
        "stuck_workers": "workers ended because they no longer came back",
        "samples_given_up": "samples given up because workers died of them",
    }
    parts += [f"{counters[key]} {text}" for key, text in told.items() if counters.get(key)]
    return "; ".join(parts)


# --- figures


def _rates(node_id: str, now: Snapshot, before: Snapshot | None) -> dict[str, float | None]:
    none: dict[str, float | None] = dict.fromkeys(
        ("cpu_share", "sent_bytes_per_s", "received_bytes_per_s", "nic_share"), None
    )
    if before is None:
        return none
    new, old = now.facts.get(node_id), before.facts.get(node_id)
    if not isinstance(new, NodeFacts) or not isinstance(old, NodeFacts) or new.at_s <= old.at_s:
        return none
    seconds = new.at_s - old.at_s
    busy = min(1.0, (new.cpu_busy_s - old.cpu_busy_s) / seconds / new.n_cores)
    if not new.nic:
        return none | {"cpu_share": busy}
    sent, received = (new.nic_sent - old.nic_sent) / seconds, (new.nic_received - old.nic_received) / seconds
    try:
        full = float(now.nodes[node_id].get("Labels", {}).get(NIC_LABEL, "")) * 1e9 / 8
    except ValueError:
        full = 0.0
    return {
        "cpu_share": busy,
        "sent_bytes_per_s": sent,
        "received_bytes_per_s": received,
        "nic_share": max(sent, received) / full if full > 0 else None,
    }


def _wait_ratios(run: Mapping[str, Any], now: Snapshot, before: Snapshot | None) -> dict[tuple[Any, ...], float]:
    """Share of the time since `before` that each client's trainer has waited."""
    if before is None:
        return {}
    earlier = next((r for r in before.runs if r["run"] == run["run"]), {})
    waited = {_key(c): c.get("wait_s", 0.0) for c in earlier.get("clients", ())}
    seconds = now.at_s - before.at_s
    return {
        _key(c): max(0.0, c.get("wait_s", 0.0) - waited[_key(c)]) / seconds
        for c in run.get("clients", ())
        if _key(c) in waited and seconds > 0
    }


def _key(client: Mapping[str, Any]) -> tuple[Any, ...]:
    return client["rank"], client.get("peer", 0), client["pid"], client["node"]


def _names(now: Snapshot) -> dict[str, str]:
    """Nodes for people: the host, and the beginning of the id where several have one."""
    hosts = Counter(node.get("NodeManagerHostname", "") for node in now.nodes.values())
    return {
        node_id: host if hosts[host := node.get("NodeManagerHostname", "")] == 1 else f"{host}/{node_id[:6]}"
        for node_id, node in now.nodes.items()
    }


def _mb(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.0f}"


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e6:,.1f} MB/s"


def plain_lines(tables: Sequence[Table]) -> list[str]:
    """For a log: a line for each row, each figure with its name."""
    lines = []
    for table in tables:
        lines += [f"{table.title}: {note}" for note in table.notes if not table.columns]
        for row in table.rows:
            named = ", ".join(f"{column} {cell}" for column, cell in zip(table.columns[1:], row[1:], strict=True))
            lines.append(f"{table.columns[0]} {row[0]}: {named}")
        lines += [note for note in table.notes if table.columns]
    return lines
