"""``stoker ray``: what its file says, what it finds wrong, what it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

import ray
from loader_data import good_data, settings_for
from ray_cluster import RayCluster, until
from stoker.cli import app
from stoker.errors import InvalidArgumentError, UnavailableError
from stoker.ray.checkup import check_cluster
from stoker.ray.cluster import hosts
from stoker.ray.cluster.end_node import end_node, processes_of
from stoker.ray.cluster.file import ClusterFile
from stoker.ray.nodes import NodeFacts, StoreUse
from stoker.ray.status import Snapshot, as_dict, plain_lines, take_snapshot, to_tables
from typer.testing import CliRunner

# --- the file


def written(folder: Path, text: str, name: str = "train.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: []", "needs a list `nodes`"),
        ("nodes: {host: a}", "needs a list `nodes`"),
        ("nodes: [{host: a, cpu: 1}]", "did you mean `nodes[0].cpus`"),
        ("nodes: [{host: -oProxyCommand=x}]", "nodes[0].host must be a host name"),
        ("nodes: [{host: a}, {host: a}]", "nodes[1]: a is there twice"),
        ("nodes: [{host: a, store: 1MB}]", "nodes[0].store: Ray takes stores of 80 MB"),
        ("nodes: [{host: a, nic_mbit: 100}]", "are for virtual nodes"),
        ("nodes: [", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_the_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidArgumentError) as error:
        ClusterFile.load(path)
    assert str(path) in error.value.message
    assert said in error.value.message


SSH = """
import json, sys
host, command = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([host, command, sys.stdin.read()]) + "\\n")
print(7)
sys.exit(host in {bad!r})
"""


def fake_ssh(folder: Path, bad: tuple[str, ...] = ()) -> tuple[str, Path]:
    log = folder / "log.jsonl"
    script = folder / "ssh.py"
    script.write_text(SSH.format(log=str(log), bad=bad))
    return f"{sys.executable} {script}", log


def asked(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


FILE = """
ssh: {ssh}
python: /venv/bin/python
environment: {{NCCL_DEBUG: "two words"}}
nodes:
  - {{host: 10.0.0.1, cpus: 32, gpus: 8, store: 200GB}}
  - {{host: me@cpu-1, address: 10.0.0.2, cpus: 60, resources: {{maker: 1}}, labels: {{kind: cpu}}}}
