"""The loader: one data-parallel rank's batches, in the order of the plan."""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from stoker import _core, user_code
from stoker.batch import Batch
from stoker.costs import read_costs
from stoker.credentials import KeyFinder
from stoker.errors import InvalidArgumentError
from stoker.exchange import choose
from stoker.jinja import make_renderer
from stoker.plain_values import parse_bytes
from stoker.report import Report
from stoker.settings import Settings, resolve_speed
from stoker.topology import Topology

__all__ = ["Loader", "SampleOrigin", "one_state"]

_log = logging.getLogger("stoker")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_RAY_CLIENT = "stoker.ray.client"  # imported by a run whose settings have a `ray:` section, never else
_TICK_MS = 100  # how often a wait comes back to the interpreter, so that Ctrl-C is heard


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrigin:
    """Where a sample of a batch comes from."""

    pass_: int
    """Which visit of the data, from 0."""
    manifest: str
    line: int
    """From 1, blank lines counted; 0 with ``shuffle: chunked``, where nobody counts them."""
    byte_offset: int
    media: tuple[str, ...]
    """References as the row has them; of http URLs without the query, which may be a signature."""


class _Client(Protocol):
    """Brings a loader's batches from elsewhere, through a hand-over."""

    def start(self) -> None: ...
    def close(self) -> None: ...
    def report(self) -> dict[str, Any]: ...
    def describe(self, sample_id: int, /) -> tuple[int, str, int, int, Sequence[str]]: ...


