"""Packs that are to start, and which of them is next. Pure."""

from __future__ import annotations

import heapq

from stoker.ray.task import Task

__all__ = ["Waiting"]


class Waiting:
    """In the plan's order; but a pack that is not wanted soon waits for a worker on its rank's node (*home*).

    So where workers and ranks share nodes a pack crosses the network only when its own node cannot keep up.
    """

    def __init__(self, local_steps: int) -> None:
        self._local_steps = local_steps
        self._wanted_step = 0
        self._anywhere: list[tuple[int, Task]] = []
        self._at_home: dict[str, list[tuple[int, Task]]] = {}
        self._later: list[tuple[float, int, Task]] = []

    def __len__(self) -> int:
        return len(self._anywhere) + len(self._later) + sum(map(len, self._at_home.values()))

    def push(self, task: Task, home: str) -> None:
        """Adds a pack; `home` is a node with workers, or empty."""
        if home and task.step > self._wanted_step + self._local_steps:
            heapq.heappush(self._at_home.setdefault(home, []), (task.sequence, task))
        else:
            heapq.heappush(self._anywhere, (task.sequence, task))

    def push_later(self, task: Task, at: float) -> None:
        """Adds a pack that is to wait until a time."""
        heapq.heappush(self._later, (at, task.sequence, task))

    def due(self, now: float) -> None:
        """Lets those go on whose time has come."""
        while self._later and self._later[0][0] <= now:
            self.push(heapq.heappop(self._later)[2], "")

    def set_wanted_step(self, step: int) -> None:
        """What is wanted soon may be made anywhere."""
        self._wanted_step = step
        for home in list(self._at_home):
            heap = self._at_home[home]
            while heap and heap[0][1].step <= step + self._local_steps:
                heapq.heappush(self._anywhere, heapq.heappop(heap))
            if not heap:
                del self._at_home[home]

    def leave_home(self, home: str) -> None:
        """A node has no worker any more."""
        for entry in self._at_home.pop(home, ()):
            heapq.heappush(self._anywhere, entry)

    def homes(self) -> list[str]:
        """Nodes whose ranks' packs wait for them."""
        return list(self._at_home)

    def head(self, home: str = "") -> Task | None:
        """The next pack for any worker, or for those of a node."""
        heap = self._at_home.get(home, []) if home else self._anywhere
        while heap and (heap[0][1].is_released or heap[0][1].is_made):
            heapq.heappop(heap)
        if not heap:
            self._at_home.pop(home, None)
            return None
        return heap[0][1]

    def pop(self, home: str = "") -> Task:
        """Takes what `head` gave."""
        return heapq.heappop(self._at_home[home] if home else self._anywhere)[1]
