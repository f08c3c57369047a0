"""A real Ray cluster on this machine for tests: its nodes, what is in its stores, who lives, and who should not."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

__all__ = ["RayCluster", "RayNode", "StoreUse", "is_alive", "until"]

STORE_BYTES = 120_000_000
# A node that died is noticed within two seconds; one that is merely slow has ten to answer.
_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 400,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 10_000,
}


@dataclass(frozen=True, slots=True)
class StoreUse:
    """What a node's object store holds, and what it has ever written to disk because it was full."""

    n_objects: int
    n_bytes: int
    primary_bytes: int
    spilled_bytes: int
    created_bytes: int  # since the store began, copies from other nodes included


class RayNode:
    """A node: a raylet with its store, agents and workers."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.node_id = str(node.node_id)

    def pids(self) -> list[int]:
        """All its processes, the workers too; of the head also those that serve the cluster."""
        roots = [process.pid for _, process in self._node.live_processes()]
        return sorted(_with_descendants(roots))

    def kill(self) -> None:
        """All its processes at once, as when a machine loses power."""
        for pid in self.pids():
            _kill(pid)
        self._node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


class RayCluster:
    """A head and a further node, each with 2 CPUs and a store of 120 MB; `add_node` makes more.

    One cluster serves the whole session, so a test leaves it as it was: no actor, no object, the same nodes. A test
    connects this process by `connect`; the next one finds it connected, which is no harm. Its workers can import what
    lies beside the tests; ``address: auto`` means it while it stands, in child processes too.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stoker-ray-"))
        self._environment = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",  # a busy machine
            "RAY_gcs_server_port_wait_time_s": "120",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        }
        self._cluster = Cluster()
        self.head = self._add(
            dict(temp_dir=str(self.folder), no_monitor=True, include_dashboard=False, _system_config=_SYSTEM), 2
        )
        self.nodes: list[RayNode] = [self.head]
        self.add_node()
        os.environ["RAY_ADDRESS"] = self.address

    @property
    def address(self) -> str:
        """host:port, for `ray.init`."""
        return str(self._cluster.address)

    def add_node(self, *, num_cpus: int = 2, store_bytes: int = STORE_BYTES, **more: Any) -> RayNode:
        """Starts a node and waits for it. `more` are Ray's own, such as ``resources={"cpu_node": 1}``, ``labels=``."""
        node = self._add(more, num_cpus, store_bytes)
        self.nodes.append(node)
        return node

    def _add(self, more: dict[str, Any], num_cpus: int, store_bytes: int = STORE_BYTES) -> RayNode:
        options = dict(num_cpus=num_cpus, object_store_memory=store_bytes, include_log_monitor=False, **more)
        with (
            mock.patch.dict(os.environ, self._environment),
            mock.patch("ray._private.utils.write_ray_address"),  # what "auto" means to others on this machine stays
        ):
            return RayNode(self._cluster.add_node(**options))

    def kill_node(self, node: RayNode) -> None:
        """Kills a node that `add_node` made, and waits until the cluster knows; what was on it is lost."""
        self.nodes.remove(node)
        node.kill()
        self._cluster.worker_nodes.discard(node._node)
        until(lambda: node.node_id not in self.alive_nodes(), "the cluster notices that a node is gone", 30)

    @contextmanager
    def extra_node(self, **more: Any) -> Iterator[RayNode]:
        """A node for the duration; killed at the end if the test has not done so."""
        node = self.add_node(**more)
        try:
            yield node
        finally:
            if node in self.nodes:
                self.kill_node(node)

    def connect(self, **options: Any) -> None:
        """Connects this process, in namespace "stoker", if it is not connected."""
        if not ray.is_initialized():
            ray.init(address=self.address, namespace="stoker", log_to_driver=False, logging_level="error", **options)

    def disconnect(self) -> None:
        """What this process owns in the cluster ends, detached actors excepted."""
        ray.shutdown()

    def alive_nodes(self) -> dict[str, Any]:
        """Ray's record of each node that it takes to be alive, by node id."""
        return {node["NodeID"]: node for node in self._cluster.global_state.node_table() if node["Alive"]}

    def actors(self) -> list[dict[str, Any]]:
        """Ray's records (ActorID, Name, State, Pid, NodeID, ...) of the actors that are not dead."""
        self.connect()
        from ray._private.state import actors

        return [record for record in actors().values() if record["State"] != "DEAD"]

    def store(self) -> dict[str, StoreUse]:
        """Use of each node's object store, by node id."""
        uses = {}
        for node_id, node in self.alive_nodes().items():
            stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False).store_stats
            uses[node_id] = StoreUse(
                stats.num_local_objects,
                stats.object_store_bytes_used,
                stats.object_store_bytes_primary_copy,
                stats.spilled_bytes_total,
                stats.cumulative_created_bytes,
            )
        return uses

    def store_bytes(self) -> int:
        """Bytes in all object stores together."""
        return sum(use.n_bytes for use in self.store().values())

    def processes(self) -> set[int]:
        """All processes that this cluster started, directly or not, whichever node they belong to."""
        ours = set()
        for pid in _all_pids():
            for stream in (1, 2):  # raylets, agents and workers write into the session's folder
                try:
                    target = os.readlink(f"/proc/{pid}/fd/{stream}")
                except OSError:
                    continue
                if f"/{self.folder.name}/" in target and _state_of(pid) != "Z":
                    ours.add(pid)
        return ours

    def orphans(self) -> list[int]:
        """Processes of the cluster that belong to no node that lives."""
        wanted: set[int] = set()
        for node in self.nodes:
            wanted.update(node.pids())
        return sorted(self.processes() - wanted)

    def settle(self, *, n_bytes: int = 1000, timeout_s: float = 30) -> None:
        """Waits until no actor, no orphan and no more than `n_bytes` of objects are left; fails with what is left.

        Ray puts a byte in place of an object whose owner died, as long as a process has the reference; a pack is never
        so small.
        """
        is_evicted = False

        def is_settled() -> bool:
            nonlocal is_evicted
            if self.actors() or self.orphans():
                return False
            left = self.store().values()
            if sum(use.n_bytes for use in left) <= n_bytes:
                return True
            if not any(use.primary_bytes for use in left) and not is_evicted:
                # What Ray itself may keep: a copy from another node, until there is no room for it.
                is_evicted = True
                self._evict_copies()
            return False

        until(
            is_settled,
            lambda: f"actors {self.actors()}, orphans {self.orphans()}, stores {self.store()}",
            timeout_s,
        )

    def _evict_copies(self) -> None:
        """Makes each store drop what nobody has a reference to, by an object that needs all the room."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        fill = ray.remote(num_cpus=0, max_retries=0)(_zeros)
        for node_id, node in self.alive_nodes().items():
            size = int(node["Resources"]["object_store_memory"] * 0.97)
            here = NodeAffinitySchedulingStrategy(node_id, soft=False)
            ref = fill.options(scheduling_strategy=here).remote(size - self.store()[node_id].primary_bytes)
            ray.wait([ref], timeout=10, fetch_local=False)
            del ref

    def close(self) -> None:
        """Ends everything that the cluster started, and removes its folder."""
        self.disconnect()
        os.environ.pop("RAY_ADDRESS", None)
        ours = self.processes()
        for node in reversed(self.nodes):
            node.kill()
        for pid in ours | self.processes():
            _kill(pid)
        self._cluster.global_state.disconnect()
        shutil.rmtree(self.folder, ignore_errors=True)


def _zeros(n_bytes: int) -> Any:
    return np.zeros(n_bytes, np.uint8)


def until(reached: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = 20) -> None:
    """Waits for what only another process can bring about."""
    end = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    return _state_of(pid) not in {"", "Z", "X"}


def _state_of(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _stat(pid: int) -> list[str]:
    """State, parent, group, ... of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _with_descendants(roots: list[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        fields = _stat(pid)
        if fields and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
