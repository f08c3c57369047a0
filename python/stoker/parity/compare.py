"""Compares Stoker with the installed reference on a user's own rows, field by field."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stoker import _core
from stoker.building_blocks import Features, PictureFeatures, core_inspector, decode_image, features_of
from stoker.errors import InvalidArgumentError
from stoker.inspecting.vocabulary import Vocabulary
from stoker.parity.reference import GivenClip, GivenPicture, Reference, ReferenceSample, RefusedError
from stoker.settings import Labels, Settings
from stoker.user_code import picture_code

__all__ = ["FIELDS", "Comparison", "Difference", "Field", "are_one_level_apart", "compare_rows", "pixel_values"]

FIELDS = (
    "accepted",
    "input_ids",
    "labels",
    "position_ids",
    "image_grid_thw",
    "pixel_values",
    "video_grid_thw",
    "pixel_values_videos",
    "decode",
)
_Kind = Literal["image", "video"]
_FLOAT_BOUND = 1e-3
"""Share of a clip's samples that may differ by one level where qwen-vl-utils resizes in float32."""
_ANY_LENGTH = 2**24 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place in which a field of a row differs."""

    where: str
    """Manifest, line, and picture if it is one."""
    position: str
    stoker: str
    reference: str
    cause: str
    """Which setting or library causes it."""
    is_on_purpose: bool = False
    """Only the decoded picture, and both sides were given the same one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, kw_only=True)
class Field:
    """What one field came to over all rows."""

    name: str
    n_compared: int = 0
    n_equal: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """No difference, save those on purpose."""
        return all(d.is_on_purpose for d in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "compared": self.n_compared,
            "equal": self.n_equal,
            "differences": [d.to_dict() for d in self.differences],
        }


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What came out."""

    reference: str
    profile: str
    n_rows: int = 0
    n_compared: int = 0
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    """(where, code, message) of rows that a run would leave out: nothing is there to compare."""
    notes: list[str] = field(default_factory=list)
    fields: dict[str, Field] = field(default_factory=lambda: {name: Field(name=name) for name in FIELDS})

    @property
    def is_equal(self) -> bool:
        """Whether every field of every compared row was."""
        return all(f.is_equal for f in self.fields.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, JSON-able."""
        return {
            "equal": self.is_equal,
            "reference": self.reference,
            "profile": self.profile,
            "rows": self.n_rows,
            "compared": self.n_compared,
            "left_out": [{"where": w, "code": c, "message": m} for w, c, m in self.left_out],
            "notes": self.notes,
            "fields": [f.to_dict() for f in self.fields.values()],
        }


def compare_rows(settings: Settings, *, n_samples: int) -> Comparison:
    """Compares rows spread evenly over the manifests.

    Raises:
        InvalidArgumentError: If the reference cannot be run, or no row could be compared.
    """
    # How long a pack is does not matter here.
    settings = settings.replace(pack={"tokens_per_pack": _ANY_LENGTH})
    compared = _Comparer(settings, Reference(settings.model, settings.reference))
    for row in _rows(settings, n_samples):
        compared.row(row)
    result = compared.result
    if result.n_compared == 0:
        why = f": {result.left_out[0][1]}: {result.left_out[0][2]}" if result.left_out else ""
        raise InvalidArgumentError(f"none of {result.n_rows} rows could be compared{why}", "NO_DATA")
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    where: str
    source: int
    """Its manifest, which says how it is read."""
    line: bytes
    media_root: str

    def features(self, settings: Settings, *, with_pixels: bool = True) -> Features:
        """What Stoker makes of it."""
        return features_of(_opened(settings), self.line, self.media_root, with_pixels=with_pixels, source=self.source)


def _opened(settings: Settings) -> _core.CoreInspector:
    core = core_inspector(settings)
    if core.n_sources == 0:
        core.open_dataset()
    return core


def _rows(settings: Settings, n_samples: int) -> Iterator[_Row]:
    core = _opened(settings)
    counts = [core.n_rows(source) for source in range(core.n_sources)]
    total = sum(counts)
    for k in range(min(n_samples, total)):
        at, source = k * total // min(n_samples, total), 0
        while at >= counts[source]:
            at -= counts[source]
            source += 1
        manifest, number, _, _, media_root = core.location(source, at)
        yield _Row(where=f"{manifest}:{number}", source=source, line=core.read(source, at), media_root=media_root)


