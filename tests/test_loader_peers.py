"""Peers of one data-parallel rank: the same batches from one preparation, in shared memory. Here all in one process."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
from loader_data import DataSet, digests, eventually, good_data, settings_for, story
from stoker import Batch, Loader, Settings, Topology

ARRAYS = ("input_ids", "labels", "position_ids", "cu_seqlens", "sample_ids", "image_patches", "image_grid_thw")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("peers") / "data", 24)


@contextmanager
def peers(settings: Settings, count: int, job: str, **topology: int) -> Iterator[list[Loader]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(Loader(settings, topology=Topology(peer_rank=k, peer_count=count, job=job, **topology)))
            for k in range(count)
        ]


def arrays(batch: Batch) -> dict[str, Any]:
    names = ARRAYS if batch.image_patches is not None else ARRAYS[:-2]
    return {name: np.from_dlpack(batch.dlpack(name)) for name in names}


def counted(loader: Loader) -> dict[str, Any]:
    """What a report says about the data, without times and the engine."""
    values = loader.report().to_dict()
    return {k: values[k] for k in ("steps", "batches", "samples", "tokens", "target_tokens", "bytes", "bad_samples")}


def in_dev_shm() -> list[str]:
    """What is left there under our name; other programs use it too."""
    return [name for name in os.listdir("/dev/shm") if "stoker" in name]


def shared_files() -> list[str]:
    """Blocks in memory that this process has open."""
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except OSError:  # it has just been closed
            continue
    return [link for link in links if "stoker-pack" in link]


def test_all_peers_get_the_same_to_the_end(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=1)
    alone = digests(settings)
    with Loader(settings) as single:
        expected = {id_: single.describe(id_) for id_ in next(single).layout.sample_ids.tolist()}
    with peers(settings, 4, str(tmp_path)) as loaders:
        runs = [loader.steps() for loader in loaders]
        for step in alone:
            first: list[Batch] = []
            for k, run in enumerate(runs):
                batches = next(run)
                assert [batch.digest() for batch in batches] == step, f"peer {k}"
                first = first or batches
                for batch, same in zip(batches, first, strict=True):
                    for name, array in arrays(batch).items():
                        assert np.array_equal(array, arrays(same)[name]), name
            states = [loader.state_dict() for loader in loaders]
            assert states == states[:1] * 4
        assert [next(run, None) for run in runs] == [None] * 4
        assert [next(loader, None) for loader in loaders] == [None] * 4
        assert [counted(loader) for loader in loaders] == [counted(loaders[0])] * 4
        assert [loader.report().to_dict()["pipeline"] is None for loader in loaders] == [False, True, True, True]
        assert loaders[1].normalisation == loaders[0].normalisation
        assert loaders[1].clip_normalisation == loaders[0].clip_normalisation
        assert {id_: loaders[3].describe(id_) for id_ in expected} == expected
        assert "peer 0 prepares" in str(loaders[2].report())
        assert shared_files()
        del batches, batch, same, first
    gc.collect()
    assert in_dev_shm() == []
    assert shared_files() == []


def test_a_followers_arrays_are_the_leaders_memory_and_read_only(data: DataSet, tmp_path: Path) -> None:
    with peers(settings_for(data, tmp_path), 2, str(tmp_path)) as loaders:
        mine, theirs = [next(loader) for loader in loaders]
        assert mine.input_ids.ctypes.data != theirs.input_ids.ctypes.data
        assert not theirs.input_ids.flags.writeable
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "stoker-pack" in line]
        assert {line.split()[1] for line in mapped} == {"rw-s", "r--s"}


def test_a_slow_peer_stops_the_engine_and_memory_stays_bounded(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, speed={"memory_limit": "24MiB", "prefetch_steps": 50})
    expected = [digest for step in digests(settings, 30) for digest in step]
    with peers(settings, 2, str(tmp_path)) as (leader, follower):
        got: list[str] = []
        trainer = threading.Thread(target=lambda: got.extend(next(leader).digest() for _ in expected))
        trainer.start()
        for _ in eventually(20):  # the leader's trainer takes what there is room for, and then nothing comes
            n = len(got)
            report = leader.report().to_dict()
            if n > 0 and report["peers"]["unread"] > 1 and len(got) == n < len(expected) - 1:
                break
        for digest in expected:
            assert next(follower).digest() == digest
        trainer.join(20)
        assert got == expected
        memory = leader.report().to_dict()["pipeline"]["memory"]
        assert memory["peak_bytes"] <= memory["limit_bytes"] <= 24 << 20


def test_a_run_goes_on_with_another_number_of_peers(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    expected = digests(settings, 8)
    state: dict[str, Any] | None = None
    for turn, count in enumerate([4, 1, 3, 2]):
        with peers(settings, count, f"{tmp_path}{turn}") as loaders:
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            for step in expected[2 * turn : 2 * turn + 2]:
                for loader in loaders:
                    assert [next(loader).digest() for _ in step] == step
            states = [loader.state_dict() for loader in loaders]
            assert states == states[:1] * count
            state = states[-1]


def test_data_parallel_ranks_each_have_peers_of_their_own(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    for rank in range(2):
        expected = digests(settings, 3, dp_rank=rank, dp_size=2)
        with peers(settings, 2, str(tmp_path), dp_rank=rank, dp_size=2) as loaders:
            for step in expected:
                for loader in loaders:
                    assert [next(loader).digest() for _ in step] == step


def test_a_bad_sample_ends_the_run_of_all_peers_at_the_same_place(data: DataSet, tmp_path: Path) -> None:
    bad = good_data(tmp_path / "bad", 24, sizes=True)
    (bad.folder / "images" / "700.jpg").write_bytes(b"")
    (bad.folder / "images" / "701.jpg").write_bytes(b"")
    for n in range(24):
        for path in (bad.folder / "images").glob(f"{100 * n}.*"):
            if n in (7, 15):
                path.write_bytes(path.read_bytes()[:100])
    settings = settings_for(bad, tmp_path, shuffle="none", bad_samples={"policy": "stop"})

    with Loader(settings) as loader:
        alone = story(loader)
    assert alone[1] is not None
    assert alone[1].code.startswith("IMG_")
    with peers(settings, 3, str(tmp_path)) as loaders:
        for loader in loaders:
            got, error = story(loader)
            assert got == alone[0]
            assert (type(error), str(error)) == (type(alone[1]), str(alone[1]))
        assert [counted(loader) for loader in loaders] == [counted(loaders[0])] * 3


def test_a_model_that_cannot_be_opened_is_told_to_all(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, model=str(tmp_path / "absent"))
    with peers(settings, 2, str(tmp_path)) as loaders:
        for loader in loaders:
            with pytest.raises(stoker.InvalidArgumentError) as caught:
                next(loader)
            assert caught.value.code == "MODEL_FOLDER"


def test_other_settings_are_refused_by_name(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, outage_limit_s=0.3)
    other = settings.replace(seed=9)
    with (
        Loader(settings, topology=Topology(peer_count=2, job=str(tmp_path))) as leader,
        Loader(other, topology=Topology(peer_rank=1, peer_count=2, job=str(tmp_path))) as follower,
    ):
        with pytest.raises(stoker.InvalidArgumentError, match=r"`seed` is not the same on peer 1") as refused:
            next(follower)
        assert refused.value.code == "PEER_MISMATCH"
        with pytest.raises(stoker.UnavailableError, match=r"peers 1 of this rank have not come") as missed:
            next(leader)
        assert missed.value.code == "PEER_LOST"


def test_peers_that_resume_from_different_states_stop(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    with Loader(settings) as loader:
        list(zip(range(2), loader.steps(), strict=False))
        state = loader.state_dict()
    with peers(settings, 2, str(tmp_path)) as (leader, follower):
        follower.load_state_dict(state)
        errors: list[stoker.StokerError | None] = []
        trainer = threading.Thread(target=lambda: errors.append(story(leader)[1]))
        trainer.start()
        errors.append(story(follower)[1])
        trainer.join(20)
        assert [error and error.code for error in errors] == ["STATE"] * 2
        assert all("load the same state on every peer" in str(error) for error in errors)


def test_a_closed_leader_ends_the_others_after_what_was_ready(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    expected = [digest for step in digests(settings, 2) for digest in step]
    with peers(settings, 2, str(tmp_path)) as (leader, follower):
        assert [next(leader).digest() for _ in range(4)] == expected[:4]
        leader.close()
        got, error = story(follower)
        assert error is not None
        assert error.code == "PEER_LOST"
        assert "closed its loader" in str(error)
        assert got[:4] == expected[:4]


def test_loaders_of_the_same_settings_may_follow_each_other(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    expected = digests(settings, 1)[0]
    for _ in range(3):
        with peers(settings, 2, str(tmp_path)) as loaders:
            for loader in loaders:
                assert [next(loader).digest() for _ in expected] == expected


# --- what a trainer has at hand


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "dp-tp-cp-pp", "pp-dp-cp-tp"])
def test_ranks_are_placed_by_the_sizes_of_the_dimensions(order: str) -> None:
    size = {"tp": 2, "cp": 2, "dp": 3, "pp": 2}
    names = order.split("-")
    shape = [size[name] for name in reversed(names)]
    coordinates = np.stack(np.unravel_index(np.arange(24), shape), axis=1)[:, ::-1]  # (24, 4): fastest first
    for rank in range(24):
        made = Topology.from_sizes(world_size=24, tp=2, cp=2, pp=2, order=order, rank=rank, ranks_per_node=8)
        dp = coordinates[:, names.index("dp")]
        here = [r for r in range(24) if dp[r] == dp[rank] and r // 8 == rank // 8]
        in_all = 8 if len(here) < 8 else 0
        assert made == Topology(
            dp_rank=dp[rank], dp_size=3, peer_rank=here.index(rank), peer_count=len(here), peers_in_all=in_all
        )


def test_a_device_mesh_and_megatron_say_the_same() -> None:
    class Mesh:
        mesh_dim_names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        mesh = np.arange(32).reshape(2, 2, 2, 2, 2)

        def __init__(self, rank: int) -> None:
            self.get_rank = lambda: rank

    class ParallelState:
        def __init__(self, rank: int) -> None:
            self.get_data_parallel_rank = lambda: rank // 4 % 4

        get_tensor_model_parallel_world_size = get_context_parallel_world_size = staticmethod(lambda: 2)
        get_pipeline_model_parallel_world_size = staticmethod(lambda: 2)
        get_data_parallel_world_size = staticmethod(lambda: 4)

    for rank in range(32):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("LOCAL_WORLD_SIZE", "8")
            patch.setenv("LOCAL_RANK", str(rank % 8))
            made = Topology.from_torch(Mesh(rank))
            assert made == Topology.from_megatron(ParallelState(rank))
            assert made.dp_size == 4
            assert made.peer_count == 4


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Topology(dp_rank=2, dp_size=2), "dp_rank 2 is not in"),
        (lambda: Topology(peer_rank=1), "peer_rank 1 is not in"),
        (lambda: Topology(peer_count=4, peers_in_all=2), "peers_in_all 2 is less than"),
        (lambda: Topology.from_sizes(world_size=6, tp=4, rank=0), "no multiple of tp 4"),
        (lambda: Topology.from_sizes(world_size=8, order="tp-dp", rank=0), "must name tp, cp, dp and pp"),
        (lambda: Topology.from_sizes(world_size=8), "rank is None"),
        (lambda: Topology.from_sizes(world_size=8, rank=0), "ranks_per_node is not known"),
        (lambda: Topology(peer_count=2).resolved_job(), "topology.job"),
    ],
)
def test_what_is_not_known_is_asked_for(monkeypatch: pytest.MonkeyPatch, make: Any, sentence: str) -> None:
    for name in (
        "RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "SLURM_JOB_ID",
        "STOKER_JOB_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(stoker.InvalidArgumentError, match=sentence):
        make()


def test_the_one_that_prepares_has_the_shares_of_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.settings import resolve_speed

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    speed = stoker.Speed(memory_limit="8GiB")
    assert resolve_speed(speed, usable_cpus=64).cpu_threads == 8
    shared = resolve_speed(speed, usable_cpus=64, peers=4)
    assert (shared.cpu_threads, shared.memory_limit_bytes) == (32, 4 << 30)
