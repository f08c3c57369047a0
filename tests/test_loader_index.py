"""The index of lengths: later runs read neither headers nor the rows of other ranks, and no batch depends on it."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, encoded, ledger, picture, settings_for
from PIL import Image
from stoker import Loader, Settings
from stoker.testing import StorageServer

N_USABLE = 24
N_BAD_MEDIA = 2
"""A run from the start looks at these once more, whatever the index says."""


@pytest.fixture(scope="module")
def server() -> Any:
    with StorageServer() as started:
        for n in range(12):
            turned = Image.Exif()
            turned[0x0112] = 6 if n % 3 == 0 else 1
            body = encoded(picture(100 + 20 * n, 240, n), "JPEG", exif=turned)
            started.put("media", f"{n}.jpg", body)
        for n in range(3):
            started.put("media", f"frame-{n}.png", encoded(picture(128, 160, 40 + n), "PNG"))
        started.put("media", "text.jpg", b"this is no picture, whatever its name says")
        yield started


def rows() -> list[dict[str, Any] | bytes]:
    """Of every kind that planning treats in its own way."""
    out: list[dict[str, Any] | bytes] = []

    def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            **more,
        }

    for n in range(12):
        out.append(chat(f"<image>What is {n}?", f"This is {n}.", images=[f"s3://media/{n}.jpg"]))
    for n in range(4):
        images = [f"s3://media/{n}.jpg", f"s3://media/{(5 * n) % 12}.jpg"]
        out.append(chat("<image><image>Which?", "The second.", images=images))
    inlined = "data:image/png;base64," + base64.b64encode(encoded(picture(90, 110, 77), "PNG")).decode()
    out.append(chat("<image>And this?", "It stands in the row.", images=[inlined]))
    out.append(chat("No picture?", "None."))
    for n in (1, 3):
        boxes = {"ref": ["dog"], "bbox": [[10, 20, 60, 70 + n]]}
        out.append(chat("<image>Find the <ref-object>.", "<bbox>", images=[f"s3://media/{n}.jpg"], objects=boxes))
    frames = [f"s3://media/frame-{n}.png" for n in range(3)]
    out.append(chat("<video>When?", "Now.", videos=[frames]))
    sized = {"type": "image", "image": "s3://media/4.jpg", "height": 180, "width": 240}
    out.append(
        {
            "messages": [
                {"role": "user", "content": [sized, {"type": "text", "text": "Sized?"}]},
                {"role": "assistant", "content": "Yes."},
            ]
        }
    )
    turns: list[dict[str, Any]] = []
    for n in range(4):
        turns += [{"role": "user", "content": f"<image>Turn {n}?"}, {"role": "assistant", "content": f"Turn {n}."}]
    out.append({"messages": turns, "images": [f"s3://media/{n}.jpg" for n in (11, 10, 9, 8)]})
    out.append({"messages": turns[:4], "images": ["s3://media/2.jpg", "s3://media/7.jpg"]})
    assert len(out) == N_USABLE
    out.append(chat("<image>Gone?", "Yes.", images=["s3://media/gone.jpg"]))
    out.append(chat("<image>Text?", "Yes.", images=["s3://media/text.jpg"]))
    out.append(b"{broken")
    random.Random(1).shuffle(out)
    return out


def settings_of(server: StorageServer, scratch: Path, **changes: Any) -> Settings:
    data = DataSet(scratch / "data")
    for row in rows():
        data.row(row)
    made = settings_for(
        data.write(),
        scratch,
        epochs=1,
        window_samples=9,
        pack={"tokens_per_pack": 300, "packs_per_step": 2},
        bad_samples={"max_fraction": 1.0},
        storage=server.settings(),
    )
    return made.replace(**changes) if changes else made


def run(settings: Settings, **ranks: Any) -> tuple[list[str], dict[str, Any]]:
    """Digests of all batches, and what the pipeline reported."""
    with Loader(settings, **ranks) as loader:
        out = [batch.digest() for batch in loader]
        return out, loader.report().values["pipeline"]


def told(settings: Settings) -> set[tuple[Any, ...]]:
    """The ledger's lines, without what tells runs apart."""
    return {(line["line"], line["code"], line["media"], line["message"]) for line in ledger(settings)}


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sizes ignored": {"media": {"sizes": "ignore"}},
    "cut at turns": {"pack": {"over_long": "truncate_turns"}},
    "stored orientation": {"media": {"exif": "ignore"}},
    "user code": {"user_code": {"picture": "user_functions:cropped", "version": "1"}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_no_batch_depends_on_what_the_index_knows(server: StorageServer, tmp_path: Path, name: str) -> None:
    settings = settings_of(server, tmp_path, **VARIANTS[name])
    expected, first = run(settings)
    assert first["fetch"]["header_requests"] > 0
    said = told(settings)

    (tmp_path / "index" / "ledger.jsonl").unlink()
    full, second = run(settings)
    assert full == expected
    assert second["fetch"]["header_requests"] == N_BAD_MEDIA
    n_bad = second["samples_planned_bad"]
    assert n_bad == first["samples_planned_bad"]
    assert second["samples_recalled"] >= second["samples_planned"] - n_bad - (4 if name == "cut at turns" else 0)
    assert told(settings) == said

    # One that another manifest filled, with some of the objects; then one of this manifest whose files lost their ends.
    partly = settings.replace(index_dir=str(tmp_path / "partly"))
    few = DataSet(tmp_path / "few")
    for row in rows()[:10]:
        few.row(row)
    run(partly.replace(data=[{"manifest": str(few.write().manifest)}]))
    some, third = run(partly)
    assert some == expected
    assert N_BAD_MEDIA < third["fetch"]["header_requests"] < first["fetch"]["header_requests"]
    for kept in (tmp_path / "partly" / "lengths").glob("*/done-*"):
        kept.write_bytes(kept.read_bytes()[: kept.stat().st_size * 2 // 3])
    again, fourth = run(partly)
    assert again == expected
    assert 0 < fourth["samples_recalled"] < second["samples_recalled"]


def test_another_rank_finds_what_one_measured(server: StorageServer, tmp_path: Path) -> None:
    settings = settings_of(server, tmp_path)
    alone = settings.replace(index_dir=str(tmp_path / "alone"))
    expected = [run(alone, dp_rank=rank, dp_size=2)[0] for rank in (0, 1)]
    run(settings, dp_rank=0, dp_size=2)
    second, report = run(settings, dp_rank=1, dp_size=2)
    assert (second, report["fetch"]["header_requests"]) == (expected[1], 0)  # what is bad was looked at by rank 0
    # Other settings of planning read the same index: nothing in it depends on them.
    _, other = run(settings.replace(seed=8, pack={"tokens_per_pack": 900, "packs_per_step": 1}))
    assert other["fetch"]["header_requests"] == N_BAD_MEDIA


def test_a_changed_object_is_measured_anew_by_the_next_run(tmp_path: Path) -> None:
    with StorageServer() as server:
        for n in range(12):
            server.put("media", f"{n}.png", encoded(picture(128, 128, n), "PNG"))
        data = DataSet(tmp_path / "data")
        for n in range(12):
            data.chat(n, [f"s3://media/{n}.png"])
        settings = settings_for(
            data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0}, storage=server.settings()
        )
        run(settings)
        server.put("media", "3.png", encoded(picture(200, 128, 3), "PNG"))
        server.put("media", "5.png", encoded(picture(128, 128, 99), "PNG"))

        def with_a_new_ledger() -> dict[str, Any]:
            (tmp_path / "index" / "ledger.jsonl").unlink(missing_ok=True)
            return run(settings)[1]

        stale = with_a_new_ledger()
        assert stale["fetch"]["header_requests"] == 0
        assert [line["code"] for line in ledger(settings)] == ["MEDIA_SIZE_MISMATCH"]
        assert stale["changed_media"] == 1
        anew = with_a_new_ledger()
        assert (anew["fetch"]["header_requests"], ledger(settings), anew["changed_media"]) == (2, [], 0)
        assert with_a_new_ledger()["fetch"]["header_requests"] == 0


def test_missing_media_are_remembered_only_while_they_are_few(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(16):
        data.chat(n, [data.good_image(n)])
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 0.1})
    away = tmp_path / "away"
    (data.folder / "images").rename(away)  # as a disk that is not mounted
    with pytest.raises(Exception, match="TOO_MANY_BAD"), Loader(settings) as loader:
        list(loader)
    away.rename(data.folder / "images")
    _, report = run(settings.replace(index_dir=str(tmp_path / "other")))
    (tmp_path / "index" / "ledger.jsonl").unlink()
    _, mounted = run(settings)
    assert mounted["samples_planned_bad"] == report["samples_planned_bad"] == 0


def test_media_put_in_place_are_found_by_a_new_run_and_not_by_one_that_goes_on(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(32):
        data.chat(n, ["late.jpg" if n == 31 else data.good_image(n)])
    settings = settings_for(data.write(), tmp_path, epochs=1, shuffle="none", bad_samples={"max_fraction": 0.1})
    expected, report = run(settings)
    assert report["samples_planned_bad"] == 1
    with Loader(settings) as loader:
        next(loader.steps())
        state = loader.state_dict()
    data.image("late.jpg", encoded(picture(256, 256, 31), "JPEG"))
    with Loader(settings) as loader:
        loader.load_state_dict(state)
        assert [[batch.digest() for batch in step] for step in loader.steps()] == [
            expected[i : i + 4] for i in range(4, len(expected), 4)
        ]
    _, report = run(settings)
    assert report["samples_planned_bad"] == 0
    with Loader(settings) as loader:  # and what the new run found holds from now on
        loader.load_state_dict(state)
        list(loader)
        assert loader.report().values["pipeline"]["samples_planned_bad"] == 0


def test_an_index_that_cannot_be_used_changes_nothing(server: StorageServer, tmp_path: Path) -> None:
    settings = settings_of(server, tmp_path)
    expected, _ = run(settings)
    lengths = tmp_path / "index" / "lengths"
    rng = random.Random(5)
    for _ in range(3):
        for file in lengths.glob("*/*"):
            body = bytearray(file.read_bytes())
            for _ in range(3):
                if body:
                    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            file.write_bytes(bytes(body))
        assert run(settings)[0] == expected
    in_its_place = tmp_path / "blocked"
    in_its_place.mkdir()
    (in_its_place / "lengths").write_text("a file, no folder")
    assert run(settings.replace(index_dir=str(in_its_place)))[0] == expected
