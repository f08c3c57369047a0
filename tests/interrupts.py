"""Ctrl-C while a command walks over data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from loader_data import engine_threads, eventually


def check_ctrl_c_ends_the_walk(arguments: list[str], scratch: Path) -> None:
    """Runs ``stoker ARGUMENTS``, interrupts it once its walk has begun, and holds what it says and how soon it ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for _ in eventually(20):
        if "stoker-walk" in engine_threads(process.pid):
            break
    assert "stoker-walk" in engine_threads(process.pid), "it is not at work: nothing is tested"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert b"interrupted" in err
    assert time.monotonic() - began < 2.5 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))
