"""The installed reference: transformers' own processor and position code of a folder, after qwen-vl-utils if asked.

Nothing is downloaded and no weights are read. Pictures and frames are given decoded. Without torchvision the image
processor is transformers' Pillow backend, as transformers itself falls back to, and clips cannot be processed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import InvalidArgumentError

__all__ = ["GivenClip", "GivenPicture", "Reference", "ReferenceSample", "RefusedError"]

_NEEDED = {"transformers": "transformers", "torch": "torch", "PIL": "pillow", "jinja2": "jinja2"}
_IGNORE = -100
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
_VERSIONS = {"hf-4.57": "4.57.", "hf-5.18-torchvision": "5.18.", "hf-5.18-pil": "5.18.", "qvu+hf": "5.18."}


class RefusedError(Exception):
    """The reference refuses a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPicture:
    """An image, as both sides get it."""

    pixels: npt.NDArray[np.uint8]
    """(height, width, 3)"""
    asked: Mapping[str, int] = field(default_factory=dict)
    """What the row asks for its size, in qwen-vl-utils' words: ``min_pixels``, ``resized_height`` and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenClip:
    """A clip, as both sides get it."""

    frames: Sequence[npt.NDArray[np.uint8]]
    """Each (height, width, 3)."""
    frames_per_s: float | None = None
    """At which `frames` were taken; None where nobody says."""
    source_frames_per_s: float | None = None
    asked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSample:
    """What the reference makes of one conversation."""

    text: str
    """As the chat template renders it, before placeholders are expanded."""
    input_ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64] | None
    """(3, T): t, h, w; None where the folder has no config.json."""
    image_grid_thw: list[tuple[int, int, int]]
    pixel_values: npt.NDArray[np.float32] | None
    video_grid_thw: list[tuple[int, int, int]]
    pixel_values_videos: npt.NDArray[np.float32] | None


class Reference:
    """The processor of a checkpoint folder, built once.

    Args:
        folder: The checkpoint folder.
        profile: Whose output is wanted, as in the settings: decides between the image backends, and whether
            qwen-vl-utils goes first.

    Raises:
        InvalidArgumentError: If packages are missing or do not load, or transformers cannot read the folder.
    """

    def __init__(self, folder: str, profile: str = "stoker") -> None:
        self.folder = folder
        self.profile = profile
        self.is_qwen_vl_utils = profile == "qvu+hf"
        _check_packages(is_qwen_vl_utils=self.is_qwen_vl_utils)
        self.has_torchvision = _has_torchvision()
        self.backend = "torchvision" if self.has_torchvision and profile != "hf-5.18-pil" else "pil"
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import transformers

        self._is_4 = transformers.__version__.startswith("4.")
        choice = {"use_fast": self.backend == "torchvision"} if self._is_4 else {"backend": self.backend}
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._images = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True, **choice)
            self._processor = None
            if self.has_torchvision:
                self._processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
                self._processor.image_processor = self._images
        except Exception as error:  # whatever transformers says about a folder that does not fit
            raise InvalidArgumentError(
                f"transformers cannot read {folder}: {type(error).__name__}: {error}", "MODEL_FOLDER"
            ) from error
        self._template = getattr(self._tokenizer, "chat_template", None)
        if not self._template:
            self._template = getattr(self._processor, "chat_template", None)
        if not self._template:
            raise InvalidArgumentError(f"transformers finds no chat template in {folder}", "MODEL_FOLDER")
        self._vision = [self._tokenizer.convert_tokens_to_ids(token) for token in _VISION]
        self._image_pad, self._video_pad = self._vision[3:]
        self._header = self._tokenizer("<|im_start|>assistant")["input_ids"]
        self._line_feed = self._tokenizer("\n")["input_ids"]
        self._turn_start = self._header[0]
        self._rope = self._rope_model()

    @property
    def description(self) -> str:
        """What was run."""
        packages = ["transformers", "tokenizers", "torch", "pillow"]
        packages += ["torchvision"] * (self.backend == "torchvision") + ["qwen-vl-utils"] * self.is_qwen_vl_utils
        versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
        kind = type(self._images).__name__
        return f"{kind} ({self.backend} backend) of {self.folder}, {versions}"

    @property
    def notes(self) -> list[str]:
        """What is other here than what the profile stands for."""
        notes = []
        wanted, have = _VERSIONS.get(self.profile, ""), importlib.metadata.version("transformers")
        if not have.startswith(wanted):
            notes.append(f"reference: {self.profile} is transformers {wanted}x, and {have} is installed here")
        if self.profile != "hf-5.18-pil" and not self.has_torchvision:
            notes.append(
                "torchvision is not installed: pictures are compared with transformers' Pillow backend, whose numbers "
                "are those of reference: hf-5.18-pil, and clips are not compared"
            )
        return notes

    def prepare(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Any],
        pictures: Sequence[GivenPicture],
        clips: Sequence[GivenClip] = (),
    ) -> ReferenceSample:
        """Runs one conversation.

        Args:
            messages: As chat templates take them.
            tools: The same.
            pictures: Decoded, in reading order.
            clips: Decoded, in reading order; none where torchvision is not installed.

        Raises:
            RefusedError: If the libraries refuse it; the message is theirs.
        """
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, chat_template=self._template, tokenize=False
            )
            given = self._given(pictures, clips)
            made = self._without_torchvision(text, given) if self._processor is None else self._processed(text, given)
        except Exception as error:  # whatever the libraries say about a row
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        ids = made["input_ids"]
        return ReferenceSample(
            text=text,
            input_ids=np.asarray(ids, np.int64),
            labels=self._labels(ids),
            position_ids=self._positions(ids, made),
            image_grid_thw=_grids(made.get("image_grid_thw")),
            pixel_values=_floats(made.get("pixel_values")),
            video_grid_thw=_grids(made.get("video_grid_thw")),
            pixel_values_videos=_floats(made.get("pixel_values_videos")),
        )

    # --- the processor

    def _given(self, pictures: Sequence[GivenPicture], clips: Sequence[GivenClip]) -> dict[str, Any]:
        """The arguments that media are for the processor."""
        from PIL import Image

        given: dict[str, Any] = {}
        if self.is_qwen_vl_utils:
            return self._by_qwen_vl_utils(pictures, clips)
        if pictures:
            given["images"] = [Image.fromarray(picture.pixels) for picture in pictures]
        if clips:
            import torch

            given["videos"] = [torch.from_numpy(np.stack(clip.frames)).permute(0, 3, 1, 2) for clip in clips]
            given["video_metadata"] = [
                {
                    "total_num_frames": len(clip.frames),
                    "fps": clip.frames_per_s,
                    "frames_indices": list(range(len(clip.frames))),
                }
                for clip in clips
            ]
            given["do_sample_frames"] = False
            if self._is_4 and "2_5" in type(self._processor).__name__:
                # A keyword of its own there, and what it defaults to.
                given["fps"] = [clip.frames_per_s or 2.0 for clip in clips]
        return given

    def _by_qwen_vl_utils(self, pictures: Sequence[GivenPicture], clips: Sequence[GivenClip]) -> dict[str, Any]:
        from PIL import Image

        vision_process: Any = importlib.import_module("qwen_vl_utils.vision_process")
        patch = self._images.patch_size
        given: dict[str, Any] = {"do_resize": False}
        if pictures:
            given["images"] = [
                vision_process.fetch_image({"image": Image.fromarray(p.pixels), **p.asked}, image_patch_size=patch)
                for p in pictures
            ]
        if clips:
            videos = []
            for clip in clips:
                said = {"sample_fps": clip.frames_per_s, "raw_fps": clip.source_frames_per_s}
                frames = [Image.fromarray(frame) for frame in clip.frames]
                element = {"video": frames, **clip.asked, **{k: v for k, v in said.items() if v is not None}}
                videos.append(vision_process.fetch_video(element, image_patch_size=patch, return_video_metadata=True))
            given["videos"] = [video for video, _ in videos]
            given["video_metadata"] = [metadata for _, metadata in videos]
            given["do_sample_frames"] = False
        return given

    def _processed(self, text: str, given: dict[str, Any]) -> dict[str, Any]:
        assert self._processor is not None
        made = dict(self._processor(text=[text], return_tensors="pt", **given))
        made["input_ids"] = made["input_ids"][0].tolist()
        return made

    def _without_torchvision(self, text: str, given: dict[str, Any]) -> dict[str, Any]:
        """What the processor does, for images: transformers does not build it without its video half."""
        made: dict[str, Any] = {}
        if "images" in given:
            made.update(self._images(**given, return_tensors="pt"))
        merged = self._images.merge_size**2
        for t, h, w in _grids(made.get("image_grid_thw")):  # the template's placeholders, one after another
            text = text.replace("<|image_pad|>", "<|placeholder|>" * (t * h * w // merged), 1)
        made["input_ids"] = self._tokenizer(text.replace("<|placeholder|>", "<|image_pad|>"))["input_ids"]
        return made

    def _labels(self, ids: list[int]) -> npt.NDArray[np.int64]:
        """All that an assistant says, with its end of turn and the line feed behind it; never the header."""
        labels = np.full(len(ids), _IGNORE, np.int64)
        starts = [i for i, number in enumerate(ids) if number == self._turn_start] + [len(ids)]
        for begin, end in itertools.pairwise(starts):
            if ids[begin : begin + len(self._header)] != self._header:
                continue
            first = begin + len(self._header)
            if ids[first : first + len(self._line_feed)] == self._line_feed:
                first += len(self._line_feed)
            labels[first:end] = ids[first:end]
        labels[np.isin(ids, self._vision)] = _IGNORE
        return labels

    # --- positions

    def _rope_model(self) -> Any:
        """The model's class without weights, for its get_rope_index."""
        if not (Path(self.folder) / "config.json").is_file():
            return None
        import torch
        import transformers

        config = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        for part, name in (("text_config", "num_hidden_layers"), ("vision_config", "depth")):
            if hasattr(getattr(config, part, None), name):
                setattr(getattr(config, part), name, 1)
        with torch.device("meta"):
            model = transformers.AutoModelForImageTextToText.from_config(config)
        inner = getattr(model, "model", model)
        return inner if hasattr(inner, "get_rope_index") else None

    def _positions(self, ids: list[int], made: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
        if self._rope is None:
            return None
        import torch

        tensor = torch.tensor([ids])
        said: dict[str, Any] = {name: made.get(name) for name in ("image_grid_thw", "video_grid_thw")}
        if made.get("second_per_grid_ts") is not None:
            said["second_per_grid_ts"] = made["second_per_grid_ts"]
        if not self._is_4:
            kinds = (tensor == self._image_pad).to(torch.int32) + 2 * (tensor == self._video_pad).to(torch.int32)
            said["mm_token_type_ids"] = kinds
        positions, _ = self._rope.get_rope_index(tensor, **said)
        positioned: npt.NDArray[np.int64] = positions[:, 0].numpy().astype(np.int64)
        return positioned


def _check_packages(*, is_qwen_vl_utils: bool) -> None:
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise InvalidArgumentError(
            f"the reference needs {', '.join(missing)}: pip install 'stoker[reference]'", "SETTINGS"
        )
    if is_qwen_vl_utils and (importlib.util.find_spec("qwen_vl_utils") is None or not _has_torchvision()):
        raise InvalidArgumentError(
            "reference: qvu+hf is compared with qwen-vl-utils itself: pip install qwen-vl-utils torchvision", "SETTINGS"
        )


def _has_torchvision() -> bool:
    """Whether it is installed.

    Raises:
        InvalidArgumentError: If it is, and does not load: transformers would fail on it, whatever the backend.
    """
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except (ImportError, OSError, RuntimeError) as error:
        have = {name: importlib.metadata.version(name) for name in ("torchvision", "torch")}
        raise InvalidArgumentError(
            f"torchvision {have['torchvision']} is installed but does not load beside torch {have['torch']} ({error}): "
            "install the torchvision that was built for this torch, from the same index, or uninstall it to compare "
            "with transformers' Pillow backend",
            "SETTINGS",
        ) from error
    return True


def _grids(tensor: Any) -> list[tuple[int, int, int]]:
    return [(t, h, w) for t, h, w in tensor.tolist()] if tensor is not None else []


def _floats(tensor: Any) -> npt.NDArray[np.float32] | None:
    return tensor.numpy() if tensor is not None else None
