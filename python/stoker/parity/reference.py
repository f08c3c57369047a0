"""The installed reference: transformers' own tokenizer, template, image processor and position code of a folder.

Nothing is downloaded and no weights are read. Where torchvision is not installed the image processor is its Pillow
backend, as transformers itself falls back to.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import InvalidArgumentError

__all__ = ["Reference", "ReferenceSample"]

_NEEDED = {"transformers": "transformers", "torch": "torch", "PIL": "pillow", "jinja2": "jinja2"}
_IGNORE = -100


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


class Reference:
    """The processor of a checkpoint folder, built once.

    Raises:
        InvalidArgumentError: If packages are missing, or transformers cannot read the folder.
    """

    def __init__(self, folder: str) -> None:
        missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
        if missing:
            raise InvalidArgumentError(
                f"the reference needs {', '.join(missing)}: pip install 'stoker[reference]'", "SETTINGS"
            )
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import transformers

        self.folder = folder
        self.backend = "torchvision" if importlib.util.find_spec("torchvision") is not None else "pil"
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._images = transformers.AutoImageProcessor.from_pretrained(
                folder, backend=self.backend, local_files_only=True
            )
        except Exception as error:  # whatever transformers says about a folder that does not fit
            raise InvalidArgumentError(
                f"transformers cannot read {folder}: {type(error).__name__}: {error}", "MODEL_FOLDER"
            ) from error
        if not getattr(self._tokenizer, "chat_template", None):
            raise InvalidArgumentError(f"transformers finds no chat template in {folder}", "MODEL_FOLDER")
        self._image_pad = self._tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self._header = self._tokenizer("<|im_start|>assistant")["input_ids"]
        self._line_feed = self._tokenizer("\n")["input_ids"]
        self._turn_start = self._header[0]
        self._rope = self._rope_model()

    @property
    def description(self) -> str:
        """What was run."""
        versions = [f"{p} {importlib.metadata.version(p)}" for p in ("transformers", "tokenizers", "torch", "pillow")]
        if self.backend == "torchvision":
            versions.append(f"torchvision {importlib.metadata.version('torchvision')}")
        kind = type(self._images).__name__
        return f"{kind} ({self.backend} backend) of {self.folder}, {', '.join(versions)}"

    def prepare(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any], pictures: Sequence[npt.NDArray[np.uint8]]
    ) -> ReferenceSample:
        """Runs one conversation; its pictures are given decoded, in reading order."""
        from PIL import Image

        text: str = self._tokenizer.apply_chat_template(list(messages), tools=list(tools) or None, tokenize=False)
        grids: list[tuple[int, int, int]] = []
        pixel_values = None
        if pictures:
            made = self._images(images=[Image.fromarray(picture) for picture in pictures], return_tensors="pt")
            pixel_values = made["pixel_values"].numpy()
            grids = [(t, h, w) for t, h, w in made["image_grid_thw"].tolist()]
        merged = self._images.merge_size**2
        expanded = text
        for t, h, w in grids:  # as the processor expands: the template's placeholders, one after another
            expanded = expanded.replace("<|image_pad|>", "<|placeholder|>" * (t * h * w // merged), 1)
        ids = self._tokenizer(expanded.replace("<|placeholder|>", "<|image_pad|>"))["input_ids"]
        return ReferenceSample(
            text=text,
            input_ids=np.asarray(ids, np.int64),
            labels=self._labels(ids),
            position_ids=self._positions(ids, grids),
            image_grid_thw=grids,
            pixel_values=pixel_values,
        )

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
        labels[np.asarray(ids) == self._image_pad] = _IGNORE
        return labels

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

    def _positions(self, ids: list[int], grids: list[tuple[int, int, int]]) -> npt.NDArray[np.int64] | None:
        if self._rope is None:
            return None
        import torch

        tensor = torch.tensor([ids])
        positions, _ = self._rope.get_rope_index(
            tensor,
            mm_token_type_ids=(tensor == self._image_pad).to(torch.int32),
            image_grid_thw=torch.tensor(grids) if grids else None,
        )
        made: npt.NDArray[np.int64] = positions[:, 0].numpy().astype(np.int64)
        return made
