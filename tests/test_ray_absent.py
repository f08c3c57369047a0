"""Stoker where Ray is not installed: all there but for `ray:`, and no slower to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from loader_data import digests, good_data, settings_for

ROOT = Path(__file__).resolve().parent.parent

WITHOUT_RAY = """
import importlib.machinery, sys

class PathWithoutRay:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

at = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[at] = PathWithoutRay
try:
    import ray
    raise SystemExit("Ray is found all the same")
except ModuleNotFoundError:
    pass
"""


def run(program: str, *arguments: str) -> Any:
    """What a process without Ray printed last, read as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_batches_come_without_ray(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 16), tmp_path)
    program = """
import json
import stoker.cli, stoker.torch
from stoker import Loader, Settings
with Loader(Settings.from_dict(json.loads(sys.argv[1]))) as loader:
    print(json.dumps([batch.digest() for batch in next(loader.steps())]))
"""
    assert run(program, json.dumps(settings.to_dict())) == digests(settings, 1)[0]


def test_a_run_on_ray_says_what_to_install(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 4), tmp_path, ray={"address": "auto"})
    program = """
import json
from stoker import InvalidArgumentError, Loader, Settings
settings = Settings.from_dict(json.loads(sys.argv[1]))
try:
    Loader(settings)
except InvalidArgumentError as error:
    print(json.dumps([error.code, error.message]))
"""
    code, message = run(program, json.dumps(settings.to_dict()))
    assert code == "SETTINGS"
    assert message.endswith('Ray is not installed here: pip install "stoker[ray]"')


def test_an_import_brings_nothing_of_ray() -> None:
    """Its cost as a count of modules, which is the same on a busy machine; of numpy's own only the sum is bounded."""
    program = """
import json, sys
before = set(sys.modules)
import stoker
brought = set(sys.modules) - before
print(json.dumps(sorted(brought)))
"""
    brought = run(program.replace("import json, sys\n", "import json\n"))
    foreign = {name.partition(".")[0] for name in brought} - sys.stdlib_module_names
    assert foreign - {"_distutils_hack"} == {"numpy", "stoker"}
    ours = [name for name in brought if name.startswith("stoker")]
    assert not [name for name in ours if name.startswith(("stoker.ray.", "stoker.cli", "stoker.torch"))]
    assert "stoker.ray" not in ours
    assert len(ours) <= 40
    assert len(brought) <= 400


def test_the_command_line_starts_without_ray(tmp_path: Path) -> None:
    program = """
import json
from typer.testing import CliRunner
from stoker.cli import app
done = CliRunner().invoke(app, ["--help"])
print(json.dumps(done.exit_code))
"""
    assert run(program) == 0
