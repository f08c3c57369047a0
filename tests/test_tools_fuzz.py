"""tools/fuzz.py with stand-ins for the fuzz targets: what it counts, and what it says of a finding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "fuzz.py"
GOOD = """
touch "$1/found"
ls "$2"
echo '#100 NEW    cov: 12 ft: 20 corp: 3/30b'
echo '#200 pulse  cov: 34 ft: 40 corp: 4/40b'
echo 'stat::number_of_executed_units: 250'
"""
BAD = """
echo '==1==ERROR: AddressSanitizer: heap-buffer-overflow'
echo "artifact_prefix='x'; Test unit written to ${3#-artifact_prefix=}crash-abc"
exit 77
"""


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build folder with three targets, of which ``bad`` finds something and ``gone`` dies without a word."""
    fuzz = tmp_path / "build" / "fuzz"
    fuzz.mkdir(parents=True)
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    (seeds / "one").write_bytes(b"1")
    (tmp_path / "two.jpg").write_bytes(b"2")
    for name, body in (("good", GOOD), ("bad", BAD), ("gone", "exit 3")):
        program = fuzz / f"{name}_fuzz"
        program.write_text(f"#!/bin/bash\n{body}")
        program.chmod(0o755)
    (fuzz / "targets.txt").write_text(f"good\t{seeds}\t{tmp_path / 'two.jpg'}\nbad\ngone\t{seeds}\n")
    return fuzz.parent


def fuzz(build: Path, *arguments: str, seconds: str = "60") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--build", str(build), "--seconds", seconds, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_row_per_target_with_what_its_runs_counted(build: Path) -> None:
    done = fuzz(build, "good")
    assert done.returncode == 0
    header, row = done.stdout.splitlines()
    assert header.split() == ["target", "CPU", "s", "executions", "edges", "corpus", "finding"]
    assert row.split() == ["good", "0", "250", "34", "1", "none"]
    seen = (build / "logs" / "good.log").read_text().splitlines()
    assert seen[:2] == ["one", "two.jpg"], "seeds from folders and files"


def test_the_first_finding_ends_the_run_and_names_its_file(build: Path) -> None:
    done = fuzz(build, "bad", "good")
    assert done.returncode == 1
    assert f"{build}/findings/bad-crash-abc" in done.stdout
    assert "good" not in done.stdout
    done = fuzz(build, "bad", "good", "--keep-going")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("good")


def test_an_end_without_a_word_is_a_finding(build: Path) -> None:
    done = fuzz(build, "gone")
    assert done.returncode == 1
    assert "exit status 3, see" in done.stdout


def test_a_target_ends_when_its_cpu_time_is_used(build: Path) -> None:
    spin = "trap 'echo stat::number_of_executed_units: 7; exit 0' USR1\nwhile :; do :; done\n"
    (build / "fuzz" / "good_fuzz").write_text(f"#!/bin/bash\n{spin}")
    done = fuzz(build, "good", seconds="0.3")
    assert done.returncode == 0
    cpu_s, n_executions = done.stdout.splitlines()[1].split()[1:3]
    assert (cpu_s, n_executions) in [("0", "7"), ("1", "7")]


def test_an_unknown_target_is_told_which_there_are(build: Path) -> None:
    done = fuzz(build, "jpg")
    assert done.returncode == 2
    assert "no target is named jpg; there are good, bad, gone" in done.stderr
    assert fuzz(build.parent).stderr.endswith("cmake --preset fuzz && cmake --build --preset fuzz\n")
