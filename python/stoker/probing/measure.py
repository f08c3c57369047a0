"""Runs the phases of a probe: ever more requests in flight while the rate grows, then a long look at the tail."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker import _core
from stoker.loader import core_settings
from stoker.settings import ResolvedSpeed, Settings

__all__ = [
    "Measurement",
    "Objects",
    "Phase",
    "engine_concurrency",
    "is_still_growing",
    "levels_up_to",
    "measure",
    "unsaturated",
]

_TICK_MS = 100  # how often a wait comes back to the interpreter, so that Ctrl-C is heard
_GROWTH_SHARE = 0.6  # of the time; the rest is for the tail
_MOST_FILES = 16  # the engine reads files on at most so many threads
_MOST_BYTES_IN_FLIGHT = 1 << 30
_HAMMERED = 0.3  # a store that refuses so many of at least _TRIES is not asked for more
_TRIES = 64
_FEW = 30  # the rate of so few answers is chance
GROWS = 1.2
"""A rate that is not larger by this factor, with four times the requests in flight, has stopped to grow."""
THROTTLED = 0.005
"""A store that asks to slow down more often than this throttles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What there is to read."""

    objects: int
    """Different ones."""
    are_parts: bool
    """Of one large object."""
    are_local: bool
    """Files."""
    rows: int
    """Rows of the manifests that were looked at; 0 where the target is an object."""
    media: int
    """Mentions in them that storage would be asked for."""
    inline: int
    """Mentions that stand in their row."""
    sized: int
    """Mentions whose size the row says, so that no header is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What came of some seconds with so many requests in flight."""

    concurrency: int
    elapsed_s: float
    answers: int
    """In `elapsed_s`."""
    bytes: int
    cpu_s: float
    whole_s: float
    requests: int
    repeated: int
    """Requests for objects that had been asked for before: storage may have them in a cache."""
    unanswered: int
    throttled: int
    limit: int
    failed_tries: Mapping[str, int]
    first_byte_s: tuple[float, ...]
    """Of each answer."""
    took_s: tuple[float, ...]
    """Of the same answers."""
    object_bytes: tuple[float, ...]

    @property
    def requests_per_s(self) -> float:
        """Answers per second."""
        return self.answers / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of bodies per second, all connections together."""
        return self.bytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def throttled_share(self) -> float:
        """Answers that asked to slow down, of all tries."""
        return self.throttled / (self.requests + self.throttled) if self.requests else 0.0

    @property
    def cpus(self) -> float:
        """CPUs that this process kept busy."""
        return self.cpu_s / self.whole_s if self.whole_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All of a probe."""

    objects: Objects
    phases: tuple[Phase, ...]
    """While the rate grew, and the one at which it did not."""
    steady: Phase | None
    """The long one whose times stand for the storage; None if there was no time for it."""
    is_interrupted: bool = False


def levels_up_to(most: int, *, are_local: bool) -> list[int]:
    """Requests in flight to try: each four times the one before, and the last exactly `most`."""
    most = min(most, _MOST_FILES) if are_local else most
    levels = [1]
    while levels[-1] * 4 <= most:
        levels.append(levels[-1] * 4)
    return levels if levels[-1] == most else [*levels, most]


def is_still_growing(phases: list[Phase], next_level: int) -> bool:
    """Whether more requests in flight are worth a try."""
    last = phases[-1]
    if last.answers == 0 or (last.throttled_share > _HAMMERED and last.requests >= _TRIES):
        return False
    mean_bytes = last.bytes / last.answers
    if next_level * mean_bytes > _MOST_BYTES_IN_FLIGHT:
        return False
    if len(phases) < 2 or last.answers < _FEW:
        return True
    return last.requests_per_s >= GROWS * phases[-2].requests_per_s


def measure(
    settings: Settings,
    *,
    urls: list[str],
    seconds: float,
    max_concurrency: int,
    speed: ResolvedSpeed,
    say: Callable[[str, Phase | None], None],
) -> tuple[Measurement, str]:
    """Probes the objects of `urls`, or the media of the settings' manifests where there are none.

    A Ctrl-C ends it in less than a second, with what was measured so far.

    Args:
        settings: Data, seed and storage.
        urls: Objects; empty: the manifests' media.
        seconds: For all phases together.
        max_concurrency: The most requests in flight.
        speed: What a run would use: the tail is measured with no more requests in flight.
        say: Gets what is going on, and each phase that has ended.

    Returns:
        What was measured, and which storage it was: ``s3``, ``files``, or scheme and authority of an address.

    Raises:
        StokerError: What keeps anything from being read.
    """
    core = _core.CoreProber.create(core_settings(settings), urls, max_concurrency)
    phases: list[Phase] = []
    steady: Phase | None = None
    objects: Objects | None = None
    is_running = False
    try:
        while not core.open_within(_TICK_MS):
            say(core.progress() or "looking for objects", None)
        objects = Objects(**core.objects())
        until = time.monotonic() + seconds
        levels = levels_up_to(max_concurrency, are_local=objects.are_local)
        slot_s = _GROWTH_SHARE * seconds / len(levels)
        for level in levels:
            if phases and not is_still_growing(phases, level):
                break
            is_running = True
            phases.append(_run_phase(core, level, 0.75 * slot_s, 0.25 * slot_s, say))
            is_running = False
            say("", phases[-1])
        left_s = until - time.monotonic()
        level = min(unsaturated(phases).concurrency, engine_concurrency(phases, speed))
        is_running = True
        steady = _run_phase(core, level, 0.8 * left_s, 0.2 * left_s, say)
        is_running = False
    except KeyboardInterrupt:
        if objects is None:
            raise
        if is_running and (partial := _phase_of(core.end_phase())).answers:
            phases.append(partial)
        return Measurement(objects=objects, phases=tuple(phases), steady=steady, is_interrupted=True), core.storage()
    finally:
        core.stop()
    return Measurement(objects=objects, phases=tuple(phases), steady=steady), core.storage()


def unsaturated(phases: Sequence[Phase]) -> Phase:
    """The phase with the most requests in flight at which they did not yet stand in each other's way."""
    best = phases[0]
    for before, after in itertools.pairwise(phases):
        gain = after.requests_per_s / before.requests_per_s if before.requests_per_s > 0 else 0.0
        if after.answers >= _FEW and gain < 0.6 * after.concurrency / before.concurrency:
            break
        best = after
    return best


def engine_concurrency(phases: Sequence[Phase], speed: ResolvedSpeed) -> int:
    """Requests in flight that the engine comes to: what it begins with, doubled while that brings a fifth more."""

    def rate_with(concurrency: int) -> float:
        places = [math.log(phase.concurrency) for phase in phases]
        return float(np.interp(math.log(concurrency), places, [phase.requests_per_s for phase in phases]))

    level = speed.fetch_concurrency
    while level * 2 <= speed.max_fetch_concurrency and rate_with(level * 2) >= GROWS * rate_with(level):
        level *= 2
    return level


def _run_phase(
    core: Any, level: int, lasts_s: float, patience_s: float, say: Callable[[str, Phase | None], None]
) -> Phase:
    core.begin_phase(level, lasts_s, patience_s)
    while (ended := core.phase_within(_TICK_MS)) is None:
        say(f"{level} request{'s' if level > 1 else ''} in flight", None)
    return _phase_of(ended)


def _phase_of(values: dict[str, Any]) -> Phase:
    names = {field.name for field in dataclasses.fields(Phase)}
    lists = ("first_byte_s", "took_s", "object_bytes")
    known: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in values.items() if k in names}
    return Phase(**known)
