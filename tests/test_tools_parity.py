"""`stoker parity`: equal where it is equal, and a difference explained by the setting that causes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from loader_data import DataSet, encoded, picture
from PIL import Image
from stoker import Settings
from stoker.cli import app
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


def parity(data: DataSet, scratch: Path, *options: str, **changes: Any) -> Result:
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
        assert f"{name:<16}{n} of {n} identical" in done.output
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
