"""The file that describes a cluster, for ``stoker ray up``."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.errors import InvalidArgumentError
from stoker.plain_values import build, parse_bytes

__all__ = ["ClusterFile", "NodeEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """One node. What is not given is Ray's to choose."""

    host: str = ""
    """Where ``ssh`` finds it, such as ``user@10.0.0.2``; ``local`` is this machine. Of a virtual node: its name."""
    address: str = ""
    """IP address by which the nodes know each other; by default that of `host`."""
    cpus: int | None = None
    """What Ray may give away. On nodes with GPUs, leave those out that the trainers need."""
    gpus: int | None = None
    store: int | str | None = None
    """Size of the object store, such as ``200GiB``."""
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Custom resources of Ray."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Node labels of Ray. ``stoker-nic-gbit`` tells the speed of the network card, in Gbit/s."""
    nic_mbit: float | None = None
    """Of a virtual node: the speed of its network card."""
    nice: int = 0
    """Of a virtual node: raises the niceness of its processes."""
    cores: tuple[int, ...] = ()
    """Of a virtual node: cores of this machine that it keeps to."""

    @property
    def is_local(self) -> bool:
        """Whether it is this machine."""
        return self.host in ("local", "localhost")

    @property
    def ip(self) -> str:
        """Its address."""
        ip = self.address or ("127.0.0.1" if self.is_local else self.host.rpartition("@")[2])
        return _own_address() if ip.startswith("127.") else ip  # as Ray has it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster of nodes that ssh reaches, or of virtual ones on this machine (``virtual: true``)."""

    nodes: tuple[NodeEntry, ...]
    """The first is the head, where the cluster's own services run."""
    name: str = ""
    """By default that of the file."""
    virtual: bool = False
    """Nodes are network namespaces of this machine; needs root."""
    python: str = sys.executable
    """The interpreter with Ray and Stoker, the same path on all nodes."""
    ssh: str = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    """What runs a command on a host: this, the host and the command."""
    port: int = 6379
    """Of the head."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Further variables for ``ray start`` on each node."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads the file.

        Raises:
            InvalidArgumentError: SETTINGS, with the file and the key.
        """
        import yaml

        path = Path(path)
        try:
            text = path.read_text()
        except OSError as error:
            raise InvalidArgumentError(f"{path}: {error.strerror}", "SETTINGS") from None
        try:
            values: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidArgumentError(f"{path}: not YAML: {' '.join(str(error).split())}", "SETTINGS") from None
        if not isinstance(values, dict) or not isinstance(values.get("nodes"), list) or not values["nodes"]:
            raise InvalidArgumentError(f"{path}: a cluster needs a list `nodes`, the head first", "SETTINGS")
        try:
            made = build(cls, {"name": re.sub(r"[^A-Za-z0-9-]", "-", path.stem), **values})
            made._check()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}: {error.message}", "SETTINGS") from None
        assert isinstance(made, cls)
        return made

    def _check(self) -> None:
        seen = set()
        for i, node in enumerate(self.nodes):
            where = f"nodes[{i}]"
            if not re.fullmatch(r"[A-Za-z0-9_.@:-]{1,255}", node.host) or node.host.startswith("-"):
                raise InvalidArgumentError(f"{where}.host must be a host name, not {node.host!r}", "SETTINGS")
            who = (node.host,) if self.virtual else (node.host, node.ip)
            if who in seen and not node.is_local:
                raise InvalidArgumentError(f"{where}: {node.host} is there twice", "SETTINGS")
            seen.add(who)
            if node.store is not None and parse_bytes(node.store) < 80_000_000:
                raise InvalidArgumentError(f"{where}.store: Ray takes stores of 80 MB and more", "SETTINGS")
            if not self.virtual and (node.nic_mbit is not None or node.nice or node.cores):
                raise InvalidArgumentError(f"{where}: nic_mbit, nice and cores are for virtual nodes", "SETTINGS")

    @property
    def address(self) -> str:
        """host:port, unless it is virtual."""
        return f"{self.nodes[0].ip}:{self.port}"

    def ssh_command(self, node: NodeEntry, argv: list[str]) -> list[str]:
        """The command that runs `argv` on a node."""
        return argv if node.is_local else [*shlex.split(self.ssh), node.host, shlex.join(argv)]


def _own_address() -> str:
    """Of this machine, on its way out; loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("8.8.8.8", 80))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(way.getsockname()[0])
