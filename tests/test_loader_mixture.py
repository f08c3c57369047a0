"""Mixtures: what each entry gives to an epoch, as a trainer sees it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, settings_for
from stoker import InvalidArgumentError, Loader, Settings

N_ROWS = {"few": 6, "many": 30}


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    made = {}
    for name, n_rows in N_ROWS.items():
        data = DataSet(folder / name)
        for n in range(n_rows):
            data.chat(n, [], answer=f"{name} {n}: " + "word " * (n % 7))
        made[name] = str(data.write().manifest)
    return made


def mixture(manifests: dict[str, str], tmp_path: Path, shares: dict[str, dict[str, Any]], **more: Any) -> Settings:
    data = [{"manifest": manifests[name], **share} for name, share in shares.items()]
    return settings_for("unused.jsonl", tmp_path).replace(data=data, **more)


def visits(settings: Settings) -> Counter[tuple[str, int]]:
    """How often each row came, by the folder of its manifest and its line."""
    seen: Counter[tuple[str, int]] = Counter()
    with Loader(settings) as loader:
        for batch in loader:
            for sample_id in batch.layout.sample_ids.tolist():
                if sample_id >= 0:
                    where = loader.describe(sample_id)
                    seen[Path(where.manifest).parent.name, where.line] += 1
    return seen


@pytest.mark.parametrize(
    ("few", "many", "n_few", "n_many"),
    [
        ({}, {}, 6, 30),
        ({"repeat": 2.5}, {"repeat": 0.1}, 15, 3),
        ({"samples": 20}, {}, 20, 30),
        ({"weight": 1}, {"weight": 1}, 18, 18),
        ({"weight": 0.3}, {"weight": 0.1}, 27, 9),
    ],
)
@pytest.mark.parametrize("shuffle", ["rows", "none"])
def test_every_epoch_has_its_part_of_each_entry(
    manifests: dict[str, str],
    tmp_path: Path,
    few: dict[str, Any],
    many: dict[str, Any],
    n_few: int,
    n_many: int,
    shuffle: str,
) -> None:
    for epochs in (1, 4):
        settings = mixture(manifests, tmp_path, {"few": few, "many": many}, epochs=epochs, shuffle=shuffle)
        seen = visits(settings)
        for name, n in (("few", n_few), ("many", n_many)):
            of_rows = [seen[name, line] for line in range(1, N_ROWS[name] + 1)]
            assert sum(of_rows) == n * epochs
            assert max(of_rows) - min(of_rows) <= 1, "some rows come more often than others"


def test_a_mixture_resumes_from_every_step_and_not_into_another(manifests: dict[str, str], tmp_path: Path) -> None:
    settings = mixture(manifests, tmp_path, {"few": {"weight": 2}, "many": {"weight": 1}}, window_samples=10)
    n_steps = 12  # several epochs
    with Loader(settings) as loader:
        states, whole = [], []
        for step in loader.steps():
            whole.append([batch.digest() for batch in step])
            states.append(loader.state_dict())
            if len(whole) == n_steps:
                break
    assert whole == digests(settings, n_steps)
    for n in (1, 5, 8):
        with Loader(settings) as loader:
            loader.load_state_dict(states[n - 1])
            steps = loader.steps()
            assert [[batch.digest() for batch in next(steps)] for _ in range(n_steps - n)] == whole[n:]
    other = mixture(manifests, tmp_path, {"few": {"weight": 3}, "many": {"weight": 1}}, window_samples=10)
    with Loader(other) as loader, pytest.raises(InvalidArgumentError, match="another `mixture`"):
        loader.load_state_dict(states[3])


def test_an_entry_without_rows_cannot_give_any(manifests: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    data = [{"manifest": manifests["few"]}, {"manifest": str(empty), "samples": 3}]
    with (
        Loader(settings_for("unused.jsonl", tmp_path).replace(data=data)) as loader,
        pytest.raises(Exception, match=r"data\[1\]"),
    ):
        next(loader)


def test_a_mixture_by_parts_of_a_pattern(manifests: dict[str, str], tmp_path: Path) -> None:
    """The files of a pattern are one entry."""
    pattern = str(Path(manifests["few"]).parent.parent / "*" / "rows.jsonl")
    seen = visits(settings_for("unused.jsonl", tmp_path).replace(data=[{"manifest": pattern, "repeat": 0.5}], epochs=2))
    assert sum(seen.values()) == 36
    assert set(seen.values()) == {1}


def test_weights_are_for_all_entries_or_none(manifests: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="all entries a weight or none"):
        mixture(manifests, tmp_path, {"few": {"weight": 2}, "many": {}})