class _Comparer:
    def __init__(self, settings: Settings, reference: Reference) -> None:
        self.settings = settings
        self.reference = reference
        self.core = _opened(settings)
        self.user_picture = picture_code(settings.user_code)
        self.vocabulary = Vocabulary(settings.model)
        self.result = Comparison(
            reference=reference.description, profile=settings.reference, notes=list(reference.notes)
        )

    def row(self, row: _Row) -> None:
        """Compares one row."""
        self.result.n_rows += 1
        ours = row.features(self.settings)
        if ours.bad is not None:
            self.result.left_out.append((row.where, ours.bad.code, ours.bad.message))
            return
        content = self.core.parse(row.line, row.source)
        if reason := self._not_comparable(content):
            self.result.left_out.append((row.where, "NOT_COMPARED", reason))
            return
        self.result.n_compared += 1
        accepted = self.result.fields["accepted"]
        accepted.n_compared += 1
        try:
            theirs = self.reference.prepare(*_messages(content), *self._given(row.where, content["media"], ours))
        except RefusedError as error:
            accepted.differences.append(
                Difference(
                    where=row.where,
                    position="the whole row",
                    stoker="takes it",
                    reference=str(error),
                    cause="the reference refuses what Stoker takes",
                )
            )
            return
        accepted.n_equal += 1
        self._ids(row, ours, theirs)
        if self.settings.labels == Labels():
            self._field("labels", row.where, ours.labels, theirs.labels, self._token, self._labels_cause)
        else:
            self._note("labels were not compared: the settings have rules of their own for them")
        if theirs.position_ids is not None:
            self._field(
                "position_ids",
                row.where,
                ours.position_ids[1:],
                theirs.position_ids,
                str,
                lambda: (
                    "the ids or grids differ, and positions follow from them"
                    if not self._same_ids(ours, theirs)
                    else self._profile_cause(row, theirs, "positions")
                ),
            )
        else:
            self._note("positions were not compared: the folder has no config.json")
        if ours.media:
            self._media(row, ours, theirs, "image")
        if ours.clips:
            self._media(row, ours, theirs, "video")

    def _media(self, row: _Row, ours: Features, theirs: ReferenceSample, kind: _Kind) -> None:
        grids, pixels = f"{kind}_grid_thw", "pixel_values" if kind == "image" else "pixel_values_videos"
        a, b = np.asarray(getattr(ours, grids)), np.asarray(getattr(theirs, grids))
        self._field(grids, row.where, a, b, str, lambda: self._profile_cause(row, theirs, grids))
        made, wanted = pixel_values(ours, self.settings, kind), getattr(theirs, pixels)
        if kind == "video" and self._is_within_bound(made, wanted):
            made = wanted
        self._field(pixels, row.where, made, wanted, repr, lambda: self._profile_cause(row, theirs, pixels))

    # --- what both sides are given

    def _not_comparable(self, row: Mapping[str, Any]) -> str:
        """Why a row says something that the reference processor has no input for; empty where it does not."""
        for media in row["media"]:
            if "frames" in media and not self.reference.has_torchvision:
                return "the row has a clip, which the reference processes by torchvision: pip install torchvision"
            if _asked(media) and not self.reference.is_qwen_vl_utils:
                return (
                    "the row asks for sizes of its own, which the reference processor takes per call, not per picture"
                )
        if row.get("boxes"):
            return "the row has boxes, which become text only with the picture's size"
        if any(turn.get("loss_scale") is not None for turn in row["turns"]):
            return "a turn of the row says itself how much it is trained"
        return ""

    def _given(
        self, where: str, media: Sequence[Mapping[str, Any]], ours: Features
    ) -> tuple[list[GivenPicture], list[GivenClip]]:
        pictures = [self._picture(f"{where}, media {k}", image) for k, image in enumerate(ours.media)]
        asked = [_asked(each) for each in media if "frames" not in each]
        images = [GivenPicture(pixels=p, asked=a) for p, a in zip(pictures, asked, strict=True)]
        clips = []
        for k, (said, clip) in enumerate(zip((each for each in media if "frames" in each), ours.clips, strict=True)):
            # Only `stoker` tells the reference a rate that the row does not say; see docs/profiles.md.
            own = clip.fps if self.settings.reference == "stoker" else None
            clips.append(
                GivenClip(
                    frames=[
                        self._picture(f"{where}, clip {k}, frame {f}", frame) for f, frame in enumerate(clip.frames)
                    ],
                    frames_per_s=said["frames_per_s"] or own,
                    source_frames_per_s=said.get("source_frames_per_s"),
                    asked=_asked(said),
                )
            )
        return images, clips

    # --- fields

    def _note(self, text: str) -> None:
        if text not in self.result.notes:
            self.result.notes.append(text)

    def _field(
        self,
        name: str,
        where: str,
        ours: npt.NDArray[Any] | None,
        theirs: npt.NDArray[Any] | None,
        shown: Callable[[Any], str],
        cause: Callable[[], str],
    ) -> None:
        into = self.result.fields[name]
        into.n_compared += 1
        first = _first_difference(ours, theirs)
        if first is None:
            into.n_equal += 1
            return
        position, a, b = first
        into.differences.append(
            Difference(
                where=where,
                position=position,
                stoker=shown(a) if a is not None else "nothing",
                reference=shown(b) if b is not None else "nothing",
                cause=cause(),
            )
        )

    def _ids(self, row: _Row, ours: Features, theirs: ReferenceSample) -> None:
        def cause() -> str:
            raw = self._variant(content_tokens="raw") if self.settings.content_tokens != "raw" else None
            if raw is not None and self._ids_equal_under(raw, row, theirs):
                found = ", ".join(token for token in self.vocabulary.added() if token.encode() in row.line)
                return (
                    f"content_tokens: guard: {found or 'a control token'} stands in the row's own text, and is text; "
                    "the reference takes it for a token (content_tokens: raw does too)"
                )
            return self._profile_cause(row, theirs, "input_ids")

        self._field("input_ids", row.where, ours.input_ids, theirs.input_ids, self._token, cause)

    def _is_within_bound(self, ours: npt.NDArray[Any] | None, theirs: npt.NDArray[Any] | None) -> bool:
        """Whether a clip that qwen-vl-utils resized in float32 is as near as that can be."""
        if not self.reference.is_qwen_vl_utils or ours is None or theirs is None or ours.shape != theirs.shape:
            return False
        n = int((ours != theirs).sum())
        if n:
            self._note(
                "clips of qwen-vl-utils are resized in float32, whose last bit depends on the CPU: up to one sample in "
                "a thousand of a clip may differ, by one level"
            )
        return n <= _FLOAT_BOUND * ours.size and are_one_level_apart(ours, theirs, self.settings)

    def _picture(self, where: str, picture: PictureFeatures) -> npt.NDArray[np.uint8]:
        """Decodes one picture as Stoker does; notes how the reference's Pillow would differ."""
        ours = self._decoded(where, self.core.fetch(_url_of(picture)))
        return self.user_picture(ours) if self.user_picture else ours

    def _decoded(self, where: str, data: bytes) -> npt.NDArray[np.uint8]:
        from PIL import Image, ImageOps

        ours = decode_image(data, media=self.settings.media, reference=self.settings.reference)
        into = self.result.fields["decode"]
        into.n_compared += 1
        try:
            with Image.open(io.BytesIO(data)) as opened:
                has_alpha = opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info
                is_deep = opened.mode.startswith("I")
                turned = ImageOps.exif_transpose(opened)
                theirs = np.asarray(opened.convert("RGB"))
                upright = np.asarray(turned.convert("RGB"))
        except Exception as error:  # Pillow says no to what we take
            into.differences.append(
                Difference(
                    where=where,
                    position="the whole file",
                    stoker="decodes it",
                    reference=f"{type(error).__name__}: {error}",
                    cause="Pillow cannot read the file; both sides were given what Stoker decoded",
                    is_on_purpose=True,
                )
            )
            return ours
        first = _first_difference(ours, theirs)
        if first is None:
            into.n_equal += 1
            return ours
        facts = self.settings.resolved_profile()
        causes = []
        if facts["exif"] == "apply" and not np.array_equal(theirs, upright):
            causes.append("media.exif: apply (the file says how it is turned; the reference ignores it)")
        if facts["alpha"] != "drop" and has_alpha:
            causes.append(f"media.alpha: {facts['alpha']} (the picture has transparency; the reference drops it)")
        if facts["grey16"] == "scale" and is_deep:
            causes.append("media.grey16: scale (a 16-bit picture; the reference clips it)")
        position, a, b = first
        into.differences.append(
            Difference(
                where=where,
                position=position,
                stoker=str(a),
                reference=str(b),
                cause="; ".join(causes) or "the decoders of Pillow and Stoker differ for this file",
                is_on_purpose=bool(causes) or not facts["is_strict"],
            )
        )
        return ours

    # --- causes, found by trying

    def _token(self, number: Any) -> str:
        return "-100 (not trained)" if number == -100 else f"{number} {self.vocabulary.text(int(number))!r}"

    def _same_ids(self, ours: Features, theirs: ReferenceSample) -> bool:
        return np.array_equal(ours.input_ids, theirs.input_ids)

    def _labels_cause(self) -> str:
        if self.result.fields["input_ids"].differences:
            return "the ids differ, and labels follow from them"
        return "not explained by a setting; the reference is taken to train all that an assistant says"

    def _variant(self, **changes: Any) -> Settings | None:
        try:
            return self.settings.replace(**changes)
        except InvalidArgumentError:
            return None

    def _ids_equal_under(self, settings: Settings, row: _Row, theirs: ReferenceSample) -> bool:
        return self._same_ids(row.features(settings, with_pixels=False), theirs)

    def _profile_cause(self, row: _Row, theirs: ReferenceSample, what: str) -> str:
        """The profile under which both are equal, given the same picture; or that none is."""
        for name in _core.profile_names():
            if name == self.settings.reference:
                continue
            # What is decoded stays as it is in the settings: it is not what is asked here.
            settings = self._variant(
                reference=name, content_tokens="auto", media={"exif": "auto", "alpha": "auto", "grey16": "auto"}
            )
            if settings is None:
                continue
            made = row.features(settings)
            if made.bad is not None:
                continue
            if what == "input_ids":
                is_equal = self._same_ids(made, theirs)
            elif what == "positions":
                is_equal = _first_difference(made.position_ids[1:], theirs.position_ids) is None
            elif what.endswith("grid_thw"):
                is_equal = getattr(made, what) == getattr(theirs, what)
            else:
                kind: _Kind = "video" if what.endswith("videos") else "image"
                is_equal = _first_difference(pixel_values(made, settings, kind), getattr(theirs, what)) is None
            if is_equal:
                return (
                    f"reference: {self.settings.reference} has other numbers than what is installed here "
                    f"({self.reference.backend} backend): under reference: {name} both are equal"
                )
        return f"not explained by a setting (reference: {self.settings.reference}, {self.reference.backend} backend)"