class Loader:
    """A plain iterable of `Batch` with threads of its own; endless unless `settings.epochs` is set.

    Opening model and manifests begins at once, in the background; the first call that needs them waits. Prefetching
    begins with the first batch that is asked for. Use it directly, never inside a ``torch.utils.data.DataLoader``, and
    not after a fork. With ``ray:`` in the settings the batches are those of a cluster's actors; all else is the same.

    Args:
        settings: What comes out, and how fast.
        dp_rank: This data-parallel rank.
        dp_size: Data-parallel ranks in all; divides ``pack.packs_per_step``.
        topology: In place of both: where there are tensor, pipeline or context parallel peers, which all get the same
            batches, prepared once on each node. The first batch comes when all peers of the node are there. Everything
            here is the same on every peer; a run that ends, ends on all of them.

    Raises:
        InvalidArgumentError: For settings that do not fit; each error names its setting.
        UnavailableError: With ``ray:``, if there is no cluster to connect to.
    """

    def __init__(
        self, settings: Settings, *, dp_rank: int = 0, dp_size: int = 1, topology: Topology | None = None
    ) -> None:
        _refuse_dataloader_worker()
        if topology is not None and (dp_rank, dp_size) != (0, 1):
            raise InvalidArgumentError("give dp_rank and dp_size, or a topology that has them", "SETTINGS")
        self.settings = settings
        self.topology = topology or Topology(dp_rank=dp_rank, dp_size=dp_size)
        self.dp_rank = self.topology.dp_rank
        self.dp_size = self.topology.dp_size
        self._is_opened = False
        self._is_exhausted = False
        core = core_settings(settings, self.topology)
        self._client = None if settings.ray is None else _ray_client(settings, self.topology, core)
        self._core = _core.CoreLoader.create(core)
        # Also before the interpreter ends: another thread may wait in next(), and must be out of the engine by then.
        self._end = weakref.finalize(self, _end, self._core, self._client)
        _watch_exit()
        if self._client is not None:
            try:
                self._client.start()
            except BaseException:
                self._end()
                raise

    # --- iterating

    def __iter__(self) -> Iterator[Batch]:
        """Yields micro-batches. Without side effects until the first ``next()``; once exhausted, always exhausted."""
        return self

    def __next__(self) -> Batch:
        """Waits for the next micro-batch.

        Raises:
            StopIteration: At the end of a finite loader.
            StokerError: What ended the run.
        """
        if self._is_exhausted:
            raise StopIteration
        self._open()
        while True:
            try:
                core = self._core.next_within(_TICK_MS)
            finally:
                _pass_log_on()
            if core is not None:
                return Batch(core)
            if self._core.is_at_end:
                self._is_exhausted = True
                raise StopIteration

    def steps(self) -> Iterator[list[Batch]]:
        """Yields this rank's micro-batches of one optimizer step at a time."""
        micro_batches: list[Batch] = []
        for batch in self:
            micro_batches.append(batch)
            if batch.counts.micro_batch + 1 == batch.counts.micro_batches_in_step:
                yield micro_batches
                micro_batches = []

    # --- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """A few hundred bytes of plain values, the same on every rank: where delivery stands, in whole steps.

        Taken inside a step it names the step's start, and warns.
        """
        self._open()
        state, is_inside_step = self._core.state()
        if is_inside_step:
            warnings.warn(
                "state_dict() inside a step: the state names its start, and a resume gives its micro-batches again",
                stacklevel=2,
            )
        return _state_to_dict(state)

    def state_for(self, *, steps: int) -> dict[str, Any]:
        """The state after `steps` steps of the run, for trainers that take batches ahead; among the last 64 delivered.

        Raises:
            InvalidArgumentError: If that step is not known.
        """
        self._open()
        return _state_to_dict(self._core.state_after(steps))

    def load_state_dict(
        self, state: Mapping[str, Any], *, accept_changed: Collection[str] = (), expect_step: int | None = None
    ) -> None:
        """Continues where a state was taken at the first ``next()``; any dp_size that divides packs_per_step will do.

        Args:
            state: What `state_dict` gave, on any rank.
            accept_changed: Settings that may differ from those it was saved with, by the names that the refusal gives.
                The run then goes on at the beginning of the window in which the state stands, since its packs are
                others now: samples of that window that were trained on come again. What else it means is logged.
            expect_step: The trainer's own step; a state of another step is refused, since model and data would not
                belong together.

        Raises:
            InvalidArgumentError: If the iteration has begun, a setting that decides what comes out has changed (it is
                named), or the state is of another step than expected.
        """
        self._open()
        read = _state_from_dict(state)
        if expect_step is not None and read.step != expect_step:
            raise InvalidArgumentError(
                f"the state of the data is of step {read.step}, the trainer stands at step {expect_step}: they are not "
                "of one checkpoint",
                "STATE",
            )
        self._core.load_state(read, [accept_changed] if isinstance(accept_changed, str) else list(accept_changed))
        _pass_log_on()

    save_state = state_dict
    restore_state = load_state_dict

    # --- telling

    def describe(self, sample_id: int) -> SampleOrigin:
        """Where a sample comes from, by an entry of ``batch.layout.sample_ids``."""
        self._open()
        asked = self._core if self._client is None or sample_id < 0 else self._client
        pass_, manifest, line, byte_offset, media = asked.describe(int(sample_id))
        return SampleOrigin(pass_=pass_, manifest=manifest, line=line, byte_offset=byte_offset, media=tuple(media))

    def report(self) -> Report:
        """What was delivered, how long the trainer waited, and what the stages did."""
        values = self._core.report()
        values["ray"] = None if self._client is None else self._client.report()
        return Report(values)

    def add_wait(self, seconds: float) -> None:
        """Counts time that the trainer waited outside ``next()``, such as a copy to the device that nothing hides."""
        self._core.add_wait(seconds)

    @property
    def has_shared_memory(self) -> bool:
        """Whether other processes read the memory that batches lie in."""
        return self.topology.peer_count > 1 or self.settings.ray is not None

    @property
    def normalisation(self) -> tuple[list[float], list[float], float, int, int, int, bool]:
        """(mean, std, rescale factor, patch, merge, temporal patch, is the Pillow backend) of the image processor."""
        self._open()
        return self._core.normalisation()

    @property
    def clip_normalisation(self) -> tuple[list[float], list[float], float]:
        """(mean, std, rescale factor) of the model's video processor."""
        self._open()
        return self._core.clip_normalisation()

    # --- ending

    def close(self) -> None:
        """Ends every thread; batches that were handed out stay valid. Repeatable. Dropping the loader does it too."""
        self._end()
        _pass_log_on()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> object:
        raise InvalidArgumentError("a loader cannot be pickled: make one in each process, from the settings", "FORKED")

    def _open(self) -> None:
        if self._is_opened:
            return
        said = ""
        while not self._core.open_within(_TICK_MS):
            _pass_log_on()
            progress = self._core.progress()
            if progress and progress != said:
                _log.info("%s", progress)
                said = progress
        self._is_opened = True


