"""What a rung on a cluster gives, and what the ladder shows: the talk's comparisons. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stoker.ladder.result import LadderResult, RungResult
from stoker.ray.ladder.bounds import Bound, NodeUse, bounds_of, is_crowded, suffices

__all__ = ["Delivered", "RayLadderResult", "RayRungResult", "Verdict", "verdicts"]

_UNEXPLAINED = 1.3  # times the longest bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What the rank clients and the coordinator counted over the whole rung, the first step included."""

    packs: int
    network_packs: int
    """That came from another node than the rank's."""
    copies: float
    """Of whole payloads, from a worker's block to the rank's view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRungResult:
    """One rung, with what the cluster's nodes did during its measured steps."""

    result: RungResult
    n_ranks: int
    uses: tuple[NodeUse, ...]
    visual_tokens: int
    """Of all ranks' measured steps."""
    storage_bytes: int
    """That came from storage through the NICs that are counted, in the measured steps."""
    delivered: Delivered | None
    """None: the engine ran in the ranks' processes."""
    is_ahead: bool = True
    """Packs of later steps are fetched while the ranks train."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """How the packs travelled, and why."""

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """What binds, that which holds first."""
        return bounds_of(self.uses, n_steps=self.result.steps, train_s=self.result.train_s_per_step)

    @property
    def bound_by(self) -> str:
        """Name of the bound that holds; another word where steps take much longer than any resource needs."""
        first = self.bounds[0]
        if self.result.step_s <= _UNEXPLAINED * first.step_s:
            return first.name
        return "others' load" if self.is_ahead and is_crowded(self.uses) else "one after another"

    @property
    def suffices(self) -> bool:
        """Tells whether NICs and cores, taken together, suffice for training without a wait."""
        return suffices(self.bounds) and not is_crowded(self.uses)

    @property
    def received_bytes(self) -> int:
        """By all nodes' network interfaces in the measured steps."""
        return sum(use.received_bytes for use in self.uses)

    @property
    def cpu_s(self) -> float:
        """Of all processes on all nodes in the measured steps."""
        return sum(use.cpu_s for use in self.uses)

    @property
    def crossings_per_pack(self) -> float | None:
        """How often a pack's payload crossed the network."""
        if self.delivered is None:
            return None
        return self.delivered.network_packs / max(1, self.delivered.packs)

    @property
    def wire_bytes_per_visual_token(self) -> float | None:
        """Received by all NICs, less what came from storage, per visual token.

        None where it is not exact: packs that do not cross the network, or that are on their way, for later steps, when
        the counting begins or ends.
        """
        if self.crossings_per_pack != 1.0 or self.is_ahead or not self.visual_tokens:
            return None
        return (self.received_bytes - self.storage_bytes) / self.visual_tokens

    @property
    def copies_per_pack(self) -> float | None:
        """How often a payload was copied between its worker's block and the rank's view.

        Into the store of the worker's node, over the network into that of the rank's node, and in the rank's process.
        """
        return None if self.delivered is None else self.delivered.copies / max(1, self.delivered.packs)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: those of a rung of `stoker demo`, and ``cluster`` beside them."""
        return {
            **asdict(self.result),
            "ranks": self.n_ranks,
            "cluster": {
                "nodes": [asdict(use) for use in self.uses],
                "bound_by": self.bound_by,
                "bounds": [asdict(bound) for bound in self.bounds],
                "nics_and_cores_suffice": self.suffices,
                "received_bytes": self.received_bytes,
                "storage_bytes": self.storage_bytes,
                "cpu_s": self.cpu_s,
                "visual_tokens": self.visual_tokens,
                "wire_bytes_per_visual_token": self.wire_bytes_per_visual_token,
                "crossings_per_pack": self.crossings_per_pack,
                "copies_per_pack": self.copies_per_pack,
                "choices": dict(self.choices),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One of the things that the ladder is climbed to see."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RayLadderResult:
    """The ladder on a cluster: its rungs, lowest first, and what it was climbed on."""

    rungs: tuple[RayRungResult, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> LadderResult:
        """The same as the ladder of one machine has it, for what is drawn and compared."""
        return LadderResult(rungs=tuple(rung.result for rung in self.rungs), facts=self.facts)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON: the form of `stoker demo`."""
        return {
            **self.facts,
            "digests_agree": self.plain.digests_agree,
            "verdicts": [asdict(verdict) for verdict in verdicts(self.rungs)],
            "rungs": [rung.to_dict() for rung in self.rungs],
        }


def verdicts(rungs: Sequence[RayRungResult]) -> tuple[Verdict, ...]:
    """Returns what the rungs that were climbed show, and whether it is as it should be."""
    by_name = {rung.result.name: rung for rung in rungs}
    found = []
    pairs = (
        ("at small scale, spread and lazy", "ray-by-reference", "ray-spread-lazy", 0.8, 1.25),
        ("at large scale, spread and lazy", "scale-pack-eager", "scale-spread-lazy", 1.5, float("inf")),
    )
    for said, low, high, least, most in pairs:
        if low in by_name and high in by_name:
            ratio = by_name[high].result.samples_per_s / by_name[low].result.samples_per_s
            bar = f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"
            found.append(
                Verdict(
                    text=f"{said} together give {ratio:.2f} times the samples/s of {low} (bar: {bar})",
                    holds=least <= ratio <= most,
                )
            )
    if "scale-auto" in by_name:
        last = by_name["scale-auto"]
        bar_wait = 0.02 if last.suffices else 0.10
        found.append(
            Verdict(
                text=f"the defaults wait {last.result.wait_ratio:.3f} of a step (bar: {bar_wait:g}, since NICs and "
                f"cores {'suffice' if last.suffices else 'do not suffice'})",
                holds=last.result.wait_ratio <= bar_wait,
            )
        )
    by_reference = [rung for rung in rungs if rung.choices.get("handover") == "reference"]
    crossings = [rung.crossings_per_pack for rung in by_reference if rung.crossings_per_pack is not None]
    if crossings:
        found.append(
            Verdict(
                text=f"by reference a pack crosses the network at most once (most: {max(crossings):.2f})",
                holds=max(crossings) <= 1.0,
            )
        )
    mapped = [rung for rung in by_reference if rung.choices.get("retrieval") == "lazy"]
    copies = [rung.copies_per_pack for rung in mapped if rung.copies_per_pack is not None]
    if copies:
        found.append(
            Verdict(text=f"mapped packs are copied at most twice (most: {max(copies):.2f})", holds=max(copies) <= 2.0)
        )
    wire = [rung.wire_bytes_per_visual_token for rung in by_reference]
    if known := [value for value in wire if value is not None]:
        found.append(
            Verdict(
                text=f"NICs count {max(known):,.0f} bytes per visual token, headers and all that Ray says included "
                "(bar: 3,100)",
                holds=max(known) <= 3100,
            )
        )
    return tuple(found)
