"""The loader's own steps, one sample at a time: what tests, notebooks and ``stoker inspect`` use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker import _core
from stoker.errors import BadSampleError, InvalidArgumentError
from stoker.loader import core_settings
from stoker.settings import Media, Settings

__all__ = [
    "BoxFeatures",
    "ClipFeatures",
    "Features",
    "MediaFeatures",
    "PictureFeatures",
    "Problem",
    "TurnFeatures",
    "decode_image",
    "prepare",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a sample or a media of it cannot be used."""

    code: str
    """One fixed name, such as ``IMG_TRUNCATED`` (docs/errors.md)."""
    message: str
    media: str | None = None
    """The media to blame; None where it is the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFeatures:
    """One picture of a sample: an image, or a frame of a clip. Sizes are (height, width) in pixels."""

    reference: str
    """As the row has it."""
    url: str
    """Where it was read from."""
    n_bytes: int
    stored_size: tuple[int, int] | None
    """As in the file, before orientation; None where the header cannot be read."""
    orientation: int
    """EXIF, 1 to 8."""
    upright_size: tuple[int, int]
    size_from: str
    """``row`` or ``header``: whose size was planned with."""
    prepared_size: tuple[int, int]
    """After the user's own code; the upright size without one."""
    bad: Problem | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFeatures(PictureFeatures):
    """One image of a sample."""

    target_size: tuple[int, int]
    """What it is resized to."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width."""
    tokens: tuple[int, int]
    """Its placeholders among the sample's tokens, half-open."""
    patches: tuple[int, int]
    """Its rows of `Features.image_patches`, half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFeatures:
    """One clip of a sample, given as a list of pictures."""

    frames: tuple[PictureFeatures, ...]
    fps: float
    """Frames of the source in a second, in which `frame_numbers` count."""
    total_frames: float
    """Of the source."""
    frame_numbers: tuple[int, ...]
    """Of the frames in their source; the last counts on once more where qwen-vl-utils makes the number even."""
    seconds: tuple[float, ...]
    """Where each temporal patch stands: the mean of its first and last frame. Qwen3-VL has them in the text."""
    seconds_per_grid: float
    """From one temporal patch to the next; Qwen2.5-VL has it in the positions, for other families it is 1."""
    first_size: tuple[int, int] | None
    """``qvu+hf`` resizes every frame twice: to this, then to `target_size`. None otherwise."""
    target_size: tuple[int, int]
    """What every frame is resized to; (0, 0) where a frame is bad."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width."""
    tokens: tuple[tuple[int, int], ...]
    """Its placeholders among the sample's tokens, half-open: one range, or one for each temporal patch."""
    patches: tuple[int, int]
    """Its rows of `Features.video_patches`, half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFeatures:
    """A box of the row, or the name of an object."""

    image: int | None
    """The picture it lies in, index of `Features.media`; None for a name."""
    points: tuple[float, ...]
    """As the row has them: x, y, x, y, ... in pixels of the upright picture, or shares of its sides."""
    is_share_of_sides: bool
    name: str
    """Empty for a box."""
    text: str
    """What stands for it in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFeatures:
    """One rendered turn."""

    role: str | None
    """None where the chat template made the turn up."""
    is_assistant: bool
    tokens: tuple[int, int]
    """Half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """One sample as the model will see it.

    T tokens, P patches of images, V of clips, p pixels a side, t frames deep.
    """

    id: str
    """Of the row; may be empty."""
    input_ids: npt.NDArray[np.int64]
    """(T), placeholders expanded."""
    labels: npt.NDArray[np.int64]
    """(T); -100 is not trained."""
    loss_weights: npt.NDArray[np.float32] | None
    """(T) of the label at the same place, 0 without one; None unless ``labels.weights`` is ``deliver``."""
    position_ids: npt.NDArray[np.int64]
    """(4, T): text positions, then M-RoPE t, h, w."""
    image_patches: npt.NDArray[np.uint8] | None
    """(P, 3, p, p); None without images, or where pixels were not asked for."""
    video_patches: npt.NDArray[np.uint8] | None
    """(V, 3, t, p, p); None without clips, or where pixels were not asked for."""
    media: tuple[MediaFeatures, ...]
    """The images in reading order."""
    clips: tuple[ClipFeatures, ...]
    """The clips in reading order."""
    turns: tuple[TurnFeatures, ...]
    boxes: tuple[BoxFeatures, ...]
    """The row's boxes and names of objects, in the order of their marks."""
    cost: int
    """As planning counts it: thousands of FLOPs, forward and backward."""
    bad: Problem | None
    """Why a run would leave the sample out. `prepare` raises instead."""

    @property
    def image_grid_thw(self) -> list[tuple[int, int, int]]:
        """(t, h, w) in patches of each image."""
        return [media.grid_thw for media in self.media]

    @property
    def video_grid_thw(self) -> list[tuple[int, int, int]]:
        """(t, h, w) in patches of each clip."""
        return [clip.grid_thw for clip in self.clips]

    @property
    def n_patches(self) -> int:
        """Patches of images and clips."""
        ranges = [media.patches for media in self.media] + [clip.patches for clip in self.clips]
        return sum(end - begin for begin, end in ranges)

    @property
    def n_trained(self) -> int:
        """Tokens with a label."""
        return int((self.labels != -100).sum())


