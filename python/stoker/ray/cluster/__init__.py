"""Clusters: a virtual one on this machine, and what a file describes."""

from __future__ import annotations

from stoker.ray.cluster.virtual import NodeSpec, VirtualCluster, VirtualNode, missing_for_virtual

__all__ = ["NodeSpec", "VirtualCluster", "VirtualNode", "missing_for_virtual"]
