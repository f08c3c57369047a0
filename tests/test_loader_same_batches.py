"""The same batches whatever runs them: threads, prefetch, storage, ranks, and every place to resume from."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, good_data, settings_for, taken
from stoker import InvalidArgumentError, Loader, Settings
from stoker.testing import Behaviour, Latency, StorageServer

N_STEPS = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Forty rows."""
    return good_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tiny(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings for them."""
    return settings_for(data, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def expected(tiny: Settings) -> list[list[str]]:
    """Digests of the first steps, one thread, one request at a time, nothing ahead."""
    plain = {"cpu_threads": 1, "fetch_concurrency": 1, "prefetch_steps": 0}
    found = digests(tiny.replace(speed=plain), N_STEPS)
    assert len({d for step in found for d in step}) == N_STEPS * 4, "the steps do not differ: the comparison is empty"
    return found


@pytest.mark.parametrize("cpu_threads", [1, 2, 8])
@pytest.mark.parametrize("prefetch_steps", [0, 1, 8])
def test_threads_and_prefetch_change_no_batch(
    tiny: Settings, expected: list[list[str]], cpu_threads: int, prefetch_steps: int
) -> None:
    assert (
        digests(tiny.replace(speed={"cpu_threads": cpu_threads, "prefetch_steps": prefetch_steps}), N_STEPS) == expected
    )


@pytest.mark.parametrize("changes", [{"fetch_concurrency": 1}, {"fetch_concurrency": 200, "fetch_threads": 3}])
def test_concurrency_of_reads_changes_no_batch(
    tiny: Settings, expected: list[list[str]], changes: dict[str, Any]
) -> None:
    assert digests(tiny.replace(speed=changes), N_STEPS) == expected


@pytest.mark.parametrize("limit", ["17MiB", "2GiB"])
def test_memory_changes_no_batch(tiny: Settings, expected: list[list[str]], limit: str) -> None:
    assert digests(tiny.replace(speed={"memory_limit": limit, "prefetch_steps": 8}), N_STEPS) == expected


@pytest.mark.parametrize("concurrency", [1, 64])
def test_storage_changes_no_batch(
    data: DataSet, tiny: Settings, expected: list[list[str]], tmp_path: Path, concurrency: int
) -> None:
    latency = Latency(median_s=0.003, sigma=1.0, tails=((0.05, 0.02, 0.08),))
    with StorageServer(behaviour=Behaviour(latency=latency, seed=5)) as server:
        server.put_folder("bucket", data.folder, prefix="some/where/")
        remote = tiny.replace(
            data=[{"manifest": "s3://bucket/some/where/rows.jsonl"}],
            storage=server.settings(),
            index_dir=str(tmp_path),
            speed={"fetch_concurrency": concurrency, "fetch_threads": 2},
        )
        assert digests(remote, N_STEPS) == expected


@pytest.mark.parametrize("dp_size", [2, 4])
def test_ranks_share_the_packs_of_a_step(tiny: Settings, expected: list[list[str]], dp_size: int) -> None:
    ranks = [digests(tiny, N_STEPS, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    for step, whole in enumerate(expected):
        shares = [ranks[rank][step] for rank in range(dp_size)]
        assert [len(share) for share in shares] == [4 // dp_size] * dp_size
        assert sorted(d for share in shares for d in share) == sorted(whole), f"step {step}"


def states_and_digests(settings: Settings, n_steps: int) -> list[tuple[dict[str, Any], list[str]]]:
    with Loader(settings) as loader:
        out = []
        steps = loader.steps()
        for _ in range(n_steps):
            state = loader.state_dict()
            out.append((state, [batch.digest() for batch in next(steps)]))
        return out


def resumed(settings: Settings, state: dict[str, Any], n_steps: int, **rank: Any) -> list[list[str]]:
    with Loader(settings, **rank) as loader:
        loader.load_state_dict(state)
        steps = loader.steps()
        return [[batch.digest() for batch in next(steps)] for _ in range(n_steps)]


def test_resume_from_every_step_gives_the_same_tail(tiny: Settings) -> None:
    steps = states_and_digests(tiny, 12)  # over several windows
    assert len({state["window"] for state, _ in steps}) > 2
    for i, (state, _) in enumerate(steps):
        through_json = json.loads(json.dumps(state))
        assert through_json == state
        assert len(json.dumps(state)) < 600
        tail = [found for _, found in steps[i : i + 3]]
        assert resumed(tiny, through_json, len(tail)) == tail, f"differs when resumed at step {i}"


def test_resume_with_other_ranks(tiny: Settings) -> None:
    steps = states_and_digests(tiny, 5)
    state = steps[2][0]
    ranks = [resumed(tiny, state, 2, dp_rank=rank, dp_size=2) for rank in range(2)]
    for i, (_, whole) in enumerate(steps[3 - 1 : 5 - 1]):
        assert sorted(ranks[0][i] + ranks[1][i]) == sorted(whole)


def test_ranks_have_the_same_state(tiny: Settings) -> None:
    states = []
    for rank in range(2):
        with Loader(tiny, dp_rank=rank, dp_size=2) as loader:
            steps = loader.steps()
            for _ in range(3):
                next(steps)
            states.append(loader.state_dict())
    assert states[0] == states[1]


def test_a_state_counts_what_was_delivered_not_what_is_ready(tiny: Settings) -> None:
    with Loader(tiny.replace(speed={"prefetch_steps": 8})) as loader:
        start = loader.state_dict()
        taken(loader, 4)
        assert loader.state_dict()["step"] == 1
        assert start["step"] == 0


def test_a_state_inside_a_step_warns_and_names_its_start(tiny: Settings, expected: list[list[str]]) -> None:
    with Loader(tiny) as loader:
        taken(loader, 4)
        whole = loader.state_dict()
        taken(loader, 1)
        with pytest.warns(UserWarning, match="inside a step"):
            inside = loader.state_dict()
        assert inside == whole
        taken(loader, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert loader.state_dict()["step"] == 2
    assert resumed(tiny, inside, 1) == [expected[1]]


def test_state_for_gives_earlier_steps(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        start = loader.state_dict()
        states = [start]
        steps = loader.steps()
        for _ in range(5):
            next(steps)
            states.append(loader.state_dict())
        assert [loader.state_for(steps=k) for k in range(6)] == states
        with pytest.raises(InvalidArgumentError, match="step 6") as error:
            loader.state_for(steps=6)
        assert error.value.code == "STATE"
    with Loader(tiny) as loader:
        loader.load_state_dict(states[3])
        taken(loader, 8)
        assert loader.state_for(steps=3) == states[3]
        assert loader.state_for(steps=5) == states[5]


def test_a_state_cannot_be_loaded_once_batches_were_taken(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        state = loader.state_dict()
        taken(loader, 1)
        with pytest.raises(InvalidArgumentError, match="has begun") as error:
            loader.load_state_dict(state)
        assert error.value.code == "STATE"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": 4}, "seed"),
        ({"shuffle": "none"}, "shuffle"),
        ({"epochs": 2}, "epochs"),
        ({"window_samples": 17}, "window_samples"),
        ({"pack": {"tokens_per_pack": 400}}, "pack"),
        ({"media": {"exif": "ignore"}}, "media"),
        ({"media": {"sizes": "ignore"}}, "media"),
    ],
)
def test_a_changed_setting_is_named(tiny: Settings, changes: dict[str, Any], name: str) -> None:
    with Loader(tiny) as loader:
        state = loader.state_dict()
    with Loader(tiny.replace(**changes)) as loader:
        with pytest.raises(InvalidArgumentError, match=f"`{name}`") as error:
            loader.load_state_dict(state)
        assert error.value.code == "STATE"


def test_changed_data_is_named(tiny: Settings, tmp_path: Path) -> None:
    with Loader(tiny) as loader:
        state = loader.state_dict()
    other = good_data(tmp_path / "other", 40, seed=2)
    with (
        Loader(settings_for(other, tmp_path)) as loader,
        pytest.raises(InvalidArgumentError, match="`data`"),
    ):
        loader.load_state_dict(state)


def test_speed_is_no_part_of_a_state(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        state = loader.state_dict()
    changed = tiny.replace(speed={"cpu_threads": 1}, outage_limit_s=7.0, bad_samples={"max_fraction": 0.5})
    with Loader(changed) as loader:
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "broken",
    [
        {"version": 2},
        {"version": "x"},
        {"step": -1},
        {"window": 2**70},
        {"packs_delivered": None},
        {"fingerprint": "nonsense"},
        {"window_digest": 5},
    ],
)
def test_a_broken_state_is_refused(tiny: Settings, broken: dict[str, Any]) -> None:
    with Loader(tiny) as loader:
        state = {**loader.state_dict(), **broken}
        with pytest.raises(InvalidArgumentError) as error:
            loader.load_state_dict(state)
        assert error.value.code == "STATE"
        with pytest.raises(InvalidArgumentError, match="`step` is missing"):
            loader.load_state_dict({key: value for key, value in state.items() if key != "step"})


def test_a_state_of_another_plan_is_refused_when_it_is_applied(tiny: Settings) -> None:
    with Loader(tiny) as loader:
        taken(loader, 8)
        state = loader.state_dict()
    with Loader(tiny) as loader:
        loader.load_state_dict({**state, "window_digest": "0" * 32})
        with pytest.raises(InvalidArgumentError) as error:
            next(loader)
        assert error.value.code == "STATE"
        with pytest.raises(InvalidArgumentError):
            next(loader)
