"""The objects behind the storage server: a folder of buckets, and what was put since."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Object", "ObjectStore"]


@dataclass(frozen=True, slots=True)
class Object:
    """One object, whole and in memory: answering must cost next to nothing."""

    body: bytes
    etag: str
    """With its quotes."""
    crc32: str
    """In base64, as ``x-amz-checksum-crc32`` has it."""
    content_encoding: str = ""


def make_object(body: bytes, content_encoding: str = "") -> Object:
    """Returns an object with the ETag that S3 gives to a body that was put in one piece."""
    crc32 = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    return Object(body, f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"', crc32, content_encoding)


class ObjectStore:
    """Finds objects by bucket and key.

    A key is opaque: `a//b`, `./a` and `/a` are keys of their own. They can be put; from the folder only keys that
    name one plain path come. Files are read again when their size or modification time changed.

    Threads: one.
    """

    def __init__(self, folder: Path | None = None, *, cache_bytes: int = 1 << 30) -> None:
        self._folder = folder
        self._cache_bytes = cache_bytes
        self._put: dict[tuple[str, str], Object] = {}
        self._buckets: set[str] = set()
        self._cached: OrderedDict[Path, tuple[tuple[int, int], Object]] = OrderedDict()
        self._cached_bytes = 0

    def has_bucket(self, bucket: str) -> bool:
        """Tells whether anything could be there."""
        return bucket in self._buckets or (
            self._folder is not None and _is_plain(bucket) and (self._folder / bucket).is_dir()
        )

    def put(self, bucket: str, key: str, body: bytes, content_encoding: str = "") -> Object:
        """Stores an object, replacing what was there; the folder on disk is never written."""
        made = make_object(body, content_encoding)
        self._put[bucket, key] = made
        self._buckets.add(bucket)
        return made

    def get(self, bucket: str, key: str) -> Object | None:
        """Returns the object, or None."""
        found = self._put.get((bucket, key))
        if found is not None or self._folder is None:
            return found
        if not all(_is_plain(part) for part in (bucket, *key.split("/"))):
            return None
        return self._read(self._folder / bucket / key)

    def _read(self, path: Path) -> Object | None:
        try:
            info = path.stat()
            mark = (info.st_size, info.st_mtime_ns)
            cached = self._cached.get(path)
            if cached is not None and cached[0] == mark:
                self._cached.move_to_end(path)
                return cached[1]
            made = make_object(path.read_bytes())
        except (OSError, ValueError):  # not there, a folder, a name that the file system refuses
            return None
        if cached is not None:
            self._cached_bytes -= len(cached[1].body)
        self._cached[path] = (mark, made)
        self._cached_bytes += len(made.body)
        while self._cached_bytes > self._cache_bytes and len(self._cached) > 1:
            _, (_, dropped) = self._cached.popitem(last=False)
            self._cached_bytes -= len(dropped.body)
        return made


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part and "/" not in part
