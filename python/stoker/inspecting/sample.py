"""One sample with all that is to be told about it; terminal, JSON and HTML are views of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.building_blocks import ClipFeatures, Features, MediaFeatures, PictureFeatures, TurnFeatures
from stoker.inspecting.vocabulary import Vocabulary

__all__ = ["InspectedSample", "Place", "Run", "weight_mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a row stands."""

    manifest: str
    row: int
    """In its manifest, from 0."""
    line: int
    byte_offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring tokens that are shown together: all text trained alike, or one media's placeholders."""

    begin: int
    end: int
    is_trained: bool
    weight: float
    """Of each trained token's loss; 1 unless the settings deliver others, 0 where nothing is trained."""
    media: str | None
    """Whose placeholders they are: ``media 0``, ``clip 0``."""
    text: str

    @property
    def shown(self) -> str:
        """The text, or what stands for placeholders."""
        return self.text if self.media is None else f"[{self.media}: {self.end - self.begin} tokens]"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedSample:
    """What is shown."""

    place: Place | None
    features: Features
    vocabulary: Vocabulary
    tokens_per_pack: int
    align_samples_to: int
    patch: int
    merge: int

    @property
    def tokens_in_pack(self) -> int:
        """Its tokens, with what fills it up."""
        return -(-len(self.features.input_ids) // self.align_samples_to) * self.align_samples_to

    @property
    def length(self) -> str:
        """How long it is, in words."""
        f, n = self.features, self.tokens_in_pack
        filled = f"filled up to {n}, " if n > len(f.input_ids) else ""
        share = f"{filled}{100 * n / self.tokens_per_pack:.1f} % of a pack of {self.tokens_per_pack}"
        return f"{len(f.input_ids)} tokens ({share}), {f.n_trained} trained, {f.n_patches} patches"

    def placeholders(self) -> list[tuple[str, tuple[int, int]]]:
        """Every run of placeholders: (``media 0`` or ``clip 0``, tokens)."""
        images = [(f"media {k}", media.tokens) for k, media in enumerate(self.features.media)]
        return images + [(f"clip {k}", tokens) for k, clip in enumerate(self.features.clips) for tokens in clip.tokens]

    def runs(self, turn: TurnFeatures) -> Iterator[Run]:
        """The tokens of a turn."""
        weights = self.weights()
        ids = self.features.input_ids.tolist()
        of_media = {position: name for name, tokens in self.placeholders() for position in range(*tokens)}
        begin, end = turn.tokens
        for (media, weight), group in groupby(range(begin, end), key=lambda i: (of_media.get(i), weights[i])):
            numbers = list(group)
            first, last = numbers[0], numbers[-1] + 1
            text = self.vocabulary.texts(ids[first:last]) if media is None else ""
            yield Run(begin=first, end=last, is_trained=weight > 0, weight=weight, media=media, text=text)

    def weights(self) -> list[float]:
        """(T): what the loss of each token counts."""
        if self.features.loss_weights is not None:
            return [float(weight) for weight in self.features.loss_weights]
        return [float(label != -100) for label in self.features.labels]

    def picture(self, media: MediaFeatures) -> npt.NDArray[np.uint8] | None:
        """A media after the resize, (height, width, 3), put together from its patches."""
        patches = self.features.image_patches
        if patches is None or media.bad is not None:
            return None
        return self._upright(patches[slice(*media.patches)], media.grid_thw)

    def frame(self, clip: ClipFeatures, number: int) -> npt.NDArray[np.uint8] | None:
        """A frame of a clip after the resize, (height, width, 3)."""
        patches = self.features.video_patches
        if patches is None or any(frame.bad for frame in clip.frames):
            return None
        grid_t, grid_h, grid_w = clip.grid_thw
        depth = patches.shape[2]
        of_time = patches[slice(*clip.patches)].reshape(grid_t, grid_h * grid_w, *patches.shape[1:])
        return self._upright(of_time[number // depth, :, :, number % depth], clip.grid_thw)

    def _upright(self, patches: npt.NDArray[np.uint8], grid: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        _, grid_h, grid_w = grid
        p, m = self.patch, self.merge
        # (merged rows, merged columns, rows in a group, columns in a group, channel, y, x)
        grouped = patches.reshape(grid_h // m, grid_w // m, m, m, 3, p, p)
        upright = grouped.transpose(0, 2, 5, 1, 3, 6, 4)
        return np.ascontiguousarray(upright).reshape(grid_h * p, grid_w * p, 3)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, JSON-able; no pixels."""
        f = self.features
        place = self.place
        return {
            "id": f.id,
            "manifest": place.manifest if place else None,
            "row": place.row if place else None,
            "line": place.line if place else None,
            "byte_offset": place.byte_offset if place else None,
            "usable": f.bad is None,
            "problem": _problem(f.bad),
            "tokens": len(f.input_ids),
            "tokens_in_pack": self.tokens_in_pack,
            "trained_tokens": f.n_trained,
            "patches": f.n_patches,
            "cost": f.cost,
            "tokens_per_pack": self.tokens_per_pack,
            "turns": [
                {
                    "role": turn.role,
                    "begin": turn.tokens[0],
                    "end": turn.tokens[1],
                    "text": self.vocabulary.texts(f.input_ids[slice(*turn.tokens)].tolist())
                    if not any(turn.tokens[0] <= begin < turn.tokens[1] for _, (begin, _) in self.placeholders())
                    else "".join(run.shown for run in self.runs(turn)),
                }
                for turn in f.turns
            ],
            "media": [
                {**_picture(m), "target_size": m.target_size, "grid_thw": m.grid_thw, "tokens": m.tokens}
                for m in f.media
            ],
            "clips": [
                {
                    "frames": [_picture(frame) for frame in clip.frames],
                    **{name: getattr(clip, name) for name in clip.__slots__ if name not in ("frames", "patches")},
                }
                for clip in f.clips
            ],
            "boxes": [
                {"name": box.name, "text": box.text}
                if box.image is None
                else {
                    "media": box.image,
                    "points": box.points,
                    "is_share_of_sides": box.is_share_of_sides,
                    "text": box.text,
                }
                for box in f.boxes
            ],
            "input_ids": f.input_ids.tolist(),
            "labels": f.labels.tolist(),
            "loss_weights": None if f.loss_weights is None else f.loss_weights.tolist(),
            "token_texts": [self.vocabulary.text(number) for number in f.input_ids.tolist()],
            "position_ids": f.position_ids.tolist(),
        }


def _picture(picture: PictureFeatures) -> dict[str, Any]:
    return {
        "reference": picture.reference,
        "url": picture.url,
        "bytes": picture.n_bytes,
        "stored_size": picture.stored_size,
        "orientation": picture.orientation,
        "upright_size": picture.upright_size,
        "size_from": picture.size_from,
        "prepared_size": picture.prepared_size,
        "problem": _problem(picture.bad),
    }


def weight_mark(weight: float) -> str:
    """What stands behind trained text: nothing for the usual weight of 1."""
    return "" if weight in (0, 1) else f"×{weight:g}"


def _problem(bad: Any) -> dict[str, Any] | None:
    return None if bad is None else {"code": bad.code, "message": bad.message, "media": bad.media}
