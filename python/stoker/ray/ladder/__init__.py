"""The ladder on a Ray cluster: by value and by reference, packed and spread, eager and lazy, at small and large scale.

Emulated ranks as in `stoker.ladder`, each an actor on a node of the cluster with a real `stoker.Loader`. Nothing here
is used by a run.
"""

from __future__ import annotations

__all__: list[str] = []
