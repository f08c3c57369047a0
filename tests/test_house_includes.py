"""The include table: the tree keeps it, and the checker catches a file that does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_includes  # noqa: E402


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tree_keeps_the_table() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/check_includes.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_table_has_no_cycle() -> None:
    for module, allowed in check_includes.INCLUDES.items():
        for other in allowed:
            assert module not in check_includes.INCLUDES[other], f"{module} and {other} include each other"


@pytest.mark.parametrize(
    ("name", "include", "is_fault"),
    [
        ("core/base/hash.cc", "base/hash.h", False),
        ("core/base/hash.cc", "metric/metric.h", True),  # upwards
        ("core/plan/pack.h", "data/sample.h", False),
        ("core/plan/pack.h", "source/source.h", True),  # sideways
        ("core/plan/deep/pack_test.cc", "engine/loader.h", True),  # tests and folders in folders count
        ("core/model/qwen_vl/labels.cc", "text/bpe.h", False),
        ("core/unheard/of.cc", "base/hash.h", True),  # a module that is not in the table
        ("bindings/bind_text.cc", "engine/loader.h", False),
        ("core/base/hash.cc", "../base/hash.h", True),  # no way around
        ("core/base/hash.cc", "missing.h", True),
    ],
)
def test_an_edge_is_judged(tmp_path: Path, name: str, include: str, *, is_fault: bool) -> None:
    _write(tmp_path, name, f'// includes\n#include <vector>\n#include "{include}"\n')
    faults = list(check_includes.cxx_faults(tmp_path))
    assert bool(faults) == is_fault, faults
    if is_fault:
        assert faults[0].startswith(f"{name}:3: ")


def test_an_include_of_a_neighbour_is_fine(tmp_path: Path) -> None:
    _write(tmp_path, "bindings/bind.h", "#pragma once\n")
    _write(tmp_path, "bindings/module.cc", '#include "bind.h"\n')
    assert list(check_includes.cxx_faults(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "code", "is_fault"),
    [
        ("loader.py", "import stoker.testing\n", True),
        ("loader.py", "from stoker import testing\n", True),
        ("loader.py", "from .testing.server import Server\n", True),
        ("loader.py", "def f():\n    from stoker.testing import server\n", True),  # later is no better
        ("sub/part.py", "from ..testing import server\n", True),
        ("demo.py", "from stoker.testing import server\n", False),
        ("demo/data.py", "from stoker.testing import server\n", False),
        ("testing/server.py", "from . import latency\n", False),
        ("loader.py", "import torch\n", True),
        ("loader.py", "try:\n    import torch\nexcept ImportError:\n    torch = None\n", True),
        ("loader.py", "import torchlight\n", False),
        ("loader.py", "def f():\n    import torch\n", False),  # the user's call asks for it
        ("loader.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n", False),
        ("torch.py", "import torch\n", False),
        ("torch.py", "import ray\n", True),
        ("__init__.py", "from . import torch\n", True),
        ("ray/actors.py", "import ray\nimport stoker\n", False),
    ],
)
def test_an_import_is_judged(tmp_path: Path, name: str, code: str, *, is_fault: bool) -> None:
    _write(tmp_path, f"python/stoker/{name}", code)
    assert bool(list(check_includes.python_faults(tmp_path))) == is_fault