def core_settings(settings: Settings, topology: Topology | None = None) -> _core.LoaderSettings:
    """The engine's form of settings. For this package."""
    topology = topology or Topology()
    index_dir = settings.resolved_index_dir()
    out = _core.LoaderSettings()
    for source in settings.data:
        out.add_data(
            manifest=source.manifest,
            media_root=source.media_root,
            shape=source.shape,
            columns=dict(source.columns),
            roles=dict(source.roles),
            nonfinite_is_null=source.nonfinite == "null",
            max_row_bytes=parse_bytes(source.max_row_bytes),
            share=source.share()[0],
            share_value=source.share()[1],
        )
    out.dp_rank, out.dp_size = topology.dp_rank, topology.dp_size
    is_here = settings.ray is None  # else peers are clients of their own, and one plan is made for all ranks
    if topology.peer_count > 1 and is_here:
        out.set_peers(rank=topology.peer_rank, count=topology.peer_count, job=topology.resolved_job())
    out.index_dir = str(index_dir)
    out.outage_limit_s = settings.outage_limit_s
    out.stall_warning_s = settings.stall_warning_s
    out.stall_limit_s = settings.stall_limit_s
    # A peer that only reads measures nothing.
    exchange = choose(settings, topology.dp_rank, topology.dp_size if is_here and topology.peer_rank == 0 else 1)
    out.set_exchange(
        kind=exchange.kind,
        job=exchange.job,
        host=exchange.host,
        port=settings.exchange_port,
        is_host=exchange.is_host,
        secret=exchange.secret,
        store=exchange.store,
    )
    media = settings.media
    out.set_output(
        model=settings.model,
        seed=settings.seed,
        is_shuffled=settings.shuffle == "rows",
        epochs=settings.epochs,
        window_samples=settings.resolved_window_samples(),
        reference=settings.reference,
        exif=media.exif,
        alpha=media.alpha,
        grey16=media.grey16,
        content_tokens=settings.content_tokens,
        trusts_row_sizes=media.sizes == "trust",
        changed_media=media.changed,
        max_pixels=media.max_pixels,
        max_scans=media.max_scans,
        allow_missing_eoi=media.allow_missing_eoi,
        allow_truncated=media.allow_truncated,
    )
    if settings.shuffle == "chunked":
        out.set_chunked(chunk_bytes=parse_bytes(settings.chunks.size), chunks_per_group=settings.chunks.per_group)
    if settings.split.held_out:
        out.set_split(
            key=settings.split.key,
            held_out_millionths=settings.split.millionths(),
            uses_held_out=settings.split.use == "held_out",
        )
    cost = settings.pack.cost_file
    out.set_pack(settings.pack.core_values(), cost=read_costs(cost).coefficients if cost else None)
    out.set_text(
        train_on=settings.labels.train_on,
        roles=list(settings.labels.roles),
        end_of_turn=settings.labels.end_of_turn,
        weights=settings.labels.weights,
        box_text=settings.box_text,
        template_engine=settings.template,
        truncates_turns=settings.pack.over_long == "truncate_turns",
        make_renderer=make_renderer,
    )
    speed = resolve_speed(settings.speed, usable_cpus=_core.usable_cpus(), peers=topology.peer_count)
    out.set_speed(
        cpu_threads=speed.cpu_threads,
        fetch_threads=speed.fetch_threads,
        fetch_concurrency=speed.fetch_concurrency,
        max_fetch_concurrency=speed.max_fetch_concurrency,
        hedge_share=speed.hedge_share,
        prefetch_steps=speed.prefetch_steps,
        memory_limit_bytes=speed.memory_limit_bytes,
    )
    bad = settings.bad_samples
    out.set_bad_samples(
        is_stop=bad.policy == "stop",
        max_fraction=bad.max_fraction,
        ledger=bad.ledger or str(index_dir / "ledger.jsonl"),
    )
    storage = settings.storage
    out.set_storage(
        endpoint=storage.endpoint_url,
        region=storage.region,
        addressing=storage.addressing,
        access_key_id=storage.access_key_id,
        secret_access_key=storage.secret_access_key,
        session_token=storage.session_token,
        profile=storage.profile,
        anonymous=storage.anonymous,
        requester_pays=storage.requester_pays,
        ca_file=storage.ca_file,
        verify_tls=storage.verify_tls,
        proxy=storage.proxy,
        http2=storage.http2,
        key_source=KeyFinder(storage),
    )
    cache = settings.cache
    out.set_cache(dir=cache.dir, limit_bytes=parse_bytes(cache.limit), is_validated=cache.validate == "always")
    out.set_timeouts(
        connect_s=storage.connect_timeout_s,
        first_byte_s=storage.first_byte_timeout_s,
        stall_s=storage.stall_timeout_s,
        object_s=storage.object_timeout_s,
    )
    user_code.attach(settings.user_code, out)
    return out


