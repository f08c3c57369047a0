"""Where workers run and how packs get to the ranks: from a cluster's shape to choices, each with its reason.

Pure but for `read_nodes`; nothing here changes a batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.errors import InvalidArgumentError
from stoker.plain_values import parse_bytes
from stoker.ray.protocol import Choices, Node

__all__ = ["Placed", "WorkerPlace", "choose", "plan_lines", "read_nodes", "worker_options"]

NIC_LABEL = "stoker-nic-gbit"
"""A node's Ray label that tells its NIC's speed, in Gbit/s; without it 10 is assumed."""

# What an H100 takes, whatever the pictures' size: at most 8.5 k tokens/s of 3,100 bytes, some 5 MP/s, of which a CPU
# makes well over 40.
_BYTES_PER_RANK_S = 26e6
_RANKS_PER_CPU = 8
_CPUS_PER_RANK = 4  # more have nothing to do, even with pictures of 12 MP
_NIC_BYTES_S = 10e9 / 8
_MARGIN = 2.0  # that the one node which is to feed all others must have over the estimate
_NOT_CUSTOM = ("CPU", "GPU", "memory", "object_store_memory")
_STORE_SHARE = 0.3  # made packs in a node's store; as much again for those pulled to its ranks


class Wanted(Protocol):
    """What of `RaySettings` matters here."""

    @property
    def placement(self) -> Any: ...
    @property
    def handover(self) -> str: ...
    @property
    def retrieval(self) -> str: ...
    @property
    def workers(self) -> int | str: ...
    @property
    def worker_cpus(self) -> int | str: ...
    @property
    def worker_memory(self) -> int | str: ...
    @property
    def store_limit(self) -> int | str: ...


class Process(Protocol):
    """What of a process of the trainer matters here: `Hello` has it. Peers of a data-parallel rank are several."""

    @property
    def node_id(self) -> str: ...
    @property
    def dp_rank(self) -> int: ...
    @property
    def own_cpus(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """One worker: a data service with threads of its own."""

    node_id: str = ""
    """Empty: Ray finds one."""
    cpus: int = 1
    """That it reserves; 0: it shares those of the trainers."""

    @property
    def threads(self) -> int:
        """That decode and tokenise."""
        return max(1, self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What `choose` decided."""

    choices: Choices
    places: tuple[WorkerPlace, ...]
    """Of the workers to begin with."""
    why: dict[str, str]
    """A sentence for each of placement, handover, retrieval, workers, worker_memory, store_limit."""
    warnings: tuple[str, ...]


