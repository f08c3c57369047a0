"""The ladder on a Ray cluster: its arithmetic, its table, and a small climb."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

from ray_cluster import RayCluster  # noqa: E402
from stoker.ladder.result import StepRecord, summarise  # noqa: E402
from stoker.ray.ladder import meters  # noqa: E402
from stoker.ray.ladder.bounds import NodeUse, Reading, bounds_of, node_uses, suffices  # noqa: E402
from stoker.ray.ladder.command import ClusterOptions, climb_here  # noqa: E402
from stoker.ray.ladder.report import table, write_report  # noqa: E402
from stoker.ray.ladder.result import Delivered, RayLadderResult, RayRungResult, verdicts  # noqa: E402
from stoker.ray.ladder.rungs import RUNGS, rungs_from  # noqa: E402


def use(
    name: str, received: float, sent: float, *, host: str = "machine", cpu_s: float = 0.0, busy_s: float = 0.0
) -> NodeUse:
    """Of ten seconds; bytes in MB, a NIC of 25 MB/s, two cores."""
    return NodeUse(
        name=name,
        host=host,
        cores=2,
        busy_s=busy_s,
        nic_bytes_s=25e6,
        received_bytes=int(received * 1e6),
        sent_bytes=int(sent * 1e6),
        cpu_s=cpu_s,
        span_s=10.0,
    )


def reading(at_s: float, received: int, cpu_s: dict[int, float], *, network: str = "a") -> Reading:
    return Reading(
        at_s=at_s,
        host="machine",
        network=network,
        cores=2,
        busy_s=2 * at_s,
        received_bytes=received,
        sent_bytes=0,
        cpu_s=cpu_s,
    )


def rung(name: str, *, samples: int = 20, wait_s: float = 0.1, n_ranks: int = 1, **changed: Any) -> RayRungResult:
    """Ten steps of 1 s of training; per step `samples`, and `wait_s` waited."""
    records = [
        StepRecord(
            rank=rank,
            step=step,
            wait_s=wait_s,
            train_s=1.0,
            barrier_s=0.0,
            step_s=1.0 + wait_s,
            n_samples=samples,
            n_tokens=1,
            n_patches=4000,
            cpu_s=0.0,
            digests=(f"{step}/{rank}",),
        )
        for rank in range(n_ranks)
        for step in range(11)
    ]
    values: dict[str, Any] = {
        "result": summarise(name, records, digest_steps=2, any_rank=True),
        "n_ranks": n_ranks,
        "uses": (use("n1", 31, 0), use("n2", 0, 31)),
        "visual_tokens": 10_000,
        "storage_bytes": 0,
        "delivered": Delivered(packs=11, network_packs=11, copies=22),
        "choices": {"handover": "reference", "retrieval": "lazy", "why": {"placement": "the settings say so"}},
    }
    return RayRungResult(**(values | changed))


# --- which bound holds


def test_the_busiest_nic_binds_where_all_packs_leave_one_node() -> None:
    uses = [use("data", 10, 500), *(use(f"rank{i}", 125, 5) for i in range(4))]
    first, *others = bounds_of(uses, n_steps=10, train_s=0.6)
    assert first.name == "busiest NIC"
    assert first.step_s == pytest.approx(500 / 10 / 25)
    assert first.arithmetic == "data sends 50.0 MB / 25.0 MB/s = 2.00 s"
    # What one sends another receives, and a card does both at once.
    assert {bound.name: bound.step_s for bound in others}["all NICs"] == pytest.approx((500 + 4 * 5) / 10 / 125)


def test_training_binds_where_nothing_crosses() -> None:
    assert bounds_of([use("a", 0.1, 0.1)], n_steps=10, train_s=0.6)[0].name == "training"


def test_cores_are_those_of_a_machine_and_not_of_each_of_its_nodes() -> None:
    uses = [use("a", 0, 0, cpu_s=9.0), use("b", 0, 0, cpu_s=9.0), use("c", 0, 0, cpu_s=12.0, host="other")]
    bound = next(b for b in bounds_of(uses, n_steps=10, train_s=0.1) if b.name == "CPU")
    assert bound.step_s == pytest.approx(0.9)
    assert bound.arithmetic == "1.80 CPU s / 2 cores = 0.90 s"


@pytest.mark.parametrize(("busy_s", "crowded"), [(17.0, False), (19.0, True)])
def test_cores_that_others_use_are_told(busy_s: float, crowded: bool) -> None:
    """Ten seconds of two cores, of which five core seconds are ours."""
    uses = (use("a", 0, 0, cpu_s=2.0, busy_s=busy_s), use("b", 0, 0, cpu_s=3.0, busy_s=busy_s))
    bound = next(b for b in bounds_of(uses, n_steps=10, train_s=1.0) if b.name == "CPU")
    assert bound.arithmetic == f"0.50 CPU s / 2 cores = 0.25 s (others keep {busy_s / 10 - 0.5:.1f} cores busy)"
    assert rung("scale-auto", uses=uses).suffices is not crowded
    assert rung("scale-auto", uses=uses, wait_s=0.9).bound_by == ("others' load" if crowded else "one after another")


def test_everybodys_time_is_without_idling() -> None:
    assert meters.busy_s("cpu  100 200 300 99999 88888 400 500 600 7 7\ncpu0 1 1\n") == pytest.approx(
        2100 / os.sysconf("SC_CLK_TCK")
    )


@pytest.mark.parametrize(("cpu_s", "enough"), [(9.0, True), (10.0, False)])
def test_a_resource_suffices_with_room_to_spare(cpu_s: float, enough: bool) -> None:
    """At 0.8 of the training time it does not, at less it does; a busy NIC is no lack if others are idle."""
    uses = [use("a", 0, 99, cpu_s=cpu_s), *(use(f"n{i}", 0, 0) for i in range(9))]
    assert suffices(bounds_of(uses, n_steps=10, train_s=0.6)) is enough


def test_readings_become_what_was_done_between_them() -> None:
    before = {"a": reading(5.0, 100, {1: 2.0, 2: 7.0}), "b": reading(5.0, 100, {1: 2.0}), "c": reading(1.0, 0, {})}
    before["c"] = reading(1.0, 0, {9: 1.0}, network="c")
    after = {"a": reading(9.0, 700, {1: 3.5, 3: 0.5}), "b": reading(9.0, 700, {1: 3.5}), "c": before["c"]}
    first, other = node_uses(before, after, {"a": 1e6, "c": None})
    assert (first.name, first.received_bytes, first.span_s, first.nic_bytes_s) == ("a", 600, 4.0, 1e6)
    assert first.busy_s == 8.0
    assert first.cpu_s == pytest.approx(1.5 + 0.5)  # process 2 has ended, 3 began; b shares a's network and processes
    assert (other.name, other.received_bytes, other.cpu_s, other.nic_bytes_s) == ("c", 0, 0.0, None)


# --- reading


def test_bytes_are_those_of_the_clusters_interfaces() -> None:
    lines = [
        "Inter-|   Receive                                                |  Transmit",
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls",
        "    lo: 1000 1 0 0 0 0 0 0 1000 1 0 0 0 0 0 0",
        "    e0:20 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0",
        "    e1: 4000 1 0 0 0 0 0 0 50000 1 0 0 0 0 0 0",
    ]
    assert meters.bytes_of(lines) == (4020, 50300)
    assert meters.bytes_of(lines, ("e0",)) == (20, 300)


def test_this_process_is_read() -> None:
    assert os.getpid() in meters.read().cpu_s


# --- what is shown


def test_a_rung_counts_bytes_crossings_and_copies() -> None:
    found = rung("ray-on-demand", is_ahead=False)
    assert found.wire_bytes_per_visual_token == pytest.approx(3100)
    assert (found.crossings_per_pack, found.copies_per_pack) == (1.0, 2.0)
    stored = rung("ray-on-demand", is_ahead=False, storage_bytes=1_000_000)
    assert stored.wire_bytes_per_visual_token == pytest.approx(3000)
    assert rung("scale-pack-lazy").wire_bytes_per_visual_token is None  # some is on its way at either end
    half = rung("ray-on-demand", is_ahead=False, delivered=Delivered(packs=10, network_packs=5, copies=15))
    assert (half.wire_bytes_per_visual_token, half.crossings_per_pack, half.copies_per_pack) == (None, 0.5, 1.5)


def test_what_no_resource_explains_is_said_to_be_one_after_another() -> None:
    assert rung("prefetch", wait_s=0.1).bound_by == "training"
    assert rung("python-serial", wait_s=0.9).bound_by == "one after another"


def test_the_digest_is_the_same_for_any_number_of_ranks() -> None:
    def digest(n_ranks: int, wrong: str = "", n_steps: int = 2) -> str | None:
        records = [
            StepRecord(
                rank=rank,
                step=step,
                wait_s=0.0,
                train_s=1.0,
                barrier_s=0.0,
                step_s=1.0,
                n_samples=1,
                n_tokens=1,
                n_patches=4,
                cpu_s=0.0,
                digests=tuple(f"{step}/{i}{wrong}" for i in range(rank, 4, n_ranks)),
            )
            for rank in range(n_ranks)
            for step in range(2)
        ]
        return summarise("x", records, digest_steps=n_steps, any_rank=True).digest

    assert digest(1) == digest(2) == digest(4)
    assert len({digest(1), digest(4, wrong="!"), digest(1, n_steps=1)}) == 3


def test_verdicts_say_what_holds_and_what_does_not() -> None:
    rungs = (
        rung("ray-on-demand", is_ahead=False),
        rung("ray-by-reference", samples=20),
        rung("ray-spread-lazy", samples=20),
        rung("scale-pack-eager", samples=20),
        rung("scale-spread-lazy", samples=29),
        rung("scale-auto", wait_s=0.03),
    )
    found = [(verdict.holds, verdict.text) for verdict in verdicts(rungs)]
    assert [holds for holds, _ in found] == [True, False, False, True, True, True]
    assert "1.45 times the samples/s of scale-pack-eager" in found[1][1]
    assert "wait 0.029 of a step (bar: 0.02, since NICs and cores suffice)" in found[2][1]
    lost = rung("scale-auto", delivered=Delivered(packs=10, network_packs=11, copies=30))
    assert [verdict.holds for verdict in verdicts([lost])] == [False, False, False]


def test_table_json_and_page_tell_the_same(tmp_path: Path) -> None:
    result = RayLadderResult(
        rungs=(rung("prefetch", delivered=None, choices={}), rung("scale-auto")), facts={"a": {"b": 1}}
    )
    head, first, last = table(result.rungs).splitlines()
    assert head.split()[0] == "rung"
    assert first.split()[:2] == ["prefetch", "1"]
    assert last.split()[:2] == ["scale-auto", "1"]
    paths = write_report(result, tmp_path)
    values = json.loads(paths["json"].read_text())
    assert [r["name"] for r in values["rungs"]] == ["prefetch", "scale-auto"]
    assert values["rungs"][1]["cluster"]["bound_by"] == "training"
    assert set(values) == {"a", "digests_agree", "verdicts", "rungs"}
    page = paths["md"].read_text()
    assert page.splitlines()[1].startswith("| ---")
    assert "placement: the settings say so" in page
    assert "scale-auto" in paths["svg"].read_text()


def test_rungs_are_climbed_from_the_lowest() -> None:
    assert rungs_from(["scale-auto,prefetch"]) == ("prefetch", "scale-auto")
    assert rungs_from([]) == tuple(RUNGS)
    with pytest.raises(ValueError, match="no rung 'up' on a cluster; there are python-serial, concurrent"):
        rungs_from(["up"])


# --- a climb


def run_yaml(folder: Path) -> Path:
    from stoker.demo import find_testdata, make_dataset

    dataset = make_dataset(folder, n_samples=24)
    path = folder / "run.yaml"
    path.write_text(
        f"data: [{{manifest: {dataset.manifest}}}]\n"
        f"model: {find_testdata() / 'qwen3-vl'}\n"
        "pack: {tokens_per_pack: 4096, packs_per_step: 4}\n"
        "speed: {memory_limit: 256MiB}\n"
    )
    return path


def test_ranks_of_a_cluster_climb(
    ray_cluster: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_cluster.connect()
    options = ClusterOptions(
        run=str(run_yaml(tmp_path)),
        output=str(tmp_path / "out"),
        rungs=("prefetch", "ray-on-demand"),
        steps=2,
        gpu_speed=20.0,
        address=ray_cluster.address,
        nic_mbit_s=200.0,
        as_json=True,
    )
    climb_here(options)
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "ladder.json").read_text()) == found
    assert found["digests_agree"] is True
    here, remote = found["rungs"]
    assert (here["name"], here["digest_steps"], remote["name"]) == ("prefetch", 3, "ray-on-demand")
    assert here["digest"] == remote["digest"]
    assert all(r["ranks"] == 1 and r["cluster"]["cpu_s"] > 0 for r in found["rungs"])
    assert (remote["cluster"]["crossings_per_pack"], remote["cluster"]["copies_per_pack"]) == (1.0, 2.0)
    assert remote["cluster"]["choices"]["placement"] == "custom"
    assert found["cluster"]["nodes"] == 2
    ray_cluster.settle()


def test_a_rank_that_fails_ends_the_climb(ray_cluster: RayCluster, tmp_path: Path) -> None:
    from stoker.ladder.ranks import RankFailedError

    ray_cluster.connect()
    run = run_yaml(tmp_path)
    run.write_text(run.read_text().replace("tokens_per_pack: 4096", "tokens_per_pack: 64"))
    options = ClusterOptions(
        run=str(run), output=str(tmp_path / "out"), rungs=("prefetch",), address=ray_cluster.address
    )
    with pytest.raises(RankFailedError, match=r"(?s)rank 0 failed: .*TOO_MANY_BAD"):
        climb_here(options)
    ray_cluster.settle()
