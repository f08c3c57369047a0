"""Who gets which batches: data-parallel ranks, and the processes of one rank that all get the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from stoker.errors import InvalidArgumentError

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where this process stands among those of the run.

    Tensor, pipeline and context parallel processes of one data-parallel rank are *peers*: they get the same batches. Of
    the peers on one node the first prepares them, and the others read them from its memory, so that the work and the
    reads are done once per node. Peers on other nodes have a first one of their own there. With ``ray:`` in the
    settings none prepares: each reads the same packs from its node's object store.

    `dp_rank` and `dp_size` are enough where there are no peers. `from_sizes`, `from_torch` and `from_megatron` find the
    rest from what a trainer has at hand.
    """

    dp_rank: int = 0
    """This data-parallel rank, the same in all its peers."""
    dp_size: int = 1
    """Data-parallel ranks in all."""
    peer_rank: int = 0
    """This process among the peers *on its node*; 0 prepares."""
    peer_count: int = 1
    """Peers of this rank on its node, this process included."""
    peers_in_all: int = 0
    """Peers of this rank over all nodes; 0: they are all on one."""
    job: str = ""
    """Names the run, and its attempt, among others on the machine. Empty: what torchrun, SLURM or
    ``STOKER_JOB_ID`` say."""

    def __post_init__(self) -> None:
        for name, value, size in (
            ("dp_rank", self.dp_rank, self.dp_size),
            ("peer_rank", self.peer_rank, self.peer_count),
        ):
            if not 0 <= value < size:
                other = name.replace("rank", "size" if name == "dp_rank" else "count")
                raise InvalidArgumentError(f"topology: {name} {value} is not in [0, {other} = {size})", "SETTINGS")
        if self.peers_in_all and self.peers_in_all < self.peer_count:
            raise InvalidArgumentError(
                f"topology: peers_in_all {self.peers_in_all} is less than the peer_count {self.peer_count} of one node",
                "SETTINGS",
            )

    @classmethod
    def from_dp_ranks(
        cls, dp_ranks: Sequence[int], *, rank: int | None = None, ranks_per_node: int | None = None, job: str = ""
    ) -> Self:
        """From the data-parallel rank of every process of the run.

        Args:
            dp_ranks: (world size) data-parallel rank by world rank.
            rank: World rank of this process; from ``RANK`` or ``SLURM_PROCID`` if not given.
            ranks_per_node: World ranks are counted through node by node, so many on each; from ``LOCAL_WORLD_SIZE`` or
                ``SLURM_NTASKS_PER_NODE`` if not given.
            job: As in the class.

        Raises:
            InvalidArgumentError: If something is not known, or out of range.
        """
        me = _number("RANK", "SLURM_PROCID") if rank is None else rank
        if me is None or not 0 <= me < len(dp_ranks):
            raise InvalidArgumentError(
                f"topology: rank is {me}, of {len(dp_ranks)} processes; give it, or start with torchrun", "SETTINGS"
            )
        in_all = dp_ranks.count(dp_ranks[me])
        here = [r for r in _ranks_of_node(me, len(dp_ranks), ranks_per_node) if dp_ranks[r] == dp_ranks[me]]
        return cls(
            dp_rank=dp_ranks[me],
            dp_size=len(set(dp_ranks)),
            peer_rank=here.index(me),
            peer_count=len(here),
            peers_in_all=in_all if in_all > len(here) else 0,
            job=job,
        )

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size: int,
        tp: int = 1,
        cp: int = 1,
        pp: int = 1,
        order: str = "tp-cp-dp-pp",
        rank: int | None = None,
        ranks_per_node: int | None = None,
        job: str = "",
    ) -> Self:
        """From the sizes of the parallel dimensions, fastest first in `order` (Megatron's default).

        Args:
            world_size: Processes in all; what tp, cp and pp leave of it is dp.
            tp: Tensor parallel size.
            cp: Context parallel size.
            pp: Pipeline parallel size.
            order: The four dimensions; the world ranks of the first one are neighbours.
            rank: As in `from_dp_ranks`.
            ranks_per_node: As in `from_dp_ranks`.
            job: As in the class.

        Raises:
            InvalidArgumentError: If the sizes do not divide the processes, or something is not known.
        """
        names = order.split("-")
        if sorted(names) != ["cp", "dp", "pp", "tp"]:
            raise InvalidArgumentError(f"topology: order {order!r} must name tp, cp, dp and pp once each", "SETTINGS")
        inner = tp * cp * pp
        if inner < 1 or world_size % inner:
            raise InvalidArgumentError(
                f"topology: {world_size} processes are no multiple of tp {tp} x cp {cp} x pp {pp}", "SETTINGS"
            )
        size = {"tp": tp, "cp": cp, "pp": pp, "dp": world_size // inner}
        stride = 1
        for name in names[: names.index("dp")]:
            stride *= size[name]
        dp_ranks = [r // stride % size["dp"] for r in range(world_size)]
        return cls.from_dp_ranks(dp_ranks, rank=rank, ranks_per_node=ranks_per_node, job=job)

    @classmethod
    def from_torch(
        cls, mesh: Any, *, dp: Sequence[str] | None = None, ranks_per_node: int | None = None, job: str = ""
    ) -> Self:
        """From a ``torch.distributed.device_mesh.DeviceMesh`` over all processes, with names for its dimensions.

        Args:
            mesh: The whole mesh, not a part of it.
            dp: Names of the dimensions over which data is spread; all whose name begins with ``dp`` if not given, such
                as ``dp_replicate`` and ``dp_shard``.
            ranks_per_node: As in `from_dp_ranks`.
            job: As in the class.

        Raises:
            InvalidArgumentError: If the mesh has no such dimension, or something is not known.
        """
        names = tuple(mesh.mesh_dim_names or ())
        spread = tuple(n for n in names if n.startswith("dp")) if dp is None else tuple(dp)
        if not spread or not set(spread) <= set(names):
            raise InvalidArgumentError(
                f"topology: the mesh has the dimensions {names}, data is spread over {spread}", "SETTINGS"
            )
        size = dict(zip(names, mesh.mesh.shape, strict=True))
        members = mesh.mesh.flatten().tolist()
        dp_ranks = [0] * len(members)
        for place, member in enumerate(members):
            at, rest = {}, place
            for name in reversed(names):
                rest, at[name] = divmod(rest, size[name])
            number = 0
            for name in spread:
                number = number * size[name] + at[name]
            if not 0 <= member < len(dp_ranks):
                raise InvalidArgumentError("topology: the mesh must be over all processes of the run", "SETTINGS")
            dp_ranks[member] = number
        return cls.from_dp_ranks(dp_ranks, rank=mesh.get_rank(), ranks_per_node=ranks_per_node, job=job)

    @classmethod
    def from_megatron(cls, parallel_state: Any, *, ranks_per_node: int | None = None, job: str = "") -> Self:
        """From ``megatron.core.parallel_state``, initialised with its default order.

        Args:
            parallel_state: The module.
            ranks_per_node: As in `from_dp_ranks`.
            job: As in the class.

        Raises:
            InvalidArgumentError: If Megatron counts data-parallel ranks in another order.
        """
        sizes = {
            "tp": parallel_state.get_tensor_model_parallel_world_size(),
            "cp": parallel_state.get_context_parallel_world_size(),
            "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        }
        dp_size = parallel_state.get_data_parallel_world_size()
        found = cls.from_sizes(
            world_size=dp_size * sizes["tp"] * sizes["cp"] * sizes["pp"],
            ranks_per_node=ranks_per_node,
            job=job,
            **sizes,
        )
        if found.dp_rank != parallel_state.get_data_parallel_rank():
            raise InvalidArgumentError(
                f"topology: Megatron says data-parallel rank {parallel_state.get_data_parallel_rank()}, its default "
                f"order gives {found.dp_rank}: use from_sizes(order=...)",
                "SETTINGS",
            )
        return found

    def resolved_job(self) -> str:
        """`job`, or what the launcher calls the run and its attempt; the same in all peers.

        Raises:
            InvalidArgumentError: If neither says anything.
        """
        said = self.job or launched_job()
        if not said:
            raise InvalidArgumentError(
                "topology.job: peers find each other by the name of the run, and neither torchrun "
                "(TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT) nor SLURM (SLURM_JOB_ID) nor STOKER_JOB_ID "
                "gives one",
                "SETTINGS",
            )
        return said


# What names a run, then what counts its attempts: a restarted process must not find one of the attempt before.
_JOB_VARIABLES = (
    "STOKER_JOB_ID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_RESTART_COUNT",
)


def launched_job() -> str:
    """What the launcher calls the run and its attempt; empty if there is none. For this package."""
    said = [os.environ.get(name, "") for name in _JOB_VARIABLES]
    return "\n".join(said) if any(said) else ""


def _number(*names: str) -> int | None:
    for name in names:
        said = os.environ.get(name, "")
        if said.isdecimal():
            return int(said)
    return None


def _ranks_of_node(rank: int, world_size: int, ranks_per_node: int | None) -> range:
    size = _number("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE") if ranks_per_node is None else ranks_per_node
    if size is None or size < 1:
        raise InvalidArgumentError(
            "topology: ranks_per_node is not known; give it, or start with torchrun (LOCAL_WORLD_SIZE)", "SETTINGS"
        )
    local = _number("LOCAL_RANK", "SLURM_LOCALID") if ranks_per_node is None else None
    first = rank - (rank % size if local is None else local)
    return range(max(first, 0), min(first + size, world_size))
