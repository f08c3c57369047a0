"""The wheel: it builds, holds what is needed and nothing of the tests, and works where nothing else of ours is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from loader_data import DataSet, small_model

ROOT = Path(__file__).resolve().parent.parent


def run(command: list[str], cwd: Path, timeout_s: float = 120) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make wheel` builds it, into a folder of its own."""
    folder = tmp_path_factory.mktemp("dist")
    recipe = run(["make", "--dry-run", "--always-make", "wheel"], ROOT).splitlines()
    (line,) = (line for line in recipe if " wheel " in line)
    words = line.split()
    assert {"--no-deps", "--no-build-isolation", "--wheel-dir"} <= set(words)
    options = ["--disable-pip-version-check", "--no-input", "--no-deps", "--no-build-isolation", "--no-index"]
    run([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(ROOT)], ROOT, 1500)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.soak
def test_it_holds_what_is_needed_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {str(p.relative_to(ROOT / "python")) for p in (ROOT / "python" / "stoker").rglob("*.py")}
    assert modules <= names
    assert {"stoker/py.typed", "stoker/_core.pyi"} <= names
    assert any(re.fullmatch(r"stoker/_core\..*\.so", name) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"stoker"}
    assert not [n for n in names if re.search(r"(^|/)(tests?|testdata|conftest|bench|build)(/|\.|$)|__pycache__", n)]


@pytest.mark.soak
def test_it_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)], tmp_path)
    python = venv / "bin" / "python"
    options = ["--disable-pip-version-check", "--no-deps", "--no-index"]
    run([sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)], tmp_path)
    # Its dependencies, as they are installed here: a path in a .pth brings packages, not this environment's own hooks.
    site = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip())
    (site / "dependencies.pth").write_text(f"{Path(np.__file__).parent.parent}\n")
    where = run([str(python), "-c", "import stoker; print(stoker.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(venv)

    data = DataSet(tmp_path / "data")
    data.chat(0, [data.good_image(1)])
    data.write()
    stoker, options = str(venv / "bin" / "stoker"), ["--model", str(small_model(tmp_path / "model"))]
    assert run([stoker, "--version"], tmp_path).startswith("stoker ")
    shown = json.loads(
        run([stoker, "inspect", str(data.manifest), *options, "--json", "--html", "page.html"], tmp_path)
    )
    assert shown["usable"]
    assert shown["media"][0]["grid_thw"] == [1, 16, 16]
    assert (tmp_path / "page.html").stat().st_size > 50_000
    assert json.loads(run([stoker, "check", str(data.manifest), *options, "--json"], tmp_path))["rejected"] == 0


def test_what_it_needs_is_what_it_says() -> None:
    """Every package that `stoker` imports at its import and in the commands without an extra is a dependency."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=!~ ]", text)[0].lower() for text in said}
    assert names == {"numpy", "pyyaml", "rich", "typer"}
    for name in names:
        importlib.metadata.version(name)
    code = (
        "import sys, stoker, stoker.cli, stoker.inspecting.find, stoker.inspecting.html, stoker.checking.display; "
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "PIL", "tokenizers", "jinja2", "botocore", "scipy"}
    assert not heavy & set(loaded.stdout.split())