def _ray_client(settings: Settings, topology: Topology, core: _core.LoaderSettings) -> _Client:
    """What brings batches into a loader that is made with `core`."""
    if importlib.util.find_spec("ray") is None:
        raise InvalidArgumentError(
            'the settings have a `ray:` section, and Ray is not installed here: pip install "stoker[ray]"',
            "SETTINGS",
        )
    hand_over = _core.CoreHandOver.create()
    core.set_hand_over(hand_over)
    client: _Client = importlib.import_module(_RAY_CLIENT).RankClient(settings, topology, hand_over)
    return client


def _end(core: _core.CoreLoader, client: _Client | None) -> None:
    core.close()
    if client is not None:
        client.close()


def one_state(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a job whose ranks each saved one: they are all the same, so any serves any number of ranks.

    Raises:
        InvalidArgumentError: If they are not of one step and one run; the ranks that differ are named.
    """
    if not states:
        raise InvalidArgumentError("no state was given", "STATE")
    read = [_state_to_dict(_state_from_dict(state)) for state in states]
    for rank, other in enumerate(read):
        differing = [key for key in _STATE_KEYS if other[key] != read[0][key]]
        if differing:
            raise InvalidArgumentError(
                f"states of different checkpoints: `{differing[0]}` is {other[differing[0]]!r} of rank {rank} and "
                f"{read[0][differing[0]]!r} of rank 0",
                "STATE",
            )
    return read[0]


_STATE_KEYS = ("version", "fingerprint", "step", "window", "packs_delivered", "window_digest", "dp_size")


def _state_to_dict(state: _core.LoaderState) -> dict[str, Any]:
    return {key: getattr(state, key) for key in _STATE_KEYS}


def _state_from_dict(values: Mapping[str, Any]) -> _core.LoaderState:
    missing = [key for key in _STATE_KEYS if key not in values]
    if missing:
        raise InvalidArgumentError(f"this is no state of a loader: `{missing[0]}` is missing", "STATE")
    state = _core.LoaderState()
    for key in _STATE_KEYS:
        try:
            setattr(state, key, values[key])
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"this is no state of a loader: `{key}` is {values[key]!r}", "STATE") from error
    return state


def _pass_log_on() -> None:
    for level, text in _core.drain_log():
        _log.log(_LEVELS[level], "%s", text)


@functools.cache
def _watch_exit() -> None:
    atexit.register(_expect_what_daemons_hold)


def _expect_what_daemons_hold() -> None:
    # The interpreter never unwinds a daemon thread, so what one holds outlives it. Reported, that reads like a bug.
    if any(thread.daemon for thread in threading.enumerate()):
        _core.set_leak_warnings(False)


def _refuse_dataloader_worker() -> None:
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise InvalidArgumentError(
            "a Loader inside a torch DataLoader worker: it has threads of its own and is sharded; iterate it directly",
            "FORKED",
        )
