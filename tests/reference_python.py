"""Runs a command where the reference is whole: torchvision beside torch, and qwen-vl-utils where it is there, too."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("STOKER_REFERENCE_PYTHON", sys.executable)
"""An interpreter with torch, torchvision and transformers; tools/golden/requirements.txt pins them."""
_PATHS = [str(ROOT / "python"), str(ROOT / "tools"), str(ROOT / "tools" / "golden")]
_SETUP = f"import sys; sys.path[:0] = {_PATHS!r}; import torchvision_ops; "


def run(code: str, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs Python code there, with this checkout's package."""
    command = [PYTHON, "-c", _SETUP + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


@functools.cache
def has(module: str) -> bool:
    """Whether a module can be found there."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], timeout=60, check=False).returncode == 0
