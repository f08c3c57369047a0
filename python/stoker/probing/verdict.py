"""What a measurement means: what limits the storage, and what follows for the engine. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.probing.measure import GROWS, THROTTLED, Measurement, Phase, unsaturated
from stoker.probing.profile import LatencyProfile, Quantiles
from stoker.probing.quantiles import SHARES, quantile

__all__ = ["Limit", "Verdict", "judge", "profile_of"]

Limit = Literal["latency", "connections", "throttled", "bandwidth", "requests", "cpu", "files", "unknown"]

_BUSY = 0.85  # of the threads that drive the network
_FEW = 5  # a hiccup is no verdict
_LEAST_BODY_S = 0.001  # shorter ones say nothing about a connection's speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the rate."""

    limit: Limit
    sentence: str
    knee: int
    """The fewest requests in flight that reach nine tenths of the best rate."""
    requests_per_s: float | None
    """The best rate, where more requests in flight did not raise it; None if it still grew."""
    bytes_per_s: float | None


def judge(measurement: Measurement, *, n_fetch_threads: int) -> Verdict:
    """Says what limits the storage's rate, as far as it was driven."""
    phases = [phase for phase in measurement.phases if phase.answers]
    if not phases:
        return Verdict(
            limit="unknown", sentence="too little was measured", knee=1, requests_per_s=None, bytes_per_s=None
        )
    best = max(phases, key=lambda phase: phase.requests_per_s)
    knee = next(phase.concurrency for phase in phases if phase.requests_per_s >= 0.9 * best.requests_per_s)
    top = phases[-1]
    calm = unsaturated(phases)

    is_growing = len(phases) < 2 or top.requests_per_s >= GROWS * phases[-2].requests_per_s

    def verdict(limit: Limit, sentence: str, *, is_capped: bool = not is_growing) -> Verdict:
        return Verdict(
            limit=limit,
            sentence=sentence,
            knee=knee,
            requests_per_s=best.requests_per_s if is_capped else None,
            bytes_per_s=best.bytes_per_s if is_capped else None,
        )

    most = f"{best.requests_per_s:.0f} requests/s ({best.bytes_per_s / 1e6:.1f} MB/s)"
    if measurement.objects.are_local:
        return verdict("files", f"files: {most} with {knee} at a time; no network was measured", is_capped=True)
    if any(phase.throttled_share > THROTTLED for phase in phases) and sum(p.throttled for p in phases) >= _FEW:
        worst = max(phases, key=lambda phase: phase.throttled_share)
        return verdict(
            "throttled",
            f"the storage throttles: with {worst.concurrency} requests in flight {100 * worst.throttled_share:.1f} % "
            f"of its answers asked to slow down; the best that came through is {most}",
        )
    if is_growing:
        first_s, body_s = _halves(top)
        if body_s > first_s:
            per_connection = quantile(sorted(_connection_rates(top)) or [0.0], 0.5)
            return verdict(
                "connections",
                f"connections: each carries about {per_connection / 1e6:.2f} MB/s, and the rate still grew with "
                f"{top.concurrency} in flight, to {most}",
            )
        return verdict(
            "latency",
            f"latency: half of the first bytes take {1e3 * first_s:.3g} ms or more, whatever is in flight, and the "
            f"rate still grew with {top.concurrency} in flight, to {most}",
        )
    if top.cpus >= _BUSY * n_fetch_threads:
        return verdict(
            "cpu",
            f"this process: its network thread{'s are' if n_fetch_threads > 1 else ' is'} busy ({top.cpus:.1f} CPUs) "
            f"at {most}; see speed.fetch_threads",
        )
    (calm_first_s, calm_body_s), (first_s, body_s) = _halves(calm), _halves(top)
    if body_s - calm_body_s > first_s - calm_first_s:
        return verdict(
            "bandwidth",
            f"bandwidth: bodies come more slowly the more are in flight ({1e3 * calm_body_s:.3g} ms with "
            f"{calm.concurrency}, {1e3 * body_s:.3g} ms with {top.concurrency}), and the sum stays at {most}",
        )
    return verdict(
        "requests",
        f"requests: with {top.concurrency} in flight first bytes come later ({1e3 * calm_first_s:.3g} ms with "
        f"{calm.concurrency}, now {1e3 * first_s:.3g} ms) and not more of them: {most}",
    )


def _halves(phase: Phase) -> tuple[float, float]:
    """Medians of the time to the first byte, and from it to the last."""
    bodies = sorted(took - first for first, took in zip(phase.first_byte_s, phase.took_s, strict=True))
    return quantile(sorted(phase.first_byte_s), 0.5), quantile(bodies, 0.5)


def _connection_rates(phase: Phase) -> list[float]:
    triples = zip(phase.first_byte_s, phase.took_s, phase.object_bytes, strict=True)
    return [n / (took - first) for first, took, n in triples if took - first >= _LEAST_BODY_S and n]


def _quantiles_of(values: Sequence[float]) -> Quantiles:
    ascending = sorted(values)
    return tuple((share, quantile(ascending, share)) for share in SHARES) if ascending else ()


def profile_of(measurement: Measurement, verdict: Verdict, *, host: str) -> LatencyProfile:
    """What is kept of a measurement.

    Raises:
        ValueError: If nothing was answered.
    """
    phase = measurement.steady or (unsaturated(measurement.phases) if measurement.phases else None)
    if phase is None or not phase.first_byte_s:
        raise ValueError("nothing was answered in that time: give it more with --seconds")
    failed = dict(phase.failed_tries)
    tries = phase.answers + sum(failed.values())
    return LatencyProfile(
        measured_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        host=host,
        concurrency=phase.concurrency,
        requests=len(phase.first_byte_s),
        first_byte_s=_quantiles_of(phase.first_byte_s),
        connection_bytes_per_s=_quantiles_of(_connection_rates(phase)),
        errors={code: n / tries for code, n in sorted(failed.items())} if tries else {},
        requests_per_s=verdict.requests_per_s,
        bytes_per_s=verdict.bytes_per_s,
    )
