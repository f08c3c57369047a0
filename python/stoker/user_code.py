"""The user's own code: callables that rows and pictures pass through, in a stage of its own.

Settings name them by import path and the owner gives them a version; both are part of the fingerprint::

    user_code: {row: "my_project.clean:fix_row", picture: "my_project.clean:crop", version: "3"}

``row(row: dict) -> dict`` sees a row before anything is read from it. ``picture(pixels) -> pixels`` sees an upright
picture, (height, width, 3) uint8, and keeps its height and width, unless the callable has a function ``size`` of its
own: ``crop.size = lambda height, width: (height // 2, width)``. What they raise makes the sample bad, with code
USER_CODE. They run on the loader's threads, several at a time, one of them in the interpreter.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

from stoker import _core
from stoker.errors import InvalidArgumentError
from stoker.settings import UserCode

__all__ = ["attach", "picture_code"]


def attach(code: UserCode, to: _core.LoaderSettings) -> None:
    """Puts what the settings name into the engine's settings; nothing where they name nothing.

    Raises:
        InvalidArgumentError: For an import path that leads to nothing that can be called.
    """
    if not code.row and not code.picture:
        return
    row = _found("row", code.row) if code.row else None
    picture = _found("picture", code.picture) if code.picture else None
    size = getattr(picture, "size", None)
    if size is not None and not callable(size):
        raise InvalidArgumentError(f"user_code.picture: {code.picture}.size is no function (height, width)", "SETTINGS")
    to.set_user_code(
        identity=f"row {code.row} picture {code.picture} version {code.version}",
        row=_row_of(row) if row else None,
        size=_size_of(size) if size else None,
        picture=_picture_of(picture) if picture else None,
    )


def picture_code(code: UserCode) -> Callable[[Any], Any] | None:
    """The function that every picture passes through, if there is one.

    Raises:
        InvalidArgumentError: As `attach`.
    """
    return _picture_of(_found("picture", code.picture)) if code.picture else None


def _found(name: str, path: str) -> Callable[..., Any]:
    module, _, attributes = path.partition(":")
    if not module or not attributes:
        raise InvalidArgumentError(f"user_code.{name}: write {path!r} as `package.module:function`", "SETTINGS")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:  # whatever a module of the user's does when it is imported
        raise InvalidArgumentError(
            f"user_code.{name}: cannot import {path!r}: {type(error).__name__}: {error}; it must be importable where "
            "the loader runs (PYTHONPATH)",
            "SETTINGS",
        ) from error
    if not callable(found):
        raise InvalidArgumentError(f"user_code.{name}: {path!r} is a {type(found).__name__}, no function", "SETTINGS")
    made: Callable[..., Any] = found
    return made


def _row_of(function: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def row(line: bytes) -> bytes:
        try:
            content = json.loads(line)
        except ValueError:
            return line  # the engine says what is wrong with it, and where
        if not isinstance(content, dict):
            return line
        made = function(content)
        if not isinstance(made, dict):
            raise TypeError(f"user_code.row gave a {type(made).__name__}; it must give a dict")
        return json.dumps(made, ensure_ascii=False).encode("utf-8", "surrogatepass")

    return row


def _size_of(function: Callable[[int, int], Any]) -> Callable[[int, int], tuple[int, int]]:
    def size(height: int, width: int) -> tuple[int, int]:
        try:
            made_height, made_width = (int(side) for side in function(height, width))
        except (TypeError, ValueError) as error:
            raise TypeError(f"user_code.picture: size({height}, {width}) must give (height, width): {error}") from error
        if not (0 < made_height < 2**31 and 0 < made_width < 2**31):
            raise ValueError(f"user_code.picture: size({height}, {width}) gave ({made_height}, {made_width})")
        return made_height, made_width

    return size


def _picture_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import numpy as np

    def picture(pixels: Any) -> Any:
        made = np.asarray(function(pixels))
        if made.dtype != np.uint8 or made.ndim != 3 or made.shape[2] != 3:
            raise TypeError(f"user_code.picture gave {made.dtype} {made.shape}; it must give uint8 (height, width, 3)")
        return np.ascontiguousarray(made)

    return picture
