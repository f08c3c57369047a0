"""What is read from storage beside what is needed: bytes and requests for each object.

Needed are the objects of the samples that were delivered, once each. Read is every byte of a body that came over the
network: header reads, second requests and failed tries included. One pass over each set, at the default settings, from
a server on loopback that answers as object stores do:

- crops of the demonstration's photographs, some 40 kB each, with their sizes in the rows;
- the same, with sizes from the headers;
- without a bar: photographs with EXIF of 10 to 60 kB in front of the size, as phones write it; WebP with EXIF at its
  end; PNG, whose orientation may stand behind the pixels; thumbnails of a few kB.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
N_OBJECTS = 2048
SIDE_PX = 448
BAR_SIZED = 1.05
BAR_HEADERS = 1.10


def _bodies() -> dict[str, list[bytes]]:
    from _pictures import crops, encoded, exif_of, photographs

    squares, whole = crops(SIDE_PX), photographs()
    rng = random.Random(1)
    return {
        "photographs": [encoded(image, "JPEG", quality=88) for image in squares],
        "phone JPEGs": [
            encoded(image, "JPEG", quality=92, exif=exif_of(rng.randrange(10_000, 60_000), n))
            for n, image in enumerate(whole)
        ],
        "WebP with EXIF": [
            encoded(image, "WEBP", quality=85, exif=exif_of(rng.randrange(10_000, 60_000), n))
            for n, image in enumerate(squares)
        ],
        "PNG": [encoded(image.resize((256, 256)), "PNG") for image in squares],
        "thumbnails": [encoded(image.resize((128, 128)), "JPEG", quality=80) for image in squares],
    }


def _read(server: Any, scratch: Path, bodies: list[bytes], n_objects: int, *, has_sizes: bool) -> tuple[float, float]:
    """Returns (bytes read / bytes needed, requests per object) of one pass."""
    import stoker
    from PIL import Image
    from stoker.testing import Behaviour, Latency

    server.behave(Behaviour())
    rows = []
    for n in range(n_objects):
        body = bodies[n % len(bodies)]
        server.put("bench", f"{n}", body)
        answer = {"role": "assistant", "content": "A photograph."}
        row: dict[str, Any] = {"messages": [{"role": "user", "content": "<image>"}, answer], "images": [f"{n}"]}
        if has_sizes:
            with Image.open(io.BytesIO(body)) as image:
                row |= {"width": image.width, "height": image.height}
        rows.append(row)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    server.behave(Behaviour(latency=Latency(), seed=1))
    settings = stoker.Settings.from_dict(
        {
            "data": [{"manifest": str(folder / "rows.jsonl"), "media_root": "s3://bench/"}],
            "model": str(MODEL),
            "epochs": 1,
            "pack": {"tokens_per_pack": 4096, "packs_per_step": 1},
            "storage": server.settings(),
            "index_dir": str(folder / "index"),
        }
    )
    needed = n_delivered = 0
    with stoker.Loader(settings) as loader:
        for batch in loader:
            for sample in batch.layout.sample_ids.tolist():
                if sample >= 0:
                    needed += len(bodies[(loader.describe(sample).line - 1) % len(bodies)])
                    n_delivered += 1
        fetch = loader.report().values["pipeline"]["fetch"]
    if n_delivered < 0.98 * n_objects:
        raise RuntimeError(f"{n_delivered} of {n_objects} objects were delivered")
    return fetch["wire_bytes"] / needed, (fetch["requests"] + fetch["hedges"] + fetch["retries"]) / n_delivered


def run() -> list[dict[str, Any]]:
    """Measures; see the module's text."""
    from stoker.testing import StorageServer

    results: list[dict[str, Any]] = []

    def result(name: str, value: float, unit: str, bar: float | None = None) -> None:
        results.append({"name": name, "value": value, "unit": unit, "bar": bar, "ok": bar is None or value <= bar})

    bodies = _bodies()
    with tempfile.TemporaryDirectory() as scratch, StorageServer() as server:
        runs: list[tuple[str, str, int, bool, float | None]] = [
            ("sizes in the rows", "photographs", N_OBJECTS, True, BAR_SIZED),
            ("sizes from headers", "photographs", N_OBJECTS, False, BAR_HEADERS),
            ("phone JPEGs", "phone JPEGs", 512, False, None),
            ("WebP with EXIF at its end", "WebP with EXIF", 512, False, None),
            ("PNG", "PNG", 512, False, None),
            ("thumbnails", "thumbnails", N_OBJECTS, False, None),
        ]
        for name, kind, n_objects, has_sizes, bar in runs:
            print(f"bytes: {name}", file=sys.stderr)
            ratio, requests = _read(server, Path(scratch), bodies[kind], n_objects, has_sizes=has_sizes)
            mean_kb = sum(map(len, bodies[kind])) / len(bodies[kind]) / 1e3
            result(f"{name} ({mean_kb:.0f} kB each): bytes read", ratio, "of bytes needed", bar)
            result(f"{name}: requests", requests, "per object")
    return results
