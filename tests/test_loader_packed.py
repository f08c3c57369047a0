"""Data sets that were uploaded with a Content-Encoding: the same batches, or a bad sample that says why not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from loader_data import digests, good_data, ledger, settings_for
from stoker.testing import StorageServer


def test_packed_manifests_and_pictures_give_the_same_batches(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 12)
    with StorageServer() as server:
        server.put_folder("plain", data.folder)
        for path in (path for path in data.folder.rglob("*") if path.is_file()):
            key, body = path.relative_to(data.folder).as_posix(), path.read_bytes()
            if path.suffix == ".png":
                server.put("packed", key, zlib.compress(body), content_encoding="deflate")
            else:
                server.put("packed", key, gzip.compress(body, mtime=0), content_encoding="gzip")
        runs = [
            digests(settings_for(f"s3://{bucket}/rows.jsonl", tmp_path / bucket, storage=server.settings(), epochs=1))
            for bucket in ("plain", "packed")
        ]
    assert runs[0]
    assert runs[1] == runs[0]


def test_a_coding_that_is_not_read_is_a_bad_sample_that_names_it(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 12, sizes=True)
    with StorageServer() as server:
        server.put_folder("b", data.folder)
        name = next(path for path in data.folder.rglob("*.jpg")).relative_to(data.folder).as_posix()
        server.put("b", name, b"Brotli, let us say", content_encoding="br")
        settings = settings_for(
            "s3://b/rows.jsonl", tmp_path, storage=server.settings(), epochs=1, bad_samples={"max_fraction": 0.5}
        )
        assert digests(settings)
    (line,) = ledger(settings)
    assert line["code"] == "MEDIA_ENCODING"
    assert 'Content-Encoding "br"' in line["message"]