def prepare(row: Mapping[str, Any] | str | bytes, settings: Settings, *, media_root: str | None = None) -> Features:
    """Prepares one row exactly as a loader with these settings would; its manifests are not opened.

    Args:
        row: A row as a mapping, or as the JSON text of a line.
        settings: What comes out; the speed settings do not matter.
        media_root: Where relative media lie; by default what ``settings.data[0]`` says.

    Raises:
        BadSampleError: A run would leave the sample out; ``.code`` says why.
        StokerError: Storage did not answer, or the settings do not fit.
    """
    features = features_of(core_inspector(settings), row, default_media_root(settings, media_root))
    if features.bad is not None:
        where = f"{features.bad.media}: " if features.bad.media else ""
        raise BadSampleError(where + features.bad.message, features.bad.code)
    return features


def decode_image(data: bytes, *, media: Media | None = None, reference: str = "stoker") -> npt.NDArray[np.uint8]:
    """Decodes a picture as a loader does: (height, width, 3) uint8.

    Args:
        data: The whole file.
        media: Rules for orientation, transparency and 16 bits, and limits; what is ``auto`` follows `reference`.
        reference: A profile, as in the settings.

    Raises:
        BadSampleError: ``.code`` says why it cannot be used.
    """
    rules = media or Media()
    facts = _core.resolve_profile(reference, rules.exif, rules.alpha, rules.grey16)
    decoded: npt.NDArray[np.uint8] = _core.decode_image(
        data,
        exif=facts["exif"] == "apply",
        alpha=facts["alpha"],
        grey16=facts["grey16"],
        max_pixels=rules.max_pixels,
        max_scans=rules.max_scans,
        allow_missing_eoi=rules.allow_missing_eoi,
        allow_truncated=rules.allow_truncated,
    )
    return decoded


# --- for stoker's own commands


_KEPT = 4
_inspectors: dict[str, _core.CoreInspector] = {}


def core_inspector(settings: Settings) -> _core.CoreInspector:
    """The engine's inspector for these settings; the model's folder is read once."""
    key = json.dumps(settings.to_dict(), sort_keys=True, default=str)
    core = _inspectors.pop(key, None) or _core.CoreInspector.create(core_settings(settings))
    _inspectors[key] = core  # the newest last
    while len(_inspectors) > _KEPT:
        _inspectors.pop(next(iter(_inspectors)), None)
    return core


def default_media_root(settings: Settings, media_root: str | None) -> str:
    """Where relative media of a row lie that stands in no manifest."""
    if media_root is not None:
        return media_root
    if not settings.data:
        return ""
    source = settings.data[0]
    return source.media_root or source.manifest.rpartition("/")[0]


def features_of(
    core: _core.CoreInspector,
    row: Mapping[str, Any] | str | bytes,
    media_root: str,
    *,
    with_pixels: bool = True,
    source: int | None = None,
) -> Features:
    """Prepares a row; what makes it bad is said in the result."""
    got = core.prepare(_line_of(row), media_root, with_pixels, source)
    return Features(
        id=got["id"],
        input_ids=got["input_ids"],
        labels=got["labels"],
        loss_weights=got["loss_weights"],
        position_ids=got["position_ids"],
        image_patches=got["image_patches"],
        video_patches=got["video_patches"],
        media=tuple(MediaFeatures(**_said(image)) for image in got["images"]),
        clips=tuple(_clip(clip) for clip in got["clips"]),
        turns=tuple(
            TurnFeatures(role=role, is_assistant=is_assistant, tokens=(begin, end))
            for role, is_assistant, begin, end in got["turns"]
        ),
        boxes=tuple(
            BoxFeatures(image=image, points=points, is_share_of_sides=is_share, name=name, text=text)
            for image, points, is_share, name, text in got["boxes"]
        ),
        cost=got["cost"],
        bad=_problem(got["bad"]),
    )


def _said(picture: Mapping[str, Any]) -> dict[str, Any]:
    return {**picture, "bad": _problem(picture["bad"])}


def _clip(clip: Mapping[str, Any]) -> ClipFeatures:
    lists = {name: tuple(clip[name]) for name in ("frame_numbers", "seconds", "tokens")}
    frames = tuple(PictureFeatures(**_said(frame)) for frame in clip["frames"])
    return ClipFeatures(**{**clip, **lists, "frames": frames})


def _problem(bad: tuple[str, str, str | None] | None) -> Problem | None:
    return Problem(code=bad[0], message=bad[1], media=bad[2]) if bad is not None else None


def _line_of(row: Mapping[str, Any] | str | bytes) -> bytes:
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode("utf-8", "surrogatepass")
    try:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the row is no JSON: {error}", "SETTINGS") from error
