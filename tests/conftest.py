"""What all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests never leave the machine: what would ask the cloud for credentials, or a hub for a model, fails at once.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell's background job starts with SIGINT ignored and hands that on; then no child of a test would hear Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def testdata() -> Path:
    """Folder of photographs, goldens and the tiny model."""
    return ROOT / "testdata"
