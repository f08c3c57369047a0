"""What all tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray_cluster import RayCluster

ROOT = Path(__file__).resolve().parent.parent

# Tests never leave the machine: what would ask the cloud for credentials, or a hub for a model, fails at once.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell's background job starts with SIGINT ignored and hands that on; then no child of a test would hear Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that holds a case (see tools/robustness_doc.py) names one that exists, and really runs."""
    sys.path.insert(0, str(ROOT / "tools"))
    from case_catalogue import CATALOGUE

    for item in items:
        for mark in item.iter_markers("case"):
            if len(mark.args) != 2 or mark.kwargs or mark.args[0] not in CATALOGUE:
                raise pytest.UsageError(
                    f"{item.nodeid}: no such case: {mark.args}; they are in tools/case_catalogue.py"
                )
            if any(item.iter_markers("xfail")):
                raise pytest.UsageError(f"{item.nodeid}: a test that may fail proves no case")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def testdata() -> Path:
    """Folder of photographs, goldens and the tiny model."""
    return ROOT / "testdata"


@pytest.fixture(scope="session")
def case_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that tools/cases/make_cases.py wrote: one per case inside, and ``manifest.json`` with what is wanted."""
    folder = tmp_path_factory.mktemp("cases")
    make = ROOT / "tools" / "cases" / "make_cases.py"
    subprocess.run([sys.executable, str(make), str(folder)], check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A real Ray cluster of two nodes, for the whole session. A test leaves it as it found it."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")
    from ray_cluster import RayCluster

    cluster = RayCluster()
    yield cluster
    cluster.close()
