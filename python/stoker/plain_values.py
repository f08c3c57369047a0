"""Settings out of plain values, as a YAML file has them: checks names and types, and names the key in errors."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stoker.errors import InvalidArgumentError

SECRET = ("access_key_id", "secret_access_key", "session_token", "proxy")
"""Keys whose values no message shows."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(value: int | str) -> int:
    """``"4GiB"`` -> 4294967296; a number is itself."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise InvalidArgumentError(f"{value!r} is no amount of memory; write it as 4GiB or 500MB", "SETTINGS")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def build(cls: type[Any], values: Any, where: str = "") -> Any:
    """Fills a dataclass from a mapping, checking names and types on the way."""
    if not isinstance(values, Mapping):
        raise InvalidArgumentError(f"{where or 'settings'}: expected keys and values, got {values!r}", "SETTINGS")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            advice = f"did you mean `{_join(where, close[0])}`?" if close else f"there are {', '.join(known)}"
            raise InvalidArgumentError(f"unknown key `{_join(where, str(key))}`: {advice}", "SETTINGS")
    missing = [
        name
        for name, f in known.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidArgumentError(f"`{_join(where, missing[0])}` is missing", "SETTINGS")
    return cls(**{key: _convert(hints[key], value, _join(where, key)) for key, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), value, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise InvalidArgumentError(f"`{where}`: expected a list, got {value!r}", "SETTINGS")
        return tuple(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is collections.abc.Mapping:
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(f"`{where}`: expected keys and values, got {value!r}", "SETTINGS")
        return {
            _convert(args[0], k, f"{where} key"): _convert(args[1], v, _join(where, str(k))) for k, v in value.items()
        }
    if origin is Literal:
        if value in args:
            return value
        close = difflib.get_close_matches(str(value), [str(a) for a in args], n=1, cutoff=0.5)
        advice = f"did you mean `{close[0]}`?" if close else f"it takes {', '.join(map(str, args))}"
        raise InvalidArgumentError(f"`{where}`: {value!r} is not served; {advice}", "SETTINGS")
    if origin in (types.UnionType, typing.Union):
        for option in args:
            if dataclasses.is_dataclass(option) and isinstance(value, Mapping):
                return _convert(option, value, where)
            try:
                return _convert(option, value, where)
            except InvalidArgumentError:
                continue
        shown = ", ".join(map(_shown_hint, args))
        raise InvalidArgumentError(f"`{where}`: {value!r} does not fit; it takes {shown}", "SETTINGS")
    return _convert_plain(hint, value, where)


def _shown_hint(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    return "nothing" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _shown(value: Any, where: str) -> str:
    return "something else" if where.rpartition(".")[2] in SECRET else repr(value)


def _convert_plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if hint in (int, str, float, bool, type(None)) and type(value) is hint:
        return value
    name = getattr(hint, "__name__", str(hint))
    raise InvalidArgumentError(f"`{where}`: expected {name}, got {_shown(value, where)}", "SETTINGS")


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
