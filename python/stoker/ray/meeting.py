"""How the processes of a run find its cluster and its coordinator."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address

from stoker.errors import InvalidArgumentError, UnavailableError
from stoker.ray.protocol import NAMESPACE
from stoker.settings import Settings
from stoker.topology import Topology, launched_job

__all__ = ["connect", "coordinator_name", "find", "own_cpus", "settings_hash"]

_DECIDING = (
    "data",
    "model",
    "seed",
    "shuffle",
    "chunks",
    "split",
    "epochs",
    "window_samples",
    "pack",
    "labels",
    "reference",
    "content_tokens",
    "template",
    "box_text",
    "media",
    "user_code",
)
_PATHS = ("manifest", "media_root", "model", "cost_file")

_KNOCK_S = 10.0

_made: Counter[str] = Counter()  # loaders of this process, by what their names begin with


def connect(address: str) -> None:
    """Connects this process to a cluster, unless it is connected to one; it stays so until it ends.

    Nothing of it is printed, and the process keeps its handler for SIGTERM.

    Raises:
        UnavailableError: RAY, if there is no such cluster.
    """
    if ray.is_initialized():
        return
    try:
        with _own_sigterm(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _knock(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises many kinds
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        where = os.environ.get("RAY_ADDRESS", "") or "on this node" if address == "auto" else address
        raise UnavailableError(
            f"ray.address: {address}: no Ray cluster to connect to ({where}): {reason.rstrip('.')}. "
            "Start one with `ray start --head`, and join it on every other node of the trainer",
            "RAY",
        ) from error


def _knock(address: str) -> None:
    """Ray ends a process that asks for a cluster and gets no answer, so somebody must be there first."""
    host, _, port = (canonicalize_bootstrap_address(address) or "").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S):
        pass


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray replaces the handler by one that exits the interpreter."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def own_cpus() -> float:
    """CPUs that Ray counts as taken by this process; 0 if Ray did not start it."""
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return 0.0
    return float(context.get_assigned_resources().get("CPU", 0.0))


def settings_hash(settings: Settings) -> dict[str, str]:
    """By name, of the settings that decide what comes out. Paths may differ between nodes but for their last part."""
    values = settings.to_dict(hide_secrets=True)
    return {
        name: hashlib.blake2b(
            json.dumps(_comparable(values[name], name), sort_keys=True, default=str).encode(), digest_size=8
        ).hexdigest()
        for name in _DECIDING
    }


def _comparable(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _comparable(v, key) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(v, name) for v in value]
    if name in _PATHS and isinstance(value, str) and "://" not in value:
        return os.path.basename(value.rstrip("/"))
    return value


def coordinator_name(settings: Settings, topology: Topology) -> str:
    """Of the actor, the same in all processes of the run: every loader of every attempt has another.

    Loaders are told apart by their number, so all ranks make theirs in the same order. What differs in their settings
    is told by name when they have met.

    Raises:
        InvalidArgumentError: If several processes are to find each other and nothing names the run.
    """
    given = settings.ray.run if settings.ray is not None else ""
    in_train = _train_experiment()
    run = given or topology.job or in_train
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", run or os.environ.get("STOKER_JOB_ID", "") or "run")[:60]
    if topology.dp_size == 1 and max(topology.peer_count, topology.peers_in_all) == 1:
        return f"stoker-{slug}-{uuid.uuid4().hex[:12]}"  # nobody else looks for it
    # Ray Train makes a placement group for each attempt.
    launched = [launched_job(), ray.get_runtime_context().get_placement_group_id() or ""]
    if not run and not any(launched):
        raise InvalidArgumentError(
            "ray.run: the ranks find each other by the name of the run, and neither Ray Train nor torchrun "
            "(TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT) nor SLURM (SLURM_JOB_ID) nor STOKER_JOB_ID gives one: "
            "set ray.run, another one for every attempt",
            "SETTINGS",
        )
    what = json.dumps([run, *launched])
    mine = f"{what} {topology.dp_rank} {topology.peer_rank}"  # one process may be several ranks
    _made[mine] += 1
    digest = hashlib.blake2b(f"{what} {_made[mine]}".encode(), digest_size=6).hexdigest()
    return f"stoker-{slug}-{digest}"


def _train_experiment() -> str:
    """What Ray Train calls the run; empty outside of it."""
    train = sys.modules.get("ray.train")
    if train is None:
        return ""
    try:
        return str(train.get_context().get_experiment_name() or "")
    except Exception:  # it raises what it likes outside a worker of its own
        return ""


def find(name: str) -> Any:
    """The coordinator's handle, None if there is none of that name."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None
