"""Trouble with size: many rows, and pictures beside which all others are small. The long forms run with `make soak`."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, encoded, picture, settings_for
from PIL import Image
from stoker import Loader, Settings
from stoker.testing import StorageServer

_LIBC = ctypes.CDLL(None)


def text_rows(path: Path, n_rows: int) -> Path:
    """A manifest of short texts."""
    row = b'{"messages": [{"role": "user", "content": "%d?"}, {"role": "assistant", "content": "%d."}]}\n'
    with path.open("wb") as file:
        for begin in range(0, n_rows, 10_000):
            file.writelines(row % (n, n) for n in range(begin, min(begin + 10_000, n_rows)))
    return path


def picture_rows(path: Path, n_rows: int, n_pictures: int, root: str) -> Path:
    """A manifest of rows that each name a picture, with its size; they repeat after `n_pictures`."""
    row = (
        b'{"image": "' + root.encode() + b'/%d.jpg", "width": 256, "height": 256, "conversations": '
        b'[{"from": "human", "value": "<image>\\nNumber %d?"}, {"from": "gpt", "value": "%d."}]}\n'
    )
    with path.open("wb") as file:
        for begin in range(0, n_rows, 10_000):
            file.writelines(row % (n % n_pictures, n, n) for n in range(begin, min(begin + 10_000, n_rows)))
    return path


def pss_bytes() -> int:
    """Memory of this process; of what it shares, its share."""
    _LIBC.malloc_trim(0)  # what the allocator keeps for later is not what is held
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


# --- LDR-02


def memory_course(manifest: Path, scratch: Path, *, epochs: int, n_warm: int) -> tuple[int, int, int]:
    """On 16 threads: the most bytes until `n_warm` samples, the most after that, and the samples that came.

    What this process learns of lengths is kept in memory up to a bound, then written: so not one value is compared, but
    the most of a time.
    """
    settings = settings_for(
        str(manifest),
        scratch,
        epochs=epochs,
        window_samples="auto",
        pack={"tokens_per_pack": 2048, "packs_per_step": 4},
        speed={"cpu_threads": 16, "memory_limit": "64MiB", "prefetch_steps": 2},
    )
    warm = most = n_samples = read_at = 0
    with Loader(settings) as loader:
        for batch in loader:
            n_samples += int((batch.layout.sample_ids >= 0).sum())  # dummies even out the last step
            del batch
            if n_samples < read_at:
                continue
            read_at = n_samples + n_warm // 20
            if n_samples <= n_warm:
                warm = max(warm, pss_bytes())
            else:
                most = max(most, pss_bytes())
    return warm, most, n_samples


@pytest.mark.case(
    "LDR-02", "rows in a mapped index, no object for a sample: no growth over 100,000 rows; open: 11 % over 8 million"
)
def test_memory_does_not_grow_through_an_epoch(tmp_path: Path) -> None:
    n_rows = 100_000
    manifest = text_rows(tmp_path / "rows.jsonl", n_rows)
    warm, most, n_samples = memory_course(manifest, tmp_path, epochs=2, n_warm=n_rows)
    assert n_samples == 2 * n_rows
    # An object for each sample of an epoch would be 5 MB or more.
    assert most <= warm * 1.01 + (2 << 20), f"from {warm >> 10} to {most >> 10} KiB"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_memory_does_not_grow_over_eight_million_rows(tmp_path: Path) -> None:
    n_rows = 8_000_000
    manifest = text_rows(tmp_path / "rows.jsonl", n_rows)
    warm, most, n_samples = memory_course(manifest, tmp_path, epochs=1, n_warm=n_rows // 5)
    print(f"PSS at most {warm / 2**20:.1f} MiB in the first fifth, {most / 2**20:.1f} MiB after it")
    assert n_samples == n_rows
    assert most <= warm * 1.01


def told_by(script: str, settings: Settings) -> dict[str, Any]:
    """The last line of a script that gets settings, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(settings.to_dict())],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


# --- LDR-07

FIRST = """
import json, sys, time
began = time.monotonic()
from stoker import Loader, Settings
settings = Settings.from_dict(json.loads(sys.argv[1]))
with Loader(settings, dp_rank=1, dp_size=4) as loader:
    n_samples = next(loader).n_samples
    seconds = time.monotonic() - began
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"n_samples": n_samples, "seconds": seconds, "peak_bytes": int(peak.split()[1]) << 10}))
"""


def first_batch(settings: Settings) -> dict[str, Any]:
    """In a process of its own: the seconds to its first batch, imports included, and its largest size."""
    return told_by(FIRST, settings)


