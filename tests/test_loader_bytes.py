"""What a run reads beside what it needs: counted as the storage counts it, and no more than has to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, encoded, picture, settings_for
from stoker import Loader, Settings
from stoker.testing import StorageServer

N_ROWS = 160


def data_of(folder: Path, *, quality: int, padding: int = 0) -> tuple[DataSet, int]:
    """Rows with one picture each, and the bytes of all; `padding` is metadata in front of a picture's size."""
    data = DataSet(folder)
    n_bytes = 0
    for n in range(N_ROWS):
        options: dict[str, Any] = {"comment": b"x" * padding} if padding else {}
        body = encoded(picture(256, 256, n), "JPEG", quality=quality, **options)
        n_bytes += len(body)
        data.chat(n, [data.image(f"{n}.jpg", body)])
    return data.write(), n_bytes


def one_pass(server: StorageServer, settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """The report's counts of fetching, and the batches' digests."""
    settings = settings.replace(data=[{"manifest": "s3://data/rows.jsonl"}], storage=server.settings())
    with Loader(settings) as loader:
        found = [batch.digest() for batch in loader]
        fetch: dict[str, Any] = loader.report().values["pipeline"]["fetch"]
    return fetch, found


@pytest.mark.parametrize(
    ("quality", "padding", "most_bytes", "most_requests"),
    [
        (80, 0, 1.2, 1.45),  # some 5 kB: after the first windows they come whole with their headers
        (100, 0, 1.1, 2.05),  # some 30 kB: of most, few bytes are read twice
        (100, 9000, 1.42, 2.5),  # all the same, behind 9 kB of metadata: the first read grows to what is needed
    ],
)
def test_headers_cost_what_they_must(
    tmp_path: Path, quality: int, padding: int, most_bytes: float, most_requests: float
) -> None:
    data, needed = data_of(tmp_path / "data", quality=quality, padding=padding)
    # No second requests and none in vain, so that every count is exact.
    settings = settings_for(data, tmp_path, epochs=1, window_samples=32, pack={"packs_per_step": 1})
    settings = settings.replace(speed={"hedge_share": 0.0})
    with StorageServer(tmp_path) as server:
        fetch, found = one_pass(server, settings)
        stats = server.stats()
    assert found == [digest for step in digests(settings) for digest in step], "reading is no matter of the batches"
    manifest = data.manifest.stat().st_size
    assert stats["body_bytes_sent"] - 1 - manifest == pytest.approx(fetch["wire_bytes"], abs=manifest + 1)
    assert 1.0 <= fetch["wire_bytes"] / needed < most_bytes
    assert fetch["requests"] / N_ROWS < most_requests
