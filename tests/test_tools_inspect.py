"""`stoker inspect`: one sample in the terminal, as JSON, and as a page."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import stoker
from loader_data import DataSet, picture, small_model
from PIL import Image
from stoker.cli import app
from stoker.inspecting.png import png_bytes
from typer.testing import CliRunner, Result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    made = DataSet(tmp_path_factory.mktemp("data"))
    made.chat(0, [made.good_image(1), made.good_image(2, height=300, width=520)], answer="Two pictures.\nÄöü <b>")
    made.row(b"")
    made.row({"id": "seven", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})
    made.row({"id": 8, "messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "?"}]})
    made.chat(3, ["gone.jpg"])
    return made.write()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "m")


def inspect(data: DataSet, model: Path, *options: str) -> Result:
    env = {"XDG_CACHE_HOME": str(model.parent / "cache"), "COLUMNS": "160", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["inspect", str(data.manifest), "--model", str(model), *options], env=env)


def test_the_terminal_tells_it_all(data: DataSet, model: Path) -> None:
    done = inspect(data, model)
    assert done.exit_code == 0, done.output
    assert f"{data.manifest}:1 (row 0, byte 0, {len(data.lines[0]) + 1} bytes)" in done.output
    assert "a run uses it" in done.output
    assert "⟦Two pictures." in done.output  # a sign without colour
    assert "\x1b[" not in done.output
    assert re.search(r"images/2\.jpg .* 300x520 .* header +288x512 +18x32 +144", done.output), done.output
    assert "[media 1: 144 tokens]" in done.output


def test_json_has_every_token(data: DataSet, model: Path) -> None:
    done = inspect(data, model, "--json")
    got = json.loads(done.stdout)
    assert done.exit_code == 0
    features = stoker.prepare(
        data.lines[0], stoker.Settings.from_dict({"data": [{"manifest": str(data.manifest)}], "model": str(model)})
    )
    assert got["input_ids"] == features.input_ids.tolist()
    assert got["labels"] == features.labels.tolist()
    assert got["trained_tokens"] == features.n_trained
    assert [m["target_size"] for m in got["media"]] == [[256, 256], [288, 512]]
    text = "".join(t for t in got["token_texts"] if t.isascii())
    assert text.startswith("<|im_start|>user\n<|vision_start|><|image_pad|>")
    assert got["turns"][1]["text"] == "<|im_start|>assistant\nTwo pictures.\nÄöü <b><|im_end|>\n"


def test_a_sample_is_as_long_as_packs_make_it(data: DataSet, model: Path, tmp_path: Path) -> None:
    run = {"data": [{"manifest": str(data.manifest)}], "model": str(model), "pack": {"align_samples_to": 1000}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    done = CliRunner().invoke(app, ["inspect", str(tmp_path / "run.yaml")], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert re.search(r"length +\d+ tokens \(filled up to 1000, 6\.1 % of a pack of 16384\)", done.output), done.output


def test_weights_are_shown_where_they_are_delivered(model: Path, tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "Half.", "weight": 0.5}
    data = DataSet(tmp_path)
    data.row({"messages": [{"role": "user", "content": "How much?"}, said]})
    run = {"data": [{"manifest": str(data.write().manifest)}], "model": str(model), "labels": {"weights": "deliver"}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    target = ["inspect", str(tmp_path / "run.yaml")]
    shown = CliRunner().invoke(app, target, env={"COLUMNS": "160", "NO_COLOR": "1", "XDG_CACHE_HOME": str(tmp_path)})
    assert "⟧×0.5" in shown.output
    assert "*×0.5" in shown.output
    got = json.loads(CliRunner().invoke(app, [*target, "--json"], env={"XDG_CACHE_HOME": str(tmp_path)}).stdout)
    assert got["loss_weights"] == [0.5 * (label != -100) for label in got["labels"]]
    page = tmp_path / "page.html"
    CliRunner().invoke(app, [*target, "--html", str(page)], env={"XDG_CACHE_HOME": str(tmp_path)})
    assert "</span>×0.5" in page.read_text()


@pytest.mark.parametrize(
    ("options", "line"),
    [(["--row", "1"], 3), (["--line", "3"], 3), (["--id", "seven"], 3), (["--id", "8"], 4), (["--row", "3"], 5)],
)
def test_a_row_is_found(data: DataSet, model: Path, options: list[str], line: int) -> None:
    got = json.loads(inspect(data, model, "--json", *options).stdout)
    assert got["line"] == line
    assert got["byte_offset"] == data.offset(line)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--row", "4"], "there is no row 4: the data has 4 rows"),
        (["--line", "2"], "has no row at line 2"),
        (["--id", "nobody"], "has the id 'nobody'"),
        (["--id", "8", "--row", "1"], "give one of"),
    ],
)
def test_a_row_that_is_not_there(data: DataSet, model: Path, options: list[str], said: str) -> None:
    done = inspect(data, model, *options)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(("row", "code"), [("2", "MEDIA_COUNT"), ("3", "MEDIA_NOT_FOUND")])
def test_what_a_run_would_leave_out(data: DataSet, model: Path, row: str, code: str) -> None:
    done = inspect(data, model, "--row", row)
    assert done.exit_code == 1
    assert f"a run leaves it out: {code}" in done.output
    got = json.loads(inspect(data, model, "--row", row, "--json").stdout)
    assert not got["usable"]
    assert got["problem"]["code"] == code


def test_a_manifest_needs_a_model(data: DataSet) -> None:
    done = CliRunner().invoke(app, ["inspect", str(data.manifest)])
    assert done.exit_code == 2
    assert "--model" in done.stderr
    done = CliRunner().invoke(app, ["inspect", "nowhere.yaml"])
    assert done.exit_code == 2
    assert "there is no file nowhere.yaml" in done.stderr


class Page(html.parser.HTMLParser):
    """Collects pictures and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[bytes] = []
        self.links: list[str] = []
        self.trained = ""
        self._is_trained = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "img":
            kind, _, body = (given["src"] or "").partition(",")
            assert kind == "data:image/png;base64"
            self.pictures.append(base64.b64decode(body))
        elif tag in {"script", "link", "iframe"}:
            raise AssertionError(f"{tag}: the page must need nothing beside itself")
        elif tag == "a":
            self.links.append(given["href"] or "")
        self._is_trained = tag == "span" and given.get("class") == "trained"

    def handle_data(self, data: str) -> None:
        if self._is_trained:
            self.trained += data


