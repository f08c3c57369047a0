"""Climbs the ladder on a Ray cluster: one rung after another, on the same data and the same emulated ranks."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from stoker.ladder.climb import Listener
from stoker.ladder.emulation import RankModel
from stoker.ladder.engine import Engine
from stoker.ladder.ranks import RankFailedError, RankJob
from stoker.ladder.result import StepRecord, summarise
from stoker.ray.ladder.bounds import node_uses
from stoker.ray.ladder.meters import Meter
from stoker.ray.ladder.ranks import on_node, run_ranks
from stoker.ray.ladder.result import Delivered, RayLadderResult, RayRungResult
from stoker.ray.ladder.rungs import PACKED, RUNGS
from stoker.ray.placement import NIC_LABEL
from stoker.ray.protocol import NAMESPACE

__all__ = ["RayPlan", "climb"]

_SCALE_UP = 4
_END_S = 20.0  # for a rung's coordinator and workers to be gone
_PATCHES_PER_VISUAL_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPlan:
    """What is to be climbed. Ray is connected to the cluster."""

    settings: Any
    """A `stoker.Settings`: decides the data, and the speed of all rungs."""
    python_serial: Any
    """A `PythonSerial`: the same data without the engine."""
    rungs: tuple[str, ...] = tuple(RUNGS)
    steps: int | None = None
    """Measured steps of every rung; None: each rung's own number."""
    n_ranks: int = 1
    """At the small scale; four times as many at the large."""
    model: RankModel = field(default_factory=lambda: RankModel(n_gpus=1))
    step_timeout_s: float = 180.0
    nic_bytes_s: float | None = None
    """Of every node; None: what a node's label or its interface says."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces of the cluster's network; empty: all but loopback."""
    storage_bytes: Callable[[], int] | None = None
    """Tells what storage has sent through these interfaces so far, if it does and somebody knows."""
    facts: Callable[[], Mapping[str, Any]] = dict
    """Asked at the end, for the result."""

    def steps_of(self, name: str) -> int:
        """Returns the number of steps of a rung, the first, which is not measured, included."""
        return 1 + (self.steps or RUNGS[name].steps)

    def ranks_of(self, name: str) -> int:
        """Returns the number of ranks that a rung feeds."""
        return self.n_ranks * (_SCALE_UP if RUNGS[name].is_large else 1)

    def about(self, name: str) -> str:
        """Returns what a rung is, in words."""
        return RUNGS[name].about

    @property
    def in_ladder_order(self) -> tuple[str, ...]:
        """The rungs, lowest first."""
        return tuple(name for name in RUNGS if name in self.rungs)

    @property
    def digest_steps(self) -> int:
        """How many steps, from the first, all rungs but python-serial run and have compared."""
        return min((self.steps_of(name) for name in self.rungs if not RUNGS[name].is_python), default=0)


