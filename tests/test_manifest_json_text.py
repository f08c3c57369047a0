"""JSON written anew must be what Python's json writes, since chat templates insert it."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker import _core

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=5) | st.dictionaries(TEXT, v, max_size=5), max_leaves=30)


def expected(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False)


@settings(max_examples=1000, deadline=None)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 3))
def test_any_value_reads_as_pythons(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert _core.json_text(text.encode()) == json.dumps(value, ensure_ascii=False)


@settings(max_examples=2000, deadline=None)
@given(bits=st.integers(0, 2**64 - 1))
def test_every_float_is_written_as_repr_does(bits: int) -> None:
    number = struct.unpack("<d", struct.pack("<Q", bits))[0]
    if math.isfinite(number):
        assert _core.json_text(repr(number).encode()) == repr(number)


@settings(max_examples=1000, deadline=None)
@given(
    text=st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?\Z"),
)
def test_every_spelling_of_a_number(text: str) -> None:
    wanted = expected(text)
    if "Infinity" in wanted:
        with pytest.raises(Exception, match="JSON_NONFINITE"):
            _core.json_text(text.encode())
    else:
        assert _core.json_text(text.encode()) == wanted


@settings(max_examples=1000, deadline=None)
@given(text=st.text('{}[]",:0123456789eE+-.tfnrulas \\\n\t\u00e9', max_size=12))
def test_accepts_what_python_accepts(text: str) -> None:
    try:
        wanted = expected(text)
        value = json.loads(text)
    except ValueError:
        with pytest.raises(Exception, match="JSON_SYNTAX"):
            _core.json_text(text.encode())
        return
    if isinstance(value, float) and math.isinf(value):
        return
    assert _core.json_text(text.encode()) == wanted


def test_keys_that_stand_twice_are_refused() -> None:
    with pytest.raises(Exception, match="JSON_DUPLICATE_KEY"):
        _core.json_text(b'{"a": 1, "a": 1}')
