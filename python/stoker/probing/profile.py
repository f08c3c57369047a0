"""A storage's latency in a file: measured once, replayed by a test server or a simulation.

Versioned JSON::

    {"stoker_latency_profile": 1, "measured_at": "2026-11-30T12:00:00Z", "host": "10.0.0.5", "concurrency": 64,
     "requests": 5120, "first_byte_s": [[0.0, 0.011], ..., [1.0, 2.9]], "connection_bytes_per_s": [[0.0, 3e6], ...],
     "errors": {"FETCH_THROTTLED": 0.001}, "requests_per_s": null, "bytes_per_s": null}

Quantiles are [share, value], from share 0 to 1. It names the host that was asked, and nothing else of an address.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from stoker.errors import InvalidArgumentError

__all__ = ["LatencyProfile"]

_KEY = "stoker_latency_profile"
_VERSION = 1

Quantiles = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """How a storage answered while nothing but its own latency held it up."""

    measured_at: str
    """UTC, ISO 8601."""
    host: str
    """Whom the requests went to."""
    concurrency: int
    """Requests in flight."""
    requests: int
    """Answers that the quantiles are made of."""
    first_byte_s: Quantiles
    """Seconds from a request to the first byte of its answer, on connections that stood already: (share, value)."""
    connection_bytes_per_s: Quantiles
    """What one connection carried while a body came; empty where bodies were too small to tell."""
    errors: Mapping[str, float]
    """By reason, the share of all tries."""
    requests_per_s: float | None
    """The most that the storage answered; None if nothing was found that limits it."""
    bytes_per_s: float | None
    """The most that it sent; None likewise."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file."""
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {_KEY: _VERSION, **asdict(self)}.items())
        Path(path).write_text("{" + ",\n ".join(lines) + "}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises:
            InvalidArgumentError: If it is no profile, one of another version, or one with impossible values.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{path}: {error}", "SETTINGS") from error
        if not isinstance(values, dict) or _KEY not in values:
            raise InvalidArgumentError(f"{path}: no latency profile (`stoker probe --save` writes one)", "SETTINGS")
        if values[_KEY] != _VERSION:
            raise InvalidArgumentError(
                f"{path}: a latency profile of version {values[_KEY]!r}; this build reads version {_VERSION}",
                "SETTINGS",
            )
        try:
            return cls._checked({k: v for k, v in values.items() if k != _KEY})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidArgumentError(f"{path}: not a sound latency profile: {error}", "SETTINGS") from error

    @classmethod
    def _checked(cls, values: dict[str, Any]) -> Self:
        made = cls(
            **{
                **values,
                "first_byte_s": _quantiles("first_byte_s", values["first_byte_s"]),
                "connection_bytes_per_s": _quantiles("connection_bytes_per_s", values["connection_bytes_per_s"]),
                "errors": {str(code): float(share) for code, share in values["errors"].items()},
            }
        )
        if not made.first_byte_s:
            raise ValueError("`first_byte_s` is empty")
        return made


def _quantiles(name: str, values: Any) -> Quantiles:
    made = tuple((float(share), float(value)) for share, value in values)
    if not made:
        return made
    shares = [share for share, _ in made]
    if shares[0] != 0.0 or shares[-1] != 1.0 or any(b <= a for a, b in itertools.pairwise(shares)):
        raise ValueError(f"the shares of `{name}` must grow from 0 to 1")
    ascending = [value for _, value in made]
    if any(not math.isfinite(v) or v < 0 for v in ascending) or sorted(ascending) != ascending:
        raise ValueError(f"the values of `{name}` must be finite, not negative, and grow with their shares")
    return made
