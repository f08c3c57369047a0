"""The trainer's side of a run on Ray: packs from where they lie into the loader's hand-over."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError

from stoker.errors import InternalError, InvalidArgumentError, StokerError, UnavailableError
from stoker.loader import _state_to_dict
from stoker.ray import counting, meeting
from stoker.ray.asking import SLICE_S, Asker, ClosedError, StaleError
from stoker.ray.fetching import Fetched, Fetcher
from stoker.ray.protocol import Beat, Ended, Hello, Joined, Started, StepHandles
from stoker.ray.pulling import Pulls
from stoker.ray.stores import mapped_stores, store_warning
from stoker.ray.views import StoreMap
from stoker.settings import Settings, resolve_speed
from stoker.topology import Topology

if TYPE_CHECKING:
    from stoker._core import CoreHandOver

__all__ = ["RankClient"]

_log = logging.getLogger("stoker")

_CLOSE_S = 0.9
_N_PULLS = 4
_BEAT_S = 10.0
_NEWS_S = 0.2


class RankClient:
    """One process of the trainer. After `start` the hand-over gets batches, until `close`.

    Everything that goes wrong after `start` reaches the trainer through the hand-over, as a typed error.

    Threads: its own, all ended by `close`; methods are called by the trainer's. Whatever is asked of Ray is asked with
    a time limit in a loop, so that `close` never waits for a cluster.

    Args:
        settings: With ``ray:``.
        topology: Of this process.
        hand_over: Of the loader.
    """

    def __init__(self, settings: Settings, topology: Topology, hand_over: CoreHandOver) -> None:
        if settings.ray is None:
            raise InvalidArgumentError("ray: the settings have no such section", "SETTINGS")
        self._settings, self._topology, self._hand_over, self._ray = settings, topology, hand_over, settings.ray
        self._pid = os.getpid()
        self._id = f"{topology.dp_rank}.{topology.peer_rank}-{uuid.uuid4().hex}"
        self._ahead_steps = resolve_speed(settings.speed, usable_cpus=1).prefetch_steps
        self._name = self._node_id = ""
        self._tally, self._store = counting.Tally(), StoreMap()
        self._n_store_reads, self._has_warned_of_store = 0, False  # of the thread that hands on
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._waited_s = 0.0  # the trainer, until the pack before; the thread's that hands on

        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)  # told of _wanted
        # Guarded by _lock:
        self._asker: Asker | None = None
        self._joined: Joined | None = None
        self._pulls: Pulls | None = None
        self._wanted = 0
        self._told = (0, 0)  # packs handed on, step wanted: as the coordinator knows them
        self._asked_at = math.inf  # when it was asked for the packs that it has not given yet
        self._failure = ""
        self._has_left = False

    # --- for the loader

    def start(self) -> None:
        """Connects to the cluster; the rest goes on in the background.

        Raises:
            UnavailableError: RAY, if there is no cluster to connect to.
            InvalidArgumentError: SETTINGS, if nothing names the run.
        """
        self._refuse_fork()
        meeting.connect(self._ray.address)
        self._node_id = ray.get_runtime_context().get_node_id()
        hashes = meeting.settings_hash(self._settings)
        self._name = meeting.coordinator_name(self._settings, self._topology)
        hello = Hello(
            client_id=self._id,
            dp_rank=self._topology.dp_rank,
            dp_size=self._topology.dp_size,
            peer_rank=self._topology.peer_rank,
            peer_count=self._topology.peer_count,
            n_clients=self._topology.peers_in_all,
            node_id=self._node_id,
            host=socket.gethostname(),
            pid=self._pid,
            settings_hash=hashes,
            version=version("stoker"),
            own_cpus=meeting.own_cpus(),
        )
        _watch_exit()
        _open_clients.add(self)
        for work, name in ((functools.partial(self._feed, hello), "feed"), (self._watch, "watch")):
            thread = threading.Thread(target=self._run, args=(work,), name=f"stoker-ray-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Leaves the run and ends all threads, within a second. Repeatable."""
        if os.getpid() != self._pid:
            return  # a forked child has neither the threads nor the connection
        until = time.monotonic() + _CLOSE_S
        self._closing.set()
        left = self._leave()
        with self._lock:
            pulls = self._pulls
        if pulls is not None:
            pulls.close(within_s=until - time.monotonic())
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        if left is not None:  # or it might not be sent before this process ends
            with contextlib.suppress(Exception):
                ray.get(left, timeout=max(0.01, until - time.monotonic()))
        with self._lock:
            self._asker = self._pulls = None
        _open_clients.discard(self)

    def describe(self, sample_id: int) -> tuple[int, str, int, int, list[str]]:
        """(pass, manifest, line, byte offset, media) of a sample.

        Raises:
            StokerError: As `Loader.describe`; if the run has ended, so has the coordinator, which knows it.
        """
        self._refuse_fork()
        with self._lock:
            asker = self._asker
        try:
            if asker is None:
                raise ClosedError
            pass_, manifest, line, byte_offset, media = asker.ask(lambda actor: actor.describe.remote(sample_id))
        except ClosedError:
            raise InvalidArgumentError("describe: the loader is closed, or its run has ended", "SETTINGS") from None
        return pass_, manifest, line, byte_offset, list(media)

    def report(self) -> dict[str, Any]:
        """What was chosen and why, and what came from where; see docs/ray.md."""
        with self._lock:
            joined = self._joined
        counts = counting.plain(self._tally.snapshot())
        waits = {"no_handle": counts.pop("wait_handle_s"), "pull": counts.pop("wait_pull_s")}
        return {
            "coordinator": self._name,
            "choices": {name: getattr(joined.choices, name) for name in joined.choices.__slots__} if joined else {},
            "why": dict(joined.why) if joined else {},
            **counts,
            "held_bytes": int(self._hand_over.held_bytes),
            "waits_s": waits,
        }

    def __getstate__(self) -> object:
        raise InvalidArgumentError("a loader cannot be pickled: make one in each process, from the settings", "FORKED")

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidArgumentError("a loader cannot be used after a fork: make one in the child process", "FORKED")

    # --- ending

    def _is_closing(self) -> bool:
        return self._closing.is_set() or bool(self._hand_over.is_closed) or bool(self._failure)

    def _run(self, work: Callable[[], None]) -> None:
        """A thread's whole life, but for what `Pulls` runs."""
        try:
            work()
        except ClosedError:
            pass
        except StokerError as error:
            self._fail(error)
        except RayError as error:
            self._fail(UnavailableError(f"Ray: {type(error).__name__}: {_first_line(error)}", "RAY"))
        except BaseException as error:
            if ray.is_initialized():  # else the trainer ends
                self._fail(InternalError(f"rank client: {type(error).__name__}: {error}"))

    def _fail(self, error: StokerError) -> None:
        """Tells the trainer and the coordinator; the first one counts."""
        with self._lock:
            # A loader that takes nothing any more is no trouble, least of all for the other ranks.
            if self._is_closing():
                return
            self._failure = str(error)
        self._hand_over.fail(error.code, error.message)
        self._leave()

    def _leave(self) -> Any:
        """The reference to the coordinator's answer; None if it is not there, or was told before."""
        with self._lock:
            asker, has_left, self._has_left = self._asker, self._has_left, True
        if asker is None or has_left or not ray.is_initialized():
            return None
        try:
            return asker.actor.leave.remote(self._id, self._failure)
        except Exception:  # it is gone, or the cluster is
            return None

    # --- the thread that joins, and asks for packs

    def _feed(self, hello: Hello) -> None:
        asker, joined = self._join(hello)
        if hello.dp_rank == 0 and hello.peer_rank == 0:
            for line in joined.plan:
                _log.info("%s", line)
            for line in joined.warnings:
                _log.warning("%s", line)
        self._hand_over.welcome(joined.welcome)
        state = None
        while state is None:
            self._go_on()
            state = self._hand_over.start_within(round(SLICE_S * 1e3))
        values = _state_to_dict(state)
        started: Started = asker.ask(lambda actor: actor.start.remote(self._id, values, []), say=self._hand_over.say)
        pulls = Pulls(
            fetch=Fetcher(
                asker,
                client_id=self._id,
                is_eager=joined.choices.retrieval == "eager",
                on_pulled=self._tally.pulled,
                go_on=self._go_on,
            ),
            put=self._put,
            held_bytes=lambda: int(self._hand_over.held_bytes),
            limit_bytes=joined.choices.pull_bytes or self._settings_bytes(),
            n_threads=_N_PULLS,
            on_error=lambda error: self._run(functools.partial(_raise, error)),
        )
        with self._lock:
            self._pulls = pulls
            self._wanted = max(self._wanted, state.step)
        pulls.set_step(state.step)
        if self._is_closing():
            pulls.close(within_s=0.0)  # close() may have looked before
            raise ClosedError
        self._take_all(asker, pulls, joined, state.step, started.micro_batches_in_step or 1)

    def _settings_bytes(self) -> int:
        return resolve_speed(self._settings.speed, usable_cpus=1).memory_limit_bytes

    def _go_on(self) -> None:
        if self._is_closing():
            raise ClosedError

    def _join(self, hello: Hello) -> tuple[Asker, Joined]:
        """Finds the coordinator, or makes it, and waits until it is open."""
        from stoker.ray.coordinator import create

        makes = hello.dp_rank == 0 and hello.peer_rank == 0
        limit_s = max(self._settings.outage_limit_s, self._ray.rank_timeout_s)
        give_up_at = time.monotonic() + limit_s
        say = self._hand_over.say
        while True:
            self._go_on()
            actor = meeting.find(self._name)
            is_mine = makes and actor is None
            if is_mine:
                with contextlib.suppress(ValueError):  # a peer on another node was faster
                    actor = create(self._name, runtime_env=self._ray.runtime_env)
            if actor is None:
                say(f"ray: waiting for rank 0, which makes the coordinator {self._name}")
            else:
                # Its process may have to be started first, in an environment that has to be made.
                asker = Asker(actor, self._name, limit_s, self._is_closing)
                with self._lock:
                    self._asker = asker
                try:
                    if makes:  # By a call, since what a constructor gets is kept. What it answers `hello` says too.
                        actor.open.remote(self._settings, self._ray)
                    joined: Joined = asker.ask(lambda actor: actor.hello.remote(hello), say=say)
                    asker = Asker(actor, self._name, self._ray.rank_timeout_s, self._is_closing)
                    with self._lock:
                        self._asker, self._joined = asker, joined
                    return asker, joined
                except StaleError:
                    say(f"ray: the coordinator {self._name} is of an attempt before this one; waiting for its end")
                except UnavailableError as error:
                    if is_mine or error.code != "COORDINATOR_LOST":
                        raise
                    say(f"ray: the coordinator {self._name} was of an attempt before this one and has ended")
                with self._lock:
                    self._asker = None
            if time.monotonic() > give_up_at:
                raise UnavailableError(
                    f"ray: there is no coordinator {self._name} after {limit_s:g} s; rank 0 makes it. Is rank 0 there, "
                    "with the same settings and ray.run, and connected to the same cluster?",
                    "COORDINATOR_LOST",
                )
            self._closing.wait(2 * SLICE_S)

    def _take_all(self, asker: Asker, pulls: Pulls, joined: Joined, first_step: int, in_step: int) -> None:
        by_value = joined.choices.handover == "value"
        waits_for_all = by_value or joined.choices.retrieval == "eager"  # else the node's store bounds what is here
        number, step = 0, first_step
        while True:
            while not self._is_wanted_within(SLICE_S, step):
                self._go_on()
            while waits_for_all and not pulls.drained_within(SLICE_S):
                self._go_on()
            taken = self._take(asker, pulls, number, by_value)
            if taken.is_at_end:
                while not pulls.drained_within(SLICE_S):
                    self._go_on()
                self._go_on()
                if taken.ended is not None:
                    while self._hand_over.n_unread:  # all ranks end at the same step
                        self._go_on()
                        time.sleep(SLICE_S)
                    raise taken.ended.error()
                self._hand_over.end(taken.end)
                return
            pulls.add(taken.packs)
            number += len(taken.packs)
            in_step = taken.packs[-1].micro_batches_in_step
            step = first_step + number // in_step
            del taken  # and its references

    def _is_wanted_within(self, seconds: float, step: int) -> bool:
        """Whether the trainer is near enough to a step."""
        with self._moved:
            return self._moved.wait_for(lambda: step <= self._wanted + self._ahead_steps, timeout=seconds)

    def _take(self, asker: Asker, pulls: Pulls, number: int, by_value: bool) -> StepHandles:
        def call(actor: Any) -> Any:
            with self._lock:
                self._told, self._asked_at = (pulls.n_put, self._wanted), time.monotonic()
            method = actor.take_value if by_value else actor.take
            return method.remote(self._id, number, *self._told)

        taken: StepHandles = asker.ask(call, say=self._hand_over.say)
        with self._lock:
            self._asked_at = math.inf
        return taken

    # --- the thread that hands on

    def _put(self, fetched: Fetched, came_at: float) -> None:
        handle, pixels, tail = fetched
        is_local = handle.made_on == self._node_id or self._topology.peer_rank > 0
        is_mapped = self._store.has(pixels if pixels.nbytes else tail)
        self._look_at_store()
        n_bytes = pixels.nbytes + tail.nbytes
        waited_s, now = self._hand_over.waited_s, time.monotonic()
        self._hand_over.put(handle.delivery, pixels, tail)
        self._tally.waited(waited_s - self._waited_s, came_at=came_at, now=now)
        self._waited_s = waited_s
        self._tally.handed_on(
            n_bytes, is_local=is_local, is_mapped=is_mapped, copies=1 + (not is_local) + (not is_mapped)
        )

    def _look_at_store(self) -> None:
        """Warns of a store that lies on a disk, when it is first seen."""
        if self._topology.peer_rank > 0 or self._store.n_reads == self._n_store_reads:
            return
        self._n_store_reads = self._store.n_reads
        if not self._has_warned_of_store and (warning := store_warning(mapped_stores(), socket.gethostname())):
            self._has_warned_of_store = True
            _log.warning("%s", warning)

    # --- the thread that follows the trainer, and gives signs of life

    def _watch(self) -> None:
        every_s = min(_BEAT_S, self._ray.rank_timeout_s / 4)
        next_at, ref, sent_at = 0.0, None, 0.0
        while not self._is_closing():
            wanted = self._hand_over.wanted_within(self._wanted, round(SLICE_S * 1e3))
            with self._lock:
                if wanted is not None:
                    self._wanted = max(self._wanted, wanted)
                    self._moved.notify_all()
                asker, pulls, joined = self._asker, self._pulls, self._joined
            if pulls is not None:
                pulls.set_step(self._wanted)
            now = time.monotonic()
            if asker is None or joined is None or (now < next_at and not self._has_news(pulls, now)):
                continue
            if ref is not None and not _is_answered(ref, asker):
                if now - sent_at > self._ray.rank_timeout_s:
                    raise asker.lost(GetTimeoutError())
                continue
            ref, sent_at, next_at = asker.actor.beat.remote(self._beat(pulls)), now, now + every_s

    def _has_news(self, pulls: Pulls | None, now: float) -> bool:
        """Whether the coordinator, which has had to think about the next packs, should know more by now.

        It may lack room that packs take which are mapped here, and hears of that with the next question only.
        """
        with self._lock:
            return pulls is not None and now - self._asked_at > _NEWS_S and self._told != (pulls.n_put, self._wanted)

    def _beat(self, pulls: Pulls | None) -> Beat:
        counts = self._tally.snapshot()
        with self._lock:
            self._told = (pulls.n_put if pulls is not None else 0, self._wanted)
        return Beat(
            client_id=self._id,
            step=self._told[1],
            n_mapped=self._told[0],
            wait_s=counts.wait_handle_s + counts.wait_pull_s,
            n_delivered=max(0, pulls.n_put - int(self._hand_over.n_unread)) if pulls is not None else 0,
            held_bytes=int(self._hand_over.held_bytes),
            pulled_bytes=counts.network_bytes,
            local_bytes=counts.local_bytes,
            copied_bytes=counts.copied_bytes,
            n_again=counts.asked_again,
        )


def _is_answered(ref: Any, asker: Asker) -> bool:
    try:
        answer = ray.get(ref, timeout=0)
    except GetTimeoutError:
        return False
    except ActorUnavailableError:  # a connection; the next one tells more
        return True
    except RayActorError as error:
        raise asker.lost(error) from None
    if isinstance(answer, Ended):
        raise answer.error()
    return True


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _raise(error: BaseException) -> NoReturn:
    raise error


_open_clients: weakref.WeakSet[RankClient] = weakref.WeakSet()


@functools.cache
def _watch_exit() -> None:
    # Called after Ray was imported: so it runs before Ray's own, while there is someone to take leave of.
    atexit.register(_close_all)


def _close_all() -> None:
    for client in list(_open_clients):
        client.close()