def read_nodes(nodes: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> tuple[Node, ...]:
    """The living nodes, from what `ray.nodes()` and `available_resources_per_node()` give."""
    shapes = []
    for node in nodes:
        if not node["Alive"]:
            continue
        has, left = node["Resources"], free.get(node["NodeID"], {})
        shapes.append(
            Node(
                node_id=node["NodeID"],
                host=node.get("NodeManagerHostname", ""),
                cpus=has.get("CPU", 0.0),
                cpus_free=left.get("CPU", 0.0),
                memory_bytes=int(has.get("memory", 0)),
                store_bytes=int(has.get("object_store_memory", 0)),
                resources={k: v for k, v in left.items() if k not in _NOT_CUSTOM and not k.startswith("node:")},
                labels=dict(node.get("Labels") or {}),
            )
        )
    return tuple(shapes)


def choose(
    nodes: Sequence[Node],
    ranks: Sequence[Process],
    wanted: Wanted,
    *,
    memory_limit: int,
    pack_bytes: int,
    packs_per_step: int,
) -> Placed:
    """Works ``auto`` out.

    Args:
        nodes: The cluster.
        ranks: Every process of the trainer.
        wanted: ``ray:`` of the settings.
        memory_limit: ``speed.memory_limit``, of a node.
        pack_bytes: Of a pack, at most.
        packs_per_step: Over all ranks.

    Raises:
        InvalidArgumentError: If there is no node, a rank's node is none of them, or no node can have a worker;
            SHM_TOO_SMALL if an object store could not hold a pack.
    """
    return _Choice(tuple(nodes), tuple(ranks), wanted).placed(memory_limit, pack_bytes, packs_per_step)


class _Choice:
    """One call of `choose`: what its steps share."""

    def __init__(self, nodes: tuple[Node, ...], ranks: tuple[Process, ...], wanted: Wanted) -> None:
        self._wanted = wanted
        self._node = {node.node_id: node for node in nodes}
        strangers = {rank.node_id for rank in ranks} - set(self._node)
        if not nodes or strangers:
            raise InvalidArgumentError(
                f"ray: the cluster has {len(nodes)} living nodes, and {len(strangers)} nodes of the trainer are not "
                "among them",
                "RAY",
            )
        self._name = _names(nodes)
        # Ray has not counted the CPU of a process that it did not start.
        processes = Counter(rank.node_id for rank in ranks if rank.own_cpus < 1)
        self._left = {n.node_id: max(0, math.floor(n.cpus_free + 1e-6) - processes[n.node_id]) for n in nodes}
        # Peers get the same packs, once per node.
        pairs = dict.fromkeys((rank.node_id, rank.dp_rank) for rank in ranks)
        self._ranks_on = Counter(node_id for node_id, _ in pairs)
        self._n_ranks = max(1, len({rank.dp_rank for rank in ranks}))
        self._why: dict[str, str] = {}
        self._warnings: list[str] = []

    def placed(self, memory_limit: int, pack_bytes: int, packs_per_step: int) -> Placed:
        placement, resources, labels = self._placement()
        hosts = self._hosts(placement, resources, labels)
        workers = self._workers(placement, hosts)
        self._warn_if_uneven(placement, workers)
        worker_nodes = [self._node[node_id] for node_id in {w.node_id or hosts[0] for w in workers}]
        self._refuse_small_stores([*worker_nodes, *(self._node[n] for n in self._ranks_on)], pack_bytes)
        choices = Choices(
            placement=placement,
            resources=resources,
            labels=labels,
            handover=self._given("handover", "reference", "each pack crosses the network once, from its worker's node"),
            retrieval=self._given(
                "retrieval", "lazy", "packs are pulled ahead of use, and mapped in the node's store without a copy"
            ),
            **self._counts(placement, workers),
            worker_memory=self._worker_memory(worker_nodes, len(workers), memory_limit),
            store_limit=self._store_limit(worker_nodes),
            pull_bytes=self._pull_bytes(memory_limit),
        )
        self._warn_if_small(choices, pack_bytes, packs_per_step)
        return Placed(choices=choices, places=workers, why=self._why, warnings=tuple(self._warnings))

    def _given(self, name: str, auto: str, reason: str) -> str:
        value: str = getattr(self._wanted, name)
        self._why[name] = reason if value == "auto" else f"the settings say {value}"
        return auto if value == "auto" else value

    # --- where

    def _placement(self) -> tuple[str, dict[str, float], dict[str, str]]:
        """Its name, resources that each worker takes, labels of its node."""
        asked = self._wanted.placement
        if isinstance(asked, Mapping):
            resources = {str(k): float(v) for k, v in asked.get("resources", {}).items()}
            labels = {str(k): str(v) for k, v in asked.get("labels", {}).items()}
            kind = "resources" if resources else "labels"
            self._why["placement"] = f"the settings name {kind} that a worker's node must have"
            return "custom", resources, labels
        if asked != "auto":
            self._why["placement"] = f"the settings say {asked}"
            return asked, {}, {}
        kind, self._why["placement"] = self._auto_placement()
        return kind, {}, {}

    def _auto_placement(self) -> tuple[str, str]:
        rank_nodes = list(self._ranks_on)
        if all(self._left[n] >= _cpus_for(self._ranks_on[n]) for n in rank_nodes):
            least = min(self._left[n] for n in rank_nodes) if rank_nodes else 0
            return "local", (
                f"each of {len(rank_nodes)} nodes with ranks has CPUs that the trainers leave, {least} or more: packs "
                "are made where they are used, and do not cross the network"
            )
        if not any(self._left.values()):
            return "local", "no node has a CPU that the trainers leave, so workers share theirs"
        one = self._best_node()
        needed = _cpus_for(self._n_ranks)
        short = next(n for n in rank_nodes if self._left[n] < _cpus_for(self._ranks_on[n]))
        why_not_local = (
            f"{self._name[short]} has {self._left[short]} CPUs left for the packs of its {self._ranks_on[short]} ranks"
        )
        if self._left[one] < _MARGIN * needed:
            return "spread", (
                f"{why_not_local}, and one node's CPUs would bind: {self._left[one]} on {self._name[one]}, for "
                f"{self._n_ranks} ranks"
            )
        remote = self._n_ranks - self._ranks_on[one]
        said = _nic_bytes_s(self._node[one])
        nic, assumed = (said, "") if said else (_NIC_BYTES_S, " (assumed)")
        need = remote * _BYTES_PER_RANK_S
        figures = f"{need / 1e6:.0f} MB/s for {remote} ranks, and it carries {nic / 1e6:.0f}{assumed}"
        if nic < _MARGIN * need:
            return "spread", f"{why_not_local}, and one node's NIC would bind: {figures}"
        return "pack", (
            f"{why_not_local}; {self._name[one]} has {self._left[one]} CPUs left, and its NIC suffices: {figures}"
        )

    def _best_node(self) -> str:
        """The node for all workers: one that hosts ranks if it has CPUs enough, else that with most CPUs."""
        enough = _MARGIN * _cpus_for(self._n_ranks)
        return max(self._node, key=lambda n: (self._left[n] >= enough, self._ranks_on[n], self._left[n]))

    def _hosts(self, placement: str, resources: Mapping[str, float], labels: Mapping[str, str]) -> list[str]:
        """Node ids that workers may be on, best first."""
        if placement == "local":
            hosts = list(self._ranks_on)
        elif placement == "pack":
            hosts = [self._best_node()]
        elif placement == "spread":
            hosts = [n for n in self._node if self._left[n]] or list(self._node)
        else:
            hosts = [
                n.node_id
                for n in self._node.values()
                if all(n.resources.get(name, 0) >= amount for name, amount in resources.items())
                and all(n.labels.get(name) == value for name, value in labels.items())
            ]
            if not hosts:
                asked = ", ".join([*(f"{k}: {v:g}" for k, v in resources.items()), *map(": ".join, labels.items())])
                has = {k for node in self._node.values() for k in (node.resources if resources else node.labels)}
                raise InvalidArgumentError(
                    f"ray.placement: no node of the cluster has {{{asked}}}; there are "
                    f"{', '.join(sorted(has)) or 'none'}",
                    "SETTINGS",
                )
        return sorted(hosts, key=lambda n: (-self._left[n], n))

    def _workers(self, placement: str, hosts: list[str]) -> tuple[WorkerPlace, ...]:
        asked, asked_cpus = self._wanted.workers, self._wanted.worker_cpus
        n = len(hosts) if asked == "auto" else int(asked)
        on = Counter(hosts[i % len(hosts)] for i in range(n))
        is_bound = placement in ("local", "pack", "spread")
        places = []
        for host in hosts:
            served = self._ranks_on[host] if placement == "local" and n == len(hosts) else self._n_ranks / n
            most = max(_CPUS_PER_RANK, math.ceil(_CPUS_PER_RANK * served))
            share = self._left[host] // on[host] if on[host] else 0
            cpus = min(share, most) if asked_cpus == "auto" else int(asked_cpus)
            places += [WorkerPlace(node_id=host if is_bound else "", cpus=cpus)] * on[host]
        self._why["workers"] = (
            f"one on each of {n} nodes" if asked == "auto" else f"the settings say {n}, over {len(on)} nodes"
        ) + (
            f"; of the CPUs that trainers leave at most {_CPUS_PER_RANK} for a rank"
            if asked_cpus == "auto"
            else f"; {asked_cpus} CPUs each, as the settings say"
        )
        return tuple(places)

    def _counts(self, placement: str, workers: tuple[WorkerPlace, ...]) -> dict[str, Any]:
        """How many workers, and how many there may be: until each rank has the CPUs that it can use."""
        n = len(workers)
        least, most = n, n
        if self._wanted.workers == "auto" and placement in ("spread", "custom"):
            cpus = max(1, sum(w.cpus for w in workers))
            least, most = 1, max(n, math.ceil(_CPUS_PER_RANK * self._n_ranks * n / cpus))
        return {
            "workers": n,
            "min_workers": least,
            "max_workers": most,
            "worker_cpus": float(min(worker.cpus for worker in workers)),
        }

    # --- how much

    def _worker_memory(self, nodes: Sequence[Node], n_workers: int, memory_limit: int) -> int:
        if self._wanted.worker_memory != "auto":
            self._why["worker_memory"] = f"the settings say {self._wanted.worker_memory}"
            return parse_bytes(self._wanted.worker_memory)
        on_one = math.ceil(n_workers / len(nodes))
        ram = min((node.memory_bytes for node in nodes if node.memory_bytes), default=2 * memory_limit)
        self._why["worker_memory"] = "speed.memory_limit of a node, and at most half of its memory" + (
            f", divided by {on_one} workers" if on_one > 1 else ""
        )
        return min(memory_limit, ram // 2) // on_one

    def _store_limit(self, nodes: Sequence[Node]) -> int:
        if self._wanted.store_limit != "auto":
            self._why["store_limit"] = f"the settings say {self._wanted.store_limit}"
            return parse_bytes(self._wanted.store_limit)
        total = sum(node.store_bytes for node in nodes)
        self._why["store_limit"] = (
            f"{_STORE_SHARE:.0%} of the {total / 1e6:.0f} MB of object store on the nodes with workers; as much again "
            "is for packs pulled by ranks there"
        )
        return int(_STORE_SHARE * total)

    def _pull_bytes(self, memory_limit: int) -> int:
        """The least over the nodes: a step needs all ranks, so the least sets how far ahead the job is."""
        of_store = [
            int(min(_STORE_SHARE * self._node[node_id].store_bytes, memory_limit)) // n
            for node_id, n in self._ranks_on.items()
        ]
        return min(of_store, default=memory_limit)

    def _refuse_small_stores(self, nodes: Sequence[Node], pack_bytes: int) -> None:
        """Ray would put each pack on a disk and say nothing."""
        for node in nodes:
            if 0 < node.store_bytes < pack_bytes:
                raise InvalidArgumentError(
                    f"ray: need {pack_bytes / 1e6:.0f} MB for a pack, the object store of {self._name[node.node_id]} "
                    f"has {node.store_bytes / 1e6:.0f} MB in all, in /dev/shm unless Ray was told otherwise: enlarge "
                    "it (ray start --object-store-memory; docker run --shm-size), or lower pack.tokens_per_pack",
                    "SHM_TOO_SMALL",
                )

    # --- warnings

    def _warn_if_uneven(self, placement: str, workers: tuple[WorkerPlace, ...]) -> None:
        cpus: Counter[str] = Counter()
        for worker in workers:
            cpus[worker.node_id] += worker.cpus
        names = self._name
        if not any(cpus.values()):
            self._warnings.append(
                "ray: no CPU is left for workers, so they share those of the trainers and slow them down: add nodes, "
                "or leave CPUs to the workers"
            )
        elif placement == "pack" and len(self._ranks_on) > 1:
            node = names[workers[0].node_id]
            self._warnings.append(
                f"ray: uneven plan: all workers are on {node}, whose network card carries the packs of the "
                f"{len(self._ranks_on)} nodes with ranks; placement: local or spread uses them all"
            )
        elif placement == "local":
            without = [names[n] for n in self._ranks_on if not cpus[n]]
            per_rank = {n: cpus[n] / self._ranks_on[n] for n in self._ranks_on}
            low, high = (pick(per_rank, key=lambda n: per_rank[n]) for pick in (min, max))
            if without:
                self._warnings.append(
                    f"ray: uneven plan: no CPU for workers on {', '.join(sorted(without))}, whose ranks get their "
                    "packs over the network"
                )
            elif per_rank[high] > 2 * per_rank[low]:
                self._warnings.append(
                    f"ray: uneven plan: {cpus[low]} CPUs for {self._ranks_on[low]} ranks on {names[low]}, {cpus[high]} "
                    f"for {self._ranks_on[high]} on {names[high]}; all ranks wait for the slowest"
                )

    def _warn_if_small(self, choices: Choices, pack_bytes: int, packs_per_step: int) -> None:
        step_bytes = packs_per_step * pack_bytes
        if choices.store_limit < step_bytes:
            self._warnings.append(
                f"ray: a step may have {step_bytes / 1e6:.0f} MB of packs and ray.store_limit is "
                f"{choices.store_limit / 1e6:.0f} MB: less than one step is made ahead. Give the nodes larger object "
                "stores (ray start --object-store-memory)"
            )
        of_rank = packs_per_step // self._n_ranks * pack_bytes
        for node_id, n in self._ranks_on.items():
            node = self._node[node_id]
            if choices.retrieval == "lazy" and 0 < node.store_bytes < n * of_rank:
                self._warnings.append(
                    f"ray: {n} ranks on {self._name[node_id]} may hold {n * of_rank / 1e6:.0f} MB of a step's packs in "
                    f"its object store of {node.store_bytes / 1e6:.0f} MB: enlarge it, or set ray.retrieval: eager"
                )


def _cpus_for(n_ranks: int) -> int:
    return max(1, math.ceil(n_ranks / _RANKS_PER_CPU))


def _names(nodes: Sequence[Node]) -> dict[str, str]:
    """Nodes for people: hosts, and the id where several have one."""
    hosts = Counter(node.host for node in nodes)
    return {n.node_id: n.host if hosts[n.host] == 1 else f"{n.host or 'node'} ({n.node_id[:8]})" for n in nodes}


def _nic_bytes_s(node: Node) -> float | None:
    try:
        gbit = float(node.labels.get(NIC_LABEL, ""))
    except ValueError:
        return None
    return gbit * 1e9 / 8 if 0 < gbit < math.inf else None


def plan_lines(placed: Placed, nodes: Sequence[Node], ranks: Sequence[Process]) -> list[str]:
    """The plan for people, a line for each node that has a part in it."""
    choices, names = placed.choices, _names(nodes)
    lines = [
        f"ray: {choices.workers} workers, placement {choices.placement}, handover {choices.handover}, retrieval "
        f"{choices.retrieval}, {choices.store_limit / 1e6:.0f} MB of packs in object stores"
    ]
    for node in nodes:
        here = sorted({rank.dp_rank for rank in ranks if rank.node_id == node.node_id})
        workers = [w for w in placed.places if w.node_id == node.node_id]
        if here or workers:
            cpus = sum(w.cpus for w in workers)
            lines.append(
                f"ray:   {names[node.node_id]}: {f'ranks {_ranges(here)}' if here else 'no rank'}, "
                f"{len(workers)} workers with {cpus} of {node.cpus:g} CPUs"
            )
    if anywhere := sum(not w.node_id for w in placed.places):
        asked = {**choices.resources, **choices.labels}
        lines.append(f"ray:   {anywhere} workers where Ray finds {', '.join(f'{k}: {v}' for k, v in asked.items())}")
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    out: list[list[int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in out)


def worker_options(
    choices: Choices, place: WorkerPlace, *, max_concurrency: int, runtime_env: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Options of the Ray actor for a worker.

    A worker that dies is replaced by the coordinator, at a place of its choosing, so Ray never restarts one.

    Args:
        choices: Of the run.
        place: This worker's.
        max_concurrency: Calls that it answers at one time.
        runtime_env: ``ray.runtime_env`` of the settings.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {
        "num_cpus": place.cpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": max_concurrency,
        "scheduling_strategy": "SPREAD",
    }
    if place.node_id:
        # local: on another node it would not be what was planned. Otherwise a node that is gone is no reason to fail.
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
            place.node_id, soft=choices.placement != "local"
        )
    if choices.resources:
        options["resources"] = dict(choices.resources)
    if choices.labels:
        options["label_selector"] = dict(choices.labels)
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    return options
