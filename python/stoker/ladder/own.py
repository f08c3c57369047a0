"""The loop that people start with, on the data that a run's own settings name."""

from __future__ import annotations

from stoker.ladder.python_serial import PythonSerial
from stoker.settings import Settings

__all__ = ["python_serial_of"]


def python_serial_of(settings: Settings) -> PythonSerial:
    """Returns the loop over the data, model and storage of a run's settings."""
    return PythonSerial(
        data=tuple((source.manifest, source.media_root) for source in settings.data),
        model_folder=settings.model,
        seed=settings.seed,
        storage=settings.to_dict()["storage"],
        tokens_per_pack=settings.pack.tokens_per_pack,
    )
