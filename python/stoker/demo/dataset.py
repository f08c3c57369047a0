"""Makes the demonstration's data set: a JSONL manifest and pictures beside it.

Chat, VQA and multi-turn rows in both forms that are common (``conversations`` with ``<image>`` marks, ``messages`` with
parts), over one, several or no pictures. Each picture is cut from the photographs at its own place, size and
compression; where a photograph is too small for the size wanted, several crops stand side by side, so that every
picture has a photograph's detail and none is a blurred enlargement.

Everything follows from the seed, row by row.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from stoker.demo import text
from stoker.demo.photos import PHOTOS, find_testdata

__all__ = ["DEFAULT_SEED", "Dataset", "make_dataset"]

DEFAULT_SEED = 17
_VERSION = 2  # of the recipe: a change of what comes out needs a new one
_MIN_PIXELS, _MAX_PIXELS = 200_000, 2_000_000
_SCALES = (0.5, 0.7, 0.85, 1.0, 1.2)  # of the photographs
_MAX_PNG_PIXELS = 500_000  # screenshots and drawings; as photographs they would be most of the bytes
_PNG_SHARE = 0.1  # of those small enough
_SIZED_SHARE = 0.4  # of the rows: they give `width` and `height`


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A made data set; plain files, also readable without Stoker."""

    folder: Path
    n_samples: int
    n_pictures: int
    n_pixels: int
    n_bytes: int
    """Of the pictures' files."""

    @property
    def manifest(self) -> Path:
        """The JSONL file; media paths in it are relative to its folder."""
        return self.folder / "train.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    path: str
    width: int
    height: int
    photo: str


