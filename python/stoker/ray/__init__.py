"""Stoker on a Ray cluster: one coordinator, many workers, and a client in each trainer process.

Nothing here is imported by ``import stoker``; a run uses it when its settings have a ``ray:`` section.
"""

from __future__ import annotations

__all__: list[str] = []
