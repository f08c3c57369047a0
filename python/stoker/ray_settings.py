"""The ``ray:`` section of the settings. Nothing here needs Ray."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stoker.errors import InvalidArgumentError
from stoker.plain_values import parse_bytes

__all__ = ["RaySettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Batches are prepared by actors of a Ray cluster; without this section, in the trainer's own process.

    The batches are the same. ``ray: auto`` is short for ``ray: {address: auto}``. What is ``auto`` here is chosen from
    the cluster's shape, and the report says what was chosen and why.
    """

    address: str = "auto"
    """The cluster: ``auto`` for the one of this node, or ``host:port``. It counts where this process is not yet
    connected to one."""
    run: str = ""
    """Names the run among others on the cluster; by default after the job that torchrun, SLURM or ``STOKER_JOB_ID``
    name. All ranks of a run give the same, and make their loaders in the same order."""
    placement: Literal["auto", "local", "pack", "spread"] | Mapping[str, Mapping[str, Any]] = field(
        default="auto", hash=False
    )
    """Where workers run: on the nodes of the ranks, on as few nodes as there is room on, or on all; on nodes with
    ``{resources: {name: n}}`` or ``{labels: {name: value}}``."""
    handover: Literal["auto", "reference", "value"] = "auto"
    """How packs get from worker to rank: through the object stores, or through the coordinator (for comparison)."""
    retrieval: Literal["auto", "lazy", "eager"] = "auto"
    """When a rank reads a pack: ahead of use, as it lies in its node's store, or all of it when it is handed over."""
    workers: int | Literal["auto"] = "auto"
    """Workers over the whole cluster; auto: as many as the ranks' demand takes, more and fewer while the run goes."""
    worker_cpus: int | Literal["auto"] = "auto"
    """CPUs of one worker; auto: what the trainers leave."""
    worker_memory: int | str = "auto"
    """Memory of one worker, such as ``8GiB``."""
    store_limit: int | str = "auto"
    """Packs that lie in object stores at one time, over the whole cluster, such as ``20GiB``; auto: a share of the
    stores."""
    rank_timeout_s: float = 60.0
    """A rank that has said nothing for so long counts as lost."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    """Ray's own ``runtime_env`` for the actors, such as ``{pip: [...]}``. Nothing of it is logged."""

    def check(self) -> None:
        """Refuses what does not fit, by the name of its key.

        Raises:
            InvalidArgumentError: SETTINGS.
        """
        _require(
            not self.address.startswith("ray://"),
            f"ray.address: {self.address} is Ray Client, which copies every batch through a proxy. Start the trainer "
            "on a node of the cluster and use auto, or the host:port of its head",
        )
        _require(
            self.address == "auto" or re.fullmatch(r"[^\s/@]+:\d{1,5}", self.address) is not None,
            f"ray.address must be auto or host:port, not {self.address!r}",
        )
        _require(
            re.fullmatch(r"[A-Za-z0-9_.-]{0,100}", self.run) is not None,
            "ray.run must be at most 100 letters, digits, `-`, `_` and `.`",
        )
        self._check_placement()
        for name, most in (("workers", 2**16), ("worker_cpus", 1024)):
            value = getattr(self, name)
            _require(value == "auto" or 1 <= value <= most, f"ray.{name} must be auto or from 1 to {most}")
        for name in ("worker_memory", "store_limit"):
            value = getattr(self, name)
            _require(value == "auto" or 0 < parse_bytes(value) < 2**60, f"ray.{name} must be auto or above 0 bytes")
        _require(1 <= self.rank_timeout_s <= 86400, "ray.rank_timeout_s must be from 1 to 86400")

    def _check_placement(self) -> None:
        wanted = self.placement
        if isinstance(wanted, str):
            return
        _require(
            len(wanted) == 1 and next(iter(wanted)) in ("resources", "labels") and len(next(iter(wanted.values()))) > 0,
            "ray.placement takes auto, local, pack, spread, {resources: {name: n}} or {labels: {name: value}}, "
            f"not {dict(wanted)!r}",
        )
        for name, value in wanted.get("resources", {}).items():
            _require(
                isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31,
                f"ray.placement.resources.{name} must be above 0, it is {value!r}",
            )
        for name, value in wanted.get("labels", {}).items():
            _require(isinstance(value, str), f"ray.placement.labels.{name} must be text, it is {value!r}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgumentError(message, "SETTINGS")
