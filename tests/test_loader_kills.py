"""Killed with SIGKILL at any moment and started again, a run gives the batches of the run that was never killed."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, settings_for
from stoker import Settings

SCRIPT = Path(__file__).with_name("killed_run.py")
N_STEPS = 12
MOMENTS = ("opening", "opened", "step", "writing")


@pytest.fixture(scope="module")
def run_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A packed manifest of 20,000 rows, so that an index takes a while to build; two of the pictures are bad."""
    folder = tmp_path_factory.mktemp("kills")
    data = DataSet(folder / "data")
    names = [data.good_image(seed) for seed in range(10)]
    names += [data.image("page.jpg", b"<html>"), "absent.jpg"]
    for n in range(20_000):
        if n % 3 == 0:
            data.chat(n, [names[n // 3 % len(names)]], answer=f"Number {n}.")
        else:
            data.chat(n, [], answer="word " * (n % 50 + 1))
    manifest = folder / "data" / "rows.jsonl.gz"
    manifest.write_bytes(gzip.compress(b"\n".join(data.lines) + b"\n", compresslevel=1))
    return settings_for(str(manifest), folder, bad_samples={"max_fraction": 1.0}, index_dir=str(folder / "index"))


class Life:
    """One process, from its start to its end or its killing."""

    def __init__(self, settings: Settings, folder: Path, dp_size: int) -> None:
        command = [sys.executable, str(SCRIPT), json.dumps(settings.to_dict(hide_secrets=False))]
        command += [str(folder), str(N_STEPS), str(dp_size)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self) -> None:
        said, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said

    def kill_at(self, moment: str, after_s: float) -> bool:
        """Kills some time after a line that begins with `moment`; False if the run had ended before."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line.startswith(moment):
                break
        time.sleep(after_s)  # no wait for anything: it spreads the kills
        self.process.send_signal(signal.SIGKILL)
        rest, _ = self.process.communicate(timeout=60)
        if self.process.returncode == 0:
            return False
        assert self.process.returncode == -signal.SIGKILL, "".join(said) + rest
        return True


def logged(folder: Path) -> dict[int, list[str]]:
    """Digests by step; steps that came twice must be equal. A line that a kill cut off does not count."""
    steps: dict[int, list[str]] = {}
    for line in (folder / "log.jsonl").read_text().splitlines():
        try:
            # A life's first line may stand behind the torn last one of the life before.
            record: dict[str, Any] = json.loads(line[line.rindex('{"step"') :])
        except ValueError:
            continue
        assert steps.setdefault(record["step"], record["digests"]) == record["digests"], f"step {record['step']}"
    return steps


@pytest.fixture(scope="module")
def never_killed(run_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    folder = tmp_path_factory.mktemp("never_killed")
    Life(run_settings, folder, 1).finish()
    steps = logged(folder)
    assert sorted(steps) == list(range(N_STEPS))
    return steps


def check_killed(settings: Settings, folder: Path, wanted: dict[int, list[str]], seed: int, n_kills: int) -> None:
    """Runs from the start, is killed at random moments, and ends when `n_kills` processes have died."""
    rng = random.Random(seed)
    n_died = 0
    while n_died < n_kills:
        index = Path(settings.index_dir)
        if rng.random() < 0.3:  # so that kills meet an index that is being built
            shutil.rmtree(index, ignore_errors=True)
        life = Life(settings, folder, rng.choice([1, 2, 4]))
        moment = rng.choice(MOMENTS)
        n_died += life.kill_at(moment, rng.random() * (0.3 if moment.startswith("open") else 0.05))
        steps = logged(folder) if (folder / "log.jsonl").exists() else {}
        assert steps == {step: wanted[step] for step in sorted(steps)}, f"seed {seed}, kill {n_died} at {moment}"
        if len(steps) == N_STEPS:
            (folder / "state.json").unlink(missing_ok=True)  # it came to its end: once more from the beginning
    Life(settings, folder, 1).finish()
    assert logged(folder) == wanted


def test_killed_at_any_moment_the_batches_are_the_same(
    run_settings: Settings, tmp_path: Path, never_killed: dict[int, list[str]]
) -> None:
    check_killed(run_settings, tmp_path, never_killed, seed=1, n_kills=5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_kills(run_settings: Settings, tmp_path: Path, never_killed: dict[int, list[str]], seed: int) -> None:
    check_killed(run_settings, tmp_path, never_killed, seed=100 + seed, n_kills=10)
