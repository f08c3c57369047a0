"""What binds a rung: what its steps move and compute, against what the cluster can. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["SUFFICES", "Bound", "NodeUse", "Reading", "bounds_of", "is_crowded", "node_uses", "suffices"]

_MENTIONED = 0.1  # of the cores
_CROWDED = 0.9  # of the cores

SUFFICES = 0.8
"""A resource suffices if what a step needs of it takes at most this share of the training time: queues need room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a node's kernel has counted, at one moment."""

    at_s: float
    """Monotonic, of the node."""
    host: str
    """Equal for nodes that share one machine's cores, as those of a virtual cluster do."""
    network: str
    """Equal for nodes that share network interfaces, and all that is counted here."""
    cores: int
    busy_s: float
    """CPU seconds of everybody on the machine."""
    received_bytes: int
    """By the cluster's network interfaces, headers included."""
    sent_bytes: int
    cpu_s: Mapping[int, float]
    """Process -> CPU seconds, of the processes in the node's network namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """What a node did between two readings."""

    name: str
    host: str
    cores: int
    busy_s: float
    """CPU seconds of everybody on the machine."""
    nic_bytes_s: float | None
    """What its network interface carries each way; None: not known."""
    received_bytes: int
    sent_bytes: int
    cpu_s: float
    span_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How long one step takes if only this bound it."""

    name: str
    step_s: float
    arithmetic: str


def node_uses(
    before: Mapping[str, Reading], after: Mapping[str, Reading], nic_bytes_s: Mapping[str, float | None]
) -> tuple[NodeUse, ...]:
    """Returns what each node did; of nodes that share network and processes, the first stands for all.

    CPU time of a process that began or ended meanwhile counts as far as it was seen.
    """
    first: dict[str, str] = {}
    for name, reading in before.items():
        first.setdefault(reading.network, name)
    return tuple(
        NodeUse(
            name=name,
            host=then.host,
            cores=then.cores,
            busy_s=now.busy_s - then.busy_s,
            nic_bytes_s=nic_bytes_s.get(name),
            received_bytes=now.received_bytes - then.received_bytes,
            sent_bytes=now.sent_bytes - then.sent_bytes,
            cpu_s=sum(max(0.0, cpu_s - then.cpu_s.get(pid, 0.0)) for pid, cpu_s in now.cpu_s.items()),
            span_s=now.at_s - then.at_s,
        )
        for name, then in before.items()
        if (now := after.get(name)) is not None and first[then.network] == name
    )


def bounds_of(uses: Sequence[NodeUse], *, n_steps: int, train_s: float) -> tuple[Bound, ...]:
    """Returns the bounds, that which holds first.

    Args:
        uses: Of every node, over the measured steps.
        n_steps: Measured.
        train_s: Of a step, mean over ranks.
    """
    found = [Bound(name="training", step_s=train_s, arithmetic=f"{train_s:.2f} s of training")]
    known = [use for use in uses if use.nic_bytes_s]
    if known:
        busiest = max(known, key=lambda use: max(use.received_bytes, use.sent_bytes) / (use.nic_bytes_s or 1.0))
        sends = busiest.sent_bytes >= busiest.received_bytes
        most = (busiest.sent_bytes if sends else busiest.received_bytes) / n_steps
        nic = busiest.nic_bytes_s or 1.0
        found.append(
            Bound(
                name="busiest NIC",
                step_s=most / nic,
                arithmetic=f"{busiest.name} {'sends' if sends else 'receives'} {most / 1e6:.1f} MB / "
                f"{nic / 1e6:.1f} MB/s = {most / nic:.2f} s",
            )
        )
        # What one sends another receives, and a card does both at once.
        moved = max(sum(use.received_bytes for use in known), sum(use.sent_bytes for use in known)) / n_steps
        all_nics = sum(use.nic_bytes_s or 0.0 for use in known)
        found.append(
            Bound(
                name="all NICs",
                step_s=moved / all_nics,
                arithmetic=f"{moved / 1e6:.1f} MB / {all_nics / 1e6:.1f} MB/s = {moved / all_nics:.2f} s",
            )
        )
    cpus = [_cpu([use for use in uses if use.host == host], n_steps) for host in {use.host for use in uses}]
    found += sorted(cpus, key=lambda bound: -bound.step_s)[:1]
    return tuple(sorted(found, key=lambda bound: -bound.step_s))


def _cpu(uses: Sequence[NodeUse], n_steps: int) -> Bound:
    """That of the cores of one machine; what others take of them is said, and is no need of ours."""
    cores, cpu_s = uses[0].cores, sum(use.cpu_s for use in uses) / n_steps
    said = f"{cpu_s:.2f} CPU s / {cores} cores = {cpu_s / cores:.2f} s"
    busy, span_s = max(use.busy_s for use in uses), max(use.span_s for use in uses)
    others = (busy - cpu_s * n_steps) / span_s if span_s > 0 else 0.0
    if others > _MENTIONED * cores:
        said += f" (others keep {others:.1f} cores busy)"
    return Bound(name="CPU", step_s=cpu_s / cores, arithmetic=said)


def is_crowded(uses: Sequence[NodeUse]) -> bool:
    """Tells whether some machine had next to no idle core, whoever used them."""
    return any(use.span_s > 0 and use.busy_s > _CROWDED * use.cores * use.span_s for use in uses)


def suffices(bounds: Sequence[Bound]) -> bool:
    """Tells whether the sum of the NICs and the cores suffice to keep the ranks training."""
    train_s = next(bound.step_s for bound in bounds if bound.name == "training")
    return all(bound.step_s <= SUFFICES * train_s for bound in bounds if bound.name in ("all NICs", "CPU"))
