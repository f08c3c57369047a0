"""The packs of each rank, from plan to mapped: numbered, made in any order, delivered in the plan's. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stoker.ray.protocol import Ended

__all__ = ["Pack", "Shelf"]


@dataclass(slots=True, eq=False)
class Pack:
    """One pack of a rank."""

    number: int
    """Counts the rank's packs from 0."""
    sequence: int
    rank: int
    step: int
    micro_batch: int
    micro_batches_in_step: int
    n_bytes: int
    n_samples: int
    message: bytes
    """For the worker."""
    made: bytes | Ended | None = None
    """What its worker told; kept until it is delivered. `Ended`: it cannot be made, which ends the run in its place."""
    delivery: bytes | None = None
    """For the rank; there once it was this pack's turn."""
    payload: Any = None
    """Reference to what the rank gets; None: not made, or lost."""
    made_on: str = ""
    attempt: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether it can be handed out."""
        return self.delivery is not None and self.payload is not None


@dataclass(slots=True, eq=False)
class Shelf:
    """Every pack that was planned and that its rank has not mapped yet."""

    by_sequence: dict[int, Pack] = field(default_factory=dict)
    _of_rank: dict[int, deque[Pack]] = field(default_factory=dict)  # those kept, in order
    _n_planned: dict[int, int] = field(default_factory=dict)
    _undelivered: deque[Pack] = field(default_factory=deque)  # over all ranks, in the plan's order

    def add(self, task: Any) -> Pack:
        """A further task of the plan; of one rank they come in order."""
        number = self._n_planned.get(task.rank, 0)
        pack = Pack(
            number=number,
            sequence=task.sequence,
            rank=task.rank,
            step=task.step,
            micro_batch=task.micro_batch,
            micro_batches_in_step=task.micro_batches_in_step,
            n_bytes=task.n_bytes,
            n_samples=task.n_samples,
            message=task.message,
        )
        self._n_planned[task.rank] = number + 1
        self._undelivered.append(pack)
        self._of_rank.setdefault(task.rank, deque()).append(pack)
        self.by_sequence[pack.sequence] = pack
        return pack

    def deliver(self, deliver: Callable[[int, bytes], bytes]) -> set[int]:
        """Delivers what has become its turn, in the plan's order over all ranks.

        So what is counted over the job, such as bad samples, is counted in one order, and a run that ends because of
        it ends all ranks at the same step.

        Returns:
            Ranks of which a pack was delivered.

        Raises:
            StokerError: What `deliver` raised, or what the next pack ended with.
        """
        ranks: set[int] = set()
        while self._undelivered and (made := self._undelivered[0].made) is not None:
            if isinstance(made, Ended):
                raise made.error()
            pack = self._undelivered[0]
            pack.delivery, pack.made = deliver(pack.sequence, made), None
            self._undelivered.popleft()
            ranks.add(pack.rank)
        return ranks

    def undelivered(self) -> list[Pack]:
        """Planned, and not delivered yet."""
        return list(self._undelivered)

    def n_planned(self, rank: int) -> int:
        """Packs of a rank that were planned so far."""
        return self._n_planned.get(rank, 0)

    def get(self, rank: int, number: int) -> Pack | None:
        """A pack that is kept; None: not planned yet, or mapped long ago."""
        packs = self._of_rank.get(rank)
        if not packs or not 0 <= number - packs[0].number < len(packs):
            return None
        return packs[number - packs[0].number]

    def ready(self, rank: int, first: int) -> list[Pack]:
        """Packs from a number on, of one step, up to the first that is not ready."""
        out: list[Pack] = []
        pack = self.get(rank, first)
        while pack is not None and pack.is_ready and pack.step == (out or [pack])[0].step:
            out.append(pack)
            pack = self.get(rank, first + len(out))
        return out

    def release(self, rank: int, n_mapped: int) -> list[Pack]:
        """Lets go of the packs with numbers below one, as far as they were delivered."""
        packs = self._of_rank.get(rank)
        out = []
        while packs and packs[0].number < n_mapped and packs[0].delivery is not None:
            pack = packs.popleft()
            pack.payload = None
            del self.by_sequence[pack.sequence]
            out.append(pack)
        return out

    def made_on(self, node_id: str) -> Iterator[Pack]:
        """Packs whose payload lies on a node."""
        return iter([p for p in self.by_sequence.values() if p.payload is not None and p.made_on == node_id])

    def clear(self) -> None:
        """Drops every payload."""
        for pack in self.by_sequence.values():
            pack.payload = None
        self.by_sequence.clear()
        self._of_rank.clear()
        self._undelivered.clear()
