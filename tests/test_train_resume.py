"""The example that trains: killed at a random step and resumed, it goes on with the losses of the run that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from golden_samples import MODEL, ROOT
from PIL import Image

EXAMPLE = ROOT / "examples" / "train_tiny.py"
N_STEPS = 12
SAVE_EVERY = 3


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen rows with a small picture or none, and few words to learn, so that a step is quick."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(8)
    rows: list[dict[str, Any]] = []
    for i in range(16):
        answer = {"from": "gpt", "value": f"Number {i}."}
        if i % 4 == 3:
            rows.append({"conversations": [{"from": "human", "value": f"What is row {i}?"}, answer]})
            continue
        height, width = (int(side) for side in rng.integers(100, 300, 2))
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{i}.jpg")
        rows.append({"image": f"{i}.jpg", "conversations": [{"from": "human", "value": "<image>\nWhich?"}, answer]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {
        "data": [{"manifest": "rows.jsonl"}],
        "model": str(MODEL),
        "seed": 4,
        "window_samples": 24,  # so that kills fall into several windows
        "pack": {"tokens_per_pack": 256, "packs_per_step": 2},
        "index_dir": "index",
        "speed": {"prefetch_steps": 2, "memory_limit": "256MiB"},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


class Run:
    """One process of the example."""

    def __init__(self, settings_file: Path, folder: Path, *options: str) -> None:
        self.folder = folder
        command = [sys.executable, str(EXAMPLE), "--settings", str(settings_file), "--steps", str(N_STEPS)]
        command += ["--checkpoint-dir", str(folder), "--save-every", str(SAVE_EVERY)]
        command += ["--log", str(folder / "log.jsonl")]
        folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
        )

    def finish(self) -> str:
        said, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, said
        return said

    def kill_when_step_is_told(self, step: int) -> None:
        """With SIGKILL. A step's line comes before its checkpoint, so kills fall into saving, too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.split()[:2] == ["step", str(step)]:
                break
        else:
            raise AssertionError(f"step {step} never came")
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)
        assert self.process.returncode == -signal.SIGKILL


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(settings_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that is never killed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    said = Run(settings_file, folder).finish()
    assert "wait ratio" in said
    log = records(folder)
    assert [record["step"] for record in log] == list(range(1, N_STEPS + 1))
    losses = [record["loss"] for record in log]
    assert losses[-1] < losses[0] - 0.5, "it does not learn, so equal losses would say little"
    assert len(set(losses)) == N_STEPS
    return losses


def check_a_killed_run(settings_file: Path, folder: Path, losses: list[float], steps: list[int]) -> None:
    """Kills at each of `steps`, resuming each time, then runs to the end."""
    for i, step in enumerate(steps):
        Run(settings_file, folder, *(["--resume"] if i else [])).kill_when_step_is_told(step)
    n_before = len(records(folder))
    saved = sorted(path.stem for path in folder.glob("step-*.pt"))
    Run(settings_file, folder, "--resume").finish()
    log = records(folder)
    first = log[n_before]["step"]
    assert first == (int(saved[-1].removeprefix("step-")) + 1 if saved else 1), "resumed from the newest checkpoint"
    assert first <= steps[-1] + 1, "no step was left out"
    assert [record["step"] for record in log[n_before:]] == list(range(first, N_STEPS + 1))
    for record in log:
        assert record["loss"] == losses[record["step"] - 1], f"step {record['step']}, killed at {steps}"


@pytest.mark.parametrize("step", [2, 7])
def test_killed_and_resumed_it_has_the_same_losses(
    settings_file: Path, tmp_path: Path, uninterrupted: list[float], step: int
) -> None:
    """Before the first checkpoint, which means from the start, and between two."""
    check_a_killed_run(settings_file, tmp_path, uninterrupted, [step])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_steps(settings_file: Path, tmp_path: Path, uninterrupted: list[float], seed: int) -> None:
    step = random.Random(seed).randint(1, N_STEPS - 1)
    print(f"killed at step {step}")
    check_a_killed_run(settings_file, tmp_path, uninterrupted, [step])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_again_and_again(settings_file: Path, tmp_path: Path, uninterrupted: list[float]) -> None:
    check_a_killed_run(settings_file, tmp_path, uninterrupted, [1, 5, 8, 11])


def test_a_state_of_other_settings_is_refused(settings_file: Path, tmp_path: Path, uninterrupted: list[float]) -> None:
    """A resume that would give other batches ends with a sentence that names the setting."""
    Run(settings_file, tmp_path).kill_when_step_is_told(SAVE_EVERY + 1)
    values = yaml.safe_load(settings_file.read_text())
    other = settings_file.with_name("other.yaml")
    other.write_text(yaml.safe_dump({**values, "seed": 5}))
    run = Run(other, tmp_path, "--resume")
    said, _ = run.process.communicate(timeout=240)
    assert run.process.returncode != 0
    assert "STATE" in said
    assert "`seed`" in said
