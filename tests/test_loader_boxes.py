"""Boxes of rows become the text that the family was trained with; the oracle writes it into the row in Python."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
from loader_data import DataSet, encoded, ledger, picture, settings_for, small_model
from PIL import Image
from stoker.cli import app
from typer.testing import CliRunner

TESTDATA = Path(__file__).resolve().parent.parent / "testdata"
SIZES = [(256, 256), (200, 300), (331, 256), (257, 383)]


def family_folder(name: str, folder: Path) -> Path:
    """A checkpoint folder of the family, small."""
    small_model(folder)
    if name == "qwen3_vl":
        return folder
    for file in ("chat_template.jinja", "preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / file).unlink()
    for file in ("chat_template.json", "preprocessor_config.json"):
        shutil.copy(TESTDATA / "qwen2_5-vl" / file, folder / file)
    (folder / "config.json").write_text(json.dumps({"model_type": name}))
    return folder


FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_folder(family, tmp_path_factory.mktemp("model") / family)


def settings_of(data: DataSet, model: Path, scratch: Path, **changes: Any) -> stoker.Settings:
    made = settings_for(data, scratch, epochs=1, shuffle="none", bad_samples={"max_fraction": 1.0}, **changes)
    return made.replace(model=str(model), pack={"tokens_per_pack": 2048, "packs_per_step": 1})


def number(x: float, side: float, reach: int) -> int:
    """As ms-swift has it."""
    return round(x / side * reach)


def oracle(
    row: dict[str, Any], sizes: list[tuple[int, int]], views: list[tuple[int, int]], family: str, form: str
) -> Any:
    """The row with its boxes written into the text. Sizes are (height, width): upright, and what the model sees."""
    objects = row["objects"]
    images = objects.get("image_id", [])
    images = images + [0] * (len(objects["bbox"]) - len(images))
    texts = []
    for box, k in zip(objects["bbox"], images, strict=True):
        sides = (1, 1) if objects.get("bbox_type") == "norm1" else sizes[k]
        reach = views[k] if family == "qwen2_5_vl" else (1000, 1000)
        numbers = [number(x, sides[1 - i % 2], reach[1 - i % 2]) for i, x in enumerate(box)]
        points = ",".join(f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True))
        texts.append(f"<|box_start|>{points}<|box_end|>" if form == "marks" else str(numbers))
    names = [f"<|object_ref_start|>{name}<|object_ref_end|>" if form == "marks" else name for name in objects["ref"]]
    out = {key: value for key, value in row.items() if key != "objects"}
    text = json.dumps(out["messages"])
    for mark, words in (("<bbox>", texts), ("<ref-object>", names)):
        for word in words:
            text = text.replace(mark, json.dumps(word)[1:-1], 1)
    return {**out, "messages": json.loads(text)}


def boxed_rows(data: DataSet, n_rows: int, seed: int) -> list[tuple[dict[str, Any], list[tuple[int, int]]]]:
    rng = random.Random(seed)
    rows = []
    for n in range(n_rows):
        sizes = [rng.choice(SIZES) for _ in range(rng.choice([1, 1, 2, 3]))]
        images = [data.good_image(10 * n + k, height=h, width=w) for k, (h, w) in enumerate(sizes)]
        boxes: list[list[float]] = []
        where = []
        is_share = rng.random() < 0.3
        for _ in range(rng.randrange(1, 5)):
            k = rng.randrange(len(sizes))
            h, w = (1, 1) if is_share else sizes[k]
            xs = sorted(rng.uniform(0, w) for _ in range(2))
            ys = sorted(rng.uniform(0, h) for _ in range(2))
            if not is_share and rng.random() < 0.5:
                xs, ys = [rng.randrange(0, w // 2), rng.randrange(w // 2 + 1, w + 1)], [0, h]
            boxes.append([xs[0], ys[0], xs[1], ys[1]] if rng.random() < 0.7 else [xs[0], ys[0]])
            where.append(k)
        names = ["a red dog", 'the "ß" <b>']
        found = ", ".join(
            '{"bbox_2d": <bbox>, "label": "<ref-object>"}' if i < 2 else "<bbox>" for i in range(len(boxes))
        )
        objects: dict[str, Any] = {"ref": names[: len(boxes)], "bbox": boxes}
        if any(where):
            objects["image_id"] = where
        if is_share:
            objects["bbox_type"] = "norm1"
        messages = [
            {"role": "user", "content": "<image>" * len(images) + f"Find all of {n}."},
            {"role": "assistant", "content": f"[{found}]"},
        ]
        row = {"messages": messages, "images": images, "objects": objects}
        data.row(row)
        rows.append((row, sizes))
    return rows


OWN = {"qwen2_vl": "marks", "qwen2_5_vl": "list", "qwen3_vl": "list"}


@pytest.mark.parametrize("is_own", [True, False])
def test_boxes_are_written_as_the_family_was_trained(family: str, model: Path, is_own: bool, tmp_path: Path) -> None:
    own = OWN[family] if is_own else {"list": "marks", "marks": "list"}[OWN[family]]
    form = "auto" if is_own else own
    data = DataSet(tmp_path / "data")
    rows = boxed_rows(data, 12, seed=len(form))
    settings = settings_of(data.write(), model, tmp_path, box_text=form)
    plain = settings_of(data, model, tmp_path)
    seen = n_tokens = 0
    with stoker.Loader(settings) as loader:
        for batch in loader:
            ends = batch.layout.cu_seqlens.tolist()
            for sample_id, begin, end in zip(batch.layout.sample_ids.tolist(), ends, ends[1:], strict=False):
                row, sizes = rows[loader.describe(sample_id).line - 1]
                shown = stoker.prepare(row, settings, media_root=str(data.folder))
                views = [media.target_size for media in shown.media]
                assert [media.upright_size for media in shown.media] == sizes
                wanted = stoker.prepare(oracle(row, sizes, views, family, own), plain, media_root=str(data.folder))
                for got in (shown.input_ids, batch.input_ids[begin:end]):
                    np.testing.assert_array_equal(got, wanted.input_ids)
                for got in (shown.labels, batch.labels[begin:end]):
                    np.testing.assert_array_equal(got, wanted.labels)
                assert shown.turns == wanted.turns
                assert [list(box.points) for box in shown.boxes if not box.name] == row["objects"]["bbox"]
                assert [box.name for box in shown.boxes if box.name] == row["objects"]["ref"]
                seen += 1
                n_tokens += end - begin
    assert seen == len(rows)
    assert ledger(settings) == []
    with_headers, without = (checked(settings, tmp_path, media) for media in ("all", "none"))
    assert with_headers["tokens"]["total"] == n_tokens
    assert with_headers["rejected"] == without["rejected"] == 0


def checked(settings: stoker.Settings, scratch: Path, media: str) -> dict[str, Any]:
    """What `stoker check` finds."""
    (scratch / "run.yaml").write_text(json.dumps(settings.to_dict()))  # JSON is YAML
    done = CliRunner().invoke(app, ["check", str(scratch / "run.yaml"), "--media", media, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


BOX = "<image>Where?"


def boxed(image: str, objects: Any, answer: str = "<bbox>") -> dict[str, Any]:
    messages = [{"role": "user", "content": BOX}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "images": [image], "objects": objects}


@pytest.mark.parametrize(
    ("objects", "code", "said"),
    [
        ({"bbox": [[0, 0, 257, 10]]}, "BOX_PLACE", "outside its picture, which is 256x256"),
        ({"bbox": [[10, 10, 5, 20]]}, "BOX_PLACE", "x1 < x2"),
        ({"bbox": [[10, 10, 40, 10]]}, "BOX_PLACE", "no area"),
        ({"bbox": [[0.1, 0.1, 20, 0.4]], "bbox_type": "norm1"}, "BOX_PLACE", "from 0 to 1"),
        ({"bbox": [[1, 1], [2, 2]]}, "MEDIA_COUNT", "<bbox> marks 1, boxes 2"),
        ({"bbox": [[1, 1]], "ref": ["dog"]}, "MEDIA_COUNT", "<ref-object> marks 0, refs 1"),
        ({"bbox": [[1, 1]], "image_id": [1]}, "ROW_SCHEMA", "picture 1"),
    ],
)
def test_what_is_no_place_is_a_bad_sample(objects: Any, code: str, said: str, tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    image = data.good_image(1)
    data.row(boxed(image, objects))
    data.chat(1, [image])
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    with stoker.Loader(settings) as loader:
        assert sum(1 for batch in loader for n in batch.layout.sample_ids.tolist() if n >= 0) == 1
    (entry,) = ledger(settings)
    assert (entry["line"], entry["code"]) == (1, code)
    assert said in entry["message"]
    with pytest.raises(stoker.BadSampleError) as error:
        stoker.prepare(data.lines[0], settings)
    assert error.value.code == code


def test_boxes_are_of_the_upright_picture_that_the_header_tells(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = DataSet(tmp_path / "data")
    turned = data.image("turned.jpg", encoded(picture(256, 512, 1), "JPEG", exif=exif))
    data.row(boxed(turned, {"bbox": [[0, 0, 256, 512]]}))
    settings = settings_for(data.write(), tmp_path, epochs=1)
    assert _answer(stoker.prepare(data.lines[0], settings), settings) == "[0, 0, 1000, 1000]"
    done = CliRunner().invoke(app, ["inspect", str(data.manifest), "--model", settings.model, "--json"])
    wanted = {"media": 0, "points": [0, 0, 256, 512], "is_share_of_sides": False, "text": "[0, 0, 1000, 1000]"}
    assert json.loads(done.stdout)["boxes"] == [wanted]
    shown = CliRunner().invoke(app, ["inspect", str(data.manifest), "--model", settings.model], env={"COLUMNS": "160"})
    assert re.search(r"0 +media 0 +\[0, 0, 256, 512\] +\[0, 0, 1000, 1000\]", shown.output)
    with pytest.raises(stoker.BadSampleError, match="outside its picture, which is 256x512"):
        stoker.prepare(data.lines[0], settings.replace(media={"exif": "ignore"}))


def _answer(features: stoker.Features, settings: stoker.Settings) -> str:
    trained = features.input_ids[features.labels != -100]
    return stoker.Tokenizer(settings.model).decode(trained.tolist()).removesuffix("<|im_end|>\n")


@pytest.mark.parametrize(("code", "is_used"), [("cropped", False), ("mirrored", True)])
def test_pictures_with_boxes_keep_their_size(code: str, is_used: bool, tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    data.row(boxed(data.good_image(1, height=512, width=512), {"bbox": [[0, 0, 5, 5]]}))
    own = {"picture": f"user_functions:{code}", "version": "1"}
    settings = settings_for(data.write(), tmp_path, epochs=1, user_code=own)
    if is_used:
        assert stoker.prepare(data.lines[0], settings).bad is None
        return
    with pytest.raises(stoker.BadSampleError, match="pictures with boxes must keep their size"):
        stoker.prepare(data.lines[0], settings)
