"""Stoker keeps GPUs fed while vision-language models are fine-tuned."""

from __future__ import annotations

from stoker.batch import Batch, Layout
from stoker.errors import (
    BadSampleError,
    CancelledError,
    ExhaustedError,
    InternalError,
    InvalidArgumentError,
    StokerError,
    UnavailableError,
)
from stoker.loader import Loader, SampleOrigin
from stoker.report import Report
from stoker.settings import BadSamples, Data, Labels, Media, Pack, Settings, Speed, Storage
from stoker.text import Tokenizer, render_chat

__all__ = [
    "BadSampleError",
    "BadSamples",
    "Batch",
    "CancelledError",
    "Data",
    "ExhaustedError",
    "InternalError",
    "InvalidArgumentError",
    "Labels",
    "Layout",
    "Loader",
    "Media",
    "Pack",
    "Report",
    "SampleOrigin",
    "Settings",
    "Speed",
    "StokerError",
    "Storage",
    "Tokenizer",
    "UnavailableError",
    "render_chat",
]
