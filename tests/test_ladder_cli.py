"""The commands `stoker demo` and `stoker ladder`, as they are called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stoker.testing.processes import left_in_group

# Small, so that a test takes seconds: one GPU per rank, few samples.
SMALL = ["--samples", "48", "--gpus-per-rank", "1", "--steps", "2"]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        **options,
    )


def run(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors


@pytest.mark.parametrize(
    ("arguments", "taught"),
    [
        (["--help"], ["demo", "ladder", "needs no GPU"]),
        (["demo", "--help"], ["--json", "--rungs", "python-serial", "wait", "digest"]),
        (["ladder", "--help"], ["--json", "run.yaml", "--gpus-per-rank"]),
    ],
)
def test_help_teaches(arguments: list[str], taught: list[str]) -> None:
    code, output, _ = run(*arguments)
    assert code == 0
    for word in taught:
        assert word in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--rungs", "sideways"], "python-serial, serial, concurrent, prefetch"),
        (["ladder", "/nowhere/run.yaml"], "run.yaml"),
        (["demo", "--steps", "0"], "steps"),
    ],
)
def test_mistakes_are_said_in_a_line_or_two(arguments: list[str], said: str, tmp_path: Path) -> None:
    extra = ["--folder", str(tmp_path)] if arguments[0] == "demo" else []
    code, output, errors = run(*arguments, *extra)
    assert code != 0
    assert output == ""
    assert said in errors.replace("\n", " ")
    assert "Traceback" not in errors


def test_the_demo_prints_one_json_object(tmp_path: Path) -> None:
    code, output, errors = run(
        "demo", "--json", "--folder", str(tmp_path), "--rungs", "serial,concurrent,prefetch", *SMALL
    )
    assert code == 0, errors
    found = json.loads(output)
    assert [rung["name"] for rung in found["rungs"]] == ["serial", "concurrent", "prefetch"]
    assert len({rung["digest"] for rung in found["rungs"]}) == 1
    assert found["digests_agree"] is True
    for name in ("ladder.json", "ladder.html", "ladder.svg"):
        assert (tmp_path / name).is_file()
    assert json.loads((tmp_path / "ladder.json").read_text()) == found
    assert "prefetch: step 2/2" in errors


def test_the_ladder_takes_a_runs_own_settings(tmp_path: Path) -> None:
    from stoker.demo import find_testdata, make_dataset

    dataset = make_dataset(tmp_path, n_samples=24)
    settings = tmp_path / "run.yaml"
    settings.write_text(
        f"data: [{{manifest: {dataset.manifest.relative_to(tmp_path)}}}]\n"  # from the file's folder, as documented
        f"model: {find_testdata() / 'qwen3-vl'}\n"
        "pack: {tokens_per_pack: 16384, packs_per_step: 4}\n"
    )
    arguments = ["--json", "--rungs", "python-serial,prefetch", "--gpus-per-rank", "2", "--steps", "1"]
    code, output, errors = run("ladder", str(settings), *arguments, "--output", str(tmp_path / "out"))
    assert code == 0, errors
    serial, prefetch = json.loads(output)["rungs"]
    assert serial["samples_per_step"] == pytest.approx(prefetch["samples_per_step"], abs=0.5)
    assert serial["tokens_per_s"] < prefetch["tokens_per_s"]
    assert (tmp_path / "out" / "ladder.html").is_file()

    settings.write_text(settings.read_text().replace("packs_per_step", "packs_per_stepp"))
    code, output, errors = run("ladder", str(settings), *arguments)
    assert (code, output) == (1, "")
    assert "did you mean `pack.packs_per_step`" in errors.replace("\n", " ")
    assert "Traceback" not in errors


@pytest.mark.parametrize("moment", ["putting objects", "serial: step 0"])
def test_an_interrupt_ends_everything_soon(tmp_path: Path, moment: str) -> None:
    process = start("demo", "--folder", str(tmp_path), "--rungs", "serial,prefetch", *SMALL)
    assert process.stdout is not None
    while moment not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    interrupted_at = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - interrupted_at < 5
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert left_in_group(process.pid) == []
