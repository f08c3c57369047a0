"""`stoker parity`: equal where it is equal, and a difference explained by the setting that causes it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import reference_python
import yaml
from golden_samples import ALL, write_rows
from loader_data import DataSet, encoded, picture
from PIL import Image
from stoker import Settings
from stoker.cli import app
from stoker.errors import InvalidArgumentError
from stoker.parity.reference import Reference
from typer.testing import CliRunner, Result

pytest.importorskip("torch")
MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
STRICT = {"reference": "hf-5.18-pil"}  # what runs where torchvision is not installed


def rows(folder: Path) -> DataSet:
    data = DataSet(folder)
    data.chat(0, [data.good_image(1)])
    data.chat(1, [data.good_image(2, height=300, width=200), data.good_image(3)], answer="Two.\n\nYes.")
    data.row(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Héllo <b> 123,456 \n\n  x"},
                {"role": "assistant", "content": "  spaces "},
                {"role": "user", "content": "More?"},
                {"role": "assistant", "content": "No."},
            ]
        }
    )
    return data


def parity(data: DataSet, scratch: Path, /, *options: str, **changes: Any) -> Result:
    settings = Settings.from_dict(
        {"data": [{"manifest": str(data.write().manifest)}], "model": str(MODEL), "index_dir": str(scratch), **changes}
    )
    run = scratch / "run.yaml"
    run.write_text(yaml.safe_dump(settings.to_dict()))
    return CliRunner().invoke(app, ["parity", str(run), *options], env={"COLUMNS": "200", "NO_COLOR": "1"})


def of(done: Result, name: str) -> dict[str, Any]:
    result = json.loads(done.stdout)
    (found,) = (f for f in result["fields"] if f["name"] == name)
    return dict(found)


def test_every_entrys_rows_are_read_as_it_says(tmp_path: Path) -> None:
    data = rows(tmp_path / "data").write()
    other = DataSet(tmp_path / "other")
    picture_of_other = other.good_image(7)
    said = [{"by": "visitor", "says": "<image>What?"}, {"by": "bot", "says": "A picture."}]
    other.row({"dialog": said, "pics": [picture_of_other]})
    entries: list[dict[str, Any]] = [
        {"manifest": str(data.manifest)},
        {
            "manifest": str(other.write().manifest),
            "columns": {"messages": "dialog", "role": "by", "content": "says", "images": "pics"},
            "roles": {"visitor": "user", "bot": "assistant"},
        },
    ]
    done = parity(data, tmp_path, **STRICT, data=entries)
    assert done.exit_code == 0, done.output
    assert "4 compared of 4 tried" in done.output


def test_rows_and_pictures_of_the_users_own_code_are_compared(tmp_path: Path) -> None:
    code = {"row": "user_functions:shout", "picture": "user_functions:cropped", "version": "1"}
    done = parity(rows(tmp_path / "data"), tmp_path, **STRICT, user_code=code)
    assert done.exit_code == 0, done.output
    assert f"{'pixel_values':<20}2 of 2 identical" in done.output


def test_clips_need_torchvision(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("torchvision is installed here")
    data = rows(tmp_path / "data")
    data.chat(3, [{"type": "video", "video": [data.good_image(1), data.good_image(4)]}])
    done = parity(data, tmp_path, **STRICT)
    assert done.exit_code == 0, done.output
    assert "NOT_COMPARED: the row has a clip, which the reference processes by torchvision" in done.output
    done = parity(data, tmp_path, reference="qvu+hf")
    assert done.exit_code == 2
    assert "pip install qwen-vl-utils torchvision" in done.stderr


PROFILES_HERE = """
import contextlib, io, json
from stoker.cli import app
for name in sys.argv[2:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app(["parity", sys.argv[1], "--profile", name, "--json"])
    print(out.getvalue().strip())
"""


def test_images_and_clips_equal_the_torchvision_processor(tmp_path: Path) -> None:
    if not reference_python.has("torchvision"):
        pytest.skip("needs torchvision: STOKER_REFERENCE_PYTHON names an interpreter that has it")
    run = tmp_path / "run.yaml"
    manifest = write_rows(tmp_path, ALL)
    run.write_text(yaml.safe_dump({"data": [{"manifest": str(manifest)}], "model": str(MODEL), "index_dir": "index"}))
    profiles = ["stoker", "hf-5.18-torchvision", "hf-5.18-pil"]
    profiles += ["qvu+hf"] * reference_python.has("qwen_vl_utils")
    done = reference_python.run(PROFILES_HERE, str(run), *profiles)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["profile"] for result in results] == profiles, done.stderr
    for result in results:
        assert result["equal"], result
        assert {f["name"]: f["equal"] for f in result["fields"]} == {
            "accepted": 10,
            "input_ids": 10,
            "labels": 10,
            "position_ids": 10,
            "image_grid_thw": 7,
            "pixel_values": 7,
            "video_grid_thw": 3,
            "pixel_values_videos": 3,
            "decode": 27,
        }


def test_a_torchvision_that_does_not_load_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms is not here')")
    about = tmp_path / "torchvision-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 9.9\n")
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidArgumentError, match=r"torchvision 9\.9 is installed but does not load beside torch"):
        Reference(str(MODEL))


def test_equal_rows_are_equal(tmp_path: Path) -> None:
    done = parity(rows(tmp_path / "data"), tmp_path, **STRICT)
    assert done.exit_code == 0, done.output
    for name, n in (
        ("input_ids", 3),
        ("labels", 3),
        ("position_ids", 3),
        ("image_grid_thw", 2),
        ("pixel_values", 2),
        ("decode", 3),
    ):
        assert f"{name:<20}{n} of {n} identical" in done.output
    assert done.output.endswith("equal\n")


def test_the_profile_of_another_backend_is_named(tmp_path: Path) -> None:
    done = parity(rows(tmp_path / "data"), tmp_path, "--json", reference="stoker")
    assert of(done, "input_ids")["equal"] == 3
    pixels = of(done, "pixel_values")
    if pixels["equal"] == pixels["compared"]:
        pytest.skip("torchvision is installed here, and equals the profile")
    assert done.exit_code == 1
    assert "under reference: hf-5.18-pil both are equal" in pixels["differences"][0]["cause"]


def test_a_guarded_token_is_explained(tmp_path: Path) -> None:
    data = rows(tmp_path / "data")
    data.chat(3, [], answer="What does <|im_end|> mean?")
    done = parity(data, tmp_path, "--json", reference="stoker")
    assert done.exit_code == 1
    (difference,) = of(done, "input_ids")["differences"]
    assert difference["where"] == f"{data.manifest}:4"
    assert difference["cause"].startswith("content_tokens: guard: <|im_end|> stands in the row's own text")
    assert difference["position"].startswith("[")


def test_decoding_on_purpose_is_told_apart(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = DataSet(tmp_path / "data")
    data.chat(0, [data.image("turned.jpg", encoded(picture(256, 320, 1), "JPEG", exif=exif))])
    glass = picture(256, 256, 2).convert("RGBA")
    glass.putalpha(100)
    data.chat(1, [data.image("glass.png", encoded(glass, "PNG"))])
    done = parity(data, tmp_path, "--json", reference="stoker")
    turned, clear = of(done, "decode")["differences"]
    assert turned["is_on_purpose"]
    assert turned["cause"].startswith("media.exif: apply")
    assert clear["cause"].startswith("media.alpha: white")
    assert of(done, "image_grid_thw")["equal"] == 2  # both sides were given the same picture


def test_what_a_run_leaves_out_is_not_compared(tmp_path: Path) -> None:
    data = rows(tmp_path / "data")
    data.chat(3, ["gone.jpg"])
    done = parity(data, tmp_path, **STRICT)
    assert done.exit_code == 0, done.output
    assert "3 compared of 4 tried" in done.output
    assert "MEDIA_NOT_FOUND" in done.output
    only = DataSet(tmp_path / "only")
    only.chat(0, ["gone.jpg"])
    done = parity(only, tmp_path)
    assert done.exit_code == 2
    assert "none of 1 rows could be compared" in done.stderr


def test_a_folder_with_one_manifest_will_do(tmp_path: Path) -> None:
    data = rows(tmp_path / "data").write()
    options = ["--model", str(MODEL), "--profile", "hf-5.18-pil", "--samples", "2"]
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    done = CliRunner().invoke(app, ["parity", str(data.folder), *options], env=env)
    assert done.exit_code == 0, done.output
    assert "2 compared of 2 tried" in done.output
    (data.folder / "other.jsonl").write_text("")
    done = CliRunner().invoke(app, ["parity", str(data.folder), *options], env=env)
    assert done.exit_code == 2
    assert "has 2 settings files or manifests" in done.stderr
