"""The demonstration's data set: made from its seed alone, and what it promises to be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from stoker.demo import Dataset, PhotosNotFoundError, find_testdata, make_dataset
from stoker.ladder.python_serial import to_messages

N = 48


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("demo"), n_samples=N)


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dataset.manifest.read_text(encoding="utf-8").splitlines()]


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_seed_makes_the_same_bytes(made: Dataset, tmp_path: Path) -> None:
    again = make_dataset(tmp_path, n_samples=N)
    assert hashes(again.folder) == hashes(made.folder)
    assert again.folder.name == made.folder.name


def test_another_seed_makes_others(made: Dataset, tmp_path: Path) -> None:
    other = make_dataset(tmp_path, n_samples=8, seed=1)
    assert rows(other) != rows(made)[:8]


def test_what_is_there_is_not_made_again(made: Dataset) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")}
    asked: list[tuple[int, int]] = []
    again = make_dataset(made.folder.parent, n_samples=N, progress=lambda *at: asked.append(at))
    assert (again, asked) == (made, [])
    assert {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")} == before


def test_a_making_that_was_broken_off_leaves_nothing_that_looks_made(tmp_path: Path) -> None:
    def stop(n_done: int, n_all: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_dataset(tmp_path, n_samples=8, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_rows_and_pictures_fit_together(made: Dataset) -> None:
    image = pytest.importorskip("PIL.Image")
    n_pictures = n_pixels = n_bytes = n_sized = 0
    kinds = set()
    forms = set()
    for row in rows(made):
        messages, references = to_messages(row)
        kinds.add(row["id"].split("-")[0])
        forms |= {"messages", "conversations"} & row.keys()
        assert [m["role"] for m in messages if m["role"] != "system"] == ["user", "assistant"] * (len(messages) // 2)
        n_parts = sum(part["type"] == "image" for m in messages for part in m["content"])
        assert n_parts == len(references)
        sizes = []
        for reference in references:
            path = made.folder / reference
            with image.open(path) as picture:
                picture.load()
                sizes.append(picture.size)
                assert picture.mode == "RGB"
                assert picture.format == {"jpg": "JPEG", "png": "PNG"}[reference[-3:]]
            n_bytes += path.stat().st_size
        assert all(200_000 <= w * h <= 2_000_000 for w, h in sizes)
        n_pictures += len(sizes)
        n_pixels += sum(w * h for w, h in sizes)
        if "width" in row:
            n_sized += 1
            wanted = (
                [row["width"], row["height"]]
                if len(sizes) == 1
                else list(zip(row["width"], row["height"], strict=True))
            )
            assert (list(sizes[0]) if len(sizes) == 1 else sizes) == wanted
    assert (n_pictures, n_pixels, n_bytes) == (made.n_pictures, made.n_pixels, made.n_bytes)
    assert kinds == {"vqa", "chat", "several", "text"}
    assert forms == {"messages", "conversations"}
    assert 0 < n_sized < N / 2


def test_jpegs_are_subsampled(made: Dataset) -> None:
    image = pytest.importorskip("PIL.Image")
    from PIL import JpegImagePlugin

    sampled = set()
    for path in made.folder.glob("images/*.jpg"):
        with image.open(path) as picture:
            sampled.add(JpegImagePlugin.get_sampling(picture))
    assert sampled == {2}  # 4:2:0


def test_missing_photographs_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_TESTDATA", str(tmp_path))
    with pytest.raises(PhotosNotFoundError, match="STOKER_TESTDATA"):
        find_testdata()
