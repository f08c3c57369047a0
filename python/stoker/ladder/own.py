"""The loop that people start with, on the data that a run's own settings name."""

from __future__ import annotations

from typing import Any

from stoker.ladder.python_serial import PythonSerial

__all__ = ["python_serial_of"]


def python_serial_of(settings: Any) -> PythonSerial:
    """Returns the loop over the data, model and storage of a `stoker.Settings`."""
    storage = settings.to_dict().get("storage", {})
    return PythonSerial(
        manifests=tuple(str(source.manifest) for source in settings.data),
        model_folder=str(settings.model),
        seed=int(settings.seed),
        storage=storage,
        tokens_per_pack=int(settings.pack.tokens_per_pack),
    )
