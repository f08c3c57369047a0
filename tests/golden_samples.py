"""The golden conversations, as rows and pictures that a loader can read."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "testdata" / "goldens"
MODEL = ROOT / "testdata" / "qwen3-vl"
sys.path.insert(0, str(ROOT / "tools" / "golden"))

import recipes  # noqa: E402


def load(name: str) -> list[dict[str, Any]]:
    """The cases of one golden file."""
    data: list[dict[str, Any]] = json.loads((GOLDENS / name).read_text())["data"]
    assert data, "a suite that tested nothing"
    return data


SAMPLES = load("end_to_end.json")
ALL = list(range(len(SAMPLES)))
WITHOUT_CLIPS = [i for i in ALL if not SAMPLES[i]["video_grid_thw"]]
PACKS = load("packs.json")


# Golden 4 ends with an empty answer. The loader takes no row in which nobody answers, so a turn is put behind it, and
# it is compared up to its own end.
_BEHIND_AN_EMPTY_ANSWER = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": "Well."}]


def has_empty_answer(number: int) -> bool:
    """Whether a golden sample is lengthened by `write_rows`."""
    return bool(SAMPLES[number]["messages"][-1]["content"] == [{"type": "text", "text": ""}])


def unrun(runs: list[list[int]]) -> list[int]:
    """[[value, count], ...] -> values."""
    return [value for value, count in runs for _ in range(count)]


def sha(array: Any) -> str:
    """Of raw little-endian bytes in C order, as the golden files have it."""
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()


def write_rows(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes pictures and a manifest with one line per number of a golden sample; returns the manifest."""
    lines = []
    for number in numbers:
        messages = []
        for message in SAMPLES[number]["messages"]:
            parts = [_part(folder, part) for part in message["content"]]
            messages.append({"role": message["role"], "content": parts})
        if has_empty_answer(number):
            messages += _BEHIND_AN_EMPTY_ANSWER
        lines.append(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    manifest = folder / "rows.jsonl"
    manifest.write_text("".join(lines), encoding="utf-8")
    return manifest


def _part(folder: Path, part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return part
    if part["type"] == "video":
        names = []
        for i, frame in enumerate(recipes.clip(**part["clip"])):
            names.append(f"clip-{part['clip']['seed']}-{i}.png")
            Image.fromarray(frame).save(folder / names[-1])
        return {"type": "video", "video": names, "sample_fps": part["fps"]}
    path = folder / "{kind}-{seed}.png".format(**part["recipe"])
    Image.fromarray(recipes.image(part["recipe"])).save(path)
    return {"type": "image", "image": path.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample cut out of a packed `stoker.torch` batch."""

    line: int
    """In the manifest, from 0."""
    number: int
    """Of the golden sample."""
    input_ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    """(4, n)"""
    image_grid_thw: list[list[int]]
    pixel_values: npt.NDArray[np.float32] | None
    video_grid_thw: list[list[int]]
    pixel_values_videos: npt.NDArray[np.float32] | None
    in_pack: slice
    """Where its tokens are."""


def cut(loader: Any, batch: Any, numbers: Sequence[int]) -> list[Sample]:
    """Cuts a packed batch of `stoker.torch.batches` into the golden samples that `write_rows` was given."""
    inputs, layout = batch.inputs, batch.layout
    images = _Media(inputs, "pixel_values", "image_grid_thw", layout.image_counts)
    clips = _Media(inputs, "pixel_values_videos", "video_grid_thw", layout.video_counts)
    out = []
    for i, sample_id in enumerate(layout.sample_ids.tolist()):
        line = loader.describe(sample_id).line - 1
        begin, end = int(layout.cu_seqlens[i]), int(layout.cu_seqlens[i + 1])
        if has_empty_answer(numbers[line]):
            end = begin + len(SAMPLES[numbers[line]]["position_ids"][0])
        at = slice(begin, end)
        image_grids, image_pixels = images.of(i)
        clip_grids, clip_pixels = clips.of(i)
        out.append(
            Sample(
                line=line,
                number=numbers[line],
                input_ids=inputs["input_ids"][0, at].numpy(),
                labels=inputs["labels"][0, at].numpy(),
                position_ids=inputs["position_ids"][:, 0, at].numpy(),
                image_grid_thw=image_grids,
                pixel_values=image_pixels,
                video_grid_thw=clip_grids,
                pixel_values_videos=clip_pixels,
                in_pack=at,
            )
        )
    images.check_used_up()
    clips.check_used_up()
    return out


class _Media:
    """Grids and pixel rows of one kind, taken sample by sample."""

    def __init__(self, inputs: dict[str, Any], pixels: str, grids: str, counts: npt.NDArray[np.int32]) -> None:
        self._grids = inputs[grids].tolist() if grids in inputs else []
        self._pixels = inputs[pixels].numpy() if pixels in inputs else np.zeros((0, 1), np.float32)
        self._counts = counts.tolist()
        self._at = self._row = 0

    def of(self, sample: int) -> tuple[list[list[int]], npt.NDArray[np.float32] | None]:
        own = self._grids[self._at : self._at + self._counts[sample]]
        rows = slice(self._row, self._row + sum(t * h * w for t, h, w in own))
        self._at, self._row = self._at + len(own), rows.stop
        return own, self._pixels[rows] if own else None

    def check_used_up(self) -> None:
        assert self._at == len(self._grids)
        assert self._row == len(self._pixels)
