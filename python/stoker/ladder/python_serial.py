"""The loop that people start with, really run: one request after another, one sample after another.

botocore for the requests (what boto3 runs on), Pillow, and transformers' tokenizer and image processor in its Pillow
backend, which need no torch. One keep-alive connection, no threads, no packing; the rows are shuffled by the seed and
dealt to the ranks in turn.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.ladder.emulation import RankModel
from stoker.ladder.takers import Weighed, weigh_samples

__all__ = ["PythonSerial", "missing_packages"]

_ROLES = {"human": "user", "gpt": "assistant", "model": "assistant"}


def missing_packages() -> list[str]:
    """Returns the names of the packages that this rung needs and that are not installed."""
    import importlib.util

    return [
        name
        for name in ("PIL", "botocore", "jinja2", "tokenizers", "transformers")
        if importlib.util.find_spec(name) is None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSerial:
    """Makes the taker of this rung."""

    data: tuple[tuple[str, str], ...]
    """JSONL files, paths or ``s3://`` URLs, each with the folder of its relative media; empty: the file's own."""
    model_folder: str
    seed: int
    storage: Mapping[str, Any] = field(default_factory=dict)
    """As in the settings: ``endpoint_url``, ``region``, ``access_key_id``, ``secret_access_key``, ``session_token``,
    ``profile``, ``anonymous``, ``ca_file``, ``verify_tls``. What is missing botocore looks up as usual."""
    samples_per_step: int | None = None
    """Per rank; None: samples until their tokens would fill ``n_gpus`` times ``tokens_per_pack``."""
    tokens_per_pack: int = 16384

    def __call__(self, *, model: RankModel, rank: int, n_ranks: int) -> _Loop:
        """Loads processors and manifest."""
        return _Loop(self, model, rank, n_ranks)


