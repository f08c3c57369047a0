"""What coordinator, workers and rank clients say to each other: small frozen values that pickle.

A rank's *client* is one trainer process; a data-parallel rank has one, or one for each tensor, pipeline or context
parallel peer. Every client of a rank gets the same packs, counted from 0 in the order in which the trainer gets them:
pack *number* n is step ``first_step + n // micro_batches_in_step``.

The coordinator's methods never raise. They are long polls: after at most `POLL_S` they answer `NotYet`, and the caller
asks again; what ends the run comes back as `Ended`, whose `error()` is the error to raise.

=================================================  ====================================================================
``open(settings, ray)``                            once, by the client that made the coordinator. -> None | `Ended`
``hello(hello)``                                   joins. -> `Joined` | `NotYet` | `Ended`
``start(client_id, state, accepted)``              where to begin, the same of all clients: the dict of
                                                   ``Loader.state_dict``. -> `Started` | `NotYet` | `Ended`
``take(client_id, first, n_mapped, wanted_step)``  packs from number `first` on, all of one step, at least one.
                                                   -> `StepHandles` | `NotYet` | `Ended`
``take_value(...)``                                the same with the payload inside (``handover: value``)
``again(client_id, number, attempt, why)``         that payload is lost. -> `PackHandle` | `NotYet` | `Ended`
``beat(beat)``                                     a sign of life, at least every third of ``rank_timeout_s``.
                                                   -> None | `Ended`
``leave(client_id, why)``                          this client takes no more; ``why`` is "" at a proper end. -> None
``describe(sample_id)``                            -> (pass, manifest, line, byte offset, media) | `Ended`
``status()``                                       -> dict of plain values (see `coordinator.Status`)
=================================================  ====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stoker import errors
from stoker.errors import StokerError

__all__ = [
    "NAMESPACE",
    "POLL_S",
    "Beat",
    "Choices",
    "Ended",
    "Hello",
    "Joined",
    "Node",
    "NotYet",
    "PackHandle",
    "Started",
    "StepHandles",
]

NAMESPACE = "stoker"
"""Ray namespace of every coordinator, whose name is ``stoker-RUN-ATTEMPT``."""

POLL_S = 5.0
"""No method of the coordinator takes longer to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the cluster, for choosing where workers go."""

    node_id: str
    """Ray's, in hex."""
    host: str
    cpus: float
    """All that the node has, as Ray counts them."""
    cpus_free: float
    """What trainers and others leave."""
    memory_bytes: int
    store_bytes: int
    """Size of its object store."""
    resources: dict[str, float] = field(default_factory=dict)
    """Custom resources only."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The ``ray:`` settings with every ``auto`` decided; why, by name of the setting, stands in `Joined.why`."""

    placement: str
    """``local``, ``pack``, ``spread``, or ``custom`` for resources and labels."""
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    handover: str = "reference"
    """``reference`` or ``value``."""
    retrieval: str = "lazy"
    """``lazy`` or ``eager``."""
    workers: int = 1
    """Workers to begin with."""
    min_workers: int = 1
    max_workers: int = 1
    """Their number follows the ranks' demand within these; all three are equal where the setting has a number."""
    worker_cpus: float = 1.0
    worker_memory: int = 0
    """Bytes that Ray reserves for a worker; 0 = not reserved."""
    store_limit: int = 0
    """Bytes of packs alive in object stores over the cluster."""
    pull_bytes: int = 0
    """Bytes that a rank pulls ahead of the step that its trainer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client introduces itself."""

    client_id: str
    """Unique over all attempts: a restarted process has another one."""
    dp_rank: int
    dp_size: int
    peer_rank: int
    """Among the clients of this rank on its node."""
    peer_count: int
    n_clients: int = 0
    """Clients of this rank over all nodes; 0: `peer_count`, all are on one node."""
    node_id: str
    host: str
    pid: int
    settings_hash: dict[str, str]
    """Hash by name of setting, of those that decide what comes out; a difference is told by its name."""
    version: str = ""
    """Of Stoker; equal in all processes."""
    own_cpus: float = 0.0
    """CPUs that Ray counts as taken by this process; 0 if Ray did not start it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The coordinator is open: model and manifests are read."""

    welcome: bytes
    """For ``CoreHandOver.welcome``: fingerprint, and what the trainer may ask before its first batch."""
    choices: Choices
    why: dict[str, str]
    """A sentence for each choice."""
    rank_timeout_s: float
    plan: tuple[str, ...] = ()
    """Lines for people: who runs where."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """Ask again."""

    waits_for: str
    """What is waited for, in words: progress of opening, ranks that are missing, or the pack with worker, node and
    seconds."""
    is_stale: bool = False
    """This coordinator belongs to an earlier attempt: look the name up again, it is about to be replaced or to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All clients gave the same state; the first pack has number 0."""

    micro_batches_in_step: int = 0
    """0: known with the first pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackHandle:
    """One finished pack of a rank."""

    number: int
    """Counts the rank's packs from 0."""
    step: int
    micro_batch: int
    micro_batches_in_step: int
    delivery: bytes
    """For ``CoreHandOver.put``."""
    n_bytes: int
    """Of the payload, as it lies in the object store."""
    ref: list[Any]
    """[ObjectRef of ``[pixels, tail]``], nested so that Ray does not fetch it on the way; empty by value. A small pack
    has a third array, which pads it to what Ray keeps in an object store."""
    payload: tuple[Any, Any] | None = None
    """(pixels, tail) in ``handover: value``."""
    made_on: str
    """Node in whose store it lies."""
    attempt: int = 0
    """How often it was made before; `again` names it, so that two clients ask for one new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHandles:
    """Packs of one step, in order, from the number that was asked for; those that are ready, so not always all."""

    packs: list[PackHandle]
    is_at_end: bool = False
    """No pack has the number that was asked for: the data are at their end. `packs` is empty."""
    end: bytes = b""
    """For ``CoreHandOver.end``, with `is_at_end`."""
    ended: Ended | None = None
    """With `is_at_end`: what ends the run in this place, for all ranks at the same step. Not before the trainer has
    taken all packs before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life, with what the client counted since it joined."""

    client_id: str
    step: int
    """Step of the next batch that the trainer asks for."""
    wait_s: float = 0.0
    """Time the trainer waited in ``next()``."""
    n_mapped: int = 0
    """As in ``take``; with `step` what the coordinator would else hear with the next one."""
    n_delivered: int = 0
    held_bytes: int = 0
    """Mapped and not yet let go of by the trainer."""
    pulled_bytes: int = 0
    """Payload that came from other nodes."""
    local_bytes: int = 0
    """Payload that was made on this node."""
    copied_bytes: int = 0
    """Payload that was copied once more in this process (eager, by value)."""
    n_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The run cannot go on, or not with this client."""

    kind: str
    """Name of a class of `stoker.errors`."""
    code: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Ended:
        """Wraps an error; what is not ours becomes an InternalError with its type and text."""
        if isinstance(error, StokerError):
            return cls(kind=type(error).__name__, code=error.code, message=error.message)
        return cls(kind="InternalError", code="INTERNAL", message=f"{type(error).__name__}: {error}")

    def error(self) -> StokerError:
        """The error to raise."""
        made = getattr(errors, self.kind if self.kind in errors.__all__ else "InternalError")
        error: StokerError = made(self.message, self.code)
        return error