def _first_difference(a: npt.NDArray[Any] | None, b: npt.NDArray[Any] | None) -> tuple[str, Any, Any] | None:
    """(position, ours, theirs) of the first difference; None where both are equal bit for bit."""
    if a is None or b is None:
        return None if a is b else ("the whole field", None if a is None else a.shape, None if b is None else b.shape)
    if a.shape != b.shape:
        if a.ndim == b.ndim == 1:
            n = min(len(a), len(b))
            differs = np.flatnonzero(a[:n] != b[:n])
            at = int(differs[0]) if len(differs) else n
            position = f"[{at}] (lengths {len(a)} and {len(b)})"
            return position, a[at] if at < len(a) else None, b[at] if at < len(b) else None
        return "shape", a.shape, b.shape
    places = np.argwhere(a != b)
    if not len(places):
        return None
    at_each = tuple(int(i) for i in places[0])
    position = f"[{', '.join(map(str, at_each))}] ({len(places)} of {a.size} differ)"
    return position, a[at_each], b[at_each]


def pixel_values(features: Features, settings: Settings, kind: _Kind) -> npt.NDArray[np.float32]:
    """The patches as the model's own processor gives them."""
    from stoker.torch.pixels import Normalisation, expand

    core = core_inspector(settings)
    mean, std, rescale, _, _, temporal_patch, is_pil = core.normalisation
    if kind == "video":
        mean, std, rescale = core.clip_normalisation
    normalisation = Normalisation(
        mean=tuple(mean),
        std=tuple(std),
        rescale=rescale,
        temporal_patch=temporal_patch,
        backend="pil" if is_pil and kind == "image" else "torchvision",
    )
    patches = features.image_patches if kind == "image" else features.video_patches
    made: npt.NDArray[np.float32] = expand(patches, normalisation).numpy()
    return made


