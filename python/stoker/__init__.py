"""Stoker keeps GPUs fed while vision-language models are fine-tuned."""

from __future__ import annotations

from stoker.batch import Batch, Layout
from stoker.building_blocks import BoxFeatures, Features, MediaFeatures, Problem, TurnFeatures, decode_image, prepare
from stoker.errors import (
    BadSampleError,
    CancelledError,
    ExhaustedError,
    InternalError,
    InvalidArgumentError,
    StokerError,
    UnavailableError,
)
from stoker.loader import Loader, SampleOrigin, one_state
from stoker.report import Report
from stoker.settings import (
    BadSamples,
    Cache,
    Chunks,
    Data,
    Labels,
    Media,
    Pack,
    RaySettings,
    Settings,
    Speed,
    Split,
    Storage,
    UserCode,
)
from stoker.text import Tokenizer, render_chat
from stoker.topology import Topology

__all__ = [
    "BadSampleError",
    "BadSamples",
    "Batch",
    "BoxFeatures",
    "Cache",
    "CancelledError",
    "Chunks",
    "Data",
    "ExhaustedError",
    "Features",
    "InternalError",
    "InvalidArgumentError",
    "Labels",
    "Layout",
    "Loader",
    "Media",
    "MediaFeatures",
    "Pack",
    "Problem",
    "RaySettings",
    "Report",
    "SampleOrigin",
    "Settings",
    "Speed",
    "Split",
    "StokerError",
    "Storage",
    "Tokenizer",
    "Topology",
    "TurnFeatures",
    "UnavailableError",
    "UserCode",
    "decode_image",
    "one_state",
    "prepare",
    "render_chat",
]