def make_dataset(
    cache: Path,
    *,
    n_samples: int = 640,
    seed: int = DEFAULT_SEED,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Makes the data set below ``cache``, or takes the one that is there.

    Args:
        cache: Folder for this and other data sets; one of its own is made inside, named after what decides its content.
        n_samples: Rows.
        seed: Everything is drawn from it.
        progress: Called with (pictures done, pictures in all), from any thread.

    Raises:
        PhotosNotFoundError: There are no photographs to make it from.
        ImportError: Pillow is missing.
    """
    import PIL

    photos = find_testdata() / "photos"
    mark = hashlib.sha256(f"{_VERSION}/{PIL.__version__}".encode())
    for name in PHOTOS:
        mark.update((photos / name).read_bytes())
    folder = cache / f"seed{seed}-n{n_samples}-{mark.hexdigest()[:12]}"
    if not folder.is_dir():
        unfinished = cache / f".making-{folder.name}-{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            (unfinished / "images").mkdir(parents=True)
            _make(unfinished, photos, n_samples=n_samples, seed=seed, progress=progress)
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process has just made it
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    facts = json.loads((folder / "facts.json").read_text())
    return Dataset(folder=folder, **facts)


def _make(
    folder: Path, photos: Path, *, n_samples: int, seed: int, progress: Callable[[int, int], None] | None
) -> None:
    rows: list[dict[str, Any]] = []
    pictures: list[_Picture] = []
    for i in range(n_samples):
        row, of_row = _row(Random(f"{seed}/row/{i}"), i)
        rows.append(row)
        pictures.extend(of_row)
    with (folder / "train.jsonl").open("w", encoding="utf-8") as manifest:
        for row in rows:
            manifest.write(json.dumps(row, ensure_ascii=False) + "\n")

    painter = _Painter(photos, seed)
    n_bytes = 0
    pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))  # Pillow works without the GIL
    try:
        files = pool.map(lambda picture: painter.paint(folder, picture), pictures)
        for n_done, size in enumerate(files, 1):
            n_bytes += size
            if progress is not None:
                progress(n_done, len(pictures))
    finally:
        pool.shutdown(cancel_futures=True)
    facts = {
        "n_samples": n_samples,
        "n_pictures": len(pictures),
        "n_pixels": sum(picture.width * picture.height for picture in pictures),
        "n_bytes": n_bytes,
    }
    (folder / "facts.json").write_text(json.dumps(facts))


# --- rows ---


def _row(rng: Random, i: int) -> tuple[dict[str, Any], list[_Picture]]:
    """Returns row number ``i`` and its pictures."""
    kind = rng.choices(("vqa", "chat", "several", "text"), (46, 28, 12, 14))[0]
    n_pictures = {"vqa": 1, "chat": 1, "several": rng.choice((2, 2, 3, 4)), "text": 0}[kind]
    pictures = [_picture(rng, i, j, n_pictures) for j in range(n_pictures)]
    subject = pictures[0].photo if pictures else "a matter of habit"
    n_turns = {"vqa": 1, "several": rng.choice((1, 1, 2))}.get(kind, rng.randint(1, 5))

    turns: list[tuple[str, str]] = []
    for turn in range(n_turns):
        if turn > 0:
            asked = text.follow_up(rng)
        elif kind == "several":
            asked = text.comparison(rng, n_pictures)
        else:
            asked = text.question(rng) if pictures else text.request(rng)
        n_sentences = rng.randint(0, 3) if kind == "vqa" else rng.randint(2, 12)
        turns.append((asked, text.answer(rng, subject, n_sentences=n_sentences)))
    system = text.system_prompt(rng) if rng.random() < 0.2 else None

    make = _conversations if rng.random() < 0.5 else _messages
    row = {"id": f"{kind}-{i:05d}", **make(turns, system, pictures)}
    if pictures and rng.random() < _SIZED_SHARE:
        widths, heights = [p.width for p in pictures], [p.height for p in pictures]
        row |= {"width": widths, "height": heights} if len(pictures) > 1 else {"width": widths[0], "height": heights[0]}
    return row, pictures


def _conversations(turns: list[tuple[str, str]], system: str | None, pictures: list[_Picture]) -> dict[str, Any]:
    said = [] if system is None else [{"from": "system", "value": system}]
    for turn, (asked, answered) in enumerate(turns):
        marks = "<image>\n" * len(pictures) if turn == 0 else ""
        said += [{"from": "human", "value": marks + asked}, {"from": "gpt", "value": answered}]
    paths = [picture.path for picture in pictures]
    if not paths:
        return {"conversations": said}
    return {"image": paths[0] if len(paths) == 1 else paths, "conversations": said}


def _messages(turns: list[tuple[str, str]], system: str | None, pictures: list[_Picture]) -> dict[str, Any]:
    said: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    for turn, (asked, answered) in enumerate(turns):
        content: Any = asked
        if turn == 0 and pictures:
            content = [{"type": "image", "image": p.path} for p in pictures] + [{"type": "text", "text": asked}]
        said += [{"role": "user", "content": content}, {"role": "assistant", "content": answered}]
    return {"messages": said}


def _picture(rng: Random, i: int, j: int, n_pictures: int) -> _Picture:
    """Draws size and name; several pictures in one row are smaller each."""
    largest = _MAX_PIXELS if n_pictures == 1 else _MAX_PIXELS // 2
    n_pixels = math.exp(rng.uniform(math.log(_MIN_PIXELS * 1.02), math.log(largest * 0.98)))
    aspect = rng.choice((1.0, 4 / 3, 3 / 2, 16 / 9, 3 / 4, 2 / 3, rng.uniform(0.5, 2.0)))
    width = round(math.sqrt(n_pixels * aspect))
    suffix = "png" if n_pixels < _MAX_PNG_PIXELS and rng.random() < _PNG_SHARE else "jpg"
    return _Picture(
        path=f"images/{i:05d}_{j}.{suffix}",
        width=width,
        height=round(n_pixels / width),
        photo=PHOTOS[rng.choice(tuple(PHOTOS))],
    )


# --- pictures ---


class _Painter:
    """Cuts pictures from the photographs.

    The photographs are scaled once, to a few sizes, and each picture is one crop or several from these: scaling every
    picture by itself would take most of the time.

    Threads: any; the photographs are only read.
    """

    def __init__(self, photos: Path, seed: int) -> None:
        from PIL import Image

        self._seed = seed
        self._scaled: dict[str, list[Any]] = {}  # what it shows -> smallest first
        for name, shown in PHOTOS.items():
            with Image.open(photos / name) as opened:
                photo = opened.convert("RGB")
            sizes = [(round(photo.width * scale), round(photo.height * scale)) for scale in _SCALES]
            self._scaled[shown] = [photo.resize(size, Image.Resampling.BICUBIC) for size in sizes]

    def paint(self, folder: Path, picture: _Picture) -> int:
        """Writes one picture; returns the size of its file in bytes."""
        from PIL import Image

        rng = Random(f"{self._seed}/{picture.path}")
        n_across = 1
        while not self._fitting(picture.photo, -(-picture.width // n_across), -(-picture.height // n_across)):
            n_across += 1
        canvas = Image.new("RGB", (picture.width, picture.height))
        xs = [picture.width * k // n_across for k in range(n_across + 1)]
        ys = [picture.height * k // n_across for k in range(n_across + 1)]
        for row in range(n_across):
            for column in range(n_across):
                width, height = xs[column + 1] - xs[column], ys[row + 1] - ys[row]
                others = [shown for shown in self._scaled if self._fitting(shown, width, height)]
                shown = picture.photo if row == column == 0 else rng.choice(others)
                photo = rng.choice(self._fitting(shown, width, height))
                left, top = rng.randint(0, photo.width - width), rng.randint(0, photo.height - height)
                canvas.paste(photo.crop((left, top, left + width, top + height)), (xs[column], ys[row]))
        path = folder / picture.path
        if path.suffix == ".png":
            canvas.save(path, compress_level=1)
        else:
            canvas.save(path, quality=rng.randint(75, 95), subsampling="4:2:0")
        return path.stat().st_size

    def _fitting(self, shown: str, width: int, height: int) -> list[Any]:
        return [photo for photo in self._scaled[shown] if photo.width >= width and photo.height >= height]