def test_the_page_has_the_pictures_and_the_grid(data: DataSet, model: Path, tmp_path: Path) -> None:
    done = inspect(data, model, "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert "http" not in text
    assert "Two pictures.\nÄöü <b>" in page.trained
    assert page.links == ["#media-0", "#media-1"]
    with Image.open(io.BytesIO(page.pictures[1])) as shown:
        assert shown.size == (512, 288)
        # Resized once by the engine; an independent resize of the same picture is close to it everywhere.
        with Image.open(data.folder / "images" / "2.jpg") as opened:
            expected = np.asarray(opened.convert("RGB").resize((512, 288), Image.Resampling.BICUBIC), np.int16)
        assert np.abs(np.asarray(shown.convert("RGB"), np.int16) - expected).max() <= 2
    assert 'viewBox="0 0 32 18"' in text


def test_a_clip_is_shown(model: Path, tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    frames = [data.good_image(k, height=64, width=96) for k in range(5)]
    data.chat(0, [{"type": "video", "video": frames, "fps": 2}])
    data.chat(1, [{"type": "video", "video": [frames[0], "gone.jpg"]}])
    done = inspect(data.write(), model, "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    assert "5 frames of a source of 2 a second, resized to 64x96: grid 3x4x6, 18 tokens" in done.output
    assert "[clip 0: 6 tokens]" in done.output
    assert re.search(r"images/3\.jpg .* 3 +1 +1\.250 s", done.output), done.output
    page = Page()
    page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.links == ["#clip-0"] * 3
    assert len(page.pictures) == 5
    with Image.open(data.folder / frames[3]) as opened, Image.open(io.BytesIO(page.pictures[3])) as shown:
        # The size stays as it is, so the page has the very pixels.
        np.testing.assert_array_equal(np.asarray(shown), np.asarray(opened.convert("RGB")))
    (clip,) = json.loads(inspect(data, model, "--json").stdout)["clips"]
    assert clip["seconds"] == [0.25, 1.25, 2.0]
    assert [frame["reference"] for frame in clip["frames"]] == frames
    done = inspect(data, model, "--row", "1")
    assert done.exit_code == 1
    assert "MEDIA_NOT_FOUND" in done.output


def test_our_png_is_read_by_pillow() -> None:
    pixels = np.asarray(picture(37, 53, 5))
    with Image.open(io.BytesIO(png_bytes(pixels))) as opened:
        np.testing.assert_array_equal(np.asarray(opened), pixels)


def test_the_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert re.fullmatch(r"stoker (\d+\.\d+\.\d+\S*|\(run from a folder; no version is installed\))\n", done.output)
