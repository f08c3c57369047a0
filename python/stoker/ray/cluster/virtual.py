"""A cluster of several nodes on one machine: network namespaces with network cards of a chosen speed.

::

    bridge 10.99.K.0/24, tc tbf on both ends of each link                (the cluster's network)
      |-- e0 10.99.K.1  namespace stoker-NAME-head:  ray start --head
      |-- e0 10.99.K.2  namespace stoker-NAME-a:     ray start
    bridge 10.98.K.0/24, without limits                                  (the storage network)
      |-- e1 10.98.K.1, 10.98.K.2, ...; this process is 10.98.K.254

Each node has a host name, a ``/tmp/ray`` and a localhost of its own, so that programs find their node's Ray as on a
machine of their own. Cores, memory and files are those of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.errors import InvalidArgumentError, UnavailableError
from stoker.ray.cluster import teardown
from stoker.ray.cluster.teardown import Record
from stoker.ray.placement import NIC_LABEL

__all__ = ["NicBytes", "NodeSpec", "VirtualCluster", "VirtualNode", "missing_for_virtual"]

_PORT = 6379
_NOTHING = ".nothing"  # an empty folder
_START_TIMEOUT_S = 120.0
_HOST_ADDRESS = 254  # last byte of this process's address in both networks
_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mount": "mount"}
# In the new namespaces of network (ip netns exec), mounts and host name: what is the node's own, then the program. Ray
# looks for its node among the machine's processes, so those of other nodes have empty folders in /proc.
_ENTER = (
    'echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" /tmp/ray && '
    'for other in $3; do mount --bind "$2" /proc/$other 2> /dev/null; done; shift 3; exec "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node to be made."""

    name: str
    """Letters, digits and ``-``; also its host name."""
    cpus: int = 1
    """What Ray is told; more nodes than the machine has cores is no mistake."""
    gpus: int = 0
    """What Ray is told; none need exist."""
    nic_mbit: float | None = None
    """Speed of its network card, each way, in Mbit/s; None is as fast as the machine."""
    store_bytes: int = 200_000_000
    """Size of its object store, in shared memory."""
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Custom resources of Ray."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Node labels of Ray; ``stoker-nic-gbit`` is added to them."""
    cores: tuple[int, ...] = ()
    """Cores of the machine that its processes keep to; empty means all."""
    nice: int = 0
    """Raises the niceness of its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicBytes:
    """What a node's network card has carried, by the kernel's counters."""

    sent: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNode:
    """One node that runs."""

    spec: NodeSpec
    node_id: str
    """Ray's, in hex."""
    ip: str
    storage_ip: str
    """In the storage network."""

    @property
    def name(self) -> str:
        """That of its `NodeSpec`."""
        return self.spec.name