def climb(plan: RayPlan, listener: Listener) -> RayLadderResult:
    """Runs all rungs of a plan.

    Raises:
        RankFailedError: A rank of some rung failed; nothing is left running.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    meters = {
        node["NodeID"]: ray.remote(Meter).options(**on_node(node["NodeID"])).remote(plan.interfaces) for node in nodes
    }
    try:
        cluster = _Cluster(plan, nodes, meters)
        results: dict[str, RayRungResult] = {}
        with tempfile.TemporaryDirectory(prefix="stoker-ladder-") as scratch:
            for name in _running_order(plan):
                listener.rung_started(name)
                known = [r.result.samples_per_step * r.n_ranks for r in results.values()]
                result = cluster.run(name, Path(scratch), known[0] if known else None, listener)
                results[name] = result
                listener.rung_done(result.result)
        return RayLadderResult(
            rungs=tuple(results[name] for name in plan.in_ladder_order),
            facts={"rank_model": asdict(plan.model), "cluster": cluster.facts(), **plan.facts()},
        )
    finally:
        for meter in meters.values():
            with suppress(Exception):  # the cluster may be gone
                ray.kill(meter)


def _running_order(plan: RayPlan) -> tuple[str, ...]:
    """python-serial second, because it takes as many samples as the engine does."""
    order = list(plan.in_ladder_order)
    if len(order) > 1 and RUNGS[order[0]].is_python:
        order[0], order[1] = order[1], order[0]
    return tuple(order)


class _Cluster:
    """Runs rungs on the nodes that there are."""

    def __init__(self, plan: RayPlan, nodes: list[dict[str, Any]], meters: dict[str, Any]) -> None:
        self._plan = plan
        self._meters = meters
        head = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
        others = [node for node in nodes if node not in head]
        # Ranks stand on all nodes but one, so that packed workers can stand where no rank is.
        self._ids = {node["NodeID"]: _name(node, nodes) for node in [*head, *others]}
        self._packed = (head or others)[0]["NodeID"]
        self._rank_nodes = [node["NodeID"] for node in others] or [self._packed]
        said = {node["NodeID"]: _label_bytes_s(node) for node in nodes}
        measured = dict(zip(meters, ray.get([meter.nic_bytes_s.remote() for meter in meters.values()]), strict=True))
        self._nic = {node: plan.nic_bytes_s or said[node] or measured[node] for node in meters}

    def facts(self) -> dict[str, Any]:
        nics = sorted({nic for nic in self._nic.values() if nic})
        return {
            "nodes": len(self._ids),
            "nodes_with_ranks": len(self._rank_nodes),
            "packed_workers_on": self._ids[self._packed],
            "nic_mbit_s": [round(nic * 8 / 1e6) for nic in nics] or "not known",
            "ray": ray.__version__,
        }

    def run(self, name: str, scratch: Path, samples_per_step: float | None, listener: Listener) -> RayRungResult:
        plan, rung, n_ranks = self._plan, RUNGS[name], self._plan.ranks_of(name)
        digest_steps = 0 if rung.is_python else plan.digest_steps
        job = RankJob(
            make_taker=self._taker(name, scratch, samples_per_step),
            model=plan.model,
            n_steps=plan.steps_of(name),
            digest_steps=digest_steps,
            step_timeout_s=plan.step_timeout_s,
        )
        storage = _StorageMeter(plan.storage_bytes, n_ranks, job.n_steps)

        def on_step(record: StepRecord) -> None:
            storage.step_done(record)
            listener.step_done(name, record)

        try:
            output = run_ranks(
                job,
                places=[self._rank_nodes[rank % len(self._rank_nodes)] for rank in range(n_ranks)],
                meters=self._meters,
                on_step=on_step,
            )
        except RankFailedError as error:
            raise RankFailedError(f"{name}: {error}{_waited_for(name)}") from None
        if rung.ray is not None:
            _wait_until_gone(name)
        reports = [output.reports[rank] for rank in sorted(output.reports)]
        result = summarise(name, output.records, digest_steps=digest_steps, any_rank=True)
        n_patches = sum(record.n_patches for record in output.records if record.step > 0)
        uses = node_uses(output.before, output.after, self._nic)
        return RayRungResult(
            result=replace(result, reports=tuple(reports)),
            n_ranks=n_ranks,
            uses=tuple(replace(use, name=self._ids[use.name]) for use in uses),
            visual_tokens=n_patches // _PATCHES_PER_VISUAL_TOKEN,
            storage_bytes=storage.measured,
            delivered=None if rung.ray is None else _delivered(reports),
            is_ahead=not rung.is_python and (rung.speed or {}).get("prefetch_steps") != 0,
            choices={} if rung.ray is None else _choices(reports),
        )

    def _taker(self, name: str, scratch: Path, samples_per_step: float | None) -> Any:
        plan, rung = self._plan, RUNGS[name]
        if rung.is_python:
            n = None if samples_per_step is None else round(samples_per_step / plan.ranks_of(name))
            return replace(plan.python_serial, samples_per_step=n)
        # An index of its own: no rung may profit from what another has measured.
        changes: dict[str, Any] = {"index_dir": str(scratch / name), "speed": dict(rung.speed or {})}
        if rung.ray is not None:
            chosen = dict(rung.ray)
            if chosen.get("placement") == PACKED:
                chosen["placement"] = {"labels": {"ray.io/node-id": self._packed}}
            changes["ray"] = {**chosen, "run": f"{_run_name(name)}-{secrets.token_hex(4)}"}
        return Engine(settings=plan.settings.replace(**changes))


class _StorageMeter:
    """Reads what storage has sent, when the measured steps begin and when they end."""

    def __init__(self, ask: Callable[[], int] | None, n_ranks: int, n_steps: int) -> None:
        self._ask = ask
        self._n_ranks = n_ranks
        self._last = n_steps - 1
        self._n_done = {0: 0, self._last: 0}
        self._seen: dict[int, int] = {}

    def step_done(self, record: StepRecord) -> None:
        if self._ask is not None and record.step in self._n_done:
            self._n_done[record.step] += 1
            if self._n_done[record.step] == self._n_ranks:
                self._seen[record.step] = self._ask()

    @property
    def measured(self) -> int:
        return self._seen[self._last] - self._seen[0] if len(self._seen) == 2 else 0


def _name(node: Mapping[str, Any], nodes: list[dict[str, Any]]) -> str:
    """Its host's name, or its address where several nodes share a host's name."""
    host, address = str(node["NodeManagerHostname"]), str(node["NodeManagerAddress"])
    return host if sum(other["NodeManagerHostname"] == host for other in nodes) == 1 else address


def _label_bytes_s(node: Mapping[str, Any]) -> float | None:
    try:
        gbit_s = float((node.get("Labels") or {}).get(NIC_LABEL, ""))
    except ValueError:
        return None
    return gbit_s * 1e9 / 8


def _run_name(name: str) -> str:
    return f"ladder-{name}"


def _delivered(reports: list[dict[str, Any]]) -> Delivered:
    """Sums up what the rank clients counted."""
    of_ranks = [report["ray"] for report in reports]
    return Delivered(
        packs=sum(of["packs"] for of in of_ranks),
        network_packs=sum(of["network_packs"] for of in of_ranks),
        copies=sum(of["packs"] * of["copies_per_pack"] for of in of_ranks),
    )


def _choices(reports: list[dict[str, Any]]) -> dict[str, Any]:
    of_rank = reports[0]["ray"]
    return {**of_rank["choices"], "why": of_rank["why"]}


def _waited_for(name: str) -> str:
    """What the rung's coordinator says that its clients wait for; empty if there is none."""
    said = []
    for actor in _actors_of(name):
        with suppress(Exception):  # this is only about more words for an error
            status = ray.get(ray.get_actor(actor, namespace=NAMESPACE).status.remote(), timeout=5)
            said += [f"rank {of['rank']}: {of['waits_for']}" for of in status["clients"] if of["waits_for"]]
    return f"; {'; '.join(said)}" if said else ""


def _wait_until_gone(name: str) -> None:
    """Waits until the rung's coordinator has ended, and its workers with it, so that no rung pays for another."""
    deadline = time.monotonic() + _END_S
    while left := _actors_of(name):
        if time.monotonic() > deadline:
            for actor in left:
                with suppress(ValueError):  # it has ended just now
                    ray.kill(ray.get_actor(actor, namespace=NAMESPACE))
            return
        time.sleep(0.1)


def _actors_of(name: str) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [str(at["name"]) for at in named if at["namespace"] == NAMESPACE and f"-{_run_name(name)}-" in at["name"]]
