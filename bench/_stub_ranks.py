"""Ranks that take packs and do nothing with them, many in one process."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ray
from stoker.ray.protocol import Ended, Hello, Joined, Started, StepHandles

__all__ = ["Ranks"]


class Ranks:
    """Many clients in one process, as an actor."""

    def __init__(self, coordinator: Any, ranks: list[int], dp_size: int) -> None:
        self._coordinator, self._ranks, self._dp_size = coordinator, ranks, dp_size
        self._taken = dict.fromkeys(ranks, 0)

    async def join(self, state: dict[str, Any]) -> None:
        """Every client says hello and where it begins."""

        async def join_one(rank: int) -> None:
            while not isinstance(await self._coordinator.hello.remote(_hello(rank, self._dp_size)), Joined):
                pass
            while not isinstance(await self._coordinator.start.remote(f"c{rank}", state, []), Started):
                pass

        await asyncio.gather(*map(join_one, self._ranks))

    async def step(self, step: int) -> int:
        """Every client takes its packs of a step; returns how many there were."""
        return sum(await asyncio.gather(*(self._take(rank, step) for rank in self._ranks)))

    async def _take(self, rank: int, step: int) -> int:
        number = n = self._taken[rank]
        while True:
            got = await self._coordinator.take.remote(f"c{rank}", n, n, step)
            if isinstance(got, Ended):
                raise got.error()
            if not isinstance(got, StepHandles):
                continue
            for pack in got.packs:
                n += 1
                if pack.micro_batch + 1 == pack.micro_batches_in_step:
                    self._taken[rank] = n
                    return n - number

    async def leave(self) -> None:
        """Every client leaves."""
        await asyncio.gather(*(self._coordinator.leave.remote(f"c{rank}", "") for rank in self._ranks))


def _hello(rank: int, dp_size: int) -> Hello:
    return Hello(
        client_id=f"c{rank}",
        dp_rank=rank,
        dp_size=dp_size,
        peer_rank=0,
        peer_count=1,
        node_id=ray.get_runtime_context().get_node_id(),
        host="here",
        pid=os.getpid(),
        settings_hash={},
        own_cpus=1.0,
    )