class _Loop:
    def __init__(self, spec: PythonSerial, model: RankModel, rank: int, n_ranks: int) -> None:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would tell each rank that torch is missing
        import transformers

        self._spec = spec
        self._model = model
        self._client: Any = None
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(spec.model_folder)
        self._image_processor = transformers.AutoImageProcessor.from_pretrained(spec.model_folder, backend="pil")
        self.rows = self._rank_rows(rank, n_ranks)

    def take(self) -> list[tuple[int, list[int]]]:
        """Prepares one sample after another, as many as the step takes; returns their tokens and images' patches."""
        taken: list[tuple[int, list[int]]] = []
        held: list[dict[str, Any]] = []
        n_wanted = self._spec.samples_per_step
        n_tokens = 0
        while len(taken) < n_wanted if n_wanted else n_tokens < self._model.n_gpus * self._spec.tokens_per_pack:
            sample = self.prepare(*next(self.rows))
            taken.append((len(sample["input_ids"]), [t * h * w for t, h, w in sample["image_grid_thw"]]))
            n_tokens += taken[-1][0]
            held.append(sample)
            if len(held) * self._model.n_gpus >= (n_wanted or 128):  # one GPU's share
                self.collate(held)
                held.clear()
        self.collate(held)
        return taken

    def weigh(self, data: list[tuple[int, list[int]]]) -> Weighed:
        """Counts; there is nothing to compare with, so no digest."""
        return weigh_samples(self._model, data)

    def report(self) -> dict[str, Any]:
        """Says nothing."""
        return {}

    def close(self) -> None:
        """Lets the connection go."""
        if self._client is not None:
            self._client.close()

    # --- one sample ---

    def prepare(self, base: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Makes one sample of a row: ``input_ids``, ``pixel_values`` and ``image_grid_thw``."""
        from PIL import Image

        messages, references = to_messages(row)
        pictures = []
        for reference in references:
            with Image.open(io.BytesIO(self._read(_resolve(base, reference)))) as opened:
                pictures.append(opened.convert("RGB"))
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        grids: list[tuple[int, int, int]] = []
        pixel_values = None
        if pictures:
            features = self._image_processor(images=pictures, return_tensors="np")
            pixel_values = features["pixel_values"]
            grids = [tuple(grid) for grid in features["image_grid_thw"].tolist()]
        merged = self._image_processor.merge_size**2
        for t, h, w in grids:
            text = text.replace("<|image_pad|>", "<|placeholder|>" * (t * h * w // merged), 1)
        text = text.replace("<|placeholder|>", "<|image_pad|>")
        ids = self._tokenizer(text)["input_ids"]
        return {"input_ids": ids, "pixel_values": pixel_values, "image_grid_thw": grids}

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Puts one micro-batch together, as the collator of such a loop does; it would go to a GPU now."""
        import numpy as np

        if not samples:
            return
        longest = max(len(sample["input_ids"]) for sample in samples)
        ids = np.zeros((len(samples), longest), np.int64)
        for row, sample in zip(ids, samples, strict=True):
            row[: len(sample["input_ids"])] = sample["input_ids"]
        pixels = [sample["pixel_values"] for sample in samples if sample["pixel_values"] is not None]
        if pixels:
            np.concatenate(pixels)

    # --- storage ---

    def _rank_rows(self, rank: int, n_ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = [
            (media_root.rstrip("/") or manifest.rpartition("/")[0], json.loads(line))
            for manifest, media_root in self._spec.data
            for line in self._read(manifest).splitlines()
            if line.strip()
        ]
        for turn in range(1 << 30):
            order = list(range(len(rows)))
            random.Random(f"{self._spec.seed}/{turn}").shuffle(order)
            yield from (rows[i] for i in order[rank::n_ranks])

    def _read(self, reference: str) -> bytes:
        if not reference.startswith("s3://"):
            return Path(reference).read_bytes()
        bucket, _, key = reference.removeprefix("s3://").partition("/")
        if self._client is None:
            self._client = _s3_client(self._spec.storage)
        body: bytes = self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body


def _s3_client(storage: Mapping[str, Any]) -> Any:
    import botocore.config
    import botocore.session
    from botocore import UNSIGNED

    names = {
        "endpoint_url": "endpoint_url",
        "region": "region_name",
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    arguments = {theirs: storage[ours] for ours, theirs in names.items() if storage.get(ours)}
    options: dict[str, Any] = {"s3": {"addressing_style": "path"}} if "endpoint_url" in arguments else {}
    if storage.get("anonymous"):
        options["signature_version"] = UNSIGNED
    return botocore.session.Session(profile=storage.get("profile") or None).create_client(
        "s3",
        config=botocore.config.Config(**options),
        verify=storage.get("ca_file") or storage.get("verify_tls", True),
        **arguments,
    )


def _resolve(base: str, reference: str) -> str:
    is_absolute = "://" in reference or reference.startswith("/")
    return reference if is_absolute or not base else f"{base}/{reference}"


def to_messages(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Turns a row of either form into what a chat template takes, and the references of its images in order."""
    images = row.get("images", row.get("image", []))
    unused = [_reference(image) for image in (images if isinstance(images, list) else [images])]
    references: list[str] = []
    messages = []
    for turn in row.get("messages") or row["conversations"]:
        role = turn.get("role", turn.get("from"))
        content = turn.get("content", turn.get("value"))
        parts: list[dict[str, Any]] = []
        for part in _parts(content):
            if part["type"] == "image":
                own = part.get("image") or part.get("path") or part.get("url")
                references.append(_reference(own) if own else unused.pop(0))
                parts.append({"type": "image"})
            else:
                parts.append(part)
        messages.append({"role": _ROLES.get(role, role), "content": parts})
    return messages, references


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(content, str):
        yield from content
        return
    for i, piece in enumerate(content.split("<image>")):
        if i > 0:
            yield {"type": "image"}
        if piece:
            yield {"type": "text", "text": piece}


def _reference(image: Any) -> str:
    return image if isinstance(image, str) else str(image.get("path") or image.get("url") or image["image"])
