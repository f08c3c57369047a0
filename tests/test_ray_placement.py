"""Where workers go: what `auto` decides for a cluster's shape, what is warned about, and what Ray is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import stoker
from hypothesis import given
from hypothesis import strategies as st
from stoker.ray.placement import NIC_LABEL, Placed, WorkerPlace, choose, plan_lines, read_nodes, worker_options
from stoker.ray.protocol import Node

GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """``ray:`` of the settings, all auto."""

    placement: Any = "auto"
    handover: str = "auto"
    retrieval: str = "auto"
    workers: int | str = "auto"
    worker_cpus: int | str = "auto"
    worker_memory: int | str = "auto"
    store_limit: int | str = "auto"


@dataclass(frozen=True)
class Process:
    """Of a trainer."""

    node_id: str
    dp_rank: int
    own_cpus: float = 1.0


def node(node_id: str, free: float, *, store: int = 10 * GB, nic_gbit: float = 0, **more: Any) -> Node:
    labels = {NIC_LABEL: str(nic_gbit)} if nic_gbit else {}
    return Node(
        node_id=node_id,
        host=f"host-{node_id}",
        cpus=64,
        cpus_free=free,
        memory_bytes=100 * GB,
        store_bytes=store,
        resources=more.get("resources", {}),
        labels={**labels, **more.get("labels", {})},
    )


def placed(nodes: list[Node], ranks: list[Process], **wanted: Any) -> Placed:
    return choose(
        nodes,
        ranks,
        Wanted(**wanted),
        memory_limit=4 * GB,
        pack_bytes=50_000_000,
        packs_per_step=max(1, len({r.dp_rank for r in ranks})),
    )


FOUR = [node(n, 12) for n in "abcd"]
EIGHT_RANKS = [Process("abcd"[i // 2], i) for i in range(8)]


@pytest.mark.case("LDR-09", "one worker on each, by node id; an uneven plan warns")
def test_the_default_is_one_worker_on_each_node_with_ranks() -> None:
    idle = node("e", 64)
    made = placed([*FOUR, idle], EIGHT_RANKS)
    assert made.choices.placement == "local"
    assert sorted(p.node_id for p in made.places) == ["a", "b", "c", "d"]
    assert made.choices.workers == made.choices.min_workers == made.choices.max_workers == 4
    assert not made.warnings
    assert set(made.why) == {"placement", "handover", "retrieval", "workers", "worker_memory", "store_limit"}
    lines = plan_lines(made, [*FOUR, idle], EIGHT_RANKS)
    assert lines[0].startswith("ray: 4 workers, placement local, handover reference, retrieval lazy")
    assert "ray:   host-b: ranks 2-3, 1 workers with 8 of 64 CPUs" in lines
    assert not any("host-e" in line for line in lines), "a node without a part in it"


def test_a_cpu_is_left_to_each_process_that_ray_did_not_start() -> None:
    nodes = [node("a", 6)]
    for own_cpus, cpus in ((1.0, 6), (0.0, 2)):
        ranks = [Process("a", i, own_cpus) for i in range(4)]
        assert [p.cpus for p in placed(nodes, ranks).places] == [cpus]
    gpu_only = [Process("a", i, 0.5) for i in range(4)]
    assert placed(nodes, gpu_only).places[0].cpus == 2, "Ray counts half a CPU; a trainer takes one"


def test_workers_leave_alone_what_ranks_cannot_use() -> None:
    made = placed([node("a", 200)], [Process("a", 0)])
    assert made.places[0].cpus == 4
    assert placed([node("a", 200)], [Process("a", 0)], worker_cpus=100).places[0].cpus == 100


def test_auto_spreads_where_one_node_would_bind() -> None:
    ranks = [Process("a", i) for i in range(8)]
    few = placed([node("a", 0), node("b", 1), node("c", 1)], ranks)
    assert few.choices.placement == "spread"
    assert "CPUs would bind" in few.why["placement"]
    slow = placed([node("a", 0), node("b", 32, nic_gbit=2), node("c", 32, nic_gbit=2)], ranks)
    assert slow.choices.placement == "spread"
    assert "NIC would bind: 208 MB/s for 8 ranks, and it carries 250" in slow.why["placement"]
    assert sorted(p.node_id for p in slow.places) == ["b", "c"], "a has no CPU left"
    assert slow.choices.max_workers > slow.choices.workers or slow.places[0].cpus * 2 >= 32


def test_auto_packs_where_one_node_is_plenty() -> None:
    made = placed([node("a", 0), node("b", 32, nic_gbit=10), node("c", 8)], [Process("a", 0)])
    assert made.choices.placement == "pack"
    assert [p.node_id for p in made.places] == ["b"]
    assert "host-a has 0 CPUs left" in made.why["placement"]
    assert "(assumed)" not in made.why["placement"]
    assert not made.warnings, "one node has ranks: nothing is uneven"


def test_without_a_free_cpu_workers_share_and_it_warns() -> None:
    made = placed([node("a", 0)], [Process("a", 0)])
    assert made.choices.placement == "local"
    assert [(p.cpus, p.threads) for p in made.places] == [(0, 1)]
    assert any("share those of the trainers" in line for line in made.warnings)


@pytest.mark.parametrize(
    ("nodes", "wanted", "said"),
    [
        (FOUR, {"placement": "pack"}, "uneven plan: all workers are on host-a"),
        (FOUR, {"placement": "local", "workers": 3}, "no CPU for workers on host-d"),
        ([node("a", 1), *FOUR[1:]], {}, "uneven plan: 1 CPUs for 2 ranks on host-a, 8 for 2 on host-b"),
    ],
    ids=["pack", "fewer workers than nodes", "a node with fewer CPUs"],
)
def test_an_uneven_plan_warns(nodes: list[Node], wanted: dict[str, Any], said: str) -> None:
    warnings = placed(nodes, EIGHT_RANKS, **wanted).warnings
    assert len(warnings) == 1
    assert said in warnings[0]


def test_settings_come_before_auto_and_the_reason_says_so() -> None:
    made = placed(
        FOUR, EIGHT_RANKS, placement="spread", handover="value", retrieval="eager", workers=6, store_limit="1GB"
    )
    choices = made.choices
    assert (choices.placement, choices.handover, choices.retrieval) == ("spread", "value", "eager")
    assert (choices.workers, choices.min_workers, choices.max_workers) == (6, 6, 6)
    assert Counter(p.node_id for p in made.places) == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert choices.store_limit == GB
    for name in ("placement", "handover", "retrieval", "store_limit", "workers"):
        assert "the settings say" in made.why[name]


def test_peers_on_a_node_count_as_one_rank() -> None:
    peers = [Process("a", 0) for _ in range(8)]
    assert placed([node("a", 64)], peers).choices.pull_bytes == placed([node("a", 64)], peers[:1]).choices.pull_bytes


def test_custom_resources_and_labels_choose_nodes() -> None:
    nodes = [node("a", 8), node("b", 8, resources={"prep": 2}), node("c", 8, labels={"pool": "cpu"})]
    by_resource = placed(nodes, [Process("a", 0)], placement={"resources": {"prep": 1}})
    assert by_resource.choices.placement == "custom"
    assert by_resource.choices.resources == {"prep": 1.0}
    assert by_resource.choices.workers == 1
    assert "prep" in plan_lines(by_resource, nodes, [Process("a", 0)])[-1]
    by_label = placed(nodes, [Process("a", 0)], placement={"labels": {"pool": "cpu"}})
    assert (by_label.choices.labels, by_label.choices.workers) == ({"pool": "cpu"}, 1)
    with pytest.raises(stoker.InvalidArgumentError, match=r"no node of the cluster has \{pool: gpu\}; there are pool"):
        placed(nodes, [Process("a", 0)], placement={"labels": {"pool": "gpu"}})


def test_bounds_in_bytes_follow_from_the_stores() -> None:
    nodes = [node("a", 8, store=10 * GB), node("b", 8, store=GB)]
    ranks = [Process("a", 0), Process("b", 1), Process("b", 2)]
    choices = placed(nodes, ranks).choices
    assert choices.store_limit == int(0.3 * 11 * GB)
    assert choices.pull_bytes == int(0.3 * GB) // 2
    small = placed([node("a", 8, store=60_000_000)], [Process("a", 0), Process("a", 1)])
    assert any("less than one step is made ahead" in line for line in small.warnings)
    assert any("set ray.retrieval: eager" in line for line in small.warnings)


@pytest.mark.case("LDR-01", "a store of Ray that cannot hold a pack is SHM_TOO_SMALL, with need, size and node")
def test_a_store_that_cannot_hold_a_pack_is_refused() -> None:
    with pytest.raises(
        stoker.InvalidArgumentError, match="need 50 MB for a pack, the object store of host-a has 40 MB"
    ) as no:
        placed([node("a", 8, store=40_000_000)], [Process("a", 0)])
    assert no.value.code == "SHM_TOO_SMALL"


def test_a_trainer_outside_the_cluster_is_refused() -> None:
    with pytest.raises(stoker.InvalidArgumentError, match="1 nodes of the trainer are not among them"):
        placed(FOUR, [Process("z", 0)])


@given(
    free=st.lists(st.floats(0, 300), min_size=1, max_size=6),
    ranks=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0])), min_size=1, max_size=24),
    placement=st.sampled_from(["auto", "local", "pack", "spread"]),
    workers=st.one_of(st.just("auto"), st.integers(1, 9)),
)
def test_workers_never_take_a_cpu_that_is_not_left(
    free: list[float], ranks: list[tuple[int, float]], placement: str, workers: int | str
) -> None:
    nodes = [node(str(i), cpus) for i, cpus in enumerate(free)]
    processes = [Process(str(n % len(nodes)), i, own) for i, (n, own) in enumerate(ranks)]
    made = placed(nodes, processes, placement=placement, workers=workers)
    taken = Counter[str]()
    for place in made.places:
        taken[place.node_id] += place.cpus
    for shape in nodes:
        own = sum(p.own_cpus < 1 for p in processes if p.node_id == shape.node_id)
        assert taken[shape.node_id] <= max(0, shape.cpus_free - own) + 1e-6
    assert made.choices.workers == len(made.places) >= 1
    assert made.choices.min_workers <= made.choices.workers <= made.choices.max_workers
    assert made.choices.pull_bytes > 0
    if placement != "auto":
        assert made.choices.placement == placement


def test_ray_is_told_where() -> None:
    strategies = pytest.importorskip("ray.util.scheduling_strategies")
    node_id = "ab" * 28
    for placement, is_soft in (("local", False), ("pack", True), ("spread", True)):
        made = placed([node(node_id, 8)], [Process(node_id, 0)], placement=placement)
        options = worker_options(made.choices, made.places[0], max_concurrency=9)
        strategy = options["scheduling_strategy"]
        assert isinstance(strategy, strategies.NodeAffinitySchedulingStrategy)
        assert (strategy.node_id, strategy.soft) == (node_id, is_soft)
        assert (options["num_cpus"], options["max_restarts"], options["max_concurrency"]) == (4, 0, 9)
        assert "runtime_env" not in options
    labelled = placed([node("a", 8, labels={"pool": "cpu"})], [Process("a", 0)], placement={"labels": {"pool": "cpu"}})
    options = worker_options(
        labelled.choices, labelled.places[0], max_concurrency=1, runtime_env={"env_vars": {"A": "b"}}
    )
    assert options["label_selector"] == {"pool": "cpu"}
    assert options["scheduling_strategy"] == "SPREAD"
    assert options["runtime_env"] == {"env_vars": {"A": "b"}}
    assert worker_options(labelled.choices, WorkerPlace(), max_concurrency=1)["num_cpus"] == 1


def test_a_cluster_is_read_from_what_ray_says() -> None:
    said = [
        {
            "NodeID": "aa",
            "Alive": True,
            "NodeManagerHostname": "h",
            "Resources": {"CPU": 4.0, "memory": 8e9, "object_store_memory": 1e9, "prep": 2.0, "node:10.0.0.1": 1.0},
            "Labels": {"ray.io/node-id": "aa"},
        },
        {"NodeID": "bb", "Alive": False, "Resources": {}, "Labels": {}},
    ]
    free = {"aa": {"CPU": 2.5, "prep": 1.0, "memory": 7e9, "node:10.0.0.1": 1.0}}
    assert read_nodes(said, free) == (
        Node(
            node_id="aa",
            host="h",
            cpus=4.0,
            cpus_free=2.5,
            memory_bytes=8 * GB,
            store_bytes=GB,
            resources={"prep": 1.0},
            labels={"ray.io/node-id": "aa"},
        ),
    )
