"""Generated files are up to date, pins are complete, the house's targets exist and are quick when nothing changed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IN_HOUSE = Path(sys.prefix) == ROOT / ".venv"


def run(*command: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s)


def pins() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for line in path.read_text().splitlines():
            if not line or line.startswith(("#", "-r ")):
                continue
            name, equals, version = line.partition("==")
            assert equals, f"{path.name}: {line} is no exact pin"
            key = re.sub(r"[-_.]+", "-", name).lower()
            assert found.setdefault(key, version) == version, f"{path.name}: {name} is pinned twice"
    return found


@pytest.mark.parametrize("tool", ["make_stubs.py", "errors_doc.py"])
def test_a_generated_file_is_up_to_date(tool: str) -> None:
    done = run(sys.executable, ROOT / "tools" / tool, "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not IN_HOUSE, reason="only the virtual environment of `make` is promised to be pinned")
def test_everything_installed_is_pinned() -> None:
    known = pins()
    from_elsewhere = {"pip", "setuptools", "wheel", "stoker"}
    loose = []
    # Only what is installed: Ray, once imported, lays packages that it carries along on the path.
    for distribution in importlib.metadata.distributions(path=[sysconfig.get_paths()["purelib"]]):
        name = re.sub(r"[-_.]+", "-", distribution.name).lower()
        # A CUDA build of torch brings its own libraries, in the versions that it names itself.
        if name in from_elsewhere or name.startswith(("nvidia-", "cuda-")) or name == "triton":
            continue
        if known.get(name) != distribution.version.partition("+")[0]:
            loose.append(f"{name}=={distribution.version} (pinned: {known.get(name)})")
    assert loose == []


def test_the_project_names_what_the_pins_hold() -> None:
    """Each dependency that pyproject.toml declares is pinned, so that a fresh clone tests what users are promised."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        declared += extra
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!\[; ]", d)[0]).lower() for d in declared} - {"stoker"}
    assert sorted(names - set(pins())) == []


def test_backend_and_requirements_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = pins()
    for requirement in project["build-system"]["requires"]:
        name, _, version = requirement.partition("==")
        assert known[name] == version


def test_demo_and_build_need_no_torch_and_no_ray() -> None:
    for name in ("build.txt", "demo.txt"):
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        assert not [line for line in lines if re.match(r"(torch|ray)\b", line)], name


@pytest.mark.skipif(not IN_HOUSE, reason="only the virtual environment of `make` has the stamps")
def test_a_second_build_has_nothing_to_do() -> None:
    assert run("make", "build").returncode == 0
    assert run("make", "--question", "build", timeout_s=3).returncode == 0


def test_every_target_is_described_and_resolves() -> None:
    listed = run("make", "help")
    assert listed.returncode == 0
    targets = [line.split()[0] for line in listed.stdout.splitlines()]
    assert {"build", "demo", "test", "bench", "soak", "lint"} <= set(targets)
    for target in targets:
        dry = run("make", "--dry-run", target)
        assert dry.returncode == 0, f"{target}: {dry.stderr}"


def test_ci_runs_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[-1] == "exec make test"


def test_setup_says_what_it_cannot_install(tmp_path: Path) -> None:
    """Without apt-get it names the packages and fails; with STOKER_SKIP_SETUP it trusts the user."""
    for tool in ("bash", "env", "dirname", "id"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool}"))
    setup = ROOT / "tools" / "setup.sh"
    refused = subprocess.run([setup, "build"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "libspng-dev" in refused.stderr
    skipped = subprocess.run([setup, "build"], env={"PATH": str(tmp_path), "STOKER_SKIP_SETUP": "1"}, timeout=60)
    assert skipped.returncode == 0


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    wanted = ("Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS")
    assert [words for words in wanted if words not in text] == []