def missing_for_virtual() -> str:
    """What this machine or user lacks for a virtual cluster, in a sentence; empty if nothing."""
    packages = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})
    if packages:
        return f"a virtual cluster needs programs that are not installed: apt-get install {' '.join(packages)}"
    status = Path("/proc/self/status").read_text()
    held = int(re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    lacking = [name for bit, name in _CAPABILITIES.items() if not held >> bit & 1]
    if os.geteuid() != 0 or lacking:
        return (
            f"a virtual cluster makes network namespaces, which takes root"
            f"{' with ' + ' and '.join(lacking) if lacking else ''} (this is user {os.geteuid()}): use sudo, or in a "
            "container --privileged"
        )
    try:
        import ray  # noqa: F401
    except ImportError:
        return "a virtual cluster needs Ray: pip install 'stoker[ray]'"
    return ""


class VirtualCluster:
    """A Ray cluster on this machine, each node in a network namespace of its own.

    It stands within the ``with`` statement, or from `start` to `close`, and is removed when this process ends in
    whatever way, also by SIGKILL. Several may stand at one time.

    Args:
        nodes: At least one; the first is the head.
        keep: It stays when this process ends, until `close` or `take_down`.
        name: Of the cluster; by default drawn at random.

    Raises:
        InvalidArgumentError: `nodes` or `name` cannot be.
        UnavailableError: RAY, from `start`: not on this machine or not by this user (`missing_for_virtual`), or Ray
            did not start; the message has its words.

    Threads: one.
    """

    def __init__(self, nodes: Sequence[NodeSpec], *, keep: bool = False, name: str = "") -> None:
        self._specs = tuple(nodes)
        self.name = name or secrets.token_hex(3)
        _check(self._specs, self.name)
        self._is_kept = keep
        self._record: Record | None = None
        self._watcher: subprocess.Popen[str] | None = None
        self._subnet = 0
        self.nodes: tuple[VirtualNode, ...] = ()
        """Those that run, the head first."""

    # --- life

    def start(self) -> Self:
        """Makes it and waits until all nodes have joined. Clusters that others left behind are removed first."""
        if missing := missing_for_virtual():
            raise UnavailableError(missing, "RAY")
        try:
            with teardown.locked():
                teardown.sweep()
                self._make_record()
                self._watch()
                self._make_networks()
            self._start_ray()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends and removes all of it; may be called again."""
        record, self._record, self.nodes = self._record, None, ()
        left = teardown.tear_down(record) if record is not None else []
        if self._watcher is not None:
            self._watcher.communicate()  # closes its input
            self._watcher = None
        if left:
            raise UnavailableError(f"of the virtual cluster {self.name} there remain {', '.join(left)}", "RAY")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def attach(cls, name: str) -> VirtualCluster:
        """A cluster that stands, made by this or another process; to ask it, or to take it down with `close`.

        Raises:
            InvalidArgumentError: SETTINGS: there is none of this name.
        """
        record = Record.read(teardown.RECORDS / f"{name}.json")
        if record is None:
            raise InvalidArgumentError(f"there is no virtual cluster {name}", "SETTINGS")
        facts: dict[str, Any] = record.facts
        cluster = cls([NodeSpec(**spec) for spec in facts["nodes"]], name=name)
        cluster._record, cluster._subnet = record, facts["subnet"]
        cluster._take_nodes(facts.get("ray_nodes", {}))
        return cluster

    # --- use

    @property
    def address(self) -> str:
        """host:port of the cluster, for programs on its nodes; this process reaches it too, but is no node."""
        return f"{self._ip(1)}:{_PORT}"

    @property
    def storage_host(self) -> str:
        """The address of this process in the storage network, where a server for the nodes may listen."""
        return self._ip(_HOST_ADDRESS, storage=True)

    def run_on(self, node: VirtualNode | str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a program on a node, in its namespace, with its host name, cores and niceness.

        Args:
            node: It, or its name.
            argv: The program and its arguments.
            options: Of `subprocess.Popen`.

        Returns:
            The process; its id is the program's own. It ends with the cluster at the latest.
        """
        command = self.command_on(node, argv)
        environment = options.get("env") or os.environ
        # Nothing outside this machine reaches the cluster, so no token guards it; "auto" is the node's own Ray.
        options["env"] = {**{k: v for k, v in environment.items() if k != "RAY_ADDRESS"}, "RAY_AUTH_MODE": "disabled"}
        return subprocess.Popen(command, **options)

    def command_on(self, node: VirtualNode | str, argv: Sequence[str]) -> list[str]:
        """The command that `run_on` starts; its environment should have ``RAY_AUTH_MODE=disabled``."""
        name = node if isinstance(node, str) else node.name
        spec = next((spec for spec in self._specs if spec.name == name), None)
        if spec is None or self._record is None:
            names = ", ".join(spec.name for spec in self._specs)
            raise InvalidArgumentError(
                f"the virtual cluster has no node {name} that runs; its nodes: {names}", "SETTINGS"
            )
        return [*self._entry(spec), *argv]

    def nic_bytes(self) -> dict[str, NicBytes]:
        """What each node's card in the cluster's network has carried since it was made, by the node's name."""
        carried = {}
        for i, spec in enumerate(self._specs):
            of = Path(f"/sys/class/net/{self._link(i)}/statistics")
            # The machine's end of the link: what it receives, the node has sent.
            sent, received = (int((of / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
            carried[spec.name] = NicBytes(sent=sent, received=received)
        return carried

    # --- making it

    def _make_record(self) -> None:
        if (teardown.RECORDS / f"{self.name}.json").exists():
            raise InvalidArgumentError(f"there is a virtual cluster {self.name} already", "SETTINGS")
        self._subnet = _free_subnet()
        owner = 0 if self._is_kept else os.getpid()
        self._record = Record(
            name=self.name,
            owner_pid=owner,
            owner_began=teardown.began(owner) if owner else "",
            folder=tempfile.mkdtemp(prefix=f"stoker-{self.name}-"),
            namespaces=[self._namespace(spec) for spec in self._specs],
            links=[
                self._bridge(),
                self._bridge(storage=True),
                *(self._link(i, storage=storage) for i in range(len(self._specs)) for storage in (False, True)),
            ],
            facts={"subnet": self._subnet, "nodes": [_as_dict(spec) for spec in self._specs]},
        )
        self._record.write()

    def _watch(self) -> None:
        if self._is_kept:
            return
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", teardown.__file__, self.name, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._watcher.stdout is not None
        if self._watcher.stdout.readline() != "watching\n":
            raise UnavailableError("the process that is to remove the virtual cluster did not start", "RAY")

    def _make_networks(self) -> None:
        for storage in (False, True):
            bridge = self._bridge(storage=storage)
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "address", "add", self._ip(_HOST_ADDRESS, storage=storage) + "/24", "dev", bridge)
            _run("ip", "link", "set", bridge, "up")
        for i, spec in enumerate(self._specs):
            namespace = self._namespace(spec)
            _run("ip", "netns", "add", namespace)
            inside = ["ip", "-n", namespace]
            _run(*inside, "link", "set", "lo", "up")
            for device, storage in (("e0", False), ("e1", True)):
                link = self._link(i, storage=storage)
                _run("ip", "link", "add", link, "type", "veth", "peer", "name", device, "netns", namespace)
                _run("ip", "link", "set", link, "master", self._bridge(storage=storage), "up")
                _run(*inside, "address", "add", self._ip(i + 1, storage=storage) + "/24", "dev", device)
                _run(*inside, "link", "set", device, "up")
            # Leads nowhere; programs find their node's address by asking for the way out.
            _run(*inside, "route", "add", "default", "via", self._ip(_HOST_ADDRESS))
            if spec.nic_mbit is not None:
                rate = [
                    "root",
                    "tbf",
                    "rate",
                    f"{round(spec.nic_mbit * 1000)}kbit",
                    "burst",
                    "256kb",
                    "latency",
                    "50ms",
                ]
                _run("tc", "qdisc", "add", "dev", self._link(i), *rate)
                _run("tc", "-n", namespace, "qdisc", "add", "dev", "e0", *rate)

    def _start_ray(self) -> None:
        assert self._record is not None
        Path("/tmp/ray").mkdir(exist_ok=True)  # where the node's own is mounted
        (Path(self._record.folder) / _NOTHING).mkdir()
        head, *others = range(len(self._specs))
        self._await_started([self._start_node(head)])
        self._await_started([self._start_node(i) for i in others])
        self._record.facts["ray_nodes"] = by_ip = self._node_ids()
        self._record.write()
        self._take_nodes(by_ip)

    def _take_nodes(self, node_ids: Mapping[str, str]) -> None:
        """By address; those of a cluster that is still being made are none."""
        if node_ids:
            addresses = [(self._ip(i), self._ip(i, storage=True)) for i in range(1, len(self._specs) + 1)]
            self.nodes = tuple(
                VirtualNode(spec=spec, node_id=node_ids[ip], ip=ip, storage_ip=storage_ip)
                for spec, (ip, storage_ip) in zip(self._specs, addresses, strict=True)
            )

    def _start_node(self, i: int) -> tuple[int, subprocess.Popen[Any], Path]:
        assert self._record is not None
        spec = self._specs[i]
        folder = Path(self._record.folder) / spec.name
        folder.mkdir()
        resources = ",".join(f'"{name}":{amount}' for name, amount in spec.resources.items())
        nic = {} if spec.nic_mbit is None else {NIC_LABEL: f"{spec.nic_mbit / 1000:g}"}
        labels = {**nic, **spec.labels}
        arguments = [
            *(
                ["--head", f"--port={_PORT}", "--include-dashboard=false", "--no-monitor"]
                if i == 0
                else [f"--address={self.address}"]
            ),
            f"--node-ip-address={self._ip(i + 1)}",
            f"--num-cpus={spec.cpus}",
            f"--num-gpus={spec.gpus}",
            f"--object-store-memory={spec.store_bytes}",
            f"--resources={{{resources}}}",
            "--include-log-monitor=false",  # it would send what workers print to the drivers
            "--disable-usage-stats",
            *([f"--labels={','.join(f'{k}={v}' for k, v in labels.items())}"] if labels else []),
        ]
        said = folder.parent / f"{spec.name}.out"
        with said.open("wb") as out:
            # Ray's own program, by module, so that the interpreter is this one.
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
            process = self.run_on(spec.name, command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return i, process, said

    def _await_started(self, starting: Iterable[tuple[int, subprocess.Popen[Any], Path]]) -> None:
        end = time.monotonic() + _START_TIMEOUT_S
        for i, process, said in starting:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            if process.returncode != 0:
                ended = "was not done after 120 s" if process.returncode is None else f"ended with {process.returncode}"
                text = said.read_text(errors="replace").strip()[-2000:]
                raise UnavailableError(f"ray start on node {self._specs[i].name} {ended}: {text}", "RAY")

    def _node_ids(self) -> dict[str, str]:
        """Ray's node ids by address; waits until all nodes have joined."""
        from ray._private.internal_api import get_state_from_address

        state = get_state_from_address(self.address)
        try:
            end = time.monotonic() + _START_TIMEOUT_S
            while True:
                known = {node["NodeManagerAddress"]: node["NodeID"] for node in state.node_table() if node["Alive"]}
                if len(known) >= len(self._specs):
                    return known
                if time.monotonic() > end:
                    raise UnavailableError(f"{len(known)} of {len(self._specs)} nodes have joined after 120 s", "RAY")
                time.sleep(0.1)
        finally:
            state.disconnect()

    def _entry(self, spec: NodeSpec) -> list[str]:
        """The command that runs what follows it on a node; each step replaces the one before, the process stays."""
        assert self._record is not None
        cores = ",".join(map(str, spec.cores))
        others = " ".join(map(str, _rays_elsewhere(self._namespace(spec))))
        folder = Path(self._record.folder)
        return [
            *("ip", "netns", "exec", self._namespace(spec)),
            *(["taskset", "-c", cores] if cores else []),
            *(["nice", "-n", str(spec.nice)] if spec.nice else []),
            *("unshare", "--uts", "--", "sh", "-c", _ENTER, spec.name),
            *(str(folder / spec.name), str(folder / _NOTHING), others),
        ]

    # --- names and addresses; those of links have at most 15 letters

    def _namespace(self, spec: NodeSpec) -> str:
        return f"stoker-{self.name}-{spec.name}"

    def _bridge(self, *, storage: bool = False) -> str:
        return f"sk{self._subnet}{'s' if storage else 'n'}"

    def _link(self, i: int, *, storage: bool = False) -> str:
        return f"{self._bridge(storage=storage)}{i}"

    def _ip(self, host: int, *, storage: bool = False) -> str:
        return f"10.{98 if storage else 99}.{self._subnet}.{host}"


def _check(specs: tuple[NodeSpec, ...], name: str) -> None:
    names = [spec.name for spec in specs]
    for text in (*names, name):
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}", text) is None:
            raise InvalidArgumentError(
                f"a node or cluster is named by letters, digits and '-', not {text!r}", "SETTINGS"
            )
    if not 1 <= len(specs) < _HOST_ADDRESS or len(set(names)) != len(names):
        raise InvalidArgumentError(
            f"a virtual cluster has from 1 to {_HOST_ADDRESS - 1} nodes with names of their own, not {names}",
            "SETTINGS",
        )
    for spec in specs:
        if spec.nic_mbit is not None and not 0.1 <= spec.nic_mbit <= 1e6:
            raise InvalidArgumentError(f"node {spec.name}: nic_mbit must be from 0.1 to 1,000,000", "SETTINGS")
        if spec.store_bytes < 80_000_000:
            raise InvalidArgumentError(f"node {spec.name}: Ray takes stores of 80 MB and more", "SETTINGS")


def _as_dict(spec: NodeSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in NodeSpec.__slots__} | {
        "resources": dict(spec.resources),
        "labels": dict(spec.labels),
    }


def _rays_elsewhere(namespace: str) -> list[int]:
    """Raylets and cluster services of this machine that are not on this node."""
    found = []
    here = set(teardown.processes_in([namespace]))
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in here:
            with contextlib.suppress(OSError):
                program = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0", 1)[0]
                if program.endswith((b"/raylet", b"/gcs_server")):
                    found.append(int(name))
    return found


def _free_subnet() -> int:
    taken = _run("ip", "-o", "-4", "address", "show")
    for k in range(256):
        if not re.search(rf"\b10\.9[89]\.{k}\.", taken):
            return k
    raise UnavailableError("all of 10.99.0.0/16 is taken by other virtual clusters", "RAY")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip()}", "RAY")
    return done.stdout
