"""How the storage server behaves: how long it thinks, what it does wrong, how much it sends per second.

Every draw is a function of (seed, method class, key, how often that key was asked for), never of the order in which
requests arrive: two runs that ask for the same things meet the same latencies and faults, however they interleave.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any, Literal, Self

__all__ = ["Behaviour", "Fault", "FaultKind", "Latency"]

FaultKind = Literal["error", "reset", "cut", "stall", "silence", "trickle", "wrong_length", "wrong_checksum"]

_NORMAL = NormalDist()
_N_UNIFORMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds from the last byte of a read request to the first byte of its answer.

    Lognormal, with a share of slow requests drawn uniformly from wider ranges. The defaults give p50 30, p90 66,
    p99 145 and p99.9 940 ms: what an object store at some distance looks like.
    """

    median_s: float = 0.030
    sigma: float = 0.6
    tails: tuple[tuple[float, float, float], ...] = ((0.0005, 1.0, 5.0), (0.005, 0.3, 1.0))
    """Each (share of the requests, shortest, longest)."""

    quantiles: tuple[tuple[float, float], ...] = ()
    """What was measured: (share, seconds), both ascending, the shares from 0 to 1. Takes the place of all the above."""

    @classmethod
    def from_profile(cls, path: str | os.PathLike[str]) -> Self:
        """The latency that ``stoker probe --save`` measured.

        Raises:
            InvalidArgumentError: If the file is no latency profile.
        """
        from stoker.probing.profile import LatencyProfile

        return cls(quantiles=LatencyProfile.load(path).first_byte_s)

    def draw(self, uniform: float, other_uniform: float) -> float:
        """Returns one latency in seconds; both arguments uniform in [0, 1)."""
        if self.quantiles:
            return _value_at(self.quantiles, uniform)
        for share, shortest_s, longest_s in self.tails:
            if uniform < share:
                return shortest_s + (longest_s - shortest_s) * other_uniform
            uniform -= share
        return self.median_s * math.exp(self.sigma * _NORMAL.inv_cdf(min(max(other_uniform, 1e-12), 1 - 1e-12)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, and for which requests."""

    kind: FaultKind
    """``error``: an error answer instead of the object. ``reset``: the connection is reset after ``after_bytes`` of the
    body (0: before any answer). ``cut``: it ends cleanly there although Content-Length promised all. ``stall``: nothing
    more for ``stall_s``, then the rest. ``silence``: no answer at all. ``trickle``: the body at ``bytes_per_s``.
    ``wrong_length``: Content-Length is off by ``length_error``, and the connection closes after the body.
    ``wrong_checksum``: a whole object comes with a checksum that is not its own, if one was asked for.
    """
    share: float = 1.0
    """Share of the matching requests that meet it."""
    match: str = "*"
    """Which ones: a pattern over ``bucket/key`` as in a shell, where ``*`` crosses slashes."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    first: int | None = None
    """Only the first so many requests for each key; None: all."""
    after: int = 0
    """Not the first so many requests for each key."""
    after_bytes: int = 0
    """Bytes of the body that get through before ``reset``, ``cut`` and ``stall``."""
    stall_s: float = 3600.0
    bytes_per_s: float = 1.0
    length_error: int = 16
    status: int = 503
    code: str = "SlowDown"
    message: str = "Please reduce your request rate."
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers of an ``error`` answer, such as ``x-amz-bucket-region``."""

    def concerns(self, method: str, name: str, nth: int) -> bool:
        """Tells whether the request number ``nth`` (from 0) for ``name`` (``bucket/key``) may meet this fault."""
        return (
            method in self.methods
            and nth >= self.after
            and (self.first is None or nth < self.after + self.first)
            and (self.match == "*" or fnmatch.fnmatchcase(name, self.match))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The whole of it; the default answers at once and does nothing wrong."""

    latency: Latency | None = None
    stays_slow: bool = False
    """An object's latency is drawn once: asking for it a second time takes as long. Else every request draws anew."""
    faults: tuple[Fault, ...] = ()
    """Asked in turn; the first that hits is done. At most six of them may have a share below one."""
    bandwidth_bytes_per_s: float | None = None
    """For the bodies of all connections together."""
    seed: int = 0

    def decide(self, method: str, name: str, nth: int) -> tuple[float, Fault | None]:
        """Returns (latency in seconds, fault or None) for the request number ``nth`` (from 0) for ``name``."""
        if self.latency is None and not self.faults:
            return 0.0, None
        uniforms = _uniforms(self.seed, f"{nth}:{name}")
        delay_s = 0.0
        if self.latency is not None and method != "PUT":
            drawn = _uniforms(self.seed, f"0:{name}") if self.stays_slow else uniforms
            delay_s = self.latency.draw(drawn[0], drawn[1])
        for i, fault in enumerate(self.faults):
            if fault.concerns(method, name, nth) and (
                fault.share >= 1.0 or uniforms[2 + i % (_N_UNIFORMS - 2)] < fault.share
            ):
                return delay_s, fault
        return delay_s, None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Undoes `to_dict`, also after a way through JSON."""
        latency = values["latency"]
        faults = [{**fault, "methods": tuple(fault["methods"])} for fault in values["faults"]]
        return cls(
            latency=None
            if latency is None
            else Latency(**{**latency, **{k: tuple(map(tuple, latency[k])) for k in ("tails", "quantiles")}}),
            stays_slow=values["stays_slow"],
            faults=tuple(Fault(**fault) for fault in faults),
            bandwidth_bytes_per_s=values["bandwidth_bytes_per_s"],
            seed=values["seed"],
        )


def _value_at(quantiles: tuple[tuple[float, float], ...], share: float) -> float:
    for (low, below), (high, above) in itertools.pairwise(quantiles):
        if share <= high:
            return below + (above - below) * (share - low) / (high - low)
    return quantiles[-1][1]


def _uniforms(seed: int, text: str) -> tuple[float, ...]:
    digest = hashlib.blake2b(
        text.encode("utf-8", "surrogateescape"), key=seed.to_bytes(8, "little", signed=True), digest_size=64
    ).digest()
    return tuple((word >> 11) * 2.0**-53 for word in struct.unpack(f"<{_N_UNIFORMS}Q", digest))
