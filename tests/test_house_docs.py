"""Every command and every example in README and docs is run, or checked against what it would run.

In a page's order, with one scratch folder and one namespace per page:

- ``sh``: each line is a command. ``make`` lines are resolved without being run (they are what CI and people run);
  ``cmake`` and ``ctest`` lines must name a preset and a target that exist; ``stoker`` lines are run in the scratch
  folder, except those whose block is noted ``long``: of them the command and its options are checked, as of ``ray`` and
  ``torchrun`` lines.
- ``python``: executed.
- ``yaml FILE`` and ``json FILE``: written to that file, for the blocks that follow.
- ``text``: for people. Any other language fails, so that no example escapes.

The scratch folder has ``data/train.jsonl`` with pictures, and ``qwen3-vl``, the tiny model's folder. The page of Ray is
run on the tests' own cluster.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import Block, blocks_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
STOKER = Path(sys.executable).parent / "stoker"


def make_scratch(folder: Path) -> None:
    """Lays out what the examples name: a few conversations with pictures, and the model folder."""
    from PIL import Image

    data = folder / "data"
    (data / "images").mkdir(parents=True)
    rows = []
    for i in range(24):
        width, height = 96 + 32 * (i % 5), 64 + 32 * (i % 3)
        with Image.open(ROOT / "testdata" / "photos" / "flower.jpg") as photo:
            photo.crop((10 * i, 5 * i, 10 * i + width, 5 * i + height)).save(data / "images" / f"{i}.jpg", quality=90)
        answer = f"A flower, part {i} of the picture."
        human = {"from": "human", "value": "<image>\nWhat is this?"}
        rows.append({"image": f"images/{i}.jpg", "conversations": [human, {"from": "gpt", "value": answer}]})
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qwen3-vl").symlink_to(ROOT / "testdata" / "qwen3-vl")


def make_namespace() -> dict[str, Any]:
    """What a trainer has already, as far as the examples use it."""

    class Output:
        loss = 0.0

    return {
        "rank": 0,
        "world": 1,
        "device": "cpu",
        "model": lambda **inputs: Output(),
        "train_step": lambda loss: None,
        "checkpoint": {},
        "__name__": "documentation",
    }


def run(command: list[str | Path], cwd: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)


def presets(kind: str) -> set[str]:
    return {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())[kind] if not p.get("hidden")}


def check_command(line: str, block: Block, scratch: Path) -> None:
    where = f"{block.page}:{block.line}: {line}"
    words = shlex.split(line, comments=True)
    if not words:
        return
    program = Path(words[0]).name
    if program == "make":
        done = run(["make", "--dry-run", *words[1:]], ROOT)
        assert done.returncode == 0, f"{where}: {done.stderr}"
    elif program in {"cmake", "ctest"}:
        kind = "testPresets" if program == "ctest" else "buildPresets" if "--build" in words else "configurePresets"
        assert words[words.index("--preset") + 1] in presets(kind), where
        if "--target" in words:
            module = words[words.index("--target") + 1].removesuffix("_test")
            assert (ROOT / "core" / module / "CMakeLists.txt").is_file(), where
    elif program in {"ray", "torchrun"} or (program == "stoker" and block.note == "long"):
        n_names = {"ray": 1, "torchrun": 0}.get(program, 2 if words[1] == "ray" else 1)
        helped = run([STOKER.with_name(program), *words[1 : 1 + n_names], "--help"], scratch)
        assert helped.returncode == 0, f"{where}: {helped.stderr}"
        plain = re.sub(r"\x1b\[[0-9;]*m", "", helped.stdout).replace("_", "-")
        for option in (word for word in words[1 + n_names :] if word.startswith("--")):
            assert option.split("=")[0] in plain, f"{where}: no option {option}"
    elif program == "stoker":
        done = run([STOKER, *words[1:]], scratch)
        assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
    else:
        pytest.fail(f"{where}: this test does not know how to check {program}")


def run_block(block: Block, scratch: Path, namespace: dict[str, Any]) -> None:
    if block.language == "sh":
        for line in block.text.splitlines():
            check_command(line, block, scratch)
    elif block.language == "python":
        lines = "\n" * block.line + block.text  # so that a traceback names the page's line
        exec(compile(lines, block.page, "exec"), namespace)
    elif block.language in {"yaml", "json"}:
        assert block.note, f"{block.page}:{block.line}: name the file that this block is"
        (scratch / block.note).write_text(block.text)
    else:
        assert block.language == "text", f"{block.page}:{block.line}: a block of language {block.language!r}"


# For pages whose Python needs a settings file that another page shows.
SETTINGS = """
data:
  - manifest: data/train.jsonl
model: qwen3-vl
seed: 17
epochs: 1
pack: {tokens_per_pack: 1024, packs_per_step: 1}
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    blocks = blocks_of(page)
    if page.name == "ray.md":
        request.getfixturevalue("ray_cluster").connect()  # what `ray: auto` finds
    if any(block.language in {"python", "yaml", "json"} or "stoker" in block.text for block in blocks):
        make_scratch(tmp_path)
        (tmp_path / "run.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    namespace = make_namespace()
    for block in blocks:
        run_block(block, tmp_path, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_there_are_commands_to_check() -> None:
    languages = [block.language for page in PAGES for block in blocks_of(page)]
    assert languages.count("sh") >= 3
    assert languages.count("python") >= 1


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nmake no-such-target\n```\n",
        "```sh\ncmake --preset no-such-preset\n```\n",
        "```sh\ncurl example.org\n```\n",
        "```console\n$ make test\n```\n",
        "```yaml\na: 1\n```\n",
        "```python\nraise SystemError\n```\n",
    ],
)
def test_a_wrong_example_is_caught(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    (block,) = blocks_of(page)
    with pytest.raises((AssertionError, SystemError, pytest.fail.Exception)):
        run_block(block, tmp_path, make_namespace())
