"""Small data sets for the loader's tests: real files, a manifest, and settings that pack them tightly."""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from stoker import Batch, Loader, Settings, StokerError

_MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
_N_MERGES = 3000
TOKENS_PER_PACK = 384
"""Little more than one of the images below, so that a step has several packs."""


def picture(height: int, width: int, seed: int) -> Image.Image:
    """A coarse random picture: every seed other bytes, quickly encoded."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, size=(8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a JPEG or PNG file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def small_model(folder: Path) -> Path:
    """The test model with the first merges of its tokenizer only, so that it opens in milliseconds."""
    if not folder.exists():
        shutil.copytree(_MODEL, folder)
        content = json.loads((_MODEL / "tokenizer.json").read_text())
        n_ids = 256 + _N_MERGES
        bpe = content["model"]
        bpe["merges"] = bpe["merges"][:_N_MERGES]
        bpe["vocab"] = {token: number for token, number in bpe["vocab"].items() if number < n_ids}
        for i, token in enumerate(content["added_tokens"]):
            token["id"] = n_ids + i
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@dataclass
class DataSet:
    """A folder with a manifest under way; rows are written as they are added."""

    folder: Path
    lines: list[bytes] = field(default_factory=list)

    @property
    def manifest(self) -> Path:
        """The JSONL file."""
        return self.folder / "rows.jsonl"

    def image(self, name: str, body: bytes) -> str:
        """Writes a media file; returns its reference."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return name

    def good_image(self, seed: int, *, height: int = 256, width: int = 256) -> str:
        """A sound picture of the smallest size that is not enlarged."""
        kind, suffix = ("PNG", "png") if seed % 4 == 0 else ("JPEG", "jpg")
        return self.image(f"images/{seed}.{suffix}", encoded(picture(height, width, seed), kind))

    def row(self, row: dict[str, Any] | bytes) -> int:
        """Adds a row, or raw bytes in its place; returns its line number, from 1."""
        self.lines.append(row if isinstance(row, bytes) else json.dumps(row).encode())
        return len(self.lines)

    def chat(self, n: int, images: list[Any], *, answer: str | None = None) -> int:
        """Adds a question with images and an answer."""
        content = [{"type": "image", "image": ref} if isinstance(ref, str) else ref for ref in images]
        return self.row(
            {
                "messages": [
                    {"role": "user", "content": [*content, {"type": "text", "text": f"What is in number {n}?"}]},
                    {"role": "assistant", "content": f"This is number {n}." if answer is None else answer},
                ]
            }
        )

    def offset(self, line: int) -> int:
        """Byte offset of a line."""
        return sum(len(text) + 1 for text in self.lines[: line - 1])

    def write(self) -> DataSet:
        """Writes the manifest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.manifest.write_bytes(b"\n".join(self.lines) + b"\n")
        return self


def good_data(folder: Path, n_rows: int = 40, *, seed: int = 1, sizes: bool = False) -> DataSet:
    """Rows with 0 to 3 sound images and texts of different lengths; some with sizes in the row."""
    rng = random.Random(seed)
    data = DataSet(folder)
    for n in range(n_rows):
        images: list[Any] = []
        for k in range(rng.choice([0, 1, 1, 1, 2, 3])):
            height, width = rng.choice([(256, 256), (200, 300), (320, 256), (256, 384)])
            ref = data.good_image(100 * n + k, height=height, width=width)
            with_size = sizes or n % 3 == 0
            images.append({"type": "image", "image": ref, "height": height, "width": width} if with_size else ref)
        data.chat(n, images, answer=f"Number {n}: " + "word " * rng.randrange(1, 60))
    return data.write()


def settings_for(data: DataSet | str, scratch: Path, **changes: Any) -> Settings:
    """Settings with small packs, two threads and an index directory of their own."""
    made = Settings.from_dict(
        {
            "data": [{"manifest": str(data.manifest) if isinstance(data, DataSet) else data}],
            "model": str(small_model(scratch / "model")),
            "seed": 3,
            "window_samples": 16,
            "pack": {"tokens_per_pack": TOKENS_PER_PACK, "packs_per_step": 4},
            "speed": {"cpu_threads": 2, "fetch_concurrency": 8, "prefetch_steps": 2, "memory_limit": "256MiB"},
            "index_dir": str(scratch / "index"),
            "outage_limit_s": 5.0,
        }
    )
    return made.replace(**changes) if changes else made


def digests(settings: Settings, n_steps: int | None = None, *, dp_rank: int = 0, dp_size: int = 1) -> list[list[str]]:
    """Digests of the micro-batches of the first steps; of all steps of a finite loader."""
    out: list[list[str]] = []
    with Loader(settings, dp_rank=dp_rank, dp_size=dp_size) as loader:
        for step in loader.steps():
            out.append([batch.digest() for batch in step])
            if len(out) == n_steps:
                break
    return out


def taken(loader: Loader, n: int) -> list[Batch]:
    """The next n micro-batches, fewer at the end."""
    return list(itertools.islice(loader, n))


def story(loader: Loader) -> tuple[list[str], StokerError | None]:
    """Digests to the end, and the error that it ended with."""
    told: list[str] = []
    try:
        told.extend(batch.digest() for batch in loader)
    except StokerError as error:
        return told, error
    return told, None


def ledger(settings: Settings) -> list[dict[str, Any]]:
    """The ledger's lines; none if there is no file."""
    path = Path(settings.bad_samples.ledger or settings.resolved_index_dir() / "ledger.jsonl")
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]


def engine_threads(pid: int | str = "self") -> list[str]:
    """Names of the engine's threads in a process."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it has just ended
            continue
    return sorted(name for name in names if name.startswith("stoker-"))


def eventually(seconds: float, *, every_s: float = 0.01) -> Iterator[bool]:
    """Yields True until the time is over, for conditions that another thread or process brings about."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield True
        time.sleep(every_s)