def start_up(scratch: Path, n_rows: int) -> tuple[float, float, int]:
    """Of a manifest with an index: seconds to the first batch, bytes of memory per row, requests to the store."""
    n_pictures = 50
    with StorageServer() as server:
        for n in range(n_pictures):
            server.put("media", f"{n}.jpg", encoded(picture(256, 256, n), "JPEG"))
        sizes = {}
        for rows in (1000, n_rows):
            folder = scratch / str(rows)
            folder.mkdir()
            manifest = picture_rows(folder / "rows.jsonl", rows, n_pictures, "s3://media")
            settings = settings_for(
                str(manifest),
                folder,
                window_samples="auto",
                exchange="none",
                storage=server.settings(),
                speed={"memory_limit": "64MiB", "prefetch_steps": 1},
            )
            first_batch(settings)  # makes the index
            before = server.stats()["requests"]
            told = first_batch(settings)
            sizes[rows] = told["peak_bytes"]
        requests = server.stats()["requests"] - before
    return told["seconds"], (sizes[n_rows] - sizes[1000]) / n_rows, requests


@pytest.mark.case("LDR-07", "with an index the first batch comes at once: no medium is asked for before its turn")
def test_a_start_touches_no_row_that_is_not_needed(tmp_path: Path) -> None:
    seconds, bytes_per_row, requests = start_up(tmp_path, 300_000)
    assert seconds < 30
    assert bytes_per_row < 16 + (16 << 20) / 300_000  # 4 of them are the index
    assert requests < 100, "of 300,000 pictures that rows name"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_million_rows_start_within_a_minute(tmp_path: Path) -> None:
    seconds, bytes_per_row, requests = start_up(tmp_path, 10_000_000)
    print(f"first batch after {seconds:.1f} s, {bytes_per_row:.1f} bytes of memory a row, {requests} requests")
    assert seconds < 60
    assert bytes_per_row < 16
    assert requests < 100


# --- LDR-08


def large_jpeg(path: Path, megapixels: int, *, progressive: bool = False) -> tuple[int, int]:
    """Writes a grey ramp; returns (height, width)."""
    side = round((megapixels * 10**6) ** 0.5)
    ramp = Image.linear_gradient("L").resize((side, side))
    (ramp if progressive else ramp.convert("RGB")).save(path, "JPEG", quality=85, progressive=progressive)
    return side, side


PEAK = """
import json, sys
from stoker import Loader, Settings
settings = Settings.from_dict(json.loads(sys.argv[1]))
got = []
with Loader(settings) as loader:
    for batch in loader:
        got.append(batch.digest())
    memory = loader.report().to_dict()["pipeline"]["memory"]
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"digests": got, "peak_bytes": int(peak.split()[1]) << 10, "memory": memory}))
"""


def prepared(settings: Settings) -> dict[str, Any]:
    """An epoch in a process of its own: digests, the process's largest size, the engine's own count."""
    return told_by(PEAK, settings)


def large_among_small(scratch: Path, megapixels: int, n_large: int, **options: Any) -> DataSet:
    """Small pictures with large ones among them, which the model sees small."""
    data = DataSet(scratch / "data")
    name = data.image("large.jpg", b"")
    large_jpeg(data.folder / name, megapixels, **options)
    for n in range(12 + n_large):
        large = {"type": "image", "image": name, "max_pixels": 256 * 256}
        data.chat(n, [large if 5 <= n < 5 + n_large else data.good_image(n)])
    return data.write()


def admitted(data: DataSet, scratch: Path, memory_limit: str) -> tuple[int, dict[str, int]]:
    """On 16 threads within a limit: bytes of the process above a run on one thread, and the engine's own count."""
    one, many = (
        settings_for(
            data,
            scratch / str(threads),
            epochs=1,
            speed={"cpu_threads": threads, "memory_limit": limit, "prefetch_steps": 4},
        )
        for threads, limit in ((1, "4GiB"), (16, memory_limit))
    )
    alone, told = prepared(one), prepared(many)
    assert told["digests"] == alone["digests"]
    return told["peak_bytes"] - alone["peak_bytes"], told["memory"]


@pytest.mark.case("LDR-08", "decoders are admitted by what a header asks for: huge pictures one after another")
@pytest.mark.parametrize("kind", ["baseline", "progressive"])
def test_large_pictures_are_decoded_within_the_limit(tmp_path: Path, kind: str) -> None:
    # A baseline one passes in strips. A progressive one takes 2 bytes a pixel for its coefficients, 32 MB.
    data = large_among_small(tmp_path, 16, 8, progressive=kind == "progressive")
    above_one, memory = admitted(data, tmp_path, "96MiB")
    assert memory["peak_bytes"] <= memory["limit_bytes"]
    assert memory["decoders_limit_bytes"] == 12 << 20
    assert memory["decoders_peak_bytes"] < 34e6, "two at a time"
    assert (memory["decoders_peak_bytes"] > 0) is (kind == "progressive")
    assert above_one < 110 << 20  # threads, and small pictures in flight; 8 at once would be 250 MB


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["baseline", "progressive"])
def test_pictures_of_170_megapixels_are_decoded_within_the_limit(tmp_path: Path, kind: str) -> None:
    data = large_among_small(tmp_path, 170, 4, progressive=kind == "progressive")
    above_one, memory = admitted(data, tmp_path, "1GiB")
    print(f"{above_one / 2**20:.0f} MiB above the run on one thread; {memory}")
    assert memory["peak_bytes"] <= memory["limit_bytes"]
    assert memory["decoders_peak_bytes"] < 350e6, "two at a time"
    assert above_one < 128 << 20
