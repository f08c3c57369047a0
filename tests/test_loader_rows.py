"""Rows in every form, media in every place and manifests in every packing, through the loader to the batch."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import DataSet, digests, encoded, ledger, picture, settings_for
from stoker import Loader, Settings, decode_image
from stoker.errors import InvalidArgumentError
from stoker.testing import StorageServer


def lines_read(settings: Settings) -> dict[int, int]:
    """Patches of every sample of a finite run, by the line of its row."""
    found: dict[int, int] = {}
    with Loader(settings) as loader:
        for batch in loader:
            counts = batch.layout.image_counts.tolist()
            for i, sample in enumerate(batch.layout.sample_ids.tolist()):
                if sample >= 0:
                    found[loader.describe(sample).line] = counts[i]
    return found


def whole(data: DataSet | str, scratch: Path, **changes: Any) -> Settings:
    """One pass in the order of the file, however many rows are bad."""
    return settings_for(
        data,
        scratch,
        epochs=1,
        shuffle="none",
        pack={"tokens_per_pack": 1024, "packs_per_step": 1},
        bad_samples={"max_fraction": 1.0},
        **changes,
    )


def asks(reference: Any) -> dict[str, Any]:
    """A row with one picture."""
    turns = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A square."}]
    return {"messages": turns, "images": [reference]}


@pytest.mark.case("JSL-15", "found, found, found, found; weird:// and gs:// are MEDIA_SCHEME")
def test_references_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataSet(tmp_path / "rows")
    body = encoded(picture(256, 256, 1), "PNG")
    data.image("media/a.png", body)
    spaced = data.folder / data.image("media/a b.png", body)
    good = [
        data.row(asks(reference))
        for reference in ("media/a.png", "./media/a.png", str(data.folder / "media/a.png"), spaced.as_uri())
    ]
    bad = [data.row(asks(reference)) for reference in ("weird://x/a.png", "gs://bucket/a.png")]
    settings = whole(data.write(), tmp_path)
    monkeypatch.chdir(tmp_path)  # the process's folder is never meant
    assert lines_read(settings) == dict.fromkeys(good, 1)
    assert {entry["line"]: entry["code"] for entry in ledger(settings)} == dict.fromkeys(bad, "MEDIA_SCHEME")


@pytest.mark.case("JSL-16", "all six found; only file:// is percent-decoded")
def test_names_are_bytes(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "rows")
    body = encoded(picture(256, 256, 1), "PNG")
    names = ["a b.png", "a–b.png", "图1.png", "a#1.png", "100%.png", "c++.png", "a%20b.png"]
    good = [data.row(asks(data.image(name, body))) for name in names]
    assert lines_read(whole(data.write(), tmp_path)) == dict.fromkeys(good, 1)


@pytest.mark.case("JSL-17", "MEDIA_NOT_FOUND with row and path; the run goes on")
def test_a_missing_picture(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "rows")
    ref = data.image("a.png", encoded(picture(256, 256, 1), "PNG"))
    data.row(asks(ref))
    line = data.row(asks("nothere.png"))
    data.row(asks(ref))
    settings = whole(data.write(), tmp_path)
    assert lines_read(settings) == {1: 1, 3: 1}
    (entry,) = ledger(settings)
    assert (entry["line"], entry["code"], entry["media"]) == (
        line,
        "MEDIA_NOT_FOUND",
        str(data.folder / "nothere.png"),
    )


@pytest.mark.case("JSL-18", "decoded with and without padding; a bare text is a path, MEDIA_NOT_FOUND, cut in messages")
def test_pictures_inside_rows(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "rows")
    body = encoded(picture(256, 320, 1), "PNG")
    while len(body) % 3 == 0:
        body += b"x"  # behind the end of a PNG: its base64 now needs padding
    text = base64.b64encode(body).decode()
    assert text.endswith("=")
    good = [
        data.row(asks(data.image("a.png", body))),
        data.row(asks(f"data:image/png;base64,{text}")),
        data.row(asks(f"data:image/png;base64,{text.rstrip('=')}")),
        data.row(asks({"base64": text})),
        data.row(asks({"source": {"type": "base64", "media_type": "image/png", "data": text}})),
        data.row(asks({"image": f"data:;base64,{text}", "width": 320, "height": 256})),
    ]
    bad = {
        data.row(asks(text)): "MEDIA_NOT_FOUND",
        data.row(asks("data:image/png;base64,!!!!")): "MEDIA_DATA",
        data.row(asks("data:image/png;base64," + base64.b64encode(b"<html>" * 20).decode())): "IMG_NOT_AN_IMAGE",
        data.row(asks("data:image/png;base64," + text[: len(text) // 2])): "IMG_TRUNCATED",
    }
    settings = whole(data.write(), tmp_path)
    assert lines_read(settings) == dict.fromkeys(good, 1)
    entries = ledger(settings)
    assert {entry["line"]: entry["code"] for entry in entries} == bad
    assert all(len(entry["media"]) < 150 and len(entry["message"]) < 400 for entry in entries)
    with Loader(settings) as loader:
        patches = [batch.image_patches for batch in loader if batch.image_patches is not None]
    images = np.concatenate(patches).reshape(len(good), -1)
    assert (images == images[0]).all(), "the same picture, wherever it stands"


def test_a_row_with_pictures_inside_is_read_twice_however_many_it_has(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "rows")
    bodies = [encoded(picture(256, 256, seed), "PNG") for seed in range(4)]
    inside = ["data:image/png;base64," + base64.b64encode(body).decode() for body in bodies]
    cut = inside[0][:200]
    outside = data.image("a.png", bodies[1])
    data.chat(1, [inside[0], outside, inside[2], inside[3], inside[2]])
    data.chat(2, [inside[1]])
    data.chat(3, [inside[3], {"image": cut, "width": 256, "height": 256}, inside[0]])  # found bad at the second reading
    code = {"row": "user_functions:shout", "version": "1"}
    settings = whole(data.write(), tmp_path, user_code=code).replace(pack={"tokens_per_pack": 2048})
    with Loader(settings) as loader:
        patches = np.concatenate([batch.image_patches for batch in loader if batch.image_patches is not None])
        assert loader.report().values["user_code"]["calls"] == 2 * len(data.lines)  # for the plan, and for the pixels
    plain = [decode_image(body) for body in bodies]
    levels = [image.reshape(-1, 3).mean(axis=0) for image in plain]
    seen = patches.reshape(-1, 256, 3, 16 * 16).mean(axis=(1, 3))
    np.testing.assert_allclose(seen, [levels[k] for k in (0, 1, 2, 3, 2, 1)], rtol=1e-6)
    assert {entry["line"]: entry["code"] for entry in ledger(settings)} == {3: "IMG_TRUNCATED"}


def test_inline_pictures_do_not_fill_a_window(tmp_path: Path) -> None:
    """A window of 40 MB of pictures passes through 24 MB of memory."""
    data = DataSet(tmp_path / "rows")
    rng = np.random.default_rng(1)
    noise = picture(700, 700, 1).copy()
    noise.frombytes(rng.integers(0, 256, 700 * 700 * 3, dtype=np.uint8).tobytes())
    text = base64.b64encode(encoded(noise, "PNG", compress_level=0)).decode()
    for _ in range(20):
        data.row(asks(f"data:image/png;base64,{text}"))
    settings = whole(data.write(), tmp_path, speed={"memory_limit": "24MiB", "prefetch_steps": 1}, window_samples=32)
    assert len(lines_read(settings)) == 20


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages": (asks("a.png"), {}),
    "conversations": (
        {
            "conversations": [
                {"from": "human", "value": "<image>What is it?"},
                {"from": "gpt", "value": "A square."},
            ],
            "image": "a.png",
        },
        {},
    ),
    "parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "a.png"}},
                        {"type": "text", "text": "What is it?"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "A square."}]},
            ]
        },
        {},
    ),
    "query-response": ({"query": "<image>What is it?", "response": "A square.", "images": ["a.png"]}, {}),
    "instruction": ({"instruction": "<image>What is it?", "input": "", "output": "A square.", "image": "a.png"}, {}),
    "prompt-completion": (
        {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}],
            "completion": [{"role": "assistant", "content": "A square."}],
            "images": ["a.png"],
        },
        {},
    ),
    "columns": (
        {
            "dialog": [{"who": "you", "says": "<image>What is it?"}, {"who": "bot", "says": "A square."}],
            "pics": "a.png",
            "messages": "not read",
        },
        {
            "columns": {"messages": "dialog", "role": "who", "content": "says", "images": "pics"},
            "roles": {"you": "user", "bot": "assistant"},
        },
    ),
}


def test_every_form_gives_the_same_batch(tmp_path: Path) -> None:
    body = encoded(picture(256, 256, 1), "PNG")
    found = {}
    for name, (row, options) in FORMS.items():
        data = DataSet(tmp_path / name)
        data.image("a.png", body)
        data.row(row)
        data.row(row)
        settings = whole(data.write(), tmp_path)
        settings = settings.replace(data=[{"manifest": str(data.manifest), **options}])
        found[name] = digests(settings)[0]
    assert len({tuple(f) for f in found.values()}) == 1, found


@pytest.mark.parametrize(
    "options",
    [{"columns": {"pictures": "x"}}, {"columns": {"images": ""}}, {"columns": {"images": "x", "videos": "x"}}],
)
def test_columns_that_do_not_exist(tmp_path: Path, options: dict[str, Any]) -> None:
    settings = settings_for(str(tmp_path / "rows.jsonl"), tmp_path)
    with pytest.raises(InvalidArgumentError, match="columns") as error:
        Loader(settings.replace(data=[{"manifest": str(tmp_path / "rows.jsonl"), **options}]))
    assert error.value.code == "SETTINGS"


@pytest.mark.parametrize("options", [{"roles": {"bot": "robot"}}, {"shape": "alpaca"}, {"max_row_bytes": 0}])
def test_row_settings_out_of_range(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        settings_for(str(tmp_path / "x"), tmp_path).replace(data=[{"manifest": "x", **options}])


def text_data(folder: Path, n: int = 60) -> DataSet:
    """Rows of text, quickly made."""
    data = DataSet(folder)
    for i in range(n):
        data.chat(i, [], answer="word " * (i % 17 + 1))
    return data.write()


def test_packed_manifests_and_patterns(tmp_path: Path) -> None:
    data = text_data(tmp_path / "plain")
    text = data.manifest.read_bytes()
    wanted = digests(settings_for(data, tmp_path), 4)
    packed = tmp_path / "packed.jsonl"  # its name says nothing
    packed.write_bytes(gzip.compress(text))
    assert digests(settings_for(str(packed), tmp_path), 4) == wanted
    if shutil.which("zstd"):
        packed.write_bytes(subprocess.run(["zstd", "-q", "-c"], input=text, capture_output=True, check=True).stdout)
        assert digests(settings_for(str(packed), tmp_path), 4) == wanted
    rows = text.splitlines(keepends=True)
    for i in range(3):
        (tmp_path / f"part-{i}.jsonl").write_bytes(b"".join(rows[20 * i : 20 * i + 20]))
    pattern = settings_for(str(tmp_path / "part-*.jsonl"), tmp_path, epochs=1)
    with Loader(pattern) as loader:
        names = {Path(loader.describe(i).manifest).name for b in loader for i in b.layout.sample_ids.tolist() if i >= 0}
    assert names == {"part-0.jsonl", "part-1.jsonl", "part-2.jsonl"}
    named = pattern.replace(data=[{"manifest": str(tmp_path / f"part-{i}.jsonl")} for i in range(3)])
    assert digests(pattern) == digests(named), "a pattern is its files, sorted"
    with Loader(pattern.replace(data=[{"manifest": str(tmp_path / "none-*")}])) as loader:
        with pytest.raises(InvalidArgumentError, match="no file has such a name"):
            next(loader)


def test_a_list_names_places_in_the_users_file(tmp_path: Path) -> None:
    data = text_data(tmp_path / "plain", 20)
    rows = [json.loads(line) for line in data.lines]
    rows[7] = {"nothing": 1}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1))
    settings = whole(str(path), tmp_path)
    lines = lines_read(settings)
    assert len(lines) == 19
    (entry,) = ledger(settings)
    assert entry["code"] == "ROW_SCHEMA"
    assert json.JSONDecoder().raw_decode(path.read_text()[entry["byte_offset"] :])[0] == rows[7]
    text = path.read_text().split("\n")
    assert text[entry["line"]].strip() == '"nothing": 1'
    path.write_text(path.read_text()[:-30])
    with Loader(settings) as loader, pytest.raises(InvalidArgumentError, match=r"rows\.json.*not closed") as error:
        next(loader)
    assert error.value.code == "MANIFEST"


def test_a_packed_manifest_on_s3(tmp_path: Path) -> None:
    data = text_data(tmp_path / "data")
    wanted = digests(settings_for(data, tmp_path), 3)
    (data.folder / "rows.gz").write_bytes(gzip.compress(data.manifest.read_bytes()))
    with StorageServer(tmp_path) as server:
        settings = settings_for("s3://data/rows.gz", tmp_path, storage=server.settings())
        assert digests(settings, 3) == wanted


def test_the_form_of_the_rows_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = text_data(tmp_path / "data", 10)
    with caplog.at_level(logging.INFO, logger="stoker"), Loader(settings_for(data, tmp_path, epochs=1)) as loader:
        next(loader)
    assert any("10 rows (JSONL); the first 10: messages form" in line for line in caplog.messages), caplog.messages


def test_nonfinite_numbers_as_null(tmp_path: Path) -> None:
    data = text_data(tmp_path / "data", 6)
    data.lines[2] = data.lines[2][:-1] + b', "score": NaN}'
    settings = whole(data.write(), tmp_path)
    assert 3 not in lines_read(settings)
    lenient = settings.replace(data=[{"manifest": str(data.manifest), "nonfinite": "null"}])
    assert 3 in lines_read(lenient)


def test_other_row_settings_are_another_run(tmp_path: Path) -> None:
    settings = settings_for(text_data(tmp_path / "data"), tmp_path)
    with Loader(settings) as loader:
        state = loader.state_dict()
    other = settings.replace(data=[{"manifest": settings.data[0].manifest, "roles": {"bot": "assistant"}}])
    with Loader(other) as loader, pytest.raises(InvalidArgumentError, match="`rows`"):
        loader.load_state_dict(state)