def are_one_level_apart(ours: npt.NDArray[Any], theirs: npt.NDArray[Any], settings: Settings) -> bool:
    """Whether no sample of a clip differs by more than one of 255 levels."""
    _, std, rescale = core_inspector(settings).clip_normalisation
    return bool(np.abs(ours - theirs).max() <= 1.01 * rescale / min(std))


def _asked(media: Mapping[str, Any]) -> dict[str, int]:
    """What a row asks for the size of a media, in the words of qwen-vl-utils."""
    words = {
        "min_pixels": "min_pixels",
        "max_pixels": "max_pixels",
        "total_pixels": "total_pixels",
        "resized_height_px": "resized_height",
        "resized_width_px": "resized_width",
    }
    return {word: media[name] for name, word in words.items() if name in media}


def _url_of(picture: PictureFeatures) -> str:
    """What can be fetched: of a picture that stands in its row `url` is only the beginning, for people."""
    return picture.reference if picture.reference.startswith("data:") else picture.url


def _messages(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """What the row says, in the form that chat templates take: as the loader reads it."""
    messages: list[dict[str, Any]] = []
    for turn in row["turns"]:
        parts = [_part(part) for part in turn["parts"]]
        message: dict[str, Any] = {"role": turn["role"], "content": parts}
        if all(part["type"] == "text" for part in parts):
            message["content"] = "".join(part["text"] for part in parts)
        if turn["tool_calls"]:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call["name"], "arguments": _arguments(call["arguments"])}}
                for call in turn["tool_calls"]
            ]
        messages.append(message)
    return messages, [json.loads(tool) for tool in row["tools"]]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    return {"type": "image" if "image" in part else "video"}


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
