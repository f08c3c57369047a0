"""Who takes part in a run: its clients, where they stand, and who has fallen silent. Pure; the time is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import InvalidArgumentError
from stoker.ray.protocol import Beat, Hello

__all__ = ["Member", "Roster"]


@dataclass(slots=True, eq=False)
class Member:
    """A client of a rank."""

    hello: Hello
    heard_at: float
    state: dict[str, Any] | None = None
    accepted: tuple[str, ...] = ()
    n_mapped: int = 0
    wanted_step: int = -1
    """-1: its trainer has not asked yet."""
    beat: Beat | None = None
    has_left: bool = False
    n_asking: int = 0
    """Of its questions that wait for an answer: it is not silent meanwhile."""

    @property
    def name(self) -> str:
        """For people."""
        h = self.hello
        peer = f", peer {h.peer_rank}" if h.peer_count > 1 or h.n_clients > 1 else ""
        return f"rank {h.dp_rank}{peer} (host {h.host}, pid {h.pid})"


@dataclass(slots=True, eq=False)
class Roster:
    """The clients of a run. What does not fit together raises, and the caller ends the run for all."""

    members: dict[str, Member] = field(default_factory=dict)
    _places: dict[tuple[int, str, int], str] = field(default_factory=dict)
    _of_rank: dict[int, list[Member]] = field(default_factory=dict)
    _first: Member | None = None
    _at_step: Counter[int] = field(default_factory=Counter)  # clients that have not left, by the step they want
    _slowest: int = -1

    @property
    def dp_size(self) -> int:
        """0 before anybody came."""
        return self._first.hello.dp_size if self._first is not None else 0

    def is_full_for(self, hello: Hello) -> bool:
        """Whether its place is taken by another process: it belongs to another attempt than this coordinator."""
        if hello.client_id in self.members:
            return False
        place = (hello.dp_rank, hello.node_id, hello.peer_rank)
        return place in self._places or len(self._of_rank.get(hello.dp_rank, ())) >= _n_clients(hello)

    def hello(self, hello: Hello, now: float) -> bool:
        """A client introduces itself, or asks again.

        Returns:
            False, and nothing else happens, if `is_full_for` it.

        Raises:
            InvalidArgumentError: If it does not fit to those that came before; both are named, and what differs.
        """
        known = self.members.get(hello.client_id)
        if known is not None:
            known.heard_at = now
            return True
        if self.is_full_for(hello):
            return False
        member = Member(hello, now)
        if not 0 <= hello.dp_rank < hello.dp_size:
            raise InvalidArgumentError(f"{member.name}: dp_size is {hello.dp_size}", "SETTINGS")
        if self._first is None:
            self._first = member
        self._compare(member, self._first)
        of_rank = self._of_rank.setdefault(hello.dp_rank, [])
        if of_rank and _n_clients(hello) != _n_clients(of_rank[0].hello):
            raise InvalidArgumentError(
                f"{member.name} says that its rank has {_n_clients(hello)} processes, {of_rank[0].name} says "
                f"{_n_clients(of_rank[0].hello)}",
                "PEER_MISMATCH",
            )
        self._places[hello.dp_rank, hello.node_id, hello.peer_rank] = hello.client_id
        self.members[hello.client_id] = member
        self._at_step[-1] += 1
        self._slowest = -1
        of_rank.append(member)
        return True

    @staticmethod
    def _compare(member: Member, first: Member) -> None:
        mine, other = member.hello, first.hello
        for what in ("dp_size", "version"):
            if getattr(mine, what) != getattr(other, what):
                raise InvalidArgumentError(
                    f"{what} is {getattr(mine, what)} in {member.name} and {getattr(other, what)} in {first.name}",
                    "PLAN_MISMATCH",
                )
        names = sorted(mine.settings_hash.keys() | other.settings_hash.keys())
        differ = [name for name in names if mine.settings_hash.get(name) != other.settings_hash.get(name)]
        if differ:
            raise InvalidArgumentError(
                f"{', '.join(f'`{name}`' for name in differ)} of the settings differ{'s' if len(differ) == 1 else ''} "
                f"between {member.name} and {first.name}: all processes of a run need the same",
                "PLAN_MISMATCH",
            )

    def missing(self) -> str:
        """Which ranks, or how many of their processes, have not come; empty if all are here."""
        if self._first is None:
            return "any rank"
        absent = [rank for rank in range(self.dp_size) if rank not in self._of_rank]
        if absent:
            shown = ", ".join(map(str, absent[:8]))
            return f"rank{'s' if len(absent) > 1 else ''} {shown}{', ...' if len(absent) > 8 else ''}"
        for rank, members in sorted(self._of_rank.items()):
            if len(members) < _n_clients(members[0].hello):
                return f"{_n_clients(members[0].hello) - len(members)} more processes of rank {rank}"
        return ""

    def start(self, client_id: str, state: Mapping[str, Any], accepted: Sequence[str], now: float) -> None:
        """Where a client wants to begin.

        Raises:
            InvalidArgumentError: If another one wants to begin elsewhere; the difference is named.
        """
        member = self.members[client_id]
        member.heard_at = now
        member.state, member.accepted = dict(state), tuple(sorted(accepted))
        for other in self.members.values():
            if other.state is None or other is member:
                continue
            for key in member.state.keys() | other.state.keys():
                # dp_size is recorded for the reader only.
                if key != "dp_size" and member.state.get(key) != other.state.get(key):
                    raise InvalidArgumentError(
                        f"states of different checkpoints: `{key}` is {member.state.get(key)!r} in {member.name} and "
                        f"{other.state.get(key)!r} in {other.name}",
                        "STATE",
                    )
            if other.accepted != member.accepted:
                raise InvalidArgumentError(
                    f"accept_changed is {list(member.accepted)} in {member.name} and {list(other.accepted)} in "
                    f"{other.name}",
                    "STATE",
                )
            return  # the others were compared with each other

    def not_started(self) -> str:
        """Who has not asked for its first batch; empty if all have."""
        names = [m.name for m in self.members.values() if m.state is None and not m.has_left]
        return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")

    def agreed(self) -> tuple[dict[str, Any], list[str]]:
        """(state, accepted) of all, once `not_started` is empty."""
        member = next(m for m in self.members.values() if m.state is not None)
        return dict(member.state or {}), list(member.accepted)

    def took(self, member: Member, n_mapped: int, wanted_step: int, now: float) -> None:
        """A client asked for packs, and said how far it is."""
        member.heard_at = now
        member.n_mapped = max(member.n_mapped, n_mapped)
        if wanted_step > member.wanted_step:
            self._at_step[member.wanted_step] -= 1
            self._at_step[wanted_step] += 1
            member.wanted_step = wanted_step

    def mapped_by_all(self, rank: int) -> int:
        """Packs of a rank that each of its clients has mapped."""
        members = [m for m in self._of_rank.get(rank, ()) if not m.has_left]
        return min((m.n_mapped for m in members), default=1 << 62)

    def wanted_by_slowest(self) -> int:
        """The least step that any trainer wants next; -1 while one has not asked."""
        while self._at_step and not self._at_step[self._slowest]:
            del self._at_step[self._slowest]
            self._slowest = min(self._at_step, default=-1)
        return self._slowest

    def left(self, member: Member) -> None:
        """A client takes no more."""
        if not member.has_left:
            member.has_left = True
            self._at_step[member.wanted_step] -= 1

    def held_bytes(self) -> int:
        """Bytes that trainers have not let go of; peers of a node share them."""
        held: dict[tuple[int, str], int] = {}
        for m in self.members.values():
            if m.beat is not None and not m.has_left:
                key = (m.hello.dp_rank, m.hello.node_id)
                held[key] = max(held.get(key, 0), m.beat.held_bytes)
        return sum(held.values())

    def nodes_of(self, rank: int) -> set[str]:
        """Nodes on which a rank has clients."""
        return {m.hello.node_id for m in self._of_rank.get(rank, ())}

    def silent(self, now: float, timeout_s: float) -> Member | None:
        """A client of which nothing was heard for too long."""
        for member in self.members.values():
            if not member.has_left and not member.n_asking and now - member.heard_at > timeout_s:
                return member
        return None

    def has_rank_left(self, rank: int) -> bool:
        """Whether a rank has no client any more."""
        return all(m.has_left for m in self._of_rank.get(rank, ()))

    def have_all_left(self) -> bool:
        """Whether there were clients and none is left."""
        return bool(self.members) and all(m.has_left for m in self.members.values())


def _n_clients(hello: Hello) -> int:
    return hello.n_clients or hello.peer_count
