"""One sample with all that is to be told about it; terminal, JSON and HTML are views of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.building_blocks import Features, MediaFeatures, TurnFeatures
from stoker.inspecting.vocabulary import Vocabulary

__all__ = ["InspectedSample", "Place", "Run"]


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
    media: int | None
    """Index of the media whose placeholders they are."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedSample:
    """What is shown."""

    place: Place | None
    features: Features
    vocabulary: Vocabulary
    tokens_per_pack: int
    patch: int
    merge: int

    def runs(self, turn: TurnFeatures) -> Iterator[Run]:
        """The tokens of a turn."""
        labels = self.features.labels
        ids = self.features.input_ids.tolist()
        of_media: dict[int, int] = {
            position: k for k, media in enumerate(self.features.media) for position in range(*media.tokens)
        }
        begin, end = turn.tokens
        for (media, is_trained), group in groupby(
            range(begin, end), key=lambda i: (of_media.get(i), bool(labels[i] != -100))
        ):
            numbers = list(group)
            first, last = numbers[0], numbers[-1] + 1
            text = self.vocabulary.texts(ids[first:last]) if media is None else ""
            yield Run(begin=first, end=last, is_trained=is_trained, media=media, text=text)

    def picture(self, media: MediaFeatures) -> npt.NDArray[np.uint8] | None:
        """A media after the resize, (height, width, 3), put together from its patches."""
        patches = self.features.image_patches
        if patches is None or media.bad is not None:
            return None
        _, grid_h, grid_w = media.grid_thw
        p, m = self.patch, self.merge
        # (merged rows, merged columns, rows in a group, columns in a group, channel, y, x)
        grouped = patches[slice(*media.patches)].reshape(grid_h // m, grid_w // m, m, m, 3, p, p)
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
            "trained_tokens": f.n_trained,
            "patches": sum(media.patches[1] - media.patches[0] for media in f.media),
            "cost": f.cost,
            "tokens_per_pack": self.tokens_per_pack,
            "turns": [
                {
                    "role": turn.role,
                    "begin": turn.tokens[0],
                    "end": turn.tokens[1],
                    "text": self.vocabulary.texts(f.input_ids[slice(*turn.tokens)].tolist())
                    if not any(turn.tokens[0] <= m.tokens[0] < turn.tokens[1] for m in f.media)
                    else "".join(
                        run.text if run.media is None else f"[media {run.media}: {run.end - run.begin} tokens]"
                        for run in self.runs(turn)
                    ),
                }
                for turn in f.turns
            ],
            "media": [
                {
                    "reference": m.reference,
                    "url": m.url,
                    "bytes": m.n_bytes,
                    "stored_size": m.stored_size,
                    "orientation": m.orientation,
                    "upright_size": m.upright_size,
                    "size_from": m.size_from,
                    "prepared_size": m.prepared_size,
                    "target_size": m.target_size,
                    "grid_thw": m.grid_thw,
                    "tokens": m.tokens,
                    "problem": _problem(m.bad),
                }
                for m in f.media
            ],
            "input_ids": f.input_ids.tolist(),
            "labels": f.labels.tolist(),
            "token_texts": [self.vocabulary.text(number) for number in f.input_ids.tolist()],
            "position_ids": f.position_ids.tolist(),
        }


def _problem(bad: Any) -> dict[str, Any] | None:
    return None if bad is None else {"code": bad.code, "message": bad.message, "media": bad.media}
