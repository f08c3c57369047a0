"""What the coordinator says of a run: where clients stand, and what they wait for."""

from __future__ import annotations

from typing import Any

from stoker.ray.roster import Member
from stoker.ray.scheduler import Scheduler
from stoker.ray.shelf import Pack, Shelf
from stoker.ray.workforce import Workforce

__all__ = ["client", "straggling", "waits_for"]

_N_STRAGGLING = 32  # told of at most


def client(member: Member, waits_for: str, waits_s: float, now: float) -> dict[str, Any]:
    """Where a client stands."""
    h, beat = member.hello, member.beat
    return {
        "rank": h.dp_rank,
        "peer": h.peer_rank,
        "host": h.host,
        "node": h.node_id,
        "pid": h.pid,
        "step": member.wanted_step,
        "n_mapped": member.n_mapped,
        "has_left": member.has_left,
        "heard_s_ago": round(now - member.heard_at, 1),
        "waits_for": waits_for,
        "waits_s": round(waits_s, 1),
        **({} if beat is None else {k: getattr(beat, k) for k in beat.__slots__ if k not in ("client_id", "step")}),
    }


def waits_for(pack: Pack, shelf: Shelf, scheduler: Scheduler, workforce: Workforce, now: float) -> str:
    """In words: a pack that a rank waits for, and where it is."""
    name = f"pack {pack.micro_batch} of step {pack.step} of rank {pack.rank}"
    if pack.is_ready:
        return f"{name}, which is ready"
    if pack.made is not None and (before := next(iter(shelf.undelivered()), pack)) is not pack:
        at = waits_for(before, shelf, scheduler, workforce, now)
        return f"{name}, which is made and comes after {at}"
    runs = scheduler.runs_of(pack.sequence)
    if scheduler.is_careful(pack.sequence):
        return f"{name}: its samples are tried one by one, because workers died of it"
    if not runs:
        workers = scheduler.state()["workers"]
        return f"{name}, which waits for one of {workers} workers" + ("" if workers else ": none has opened yet")
    places = " and ".join(f"{workforce.where(r.worker_id)} for {now - r.started_s:.1f} s" for r in runs)
    return f"{name}, which is being made by {places}"


def straggling(scheduler: Scheduler, workforce: Workforce, now: float) -> list[dict[str, Any]]:
    """Packs that take much longer than others."""
    return [
        {
            "rank": run.task.rank,
            "step": run.task.step,
            "worker": run.worker_id,
            "where": workforce.where(run.worker_id),
            "seconds": round(now - run.started_s, 1),
            "is_second": run.is_second,
        }
        for run in scheduler.straggling(now)[:_N_STRAGGLING]
    ]