"""


def test_hosts_are_started_head_first_and_ended_head_last(tmp_path: Path) -> None:
    ssh, log = fake_ssh(tmp_path)
    cluster = ClusterFile.load(written(tmp_path, FILE.format(ssh=ssh)))
    assert hosts.up(cluster, lambda _: None) == "10.0.0.1:6379"
    (head, start_head, _), (node, start_node, _) = asked(log)
    assert (head, node) == ("10.0.0.1", "me@cpu-1")
    assert start_head.startswith("env RAY_AUTH_MODE=disabled 'NCCL_DEBUG=two words' /venv/bin/python -m ray.")
    for option in ("--head --port=6379", "--num-cpus=32", "--num-gpus=8", "--object-store-memory=200000000000"):
        assert option in start_head
    for option in ("--address=10.0.0.1:6379", "--node-ip-address=10.0.0.2", "maker", "--labels=kind=cpu"):
        assert option in start_node
    assert "--head" not in start_node
    log.unlink()
    said: list[str] = []
    hosts.down(cluster, said.append)
    assert said == ["me@cpu-1: 7 processes ended", "10.0.0.1: 7 processes ended"]
    assert [(host, command) for host, command, _ in asked(log)] == [
        ("me@cpu-1", "/venv/bin/python - 10.0.0.1:6379"),
        ("10.0.0.1", "/venv/bin/python - 10.0.0.1:6379"),
    ]
    assert all("def end_node" in code for _, _, code in asked(log))


def test_a_host_that_fails_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    ssh, log = fake_ssh(tmp_path, bad=("me@cpu-1",))
    cluster = ClusterFile.load(written(tmp_path, FILE.format(ssh=ssh)))
    with pytest.raises(UnavailableError, match="me@cpu-1: ended with 1: 7"):
        hosts.up(cluster, lambda _: None)
    assert [host for host, _, _ in asked(log)] == ["10.0.0.1", "me@cpu-1", "me@cpu-1", "10.0.0.1"]


def test_only_processes_of_this_cluster_are_ended() -> None:
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    stubborn = [sys.executable, "-c", "import signal as s; s.signal(15, s.SIG_IGN); print(flush=True); s.pause()"]
    ours, other = f"127.0.0.9:{os.getpid()}", f"127.0.0.8:{os.getpid()}"
    commands = [
        [*sleep, f"--gcs-address={ours}"],
        [*stubborn, f"--gcs-address={ours}"],
        [*sleep, f"--gcs_server_port={os.getpid()}", "--node-ip-address=127.0.0.9"],
        [*sleep, f"--gcs-address={other}"],
        [*sleep, f"--gcs_server_port={os.getpid()}", "--node-ip-address=127.0.0.8"],
    ]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        assert processes_of(ours) == sorted(child.pid for child in children[:3])
        # A zombie has no command line, so it counts as ended.
        assert end_node(ours, patience_s=2.0) == 3
        until(lambda: [child.poll() for child in children[:3]] == [-15, -9, -15], "the three have ended")
        assert [child.poll() for child in children[3:]] == [None, None]
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.soak
def test_a_cluster_on_this_machine_is_started_asked_and_ended() -> None:
    """What the head and the nodes of real hosts are told, told to two nodes here."""
    with tempfile.TemporaryDirectory(prefix="sr", dir="/tmp") as folder:  # sockets want short paths
        check_cluster_on_this_machine(Path(folder))


def check_cluster_on_this_machine(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""
        port: 26379
        environment: {{RAY_TMPDIR: {tmp_path}}}
        nodes:
          - {{host: local, cpus: 1, store: 100MB}}
          - {{host: local, cpus: 2, store: 100MB, labels: {{kind: cpu}}}}
        """,
    )
    stoker = [sys.executable, "-m", "stoker", "ray"]
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
    environment.pop("RAY_ADDRESS", None)
    try:
        done = subprocess.run([*stoker, "up", str(path), "--json"], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["nodes"]) == 2
        assert len(processes_of(ClusterFile.load(path).address)) > 3
    finally:
        done = subprocess.run([*stoker, "down", str(path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert processes_of(ClusterFile.load(path).address) == []


# --- whether the present cluster can serve


def test_the_present_cluster_is_looked_at(ray_cluster: RayCluster, tmp_path: Path) -> None:
    ray_cluster.connect()
    run = tmp_path / "run.json"
    settings = settings_for(good_data(tmp_path / "data", 4), tmp_path, index_dir=str(tmp_path / "index"))
    checkup = check_cluster(settings)
    assert len(checkup.nodes) == 2
    assert [finding.text for finding in checkup.findings if finding.is_wrong] == []
    assert all("120 MB" in finding.text for finding in checkup.findings)  # a hint: so small a store
    assert list((tmp_path / "index").iterdir()) == []
    gone = settings.replace(model=str(tmp_path / "nowhere"))
    wrong = [finding for finding in check_cluster(gone).findings if finding.is_wrong]
    assert len({finding.node for finding in wrong}) == 2
    assert {finding.text for finding in wrong} == {f"does not see {tmp_path / 'nowhere'}, which the settings name"}
    run.write_text(json.dumps(gone.to_dict(hide_secrets=False)))
    result = CliRunner().invoke(app, ["ray", "up", "--run", str(run), "--json"])
    assert result.exit_code == 1, result.output
    assert [f["text"] for f in json.loads(result.stdout)["findings"] if f["is_wrong"]] == [f.text for f in wrong]
    ray_cluster.settle()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
def test_no_cluster_is_said(tmp_path: Path, address: str) -> None:
    """Ray itself would end the process."""
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    command = [sys.executable, "-m", "stoker", "ray", "status", "--once", "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2
    assert f"RAY: ray.address: {address}: no Ray cluster to connect to (127.0.0.1:1): [Errno 111]" in done.stderr


# --- what is shown

FACTS = NodeFacts(
    host="a",
    python="3.11.7",
    ray="2.60.0",
    stoker="0.1.0",
    nic="e0",
    nic_sent=1_000_000,
    nic_received=5_000_000,
    cpu_busy_s=100.0,
    n_cores=4,
    memory_bytes=2**35,
    memory_free=2**34,
    shm_bytes=2**34,
    open_files=65536,
    at_s=50.0,
)
RUN: dict[str, Any] = {
    "run": "stoker-job-1-0",
    "state": "running",
    "ended": None,
    "choices": {"placement": "spread", "handover": "reference", "retrieval": "lazy"},
    "warnings": [],
    "deaths": ["worker 3 on a: its node died"],
    "packs": {"waiting": 5, "running": 2, "store_bytes": 30_000_000, "store_limit": 90_000_000},
    "counters": {"second_starts": 4},
    "straggling": [
        {"rank": 1, "step": 18, "worker": "w0", "where": "worker w0 on a", "seconds": 9.5, "is_second": True}
    ],
    "bytes_from_to": [{"from": "n1", "to": "n2", "bytes": 12_000_000}],
    "workers": [
        {"worker": "w0", "node": "n1", "host": "a", "pid": 10, "state": "ready", "packs": 2, "times_median": 3.5}
    ],
    "clients": [
        {
            "rank": 0,
            "peer": 0,
            "node": "n2",
            "host": "b",
            "pid": 20,
            "step": 17,
            "has_left": False,
            "heard_s_ago": 1.0,
            "waits_for": "pack 1 of step 18 of rank 0, which is being made by w0",
            "waits_s": 4.2,
            "wait_s": 3.0,
            "pulled_bytes": 7_000_000,
            "local_bytes": 0,
            "held_bytes": 2_000_000,
        }
    ],
}


def snapshot(at_s: float, wait_s: float, facts: NodeFacts, spilled: int = 0) -> Snapshot:
    run = {**RUN, "clients": [{**RUN["clients"][0], "wait_s": wait_s}]}
    nodes = {
        "n1": {
            "NodeManagerHostname": "a",
            "NodeManagerAddress": "10.0.0.1",
            "Resources": {"CPU": 4.0},
            "Labels": {"stoker-nic-gbit": "0.1"},
        },
        "n2": {"NodeManagerHostname": "b", "NodeManagerAddress": "10.0.0.2", "Resources": {}, "Labels": {}},
    }
    return Snapshot(
        at_s=at_s,
        nodes=nodes,
        facts={"n1": facts, "n2": "no answer within 20 s"},
        stores={"n1": StoreUse(used=40_000_000, size=100_000_000, n_objects=4, spilled=spilled)},
        runs=[run],
    )


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = snapshot(100.0, 3.0, FACTS)
    later = replace(FACTS, at_s=52.0, nic_sent=17_000_000, nic_received=30_000_000, cpu_busy_s=104.0)
    now = snapshot(110.0, 5.5, later, spilled=9_000_000)
    node, silent = as_dict(now, before)["nodes"]
    assert node["sent_bytes_per_s"] == 8_000_000
    assert node["received_bytes_per_s"] == 12_500_000
    assert node["nic_share"] == 1.0  # 12.5 MB/s are 100 Mbit/s
    assert node["cpu_share"] == 0.5
    assert silent["error"] == "no answer within 20 s"
    assert silent["nic_share"] is None
    (run,) = as_dict(now, before)["runs"]
    assert run["clients"][0]["wait_ratio"] == 0.25
    json.dumps(as_dict(now, before))
    lines = "\n".join(plain_lines(to_tables(now, before)))
    for text in (
        "node a: ranks 0, workers 1, CPU 50%, object store 40 of 100 MB, spilled 9 MB, sends 8.0 MB/s, "
        "receives 12.5 MB/s, NIC 100% full",
        "a has written 9 MB of objects to its disk, because its object store was full",
        "node b: ranks 1, workers 0, CPU -, object store -",
        "b: no answer within 20 s",
        "2 packs are being made, 5 wait for a worker; packs hold 30 of 90 MB of object store; spread, reference, lazy",
        "4 straggling packs started a second time",
        "straggling: a pack of step 18 of rank 1 is at worker w0 on a for 9.5 s, its second start",
        "a worker died: worker 3 on a: its node died",
        "rank 0: node b, step 17, waits 25.0% of its time, pulled 7 MB",
        "rank 0 has waited 4 s for pack 1 of step 18 of rank 0, which is being made by w0",
        "worker w0: node a, pid 10, state ready, packs 2, a pack takes 3.5 x the median",
        "from a: to b, sum 12 MB",
    ):
        assert text in lines


class _Stub:
    """A coordinator as far as a status sees it."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._run = run

    def status(self) -> dict[str, Any]:
        return self._run


def test_every_run_on_the_cluster_is_shown(ray_cluster: RayCluster) -> None:
    ray_cluster.connect()
    stub: Any = ray.remote(num_cpus=0)(_Stub)
    names = ("stoker-one-0", "stoker-two-0", "other")
    actors = [stub.options(name=name, namespace="stoker").remote({**RUN, "run": name}) for name in names]
    ray.get([actor.status.remote() for actor in actors])
    seen = take_snapshot()
    assert [run["run"] for run in seen.runs] == ["stoker-one-0", "stoker-two-0"]
    assert set(seen.nodes) == set(seen.stores) == set(ray_cluster.alive_nodes())
    for facts in seen.facts.values():
        assert isinstance(facts, NodeFacts), facts
        assert facts.nic_sent > 0
        assert facts.ray == ray.__version__
    assert [run["run"] for run in take_snapshot("two").runs] == ["stoker-two-0"]
    result = CliRunner().invoke(app, ["ray", "status", "--once", "--json", "--name", "one"])
    assert result.exit_code == 0, result.output
    assert [run["run"] for run in json.loads(result.stdout)["runs"]] == ["stoker-one-0"]
    del actors
    ray_cluster.settle()
