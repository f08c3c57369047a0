"""Emulated ranks: processes that ask for data, sleep as long as training would take, and meet at a barrier.

Each rank is a process of its own, as a trainer's ranks are. None of them can hang the others: a rank that fails breaks
the barrier and says why, the parent watches all of them, every wait is bounded, and a rank whose parent is gone ends
itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier

from stoker.ladder.emulation import RankModel
from stoker.ladder.result import StepRecord
from stoker.ladder.takers import TakerFactory

__all__ = ["RankFailedError", "RankJob", "RanksOutput", "run_ranks", "run_steps"]

_SLICE_S = 0.2  # of a wait
_END_S = 1.0  # for a rank to end by itself before it is made to


class RankFailedError(RuntimeError):
    """A rank raised, died, or gave no sign of life for too long; the message has its traceback, if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """What every rank does."""

    make_taker: TakerFactory
    model: RankModel
    n_steps: int
    """The first, which warms up, included."""
    digest_steps: int
    """Digests are computed in the first so many steps."""
    step_timeout_s: float = 180.0
    """A step that takes longer ends the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOutput:
    """What the ranks sent."""

    records: list[StepRecord]
    """As they came; per rank in order."""
    reports: dict[int, dict[str, object]]
    """By rank: what its loader says of itself."""


@dataclass(frozen=True)
class _LeftAlone:
    """What a rank says whose barrier was broken, or waited for too long."""

    timeout_s: float

    def __str__(self) -> str:
        return f"the other ranks did not come to the barrier within {self.timeout_s:.0f} s"


def run_ranks(job: RankJob, *, n_ranks: int, on_step: Callable[[StepRecord], None]) -> RanksOutput:
    """Runs the ranks to the end; `on_step` is called in this thread for each step of each rank.

    Raises:
        RankFailedError: One of them did not make it; the others are ended before this is raised.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(n_ranks)
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    output = RanksOutput(records=[], reports={})
    try:
        for rank in range(n_ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main, args=(job, rank, n_ranks, barrier, theirs), name=f"stoker-rank-{rank}", daemon=True
            )
            with _interrupts_blocked():  # the child inherits it: Ctrl-C is for the parent, which ends the ranks
                process.start()
            theirs.close()
            processes.append(process)
            pipes[ours] = rank
        _collect(job, pipes, on_step, output)
        for process in processes:
            process.join(_END_S * 5)
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()
    return output


def _collect(
    job: RankJob, pipes: dict[Connection, int], on_step: Callable[[StepRecord], None], output: RanksOutput
) -> None:
    """Reads what the ranks send until each has sent all its steps."""
    running = dict(pipes)
    while running:
        ready = _wait(list(running), job.step_timeout_s)
        if not ready:
            raise RankFailedError(f"no rank has finished a step within {job.step_timeout_s:.0f} s")
        for pipe in ready:
            if not isinstance(pipe, Connection):
                continue
            rank = running[pipe]
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                raise RankFailedError(f"rank {rank} has died without a word") from None
            if isinstance(message, StepRecord):
                output.records.append(message)
                on_step(message)
            elif isinstance(message, dict):
                output.reports[rank] = message
                del running[pipe]
            else:
                raise _first_failure(rank, message, running)


def _wait(pipes: list[Connection], timeout_s: float) -> list[object]:
    """Waits in slices: a Ctrl-C between the interpreter's look at its signals and the system call ends no wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        ready = multiprocessing.connection.wait(pipes, min(left_s, _SLICE_S))
        if ready or left_s <= _SLICE_S:
            return list(ready)


def _first_failure(rank: int, message: str | _LeftAlone, running: dict[Connection, int]) -> RankFailedError:
    """Whoever broke the barrier spoke before, so its word is there when that of a rank which was left alone is read."""
    if isinstance(message, _LeftAlone):
        for pipe, other in running.items():
            with contextlib.suppress(EOFError, OSError):
                while pipe.poll():
                    found = pipe.recv()
                    if isinstance(found, str):
                        return RankFailedError(f"rank {other} failed: {found}")
    return RankFailedError(f"rank {rank} failed: {message}")


def _end(processes: list[SpawnProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + _END_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Holds SIGINT back; one that comes meanwhile is delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the rank's process ---


def _rank_main(job: RankJob, rank: int, n_ranks: int, barrier: Barrier, pipe: Connection) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # What a launcher such as torchrun sets; the engine divides the node's CPUs and memory by it.
    os.environ |= {"LOCAL_WORLD_SIZE": str(n_ranks), "LOCAL_RANK": str(rank), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(n_ranks)}
    try:
        pipe.send(run_steps(job, rank, n_ranks, meet=lambda: barrier.wait(job.step_timeout_s), tell=pipe.send))
    except threading.BrokenBarrierError:
        with contextlib.suppress(OSError):  # the rank that broke it says why; this is said only if none did
            pipe.send(_LeftAlone(job.step_timeout_s))
    except Exception:
        # The word before the deed: breaking the barrier makes the other ranks speak, too, and the first is heard.
        with contextlib.suppress(OSError):
            pipe.send(traceback.format_exc())
        barrier.abort()
        raise SystemExit(1) from None


def run_steps(
    job: RankJob, rank: int, n_ranks: int, *, meet: Callable[[], object], tell: Callable[[StepRecord], object]
) -> dict[str, object]:
    """Does what an emulated rank does, in its process.

    Args:
        job: What every rank does.
        rank: This one.
        n_ranks: Of all.
        meet: Returns when all ranks have called it as often as this one.
        tell: Gets the record of each step.

    Returns:
        The loader's report.
    """
    clock = time.perf_counter
    meet()  # all are up
    asked_at = clock()
    cpu_at = time.process_time()
    taker = job.make_taker(model=job.model, rank=rank, n_ranks=n_ranks)
    try:
        for step in range(job.n_steps):
            data = taker.take()
            got_at = clock()
            weighed = taker.weigh(data)
            digests = weighed.digests() if step < job.digest_steps else ()
            time.sleep(max(0.0, got_at + weighed.train_s - clock()))  # what weighing and digest took is part of it
            trained_at = clock()
            meet()
            met_at = clock()
            cpu_now = time.process_time()
            record = StepRecord(
                rank=rank,
                step=step,
                wait_s=got_at - asked_at,
                train_s=trained_at - got_at,
                barrier_s=met_at - trained_at,
                step_s=met_at - asked_at,
                n_samples=weighed.n_samples,
                n_tokens=weighed.n_tokens,
                n_patches=weighed.n_patches,
                cpu_s=cpu_now - cpu_at,
                digests=digests,
            )
            del data, weighed  # as a trainer lets its last step go before it asks for the next
            asked_at, cpu_at = met_at, cpu_now
            tell(record)
        return taker.report()
    finally:
        taker.close()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
