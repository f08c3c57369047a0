"""Random pictures, clips and conversations for tools/live_reference.py, each a function of its seed and number."""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import live_pixels
import numpy as np
from live_texts import Texts
from PIL import Image

MAX_SHORT_SIDE_OF_EXTREMES = 18
CONTROL = ("<|im_", "<|vision_", "<|image_pad", "<|video_pad", "<|endoftext")
"""Turn, vision and end tokens stay out of what conversations say: the reference takes them for real ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An encoded picture."""

    name: str
    body: bytes
    size: tuple[int, int]
    """(height, width) as stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A clip as a list of pictures."""

    frames: list[File]
    frames_per_s: float | None = None
    source_frames_per_s: float | None = None
    asked: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A picture and what its row asks for."""

    file: File
    asked: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A row, the same in the reference's words, and its media in reading order."""

    row: dict[str, Any]
    messages: list[dict[str, Any]]
    tools: list[Any]
    pictures: list[Asked] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)


def random_sides(rng: random.Random, largest: int) -> tuple[int, int]:
    """Height and width, 1 to `largest`.

    Even in the logarithm and mostly below 1,500; a share is even and large, a share so long that the reference refuses
    some.
    """
    kind = rng.random()
    if kind < 0.01:
        return rng.randint(1, largest), rng.randint(1, largest)
    if kind < 0.09:
        short = rng.randint(1, min(MAX_SHORT_SIDE_OF_EXTREMES, largest))
        long = min(largest, max(short, round(short * math.exp(rng.uniform(math.log(40), math.log(320))))))
        return (short, long) if rng.random() < 0.5 else (long, short)
    most = largest if rng.random() < 0.08 else min(1500, largest)
    sides = [round(math.exp(rng.uniform(0, math.log(most)))) for _ in range(2)]
    if rng.random() < 0.15:
        sides[1] = min(most, max(1, round(sides[0] * rng.uniform(0.5, 2))))
    return sides[0], sides[1]


def random_file(rng: random.Random, name: str, sides: tuple[int, int], *, may_turn: bool = True) -> File:
    """PNG, JPEG or WebP, in any mode that they have, some of them to be turned by EXIF."""
    height, width = sides
    colour = Image.fromarray(live_pixels.random_pixels(rng, height, width))
    kind = rng.choice(["PNG", "PNG", "JPEG", "JPEG", "WEBP"])
    options: dict[str, Any] = {}
    if may_turn and rng.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = rng.randint(1, 8)
        options["exif"] = exif
    if kind == "PNG":
        mode = rng.choice(["RGB", "RGB", "L", "RGBA", "LA", "P", "P-transparent", "1", "I;16"])
        image = _in_mode(rng, colour, mode)
        options["compress_level"] = 1
        if mode == "P-transparent":
            options["transparency"] = rng.randrange(4)
    elif kind == "JPEG":
        image = colour.convert(rng.choice(["RGB", "RGB", "RGB", "L", "CMYK"]))
        options |= {"quality": rng.randint(40, 97), "progressive": rng.random() < 0.3}
        if image.mode == "RGB":
            options["subsampling"] = rng.randrange(3)
    else:
        image = _in_mode(rng, colour, rng.choice(["RGB", "RGBA"]))
        options |= {"lossless": rng.random() < 0.3, "quality": rng.randint(40, 95), "method": 0}
    out = io.BytesIO()
    try:
        image.save(out, kind, **options)
    except OSError:  # Pillow guesses how much room a progressive JPEG takes, and small noise takes more
        out = io.BytesIO()
        image.save(out, kind, **{**options, "progressive": False})
    return File(name=f"{name}.{kind.lower()}", body=out.getvalue(), size=sides)


