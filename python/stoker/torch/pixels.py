"""From uint8 patches to the float pixels that the model's own image processor would have made."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from stoker.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stoker.loader import Loader

__all__ = ["Normalisation", "expand"]

_N_LEVELS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """What an image processor does to a level, and how often it repeats a picture in time."""

    mean: tuple[float, ...]
    """Per channel, for levels scaled to 0..1."""
    std: tuple[float, ...]
    rescale: float
    """What a level is multiplied by; 1/255."""
    temporal_patch: int
    """Frames in one patch; a picture is repeated to as many."""
    backend: Literal["torchvision", "pil"] = "torchvision"
    """Whose arithmetic: the two differ in the last bit of some levels in float32, and in none in bfloat16."""

    @classmethod
    def of(cls, loader: Loader) -> Self:
        """The normalisation of the loader's model."""
        mean, std, rescale, _, _, temporal_patch, is_pil = loader.normalisation
        return cls(
            mean=tuple(mean),
            std=tuple(std),
            rescale=rescale,
            temporal_patch=temporal_patch,
            backend="pil" if is_pil else "torchvision",
        )

    @classmethod
    def of_clips(cls, loader: Loader) -> Self:
        """The normalisation of the loader's video processor, which is torchvision's under every reference."""
        mean, std, rescale = loader.clip_normalisation
        temporal_patch = loader.normalisation[5]
        return cls(mean=tuple(mean), std=tuple(std), rescale=rescale, temporal_patch=temporal_patch)

    def table(self) -> Any:
        """What each level becomes in each channel: float32 (channels, 256).

        Source: the torchvision backend of transformers 5.18 folds the rescaling into mean and standard deviation, all
            in float32; the Pillow backend rescales in double first.
        """
        if self.backend == "pil":
            levels = (torch.arange(_N_LEVELS, dtype=torch.float64) * self.rescale).to(torch.float32)
            mean = torch.tensor(self.mean, dtype=torch.float32)[:, None]
            return (levels - mean) / torch.tensor(self.std, dtype=torch.float32)[:, None]
        scale = 1.0 / self.rescale
        mean = torch.tensor(self.mean, dtype=torch.float32)[:, None] * scale
        std = torch.tensor(self.std, dtype=torch.float32)[:, None] * scale
        levels = torch.arange(_N_LEVELS, dtype=torch.float32)
        return (levels - mean) / std


def expand(patches: Any, normalisation: Normalisation, *, dtype: Any = None) -> Any:
    """Makes ``pixel_values`` of uint8 patches, on the device where they are.

    In float32 the values are the reference image processor's bit for bit; in another type they
    are those, rounded once. Each value is looked up, so no device's arithmetic can change one.

    Args:
        patches: uint8 (P, 3, p, p), pictures, which are repeated in time; or (P, 3, t, p, p), clips, which are not.
            Tensor or array.
        normalisation: `Normalisation.of` the loader.
        dtype: Of the result; float32 by default.

    Returns:
        (P, 3 * t * p * p), columns by channel, time, y, x.

    Raises:
        InvalidArgumentError: If type or shape do not fit.
    """
    patches = torch.as_tensor(patches)
    is_clip = patches.ndim == 5
    n_channels = len(normalisation.mean)
    if patches.dtype != torch.uint8 or patches.ndim not in (4, 5) or patches.shape[1] != n_channels:
        raise InvalidArgumentError(
            f"patches must be uint8 (P, {n_channels}, p, p) or (P, {n_channels}, t, p, p), "
            f"not {patches.dtype} {tuple(patches.shape)}",
            "SETTINGS",
        )
    n_patches, n_times = patches.shape[0], 1 if is_clip else normalisation.temporal_patch
    table = _table_on(normalisation, patches.device, torch.float32 if dtype is None else dtype)
    # out: (P, channels, times, values of one patch in one channel)
    n_values = math.prod(patches.shape[2:])
    out = torch.empty((n_patches, n_channels, n_times, n_values), dtype=table.dtype, device=patches.device)
    for channel in range(n_channels):
        levels = patches[:, channel].reshape(-1).to(torch.int32)  # a uint8 index would be taken as a mask
        out[:, channel] = torch.index_select(table[channel], 0, levels).view(n_patches, 1, -1)
    return out.view(n_patches, -1)


@functools.lru_cache(maxsize=16)
def _table_on(normalisation: Normalisation, device: Any, dtype: Any) -> Any:
    return normalisation.table().to(device=device, dtype=dtype)
