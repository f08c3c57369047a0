"""`stoker index`: the index is made ahead, and what the data are like is said in numbers that are true."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from interrupts import check_ctrl_c_ends_the_walk
from loader_data import DataSet, eventually, good_data, settings_for, small_model
from rich.console import Console
from stoker import Settings, prepare
from stoker.cli import app
from stoker.errors import BadSampleError
from stoker.forecasting.indexing import suggestion
from stoker.forecasting.progress import telling
from typer.testing import CliRunner, Result


def index(settings: Settings, scratch: Path, *options: str) -> Result:
    run = scratch / "run.yaml"
    run.write_text(yaml.safe_dump(settings.to_dict()))
    return CliRunner().invoke(app, ["index", str(run), *options], env={"COLUMNS": "200", "NO_COLOR": "1"})


def found(settings: Settings, scratch: Path, *options: str) -> dict[str, Any]:
    done = index(settings, scratch, "--json", *options)
    assert done.exit_code in (0, 1), done.output
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (1 if result["rejected"] else 0)
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """30 good rows, and one each that is no JSON, over-long, and without its picture."""
    made = good_data(tmp_path_factory.mktemp("data"), 30)
    made.row(b"{not json")
    made.chat(90, [], answer="word " * 2000)
    made.chat(91, ["gone.jpg"])
    return made.write()


def test_the_numbers_are_those_of_the_rows(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    result = found(settings, tmp_path, "--ledger", str(tmp_path / "left.jsonl"))
    assert result["rows"] == 33
    assert result["rejected_by_code"]["JSON_SYNTAX"] == 1
    assert result["rejected_by_code"]["MEDIA_NOT_FOUND"] == 1
    assert len((tmp_path / "left.jsonl").read_text().splitlines()) == result["rejected"]

    roomy = settings.replace(pack={"tokens_per_pack": 100_000})
    lengths, trained, patches, pixels, media = [], [], [], [], []
    for line in data.lines:
        try:
            features = prepare(json.loads(line), roomy)
        except (BadSampleError, ValueError):
            continue
        lengths.append(len(features.input_ids))
        trained.append(features.n_trained)
        patches += [n for n in [int(np.prod(features.image_grid_thw, axis=1).sum()) if features.media else 0] if n]
        pixels += [int(np.prod(m.upright_size)) for m in features.media]
        media.append(len(features.media))
    assert result["rows_with_length"] == len(lengths) == 31
    for name, values in (("tokens", lengths), ("target_tokens", trained), ("media_per_row", media)):
        h = result[name]
        assert (h["n"], h["total"], h["least"], h["most"]) == (len(values), sum(values), min(values), max(values)), name
        assert h["mean"] == pytest.approx(np.mean(values))
    assert (result["pixels"]["n"], result["pixels"]["total"]) == (len(pixels), sum(pixels))
    assert result["over_long"][0] == {
        "tokens_per_pack": 384,
        "rows": sum(n > 384 for n in lengths),
        "share": sum(n > 384 for n in lengths) / 31,
    }
    fitting = [
        n for n, row in zip(patches, (n for n, k in zip(lengths, media, strict=True) if k), strict=True) if row <= 384
    ]
    assert (result["patches"]["n"], result["patches"]["total"]) == (len(fitting), sum(fitting))


def test_line_starts_are_kept_for_the_run(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path)
    found(settings, tmp_path, "--no-media")
    (kept,) = Path(settings.index_dir).glob("*.rows")
    written_ns = kept.stat().st_mtime_ns
    found(settings, tmp_path, "--no-media")
    assert [path.stat().st_mtime_ns for path in Path(settings.index_dir).glob("*.rows")] == [written_ns]


def test_media_can_be_left_out(data: DataSet, tmp_path: Path) -> None:
    result = found(settings_for(data, tmp_path), tmp_path, "--no-media", "--workers", "1", "--concurrency", "4")
    assert "MEDIA_NOT_FOUND" not in result["rejected_by_code"]
    assert result["media"]["without_size"] > 0
    assert result["rows_with_length"] < 32


def test_a_suggestion_leaves_few_out_and_keeps_the_tokens_of_a_step() -> None:
    settings = Settings.from_dict(
        {"data": [{"manifest": "x"}], "model": "y", "pack": {"tokens_per_pack": 16384, "packs_per_step": 64}}
    )
    longer = {2048: 500, 4096: 100, 8192: 2, 16384: 1, 32768: 1, 65536: 0, 131072: 0}

    def of(mean: int, n: int = 1000) -> dict[str, Any] | None:
        tokens = {"n": n, "total": n * mean}
        return suggestion({"rows_with_length": n, "tokens": tokens, "longer_than": list(longer.items())}, settings)

    assert of(1000) == {"tokens_per_pack": 16384, "packs_per_step": 64, "left_out": 1, "rows_per_pack": 16.384}
    few = of(3000)
    assert few is not None
    assert (few["tokens_per_pack"], few["packs_per_step"]) == (32768, 32)  # eight mean rows of 3,000
    assert suggestion({"rows_with_length": 0, "tokens": {}, "longer_than": []}, settings) is None


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name in {"src", "href"} for name, _ in attrs), "the page needs something else"


def test_people_can_read_it(data: DataSet, tmp_path: Path) -> None:
    page = tmp_path / "statistics.html"
    done = index(settings_for(data, tmp_path), tmp_path, "--html", str(page), "--examples", "1")
    assert done.exit_code == 1
    for said in (
        "rows        33 in",
        "MEDIA_NOT_FOUND: 1 row: the media does not exist",
        f"{data.manifest}:31 (byte {data.offset(31)})",
        "tokens      of a row, media expanded: mean",
        "384 tokens a pack:",
        "<- the settings",
        "suggestion  pack: {tokens_per_pack: ",
        str(tmp_path / "index"),
    ):
        assert said in done.output, said
    tags = _Tags()
    tags.feed(page.read_text())
    assert tags.seen.count("svg") == 6
    embedded = page.read_text().split('id="index">')[1].split("</script>")[0]
    assert json.loads(embedded)["rows"] == 33
    help_ = CliRunner().invoke(app, ["index", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for said in ("--no-media", "--workers", "Exit status", "stoker index run.yaml"):
        assert said in help_, said


def test_what_json_holds(data: DataSet, tmp_path: Path) -> None:
    """Programs read it: keys are added, never taken away."""
    assert list(found(settings_for(data, tmp_path), tmp_path)) == [
        *(
            "index_dir",
            "rows",
            "rows_known",
            "elapsed_s",
            "rows_per_s",
            "rejected",
            "rejected_by_code",
            "examples",
            "meaning",
        ),
        *("media", "rows_with_length", "tokens", "target_tokens", "patches", "media_per_row", "pixels", "gflop"),
        *("vision_share", "over_long", "suggestion"),
    ]


def test_what_cannot_be_indexed(data: DataSet, tmp_path: Path) -> None:
    done = index(settings_for(data, tmp_path).replace(data=[{"manifest": "/nowhere/rows.jsonl"}]), tmp_path)
    assert done.exit_code == 2
    assert "/nowhere/rows.jsonl" in done.stderr


def write_rows(path: Path, n: int) -> None:
    row = {"messages": [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "yes " * 50}]}
    path.write_text((json.dumps(row) + "\n") * n)


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 60_000)
    run = tmp_path / "run.yaml"
    model = small_model(tmp_path / "model")
    run.write_text(yaml.safe_dump({"data": [{"manifest": str(tmp_path / "rows.jsonl")}], "model": str(model)}))
    check_ctrl_c_ends_the_walk(["index", str(run)], tmp_path)


def test_progress_says_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("stoker.forecasting.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    with telling(Console(file=out)) as tell:
        tell("counting the rows", 0, None)  # too early to say anything
        now[0] += 20
        tell("3 would be left out", 2000, 10_000)
        now[0] += 1
        tell("3 would be left out", 2100, 10_000)
        now[0] += 10
        tell("scanning", 0, None)
    assert out.getvalue().splitlines() == [
        "3 would be left out: 2000 rows of 10000, 80 s left (100 rows/s)",
        "scanning",
    ]
    terminal = io.StringIO()
    monkeypatch.undo()
    with telling(Console(file=terminal, force_terminal=True, width=120)) as tell:
        tell("3 would be left out", 2000, 10_000)
    assert "2000 rows" in terminal.getvalue()


def run_file(folder: Path, manifest: Path) -> Path:
    run = folder / "run.yaml"
    model = small_model(folder / "model")
    run.write_text(
        yaml.safe_dump({"data": [{"manifest": str(manifest)}], "model": str(model), "index_dir": str(folder / "index")})
    )
    return run


def test_a_killed_index_goes_on_where_it_was(tmp_path: Path) -> None:
    n_rows = 40_000
    write_rows(tmp_path / "rows.jsonl", n_rows)
    command = [sys.executable, "-m", "stoker", "index", str(run_file(tmp_path, tmp_path / "rows.jsonl")), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in eventually(60):
        if sum(log.stat().st_size for log in (tmp_path / "index").glob("lengths/text-*/log-*")) > 100_000:
            break
    process.kill()
    out, _ = process.communicate(timeout=20)
    assert not out, "it was done before it was killed: nothing is tested"
    again, third = (
        json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
        for _ in range(2)
    )
    assert 0 < again["rows_known"] < n_rows
    assert third["rows_known"] == n_rows
    for result in (again, third):
        assert result["tokens"]["total"] == n_rows * result["tokens"]["least"]
        assert result["rows"] == n_rows


def test_what_is_indexed_is_not_looked_at_again(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    first = found(settings, tmp_path)
    assert first["rows_known"] == 0
    again = found(settings, tmp_path)
    assert again["rows_known"] == 31  # whether a row is no JSON, or a picture missing, is seen again
    different = {"elapsed_s", "rows_per_s", "rows_known"}
    assert {k: v for k, v in again.items() if k not in different} == {
        k: v for k, v in first.items() if k not in different
    }
    longer = found(settings.replace(pack={"tokens_per_pack": 4096}), tmp_path)
    assert longer["rows_known"] == 31  # the length of packs is no part of what is known
    assert longer["tokens"] == first["tokens"]

    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(settings.to_dict()))
    options = ["plan", str(run), "--epochs", "1", "--json"]
    from_index, measured = (
        json.loads(CliRunner().invoke(app, [*options, *more]).stdout) for more in ([], ["--measure"])
    )
    assert from_index["walked"]["positions_known"] == 31
    assert from_index["data"]["unsized_samples"] == 0
    assert from_index["policies"] == measured["policies"]
