"""What a media reference means: cases JSL-15, JSL-16, NET-08 and NET-09."""

from __future__ import annotations

from pathlib import Path

import pytest
from stoker import _core
from stoker.errors import BadSampleError, InvalidArgumentError

ROOTS = [
    ("/data", "/data/"),
    ("/data/", "/data/"),
    ("s3://b/p", "s3://b/p/"),
    ("s3://b/p/", "s3://b/p/"),
    ("s3://b", "s3://b/"),
    ("file:///my%20data", "/my data/"),
    ("http://h/x", "http://h/x/"),
]


@pytest.mark.parametrize(("root", "joined"), ROOTS)
@pytest.mark.parametrize(
    "reference",
    [
        "a.png",
        "./a.png",
        "../a.png",
        "d//a.png",
        "a b.png",
        "a–b.png",
        "图1.png",
        "a#1.png",
        "100%.png",
        "c++.png",
        "a%20b.png",
        "10%2B2.png",
        "a?b",
        "C:x.png",
        "x:y/z",
    ],
)
def test_relative_references_are_joined_and_left_alone(root: str, joined: str, reference: str) -> None:
    assert _core.resolve_media(reference, root) == joined + reference


@pytest.mark.parametrize("root", ["/data", "s3://b/p", ""])
@pytest.mark.parametrize(
    ("reference", "resolved"),
    [
        ("/abs/a%20b.png", "/abs/a%20b.png"),
        ("//x", "//x"),
        ("file:///a%20b/c%2Bd.png", "/a b/c+d.png"),
        ("file://localhost/x", "/x"),
        ("file:///100%", "/100%"),
        ("FILE:///x", "/x"),
        ("s3://b/C++ 10%2B2.png", "s3://b/C++ 10%2B2.png"),
        ("s3://b//x.png", "s3://b//x.png"),
        ("s3://b/d/./x", "s3://b/d/./x"),
        ("S3://B/k", "s3://B/k"),
        ("https://h/a?b=c", "https://h/a?b=c"),
    ],
)
def test_what_stands_for_itself_is_never_joined(root: str, reference: str, resolved: str) -> None:
    assert _core.resolve_media(reference, root) == resolved


@pytest.mark.parametrize("reference", ["gs://b/k", "weird://x", "oss://b/k", "file://host/x", "file://x"])
def test_schemes_that_are_not_served(reference: str) -> None:
    with pytest.raises(BadSampleError) as error:
        _core.resolve_media(reference, "/data")
    assert error.value.code == "MEDIA_SCHEME"


@pytest.mark.parametrize("root", ["", "data", "./data", "../x"])
def test_the_process_folder_is_never_meant(root: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        _core.resolve_media("a.png", root)
    assert error.value.code == "SETTINGS"


@pytest.mark.parametrize("url", ["s3://b", "s3://b/", "s3:///k", "s3://evil.com#/k", "s3://a@b/k", "s3://-x/k"])
def test_urls_that_name_no_object(url: str) -> None:
    with pytest.raises(BadSampleError) as error:
        _core.fetch(url, environ={})
    assert error.value.code == "MEDIA_NOT_FOUND"


def test_files_with_odd_names_load(tmp_path: Path) -> None:
    for name in ["a b.png", "a–b.png", "图1.png", "a#1.png", "100%.png", "c++.png", "a%20b.png"]:
        (tmp_path / name).write_bytes(name.encode())
        url = _core.resolve_media(name, str(tmp_path))
        assert _core.fetch(url, environ={})[0] == name.encode()
    assert _core.fetch(_core.resolve_media(f"file://{tmp_path}/a%2520b.png", ""), environ={})[0] == b"a%20b.png"
    data, total, tag = _core.fetch(str(tmp_path / "c++.png"), offset=1, length=2, environ={})
    assert (data, total) == (b"++", 7)
    assert tag
    with pytest.raises(BadSampleError) as error:
        _core.fetch(str(tmp_path / "none.png"), environ={})
    assert error.value.code == "MEDIA_NOT_FOUND"
    assert "none.png" in str(error.value)
