"""The benchmark runner: what it writes, and that it fails when a bar is missed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_bench_run", ROOT / "bench" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _group(folder: Path, name: str, results: object) -> None:
    (folder / f"{name}.py").write_text(f"def run():\n    return {results!r}\n")


GOOD = {"name": "decode", "value": 123.456, "unit": "MP/s", "bar": None, "ok": True}
BAD = {"name": "ratio", "value": 0.5, "unit": "1", "bar": 0.6, "ok": False}


def test_every_group_runs_and_is_written(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _group(tmp_path, "first", [GOOD])
    _group(tmp_path, "second", [GOOD, GOOD])
    _group(tmp_path, "_shared", [])
    assert runner.main([], folder=tmp_path, out=tmp_path / "out") == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["first.json", "second.json"]
    written = json.loads((tmp_path / "out" / "first.json").read_text())
    assert written == {"group": "first", "results": [GOOD]}
    printed = capsys.readouterr().out
    assert [word for word in ("decode", "123.5", "MP/s") if word not in printed] == []


def test_one_group_runs_alone(runner: ModuleType, tmp_path: Path) -> None:
    _group(tmp_path, "first", [GOOD])
    _group(tmp_path, "second", [BAD])
    assert runner.main(["first"], folder=tmp_path, out=tmp_path / "out") == 0
    assert not (tmp_path / "out" / "second.json").exists()


def test_a_missed_bar_fails_but_is_written(runner: ModuleType, tmp_path: Path) -> None:
    _group(tmp_path, "first", [GOOD, BAD])
    assert runner.main([], folder=tmp_path, out=tmp_path / "out") == 1
    assert json.loads((tmp_path / "out" / "first.json").read_text())["results"][1] == BAD


def test_an_unknown_group_is_refused(runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _group(tmp_path, "first", [GOOD])
    assert runner.main(["frist"], folder=tmp_path, out=tmp_path / "out") == 2
    assert "there are: first" in capsys.readouterr().err


@pytest.mark.parametrize("results", [[], [{"name": "x"}], [{**GOOD, "ok": 1}], [{**GOOD, "more": 1}]])
def test_a_group_that_reports_nonsense_is_an_error(runner: ModuleType, tmp_path: Path, results: object) -> None:
    _group(tmp_path, "first", results)
    with pytest.raises(ValueError, match="group first"):
        runner.main([], folder=tmp_path, out=tmp_path / "out")


def test_every_group_of_the_tree_can_be_imported(runner: ModuleType) -> None:
    for name, path in runner.groups().items():
        assert callable(runner.load(name, path)), name