def _in_mode(rng: random.Random, colour: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        levels = np.asarray(colour.convert("L")).astype(np.uint16) * rng.choice([1, 3, 257])
        return Image.fromarray(levels.astype(np.uint16))
    if mode.startswith("P"):
        return colour.quantize(rng.choice([4, 64, 256]), method=Image.Quantize.FASTOCTREE)
    image = colour.convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(colour.getchannel(rng.randrange(3)))
    return image


class Chats:
    """Conversations of several turns with up to four pictures or clips.

    Args:
        seed: Of all of them.
        texts: What is said.
        asks_for_sizes: Whether rows ask for sizes of their own, as qwen-vl-utils takes them.
        has_clips: Whether there are clips among their media.
    """

    def __init__(self, seed: int, texts: Texts, *, asks_for_sizes: bool, has_clips: bool = True) -> None:
        self._seed = seed
        self._texts = texts
        self._has_clips = has_clips
        self._asks_for_sizes = asks_for_sizes

    def next(self, number: int, *, may_have_tools: bool) -> Conversation:
        """The conversation of a number."""
        rng = random.Random(f"chat {self._seed} {number}")
        made = Conversation(row={}, messages=[], tools=[])
        if rng.random() < 0.4:
            made.messages.append({"role": "system", "content": self._said(rng) or "Be brief."})
        n_turns = rng.randint(1, 5)
        where = sorted(rng.randrange(n_turns) for _ in range(rng.choice([0, 1, 1, 2, 3, 4])))
        for turn in range(n_turns):
            parts: list[dict[str, Any]] = [{"type": "text", "text": self._said(rng)}] if rng.random() < 0.5 else []
            for _ in range(where.count(turn)):
                parts.append(self._media(rng, made, f"{number}-{len(made.pictures) + len(made.clips)}"))
                if rng.random() < 0.6:
                    parts.append({"type": "text", "text": self._said(rng)})
            if not parts:
                parts.append({"type": "text", "text": "Go on."})
            made.messages.append({"role": "user", "content": parts})
            made.messages.append({"role": "assistant", "content": "Yes: " + self._said(rng)})
        if may_have_tools and rng.random() < 0.15:
            made.tools = [{"type": "function", "function": {"name": "look", "parameters": {"at": {"type": "string"}}}}]
        made.row = {"messages": made.messages, **({"tools": made.tools} if made.tools else {})}
        return made

    def _said(self, rng: random.Random) -> str:
        while True:
            text = self._texts.next()
            if not any(token in text for token in CONTROL) and "<|" not in text[-16:]:
                return text[: rng.choice([20, 200, 2000])].encode("utf-8", "replace").decode()

    def _media(self, rng: random.Random, into: Conversation, name: str) -> dict[str, Any]:
        asked = self._asked(rng) if self._asks_for_sizes and rng.random() < 0.4 else {}
        if not self._has_clips or rng.random() < 0.6:
            file = random_file(rng, name, random_sides(rng, 400))
            into.pictures.append(Asked(file=file, asked=asked))
            return {"type": "image", "image": file.name, **asked}
        n_frames = 1 if rng.random() < 0.04 else rng.randint(2, 7)
        # Versions that refuse frames below one factor shall have something to do.
        sides = random_sides(rng, 260) if rng.random() < 0.2 else (rng.randint(32, 260), rng.randint(32, 260))
        frames = [random_file(rng, f"{name}-{f}", sides, may_turn=False) for f in range(n_frames)]
        rate = rng.choice([None, 0.5, 1.0, 2.0, 24.0, 29.97, 7.3])
        source_rate = rng.choice([None, 24.0, 30.0]) if rate is not None else None
        if asked and rng.random() < 0.5:
            asked["total_pixels"] = rng.randint(20_000, 2_000_000)
        into.clips.append(Clip(frames=frames, frames_per_s=rate, source_frames_per_s=source_rate, asked=asked))
        said = {"sample_fps": rate, "raw_fps": source_rate}
        return {
            "type": "video",
            "video": [frame.name for frame in frames],
            **{key: value for key, value in said.items() if value is not None},
            **asked,
        }

    def _asked(self, rng: random.Random) -> dict[str, int]:
        kind = rng.randrange(4)
        if kind == 0:
            return {"min_pixels": rng.randint(1_000, 60_000)}
        if kind == 1:
            return {"max_pixels": rng.randint(60_000, 400_000)}
        if kind == 2:
            return {"min_pixels": rng.randint(1_000, 200_000), "max_pixels": rng.randint(50_000, 400_000)}
        return {"resized_height": rng.randint(1, 500), "resized_width": rng.randint(1, 500)}


def write(folder: Path, files: list[File]) -> None:
    """Puts encoded pictures where rows find them."""
    for file in files:
        (folder / file.name).write_bytes(file.body)
