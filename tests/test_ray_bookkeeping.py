"""Who takes part in a run on Ray, and which packs are kept for whom."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import stoker
from hypothesis import given
from hypothesis import strategies as st
from stoker.ray.protocol import Beat, Ended, Hello
from stoker.ray.roster import Roster
from stoker.ray.shelf import Shelf

STATE = {"version": 1, "fingerprint": "f", "step": 3, "window": 0, "packs_delivered": 6, "dp_size": 2}


def hello(rank: int, **more: Any) -> Hello:
    values = dict(
        client_id=f"c{rank}.{more.get('peer_rank', 0)}",
        dp_rank=rank,
        dp_size=2,
        peer_rank=0,
        peer_count=1,
        node_id="n0",
        host=f"host{rank}",
        pid=100 + rank,
        settings_hash={"pack": "1", "seed": "2"},
    )
    return Hello(**(values | more))  # type: ignore[arg-type]


def test_a_run_is_complete_when_every_process_of_every_rank_is_here() -> None:
    roster = Roster()
    assert roster.missing() == "any rank"
    roster.hello(hello(1, peer_count=2), 0.0)
    assert roster.missing() == "rank 0"
    roster.hello(hello(0), 0.0)
    assert roster.missing() == "1 more processes of rank 1"
    roster.hello(hello(1, peer_count=2, peer_rank=1), 0.0)
    assert roster.missing() == ""
    roster.hello(hello(1, peer_count=2, peer_rank=1), 5.0)
    assert len(roster.members) == 3, "who asks again is the same"


def test_peers_on_two_nodes_are_counted_over_both() -> None:
    roster = Roster()
    roster.hello(hello(0, dp_size=1, n_clients=2, node_id="n0"), 0.0)
    assert "1 more" in roster.missing()
    roster.hello(hello(0, dp_size=1, n_clients=2, node_id="n1", client_id="other"), 0.0)
    assert roster.missing() == ""
    assert roster.nodes_of(0) == {"n0", "n1"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dp_size": 4}, r"PLAN_MISMATCH: dp_size is 4 in rank 1 \(host host1, pid 101\) and 2 in rank 0"),
        ({"version": "9"}, "PLAN_MISMATCH: version is 9 in rank 1"),
        ({"settings_hash": {"pack": "7", "seed": "2"}}, "PLAN_MISMATCH: `pack` of the settings differs between rank 1"),
        ({"settings_hash": {"pack": "7"}}, "`pack`, `seed` of the settings differ between"),
        ({"dp_rank": 2}, "SETTINGS: rank 2 .*dp_size is 2"),
    ],
)
def test_what_differs_between_ranks_is_named(change: dict[str, Any], message: str) -> None:
    roster = Roster()
    roster.hello(hello(0), 0.0)
    with pytest.raises(stoker.InvalidArgumentError, match=message):
        roster.hello(hello(1, **change), 0.0)


def test_a_place_that_another_process_has_is_not_given_twice() -> None:
    roster = Roster()
    assert roster.hello(hello(0), 0.0)
    assert not roster.hello(hello(0, client_id="restarted", pid=200), 0.0)
    assert not roster.hello(hello(0, client_id="elsewhere", node_id="n9"), 0.0), "its rank has its one process"
    assert roster.hello(hello(1), 0.0)


def test_all_begin_at_one_state() -> None:
    roster = Roster()
    for rank in (0, 1):
        roster.hello(hello(rank), 0.0)
    roster.start("c0.0", STATE, ["media"], 0.0)
    assert roster.not_started() == "rank 1 (host host1, pid 101)"
    with pytest.raises(stoker.InvalidArgumentError, match=r"STATE: .*`step` is 4 in rank 1 .* and 3 in rank 0"):
        roster.start("c1.0", STATE | {"step": 4}, ["media"], 0.0)
    with pytest.raises(stoker.InvalidArgumentError, match=r"STATE: accept_changed is \[\] in rank 1"):
        roster.start("c1.0", STATE, [], 0.0)
    roster.start("c1.0", STATE | {"dp_size": 8}, ["media"], 0.0)  # recorded for the reader only
    assert roster.not_started() == ""
    assert roster.agreed() == (STATE, ["media"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=30), st.integers(0, 3))
def test_the_slowest_client_decides(moves: list[tuple[int, int, int]], leaver: int) -> None:
    roster = Roster()
    names = [("c0.0", 0), ("c0.1", 0), ("c1.0", 1), ("c1.1", 1)]
    for (name, rank), peer in zip(names, (0, 1, 0, 1), strict=True):
        roster.hello(hello(rank, client_id=name, peer_rank=peer, peer_count=2), 0.0)
    wanted, mapped = dict.fromkeys(range(4), -1), dict.fromkeys(range(4), 0)
    for who, n_mapped, step in moves:
        roster.took(roster.members[names[who][0]], n_mapped, step, 1.0)
        wanted[who], mapped[who] = max(wanted[who], step), max(mapped[who], n_mapped)
        assert roster.wanted_by_slowest() == min(wanted.values())
        assert [roster.mapped_by_all(r) for r in (0, 1)] == [min(mapped[0], mapped[1]), min(mapped[2], mapped[3])]
    roster.left(roster.members[names[leaver][0]])
    assert roster.wanted_by_slowest() == min(step for who, step in wanted.items() if who != leaver)


def test_who_is_silent_for_too_long_is_named_and_who_left_is_not() -> None:
    roster = Roster()
    for rank in (0, 1):
        roster.hello(hello(rank), 0.0)
    roster.took(roster.members["c0.0"], 0, 0, 50.0)
    assert roster.silent(59.0, 60.0) is None
    roster.members["c1.0"].n_asking = 1
    assert roster.silent(61.0, 60.0) is None, "it waits for an answer"
    roster.members["c1.0"].n_asking = 0
    silent = roster.silent(61.0, 60.0)
    assert silent is not None
    assert silent.name == "rank 1 (host host1, pid 101)"
    roster.left(silent)
    assert roster.silent(61.0, 60.0) is None
    assert not roster.have_all_left()
    roster.left(roster.members["c0.0"])
    assert roster.have_all_left()


def test_peers_of_a_node_hold_a_pack_once() -> None:
    roster = Roster()
    for peer in (0, 1):
        roster.hello(hello(0, dp_size=1, peer_count=2, peer_rank=peer), 0.0)
        roster.members[f"c0.{peer}"].beat = Beat(client_id=f"c0.{peer}", step=0, held_bytes=100 + peer)
    assert roster.held_bytes() == 101


@dataclass(frozen=True)
class FakeTask:
    sequence: int
    rank: int
    step: int
    micro_batch: int
    micro_batches_in_step: int = 2
    n_bytes: int = 10
    n_samples: int = 1
    message: bytes = b""


def filled(n_ranks: int = 2, n_steps: int = 3) -> Shelf:
    shelf = Shelf()
    places = itertools.product(range(n_steps), range(2), range(n_ranks))
    for sequence, (step, micro_batch, rank) in enumerate(places):
        shelf.add(FakeTask(sequence, rank, step, micro_batch))
    return shelf


@given(st.integers(0, 1000))
def test_packs_made_in_any_order_are_delivered_and_handed_out_in_the_ranks(seed: int) -> None:
    shelf = filled()
    order = list(shelf.by_sequence)
    random.Random(seed).shuffle(order)
    delivered: list[int] = []

    def deliver(number: int, made: bytes) -> bytes:
        assert made == b"made %d" % number
        delivered.append(number)
        return b"delivery %d" % number

    handed: dict[int, list[int]] = {0: [], 1: []}
    for sequence in order:
        pack = shelf.by_sequence[sequence]
        pack.made, pack.payload = b"made %d" % sequence, object()

        shelf.deliver(deliver)
        for rank in (0, 1):
            ready = shelf.ready(rank, len(handed[rank]))
            assert len({p.step for p in ready}) <= 1
            for p in ready:
                assert p.delivery == b"delivery %d" % p.sequence
                handed[rank].append(p.sequence)
            shelf.release(rank, len(handed[rank]))
    while (more := [p for r in (0, 1) for p in shelf.ready(r, len(handed[r]))]) != []:
        for p in more:
            handed[p.rank].append(p.sequence)
        for rank in (0, 1):
            shelf.release(rank, len(handed[rank]))
    assert delivered == list(range(12)), "over all ranks, so that what is counted over the job is counted in one order"
    assert handed == {0: list(range(0, 12, 2)), 1: list(range(1, 12, 2))}
    assert not shelf.undelivered()
    assert not shelf.by_sequence, "what is mapped is let go of"


def test_a_lost_payload_is_ready_again_without_a_second_delivery() -> None:
    shelf = filled(n_ranks=1, n_steps=1)
    for pack in shelf.by_sequence.values():
        pack.made, pack.payload, pack.made_on = b"m", object(), "n0"
    shelf.deliver(lambda sequence, made: b"d")
    lost = shelf.by_sequence[0]
    lost.payload = None
    assert shelf.ready(0, 0) == []
    assert [p.number for p in shelf.made_on("n0")] == [1]
    lost.payload = object()

    def refuse(sequence: int, made: bytes) -> bytes:
        raise AssertionError("delivered twice")

    assert not shelf.deliver(refuse)
    assert [p.number for p in shelf.ready(0, 0)] == [0, 1]


def test_what_ends_a_run_ends_it_in_its_place() -> None:
    shelf = filled(n_ranks=2, n_steps=2)
    for pack in shelf.by_sequence.values():
        pack.made, pack.payload = b"m", object()
    shelf.by_sequence[5].made = Ended.of(stoker.UnavailableError("no store", "OUTAGE"))
    delivered: list[int] = []

    def deliver(sequence: int, made: bytes) -> bytes:
        delivered.append(sequence)
        return b"d"

    with pytest.raises(stoker.UnavailableError, match="OUTAGE: no store"):
        shelf.deliver(deliver)
    assert delivered == [0, 1, 2, 3, 4]
    assert [p.sequence for p in shelf.undelivered()] == [5, 6, 7]
    assert [p.step for p in shelf.ready(0, 0)] == [0, 0]
    assert [p.number for p in shelf.ready(1, 0)] == [0, 1], "all ranks have the steps before"


def test_a_pack_is_kept_until_it_was_delivered_though_its_rank_is_gone() -> None:
    shelf = filled(n_ranks=1, n_steps=1)
    assert shelf.release(0, 1 << 62) == []
    first = shelf.by_sequence[0]
    first.made, first.payload = b"m", object()
    shelf.deliver(lambda sequence, made: b"d")
    assert [p.number for p in shelf.release(0, 1 << 62)] == [0]
    assert first.payload is None
    assert shelf.get(0, 0) is None


@pytest.mark.parametrize(
    "error",
    [
        stoker.InvalidArgumentError("a", "SETTINGS"),
        stoker.BadSampleError("b", "WORKER_KILLED"),
        stoker.UnavailableError("c", "RANK_LOST"),
        stoker.ExhaustedError("d", "STORE_FULL"),
        stoker.InternalError("e"),
    ],
)
def test_errors_travel_whole(error: stoker.StokerError) -> None:
    again = Ended.of(error).error()
    assert type(again) is type(error)
    assert (again.message, again.code) == (error.message, error.code)


def test_other_errors_travel_as_internal_ones_and_unknown_kinds_do_not_run_code() -> None:
    assert str(Ended.of(KeyError("x")).error()) == "INTERNAL: KeyError: 'x'"
    odd = replace(Ended.of(ValueError("y")), kind="annotations")
    assert type(odd.error()) is stoker.InternalError
