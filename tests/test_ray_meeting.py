"""How the processes of a run find each other: names that are one run's, one attempt's, one loader's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import stoker
from stoker import Settings, Topology
from stoker.topology import _JOB_VARIABLES

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")

from stoker.ray import meeting  # noqa: E402


def settings(**changes: Any) -> Settings:
    values = {
        "data": [{"manifest": "/mnt/a/train.jsonl"}],
        "model": "/mnt/a/Qwen3-VL-8B",
        "ray": "auto",
        "storage": {"secret_access_key": "sesame-open", "access_key_id": "AKIA1"},
    }
    return Settings.from_dict({**values, **changes})


class Job:
    """What Ray says of this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for name in _JOB_VARIABLES:
            patch.delenv(name, raising=False)
        self.group: str | None = None
        self._patch = patch
        patch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_placement_group_id=lambda: self.group))
        self.restart()

    def restart(self) -> None:
        """A new process."""
        self._patch.setattr(meeting, "_made", type(meeting._made)())

    def name(self, made: Settings | None = None, topology: Topology | None = None) -> str:
        return meeting.coordinator_name(made or settings(), topology or Topology(dp_size=2))


@pytest.fixture
def job() -> Iterator[Job]:
    with pytest.MonkeyPatch.context() as patch:
        yield Job(patch)


def test_a_name_is_the_same_in_all_ranks_and_another_for_each_loader_and_attempt(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    first = [job.name() for _ in range(3)]
    assert len(set(first)) == 3, "three loaders"
    assert [job.name(topology=Topology(dp_rank=1, dp_size=2)) for _ in range(3)] == first, "another rank"
    assert job.name(settings(seed=4)) not in first, "an evaluation beside the training"
    job.restart()
    assert job.name(settings(seed=4)) == first[0], "other settings are no other run: what differs is to be told"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    job.restart()
    again = job.name()
    assert again not in first, "the next attempt"
    assert all(name.startswith("stoker-") for name in [*first, again])


def test_an_attempt_of_ray_train_is_told_by_its_placement_group(job: Job) -> None:
    job.group = "aa"
    first = job.name(settings(ray={"run": "qwen"}))
    job.restart()
    job.group = "bb"
    second = job.name(settings(ray={"run": "qwen"}))
    assert first != second
    assert first.startswith("stoker-qwen-")


def test_ranks_that_nothing_names_are_refused_and_a_rank_alone_is_not(job: Job) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match=r"ray\.run: the ranks find each other"):
        job.name()
    alone = [job.name(topology=Topology()) for _ in range(2)]
    assert len(set(alone)) == 2
    with pytest.raises(stoker.InvalidArgumentError, match=r"ray\.run"):
        job.name(topology=Topology(peers_in_all=8))
    assert job.name(topology=Topology(dp_size=2, job="mine")).startswith("stoker-mine-")


def test_settings_are_compared_by_what_comes_out_whatever_folder_they_lie_in() -> None:
    here = meeting.settings_hash(settings())
    there = meeting.settings_hash(
        settings(
            data=[{"manifest": "/scratch/train.jsonl"}],
            model="/local/Qwen3-VL-8B/",
            speed={"cpu_threads": 3},
            storage={"secret_access_key": "other"},
            ray={"address": "1.2.3.4:6379", "workers": 3},
        )
    )
    assert here == there
    other = meeting.settings_hash(settings(seed=1, data=[{"manifest": "/mnt/a/eval.jsonl"}]))
    assert {name for name in here if here[name] != other[name]} == {"seed", "data"}
    assert not any("sesame" in text for text in here.values())


def test_no_cluster_is_an_error_that_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # as Ray does before it connects
        raise ConnectionError("Could not find any running Ray instance.\nmore")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(stoker.UnavailableError, match="ray start --head") as raised:
        meeting.connect("auto")
    assert raised.value.code == "RAY"
    assert "Could not find any running Ray instance." in str(raised.value)
    assert signal.getsignal(signal.SIGTERM) is before
    assert os.environ.get("RAY_ADDRESS") is None


def test_the_hash_covers_every_setting_that_decides_what_comes_out() -> None:
    """Those of the fingerprint come first in `Settings`; the rest begins with `bad_samples`."""
    names = list(Settings.__dataclass_fields__)
    assert list(meeting._DECIDING) == names[: names.index("bad_samples")]
