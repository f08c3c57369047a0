"""The iterable that a training loop runs over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from stoker.batch import Batch, Layout
from stoker.errors import InvalidArgumentError
from stoker.torch.inputs import EXTRAS, LOSS_WEIGHTS, packed, padded
from stoker.torch.pixels import Normalisation, expand
from stoker.torch.transfer import SideStreamCopy

if TYPE_CHECKING:
    from stoker._core import BatchCounts
    from stoker.loader import Loader
    from stoker.settings import Pack

__all__ = ["Batches", "TorchBatch", "batches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBatch:
    """One micro-batch, in parts that cannot be mixed up."""

    inputs: dict[str, Any]
    """The model's forward arguments and nothing else: ``model(**batch.inputs)``."""
    layout: Layout
    """How the pack is made up; on the host."""
    counts: BatchCounts
    """Plain integers, known without asking the device."""
    loss_weights: Any = None
    """float32 like the labels, beside them: what the loss of each counts. None unless the settings say
    ``labels.weights: deliver``; then a loss that does not use them is wrong."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What `batches` was asked for beside the model's arguments, each (1, T), or (B, L) in the padded form."""


class Batches:
    """What `batches` gives: iterate it, or take whole optimizer steps."""

    def __init__(
        self,
        loader: Loader,
        *,
        gather: Callable[[Batch], dict[str, Any]],
        device: Any,
        dtype: Any,
        loss_weights_key: str | None,
        extras: Sequence[str],
        has_vision_metadata: bool,
    ) -> None:
        self._loader = loader
        self._gather = gather
        self._extras = tuple(extras)
        self._has_vision_metadata = has_vision_metadata
        self._loss_weights_key = loss_weights_key
        self._dtype = dtype
        self._is_on_host = device.type == "cpu"
        self._copy = None if self._is_on_host else SideStreamCopy(device, loader.add_wait)
        self._normalisations: dict[str, Normalisation] | None = None  # asks the loader, which waits until it is open

    def __iter__(self) -> Iterator[TorchBatch]:
        """Yields micro-batches; as with the loader, nothing happens before the first is asked for."""
        return map(self._convert, self._loader)

    def steps(self) -> Iterator[list[TorchBatch]]:
        """Yields this rank's micro-batches of one optimizer step at a time."""
        for step in self._loader.steps():
            yield [self._convert(batch) for batch in step]

    def _convert(self, batch: Batch) -> TorchBatch:
        began = time.perf_counter()
        host = self._gather(batch)
        numbers: dict[str, Any] = {"use_cache": False}
        if self._has_vision_metadata:
            for name, value in batch.vision_metadata().items():
                if isinstance(value, int):
                    numbers[name] = value
                else:
                    host[name] = torch.from_numpy(value)
        tensors = self._finish(host) if self._copy is None else self._copy(host, self._finish)
        # On a device nothing may hold on to the engine's block, or its memory would last as long as the trainer's
        # reference.
        layout = batch.layout if self._is_on_host else _copied(batch.layout)
        self._loader.add_wait(time.perf_counter() - began)  # the trainer's own thread did this
        weights = tensors.pop(LOSS_WEIGHTS, None)
        if weights is not None and self._loss_weights_key is not None:
            tensors[self._loss_weights_key] = weights
        extras = {name: tensors.pop(name) for name in self._extras}
        return TorchBatch(
            inputs={**tensors, **numbers}, layout=layout, counts=batch.counts, loss_weights=weights, extras=extras
        )

    def _finish(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Replaces the patches by pixels, where the tensors are."""
        out = dict(tensors)
        for patches, pixels in (("image_patches", "pixel_values"), ("video_patches", "pixel_values_videos")):
            if patches not in out:
                continue
            if self._normalisations is None:
                self._normalisations = {
                    "image_patches": Normalisation.of(self._loader),
                    "video_patches": Normalisation.of_clips(self._loader),
                }
            out[pixels] = expand(out.pop(patches), self._normalisations[patches], dtype=self._dtype)
        return out


def batches(
    loader: Loader,
    *,
    device: Any = "cpu",
    dtype: Any = None,
    form: Literal["packed", "padded"] | None = None,
    target: Literal["hf"] = "hf",
    pad_token_id: int | None = None,
    pad_to_multiple_of: int | None = None,
    loss_weights_key: str | None = None,
    extras: Sequence[str] = (),
    vision_metadata: bool = False,
    writable: bool | None = None,
) -> Batches:
    """Makes a loader's batches into a model's forward arguments.

    ``inputs`` of a batch with T tokens, k images of P patches: input_ids and labels int64 (1, T), labels unshifted;
    position_ids int64 (4, 1, T); pixel_values (P, 3 * t * p * p) and image_grid_thw int64 (k, 3) only if there are
    images, and the same of clips as pixel_values_videos and video_grid_thw; ``use_cache=False``, since with a cache
    transformers does not see where a sample ends. There is no attention mask for the same reason. In the padded form
    ids and labels are (B, L) with an attention_mask, positions (4, B, L).

    On the host ids, labels, positions and grids are the engine's memory itself unless `writable`: they must not be
    written into, and as long as one of them lives the pack's memory is not used again. On a CUDA device everything is a
    copy.

    Args:
        loader: Iterated directly; it is not wrapped in a ``DataLoader``.
        device: ``cpu`` or a CUDA device. The copy to it and the expansion of pixels run beside the computation; what of
            it was not hidden is counted in the loader's report.
        dtype: Of pixel_values; float32 by default, which is bit for bit what the model's own processor gives.
        form: One row per pack, or one row per sample for models without attention over packs; by default what the
            settings plan for, ``pack.form``.
        target: Whose forward it is: Hugging Face transformers.
        pad_token_id: Fills rows of the padded form; the tokenizer's own by default.
        pad_to_multiple_of: Rounds the padded form's width up; by default as the settings say, ``pack.pad_to``, if they
            plan for rows.
        loss_weights_key: Name under which the loss weights stand in ``inputs`` too, ``loss_scale`` for ms-swift; by
            default they are not there, because a model passes what it does not know on to its layers.
        extras: What else each batch has, in ``batch.extras``: ``sequence_ids`` int32, the sample that a token belongs
            to, -1 for what only fills up; ``mm_token_type_ids`` int32, 0 text, 1 image, 2 clip; ``shifted_labels``
            int64, ``loss_mask`` float32 and ``shifted_loss_weights`` float32, for losses that do not shift themselves.
        vision_metadata: Puts into ``inputs`` what the vision tower would otherwise work out from the grids on the way,
            which waits for the device: image_cu_seqlens, image_max_seqlen, image_position_ids, the same of clips as
            video_.... transformers 5.18 knows them.
        writable: Makes copies of ids, labels, positions, weights and grids, which take about 50 bytes a token, so that
            an operation in place changes nothing that others see. By default only where others read the same memory:
            peers of the rank, a node's object store.

    Raises:
        InvalidArgumentError: For a device, form, target or extra that this version does not serve, or a
            `loss_weights_key` where the loader's settings do not deliver weights.
    """
    if target != "hf":
        raise InvalidArgumentError(f"target {target!r} is not served; it takes hf", "SETTINGS")
    pack = loader.settings.pack
    if form is None:
        form = "packed" if pack.form == "packed" else "padded"
    if pad_to_multiple_of is None:
        pad_to_multiple_of = 1 if pack.form == "packed" else _row_multiple(pack)
    if form not in ("packed", "padded"):
        raise InvalidArgumentError(f"form {form!r} is not served; it takes packed or padded", "SETTINGS")
    if pad_to_multiple_of < 1:
        raise InvalidArgumentError("pad_to_multiple_of must be at least 1", "SETTINGS")
    if loss_weights_key is not None and loader.settings.labels.weights != "deliver":
        raise InvalidArgumentError("loss_weights_key: there are no weights without labels.weights: deliver", "SETTINGS")
    for name in extras:
        if name not in EXTRAS:
            raise InvalidArgumentError(f"extras: {name!r} is not served; there are {', '.join(EXTRAS)}", "SETTINGS")

    multiple = pad_to_multiple_of
    where = _checked_device(device)
    if writable is None:
        writable = loader.has_shared_memory
    copies = writable and where.type == "cpu"

    def gather(batch: Batch) -> dict[str, Any]:
        if form == "packed":
            return packed(batch, extras=extras, writable=copies)
        return padded(batch, pad_token_id=pad_token_id, pad_to_multiple_of=multiple, extras=extras, writable=copies)

    return Batches(
        loader,
        gather=gather,
        device=where,
        dtype=dtype,
        loss_weights_key=loss_weights_key,
        extras=extras,
        has_vision_metadata=vision_metadata,
    )


def _row_multiple(pack: Pack) -> int:
    pad_to = {"none": 1, "tokens_per_pack": pack.tokens_per_pack}.get(str(pack.pad_to), pack.pad_to)
    return math.lcm(pack.align_samples_to, int(pad_to))


def _checked_device(device: Any) -> Any:
    wanted = torch.device(device)
    if wanted.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"device {device!r} is not served; it takes cpu or a CUDA device", "SETTINGS")
    if wanted.type == "cpu":
        return wanted
    if not torch.cuda.is_available():
        raise InvalidArgumentError(f"device {device!r}: torch sees no CUDA device here", "SETTINGS")
    return wanted if wanted.index is not None else torch.device("cuda", torch.cuda.current_device())


def _copied(layout: Layout) -> Layout:
    values = {name: getattr(layout, name) for name in Layout.__slots__}
    copies: dict[str, Any] = {name: np.copy(v) for name, v in values.items() if isinstance(v, np.ndarray)}
    return replace(layout, **copies)
