"""Compares Stoker with the installed reference on a user's own rows, field by field."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker import _core
from stoker.building_blocks import Features, core_inspector, decode_image, features_of
from stoker.errors import BadSampleError, InvalidArgumentError
from stoker.inspecting.vocabulary import Vocabulary
from stoker.parity.reference import Reference, ReferenceSample
from stoker.settings import Labels, Settings

__all__ = ["FIELDS", "Comparison", "Difference", "Field", "compare_rows"]

FIELDS = ("input_ids", "labels", "position_ids", "image_grid_thw", "pixel_values", "decode")
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
    if settings.user_code.row or settings.user_code.picture:
        raise InvalidArgumentError("parity compares without user_code: take it out of the settings", "SETTINGS")
    # How long a pack is does not matter here.
    settings = settings.replace(pack={"tokens_per_pack": _ANY_LENGTH})
    compared = _Comparer(settings, Reference(settings.model))
    for where, line, media_root in _rows(settings, n_samples):
        compared.row(where, line, media_root)
    result = compared.result
    if result.n_compared == 0:
        why = f": {result.left_out[0][1]}: {result.left_out[0][2]}" if result.left_out else ""
        raise InvalidArgumentError(f"none of {result.n_rows} rows could be compared{why}", "NO_DATA")
    return result


def _rows(settings: Settings, n_samples: int) -> Iterator[tuple[str, bytes, str]]:
    core = core_inspector(settings)
    core.open_dataset()
    counts = [core.n_rows(source) for source in range(core.n_sources)]
    total = sum(counts)
    for k in range(min(n_samples, total)):
        at, source = k * total // min(n_samples, total), 0
        while at >= counts[source]:
            at -= counts[source]
            source += 1
        manifest, line, _, _, media_root = core.location(source, at)
        yield f"{manifest}:{line}", core.read(source, at), media_root


class _Comparer:
    def __init__(self, settings: Settings, reference: Reference) -> None:
        self.settings = settings
        self.reference = reference
        self.core = core_inspector(settings)
        self.vocabulary = Vocabulary(settings.model)
        self.result = Comparison(reference=reference.description, profile=settings.reference)

    def row(self, where: str, line: bytes, media_root: str) -> None:
        """Compares one row."""
        self.result.n_rows += 1
        ours = features_of(self.core, line, media_root)
        if ours.bad is not None:
            self.result.left_out.append((where, ours.bad.code, ours.bad.message))
            return
        row = _core.parse_row(line)
        if reason := _not_comparable(row):
            self.result.left_out.append((where, "NOT_COMPARED", reason))
            return
        messages, tools = _messages(row)
        pictures = [self._picture(f"{where}, media {k}", media.url) for k, media in enumerate(ours.media)]
        theirs = self.reference.prepare(messages, tools, pictures)
        self.result.n_compared += 1
        self._ids(where, ours, theirs, line, media_root)
        if self.settings.labels == Labels():
            self._field("labels", where, ours.labels, theirs.labels, self._token, self._labels_cause)
        else:
            self._note("labels were not compared: the settings have rules of their own for them")
        if theirs.position_ids is not None:
            self._field(
                "position_ids",
                where,
                ours.position_ids[1:],
                theirs.position_ids,
                str,
                lambda: (
                    "the ids or grids differ, and positions follow from them"
                    if not self._same_ids(ours, theirs)
                    else "not explained by a setting"
                ),
            )
        else:
            self._note("positions were not compared: the folder has no config.json")
        if ours.media:
            grids = np.asarray(ours.image_grid_thw), np.asarray(theirs.image_grid_thw)
            self._field(
                "image_grid_thw", where, *grids, str, lambda: self._profile_cause(line, media_root, theirs, "grids")
            )
            self._field(
                "pixel_values",
                where,
                self._pixel_values(ours, self.settings),
                theirs.pixel_values,
                repr,
                lambda: self._profile_cause(line, media_root, theirs, "pixels"),
            )

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

    def _ids(self, where: str, ours: Features, theirs: ReferenceSample, line: bytes, media_root: str) -> None:
        def cause() -> str:
            raw = self._variant(content_tokens="raw") if self.settings.content_tokens != "raw" else None
            if raw is not None and self._ids_equal_under(raw, line, media_root, theirs):
                found = ", ".join(token for token in self.vocabulary.added() if token.encode() in line)
                return (
                    f"content_tokens: guard: {found or 'a control token'} stands in the row's own text, and is text; "
                    "the reference takes it for a token (content_tokens: raw does too)"
                )
            return self._profile_cause(line, media_root, theirs, "ids")

        self._field("input_ids", where, ours.input_ids, theirs.input_ids, self._token, cause)

    def _picture(self, where: str, url: str) -> npt.NDArray[np.uint8]:
        """Decodes one picture as Stoker does; notes how the reference's Pillow would differ."""
        from PIL import Image, ImageOps

        data = self.core.fetch(url)
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

    def _pixel_values(self, features: Features, settings: Settings) -> npt.NDArray[np.float32]:
        from stoker.torch.pixels import Normalisation, expand

        mean, std, rescale, _, _, temporal_patch, is_pil = core_inspector(settings).normalisation
        normalisation = Normalisation(
            mean=tuple(mean),
            std=tuple(std),
            rescale=rescale,
            temporal_patch=temporal_patch,
            backend="pil" if is_pil else "torchvision",
        )
        made: npt.NDArray[np.float32] = expand(features.image_patches, normalisation).numpy()
        return made

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

    def _ids_equal_under(self, settings: Settings, line: bytes, media_root: str, theirs: ReferenceSample) -> bool:
        try:
            made = features_of(core_inspector(settings), line, media_root, with_pixels=False)
        except BadSampleError:
            return False
        return self._same_ids(made, theirs)

    def _profile_cause(self, line: bytes, media_root: str, theirs: ReferenceSample, what: str) -> str:
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
            made = features_of(core_inspector(settings), line, media_root)
            if made.bad is not None:
                continue
            is_equal = (
                self._same_ids(made, theirs)
                if what == "ids"
                else made.image_grid_thw == theirs.image_grid_thw
                if what == "grids"
                else _first_difference(self._pixel_values(made, settings), theirs.pixel_values) is None
            )
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


def _not_comparable(row: Mapping[str, Any]) -> str:
    """Why a row says something that the reference processor has no input for; empty where it does not."""
    own_size = ("min_pixels", "max_pixels", "resized_height_px", "resized_width_px")
    for media in row["media"]:
        if "frames" in media:
            return "the row has a clip; parity compares pictures"
        if any(name in media for name in own_size):
            return "the row asks for sizes of its own, which the reference processor takes per call, not per picture"
    if row.get("boxes"):
        return "the row has boxes, which become text only with the picture's size"
    if any(turn.get("loss_scale") is not None for turn in row["turns"]):
        return "a turn of the row says itself how much it is trained"
    return ""


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
