"""How the ranks of a job tell each other what they measured; decides how, never what comes out."""

from __future__ import annotations

import datetime
import os
import sys
from dataclasses import dataclass
from typing import Any

from stoker.errors import InvalidArgumentError
from stoker.settings import Settings

__all__ = ["ExchangeChoice", "TorchStore", "choose"]

_JOB = ("STOKER_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_STORE_TIMEOUT_S = 10  # for one call; the clone's own


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeChoice:
    """`Settings.exchange` worked out for one process."""

    kind: str
    """dir, tcp, torch or none."""
    job: str = ""
    """What the launcher calls this job; empty if it gives no name that only this job has."""
    host: str = ""
    """tcp: where rank 0 is."""
    is_host: bool = False
    """tcp: this process runs the service."""
    secret: str = ""
    """tcp: what all ranks know and others do not."""
    store: TorchStore | None = None

    def __repr__(self) -> str:
        return f"ExchangeChoice(kind={self.kind!r}, job={self.job!r}, host={self.host!r}, is_host={self.is_host})"


class TorchStore:
    """A store of torch.distributed as the engine asks it: never waiting for a key.

    Calls are made on a clone with a connection of its own where the store can make one, so that what the trainer does
    with it is not held up.
    """

    def __init__(self, store: Any) -> None:
        try:
            self._store = store.clone()
            self._store.set_timeout(datetime.timedelta(seconds=_STORE_TIMEOUT_S))
        except (AttributeError, NotImplementedError, RuntimeError):
            self._store = store

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Replaces `expected` (empty: nothing) by `desired`; returns what stands there, `expected` if nothing does."""
        found: bytes = self._store.compare_set(key, expected, desired)
        return found

    def erase(self, key: str) -> None:
        """Removes a key, where the store can."""
        try:
            self._store.delete_key(key)
        except (NotImplementedError, RuntimeError):
            return


def choose(settings: Settings, dp_rank: int, dp_size: int) -> ExchangeChoice:
    """Works `Settings.exchange` out, from the environment of a launcher and the trainer's process group.

    Raises:
        InvalidArgumentError: For ``torch`` without a process group, or ``tcp`` without ``MASTER_ADDR``.
    """
    kind = settings.exchange
    if dp_size == 1 or kind == "none":
        return ExchangeChoice(kind="none")
    environment = os.environ
    if kind == "auto":
        is_launched = "MASTER_ADDR" in environment and "RANK" in environment
        kind = "torch" if _process_group_size() >= dp_size else "tcp" if is_launched else "dir"
    named = [environment[name] for name in _JOB if environment.get(name) not in (None, "", "none")]
    if kind == "dir":
        return ExchangeChoice(kind="dir", job=" ".join(named))
    if kind == "torch":
        if _process_group_size() == 0:
            raise InvalidArgumentError(
                "exchange: torch needs torch.distributed.init_process_group() before the loader is made", "SETTINGS"
            )
        distributed = sys.modules["torch.distributed"]
        store = distributed.distributed_c10d._get_default_store()
        return ExchangeChoice(kind="torch", job="torch", store=TorchStore(store))
    host = environment.get("MASTER_ADDR", "")
    if not host:
        raise InvalidArgumentError(
            "exchange: tcp needs MASTER_ADDR, the host of rank 0, in the environment (torchrun sets it); "
            "exchange: dir shares through index_dir",
            "SETTINGS",
        )
    job = " ".join([host, environment.get("MASTER_PORT", ""), *named])
    rank = environment.get("RANK", "")
    return ExchangeChoice(
        kind="tcp",
        job=job,
        host=host,
        is_host=rank == "0" if rank else dp_rank == 0,
        secret=environment.get("STOKER_EXCHANGE_SECRET") or f"stoker {job}",
    )


def _process_group_size() -> int:
    """Processes of torch's default group; 0 if there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    size: int = distributed.get_world_size()
    return size
