"""What the tests' own cluster promises the other tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

from ray_cluster import RayCluster, is_alive, until  # noqa: E402


class _Holder:
    def hold(self, n_bytes: int) -> Any:
        return np.zeros(n_bytes, np.uint8)

    def pid(self) -> int:
        return os.getpid()


Holder: Any = ray.remote(num_cpus=0)(_Holder)


def test_actors_objects_and_processes_are_counted(ray_cluster: RayCluster) -> None:
    ray_cluster.connect()
    assert len(ray_cluster.nodes) == len(ray_cluster.alive_nodes()) == 2
    assert (ray_cluster.actors(), ray_cluster.orphans(), ray_cluster.store_bytes()) == ([], [], 0)
    holder = Holder.remote()
    held = holder.hold.remote(3_000_000)
    ray.wait([held], fetch_local=False)
    (record,) = ray_cluster.actors()
    assert record["Pid"] == ray.get(holder.pid.remote())
    assert record["Pid"] in ray_cluster.processes()
    assert 3_000_000 <= ray_cluster.store_bytes() < 3_001_000
    with pytest.raises(AssertionError, match="Holder"):
        ray_cluster.settle(timeout_s=0)
    del held, holder
    ray_cluster.settle()


def test_a_killed_node_takes_its_processes_with_it(ray_cluster: RayCluster) -> None:
    ray_cluster.connect()
    with ray_cluster.extra_node(resources={"doomed": 1}) as node:
        holder = Holder.options(resources={"doomed": 0.1}).remote()
        pid = ray.get(holder.pid.remote())
        assert pid in node.pids()
        began = time.monotonic()
        ray_cluster.kill_node(node)
        assert time.monotonic() - began < 10
        until(lambda: not is_alive(pid), "the worker is gone")
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(holder.pid.remote(), timeout=10)
    ray_cluster.settle()


def test_an_orphan_is_seen(ray_cluster: RayCluster) -> None:
    """Whoever writes into the session's folder was started by the cluster, whoever its parent is now."""
    ray_cluster.connect()
    with (ray_cluster.folder / "left.out").open("w") as out:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
    with child:
        assert ray_cluster.orphans() == [child.pid]
        with pytest.raises(AssertionError, match=f"orphans .{child.pid}"):
            ray_cluster.settle(timeout_s=0)
        child.kill()
    ray_cluster.settle()
