"""A manifest on S3 is mirrored once per index directory, and what others read from is never replaced."""

from __future__ import annotations

from pathlib import Path

from loader_data import good_data, settings_for, taken
from stoker import Loader
from stoker.testing import Behaviour, Latency, StorageServer


def test_of_ranks_that_open_at_the_same_time_one_mirrors(tmp_path: Path) -> None:
    data = good_data(tmp_path / "bucket" / "rows", 24, sizes=True)
    with StorageServer(tmp_path / "bucket", behaviour=Behaviour(latency=Latency(), seed=3)) as server:
        for attempt in range(3):
            server.reset_stats()
            settings = settings_for(
                f"s3://rows/{data.manifest.name}", tmp_path / f"attempt{attempt}", storage=server.settings()
            )
            # Both begin to open at once, and neither finds a mirror.
            loaders = [Loader(settings, dp_rank=0, dp_size=1) for _ in range(4)]
            try:
                for loader in loaders:
                    assert taken(loader, 6)
            finally:
                for loader in loaders:
                    loader.close()
            mirrors = list((settings.resolved_index_dir() / "mirror").iterdir())
            assert len(mirrors) == 1, mirrors
            asked = [seen for seen in server.requests() if seen.name == f"rows/{data.manifest.name}"]
            assert len(asked) == len(loaders) + 1, "each asks what it is, one reads it"
