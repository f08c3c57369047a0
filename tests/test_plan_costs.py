"""Costs fitted from step times, and what a file of them changes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import DataSet, good_data, settings_for
from stoker import InvalidArgumentError, Loader
from stoker.costs import Costs, fit_costs, read_costs, read_records, work_of

TRUE = Costs(
    language_per_token=118_000_000, language_per_token_pair=2_300, vision_per_patch=7_100_000, vision_per_patch_pair=940
)


def steps(n: int, *, noise: float = 0.0, seed: int = 1) -> list[dict[str, Any]]:
    """Steps of a trainer with the costs above, 0.03 s apart from what a step holds."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        lengths = rng.integers(50, 8000, rng.integers(2, 30))
        images = rng.integers(64, 12000, rng.integers(0, 20))
        work = [lengths.sum(), (lengths**2).sum(), images.sum(), (images**2).sum()]
        seconds = 0.03 + float(np.dot(np.array(TRUE.coefficients, dtype=np.float64), work)) / 1e12
        names = ("tokens", "tokens_squared", "patches", "patches_squared")
        made.append({**dict(zip(names, map(int, work), strict=True)), "seconds": seconds * (1 + noise * rng.normal())})
    return made


def test_synthetic_times_give_the_costs_back() -> None:
    exact = fit_costs(steps(100))
    assert exact.costs.coefficients == pytest.approx(TRUE.coefficients, rel=1e-4)
    assert exact.per_step_s == pytest.approx(0.03, rel=1e-3)
    assert exact.mean_error < 1e-6
    noisy = fit_costs(steps(2000, noise=0.03))
    assert noisy.costs.coefficients == pytest.approx(TRUE.coefficients, rel=0.1)
    assert 0.01 < noisy.mean_error < 0.04


def test_no_cost_is_negative() -> None:
    records = steps(200, noise=0.02)
    for record in records:  # attention for nothing, and more than that
        record["seconds"] -= 3e-9 * record["tokens_squared"]
    found = fit_costs([record for record in records if record["seconds"] > 0])
    assert found.costs.language_per_token_pair == 0
    assert min(found.costs.coefficients) >= 0


def test_steps_that_say_too_little_are_refused() -> None:
    for records in ([], steps(5), steps(1) * 50):
        with pytest.raises(InvalidArgumentError, match="do not tell"):
            fit_costs(records)
    with pytest.raises(InvalidArgumentError, match="record 1: seconds must"):
        fit_costs([*steps(1), {**steps(1)[0], "seconds": -1}])


def test_the_command_writes_what_the_settings_take(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps(record) + "\n" for record in steps(60)))
    command = [sys.executable, "-m", "stoker", "fit-costs", str(records), "--output", str(tmp_path / "costs.json")]
    shown = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    said = json.loads(shown.stdout)
    assert said["n_steps"] == 60
    assert read_costs(tmp_path / "costs.json").language_per_token == said["language_per_token"]
    records.write_text("{}\n")
    wrong = subprocess.run(command, check=False, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "line 1: tokens must be a number" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("[]", "expected an object"),
        ('{"language_per_token": 1}', "expected an object"),
        (json.dumps({**dict.fromkeys(TRUE.__slots__[:4], 1), "unit": "hours"}), "unit: ps or kflop"),
        (json.dumps(dict.fromkeys(TRUE.__slots__[:4], 0)), "language_per_token must be"),
    ],
)
def test_a_damaged_cost_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read_costs(file)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("data"), 24)


def test_a_cost_file_decides_the_plan_and_stands_in_the_fingerprint(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=1)
    file = tmp_path / "costs.json"
    with Loader(settings) as loader:
        plain = loader.state_dict()
        step = next(loader.steps())
    work = work_of(step)
    assert work["tokens"] == sum(batch.counts.tokens for batch in step)
    assert work["patches"] == sum(batch.counts.patches for batch in step)

    TRUE.write(file)
    priced = settings.replace(pack={"cost_file": str(file)})
    with Loader(priced) as loader:
        state = loader.state_dict()
        with pytest.raises(InvalidArgumentError, match="`cost`"):
            loader.load_state_dict(plain)
        for batch in next(loader.steps()):
            work = work_of([batch])
            assert batch.counts.cost == np.dot(TRUE.coefficients, list(work.values()))
    dataclasses.replace(TRUE, vision_per_patch=1).write(file)
    with Loader(priced) as loader, pytest.raises(InvalidArgumentError, match="`cost`"):
        loader.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="missing"), Loader(settings.replace(pack={"cost_file": "missing"})):
        pass


def test_bad_lines_of_records_are_named(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"tokens": 1}\n')
    with pytest.raises(InvalidArgumentError, match="line 1: tokens_squared"):
        read_records(tmp_path / "r.jsonl")
