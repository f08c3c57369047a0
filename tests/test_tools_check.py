"""`stoker check`: what a run would leave out, before it runs; in constant memory."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from loader_data import DataSet, engine_threads, eventually, good_data, ledger, settings_for, small_model
from stoker import Loader, Settings
from stoker.cli import app
from typer.testing import CliRunner, Result


def check(settings: Settings, scratch: Path, *options: str) -> Result:
    run = scratch / "run.yaml"
    run.write_text(yaml.safe_dump(settings.to_dict()))
    return CliRunner().invoke(app, ["check", str(run), *options], env={"COLUMNS": "200", "NO_COLOR": "1"})


def report_of(settings: Settings, scratch: Path, *options: str) -> dict[str, Any]:
    done = check(settings, scratch, "--json", *options)
    assert done.exit_code in (0, 1), done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (1 if report["rejected"] else 0)
    assert report["rows"] == report["rows_in_all"]
    return report


def bad_data(folder: Path) -> DataSet:
    data = good_data(folder, 20)
    data.row(b"{not json")
    data.row(b"")  # no row
    data.chat(50, ["gone.jpg"])
    data.chat(51, [data.image("page.jpg", b"<html></html>")])
    data.chat(52, [{"type": "image", "image": data.good_image(9), "height": 256, "width": 300}])
    data.chat(53, [], answer="word " * 2000)
    data.row({"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "?"}]})
    data.chat(54, [data.image("empty.png", b"")])
    return data.write()


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return bad_data(tmp_path_factory.mktemp("data"))


def test_it_finds_what_a_run_leaves_out(bad: DataSet, tmp_path: Path) -> None:
    settings = settings_for(bad, tmp_path, epochs=1, shuffle="none", bad_samples={"max_fraction": 1.0})
    report = report_of(settings, tmp_path, "--media", "all", "--ledger", str(tmp_path / "found.jsonl"))
    with Loader(settings) as loader:
        layouts = [batch.layout for batch in loader]
    n_tokens = sum(int(np.diff(layout.cu_seqlens)[layout.sample_ids >= 0].sum()) for layout in layouts)
    expected = {line["line"]: line["code"] for line in ledger(settings)}
    found = {line["line"]: line for line in map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())}
    assert {line: entry["code"] for line, entry in found.items()} == expected
    assert sorted(report["rejected_by_code"]) == sorted(set(expected.values()))
    assert report["rejected"] == len(expected) == 7
    assert report["tokens"]["total"] == n_tokens
    assert all(entry["byte_offset"] == bad.offset(line) for line, entry in found.items())
    assert list(found) == sorted(found)
    (example,) = report["examples"]["JSON_SYNTAX"]
    assert example["line"] == 21
    assert example["manifest"] == str(bad.manifest)


def test_without_headers_only_rows_are_judged(bad: DataSet, tmp_path: Path) -> None:
    settings = settings_for(bad, tmp_path)
    report = report_of(settings, tmp_path, "--media", "none")
    assert set(report["rejected_by_code"]) == {"JSON_SYNTAX", "MEDIA_COUNT", "SEQ_TOO_LONG"}
    media = report["media"]
    assert media["headers_read"] == 0
    assert 0 < media["without_size"] < media["mentions"]
    assert report["tokens"]["n"] < report["text_tokens"]["n"]


def test_a_sample_of_headers_is_read(bad: DataSet, tmp_path: Path) -> None:
    settings = settings_for(bad, tmp_path)
    read = [report_of(settings, tmp_path, "--media", n)["media"]["headers_read"] for n in ("none", "5", "all")]
    assert 0 == read[0] < read[1] < read[2]


def test_people_can_read_it(bad: DataSet, tmp_path: Path) -> None:
    done = check(settings_for(bad, tmp_path), tmp_path, "--media", "all", "--examples", "1")
    assert done.exit_code == 1
    for said in (
        "rows        27 in",
        "a run would stop, bad_samples.max_fraction is 0.01",
        "messages, 1 image, 2 turns",
        "half up to",
        "MEDIA_NOT_FOUND: 1 row: the media does not exist",
        f"{bad.manifest}:23 (byte {bad.offset(23)})",
        "all of them with --ledger FILE",
    ):
        assert said in done.output, said


def test_good_data_is_good(tmp_path: Path) -> None:
    done = check(settings_for(good_data(tmp_path / "data", 12), tmp_path), tmp_path, "--media", "all")
    assert done.exit_code == 0, done.output
    assert "left out" not in done.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "nowhere"}, "nowhere"),
        ({"data": [{"manifest": "/nowhere/rows.jsonl"}]}, "/nowhere/rows.jsonl"),
    ],
)
def test_what_cannot_be_checked(bad: DataSet, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    done = check(settings_for(bad, tmp_path).replace(**change), tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr


def test_media_takes_words_and_numbers(bad: DataSet, tmp_path: Path) -> None:
    done = check(settings_for(bad, tmp_path), tmp_path, "--media", "some")
    assert done.exit_code == 2
    assert "all, none or a number" in done.stderr


# --- many rows


def write_text_rows(path: Path, n_rows: int) -> None:
    rng = random.Random(1)
    words = ["loader", "image", "token", "the", "of", "a", "is", "waits", "GPU", "naïve", "picture", "flower", "and"]
    said = [" ".join(rng.choices(words, k=rng.randrange(8, 90))) for _ in range(997)]
    with path.open("w", encoding="utf-8") as file:
        for i in range(n_rows):
            row = {
                "id": i,
                "messages": [
                    {"role": "user", "content": f"{i}: {said[i % 997]}"},
                    {"role": "assistant", "content": said[i * 7 % 991]},
                ],
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


MEASURE = """
import json, resource, sys, time
from stoker.cli import app
began = time.monotonic()
try:
    app(["check", sys.argv[1], "--model", sys.argv[2], "--media", "none", "--json"], standalone_mode=False)
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak_kib": peak, "took_s": time.monotonic() - began}), file=sys.stderr)
"""


def measured(manifest: Path, model: Path, cache: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(manifest), str(model)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), **json.loads(done.stderr.splitlines()[-1])}


def peaks_kib(folder: Path, *sizes: int) -> list[int]:
    """The most memory that checking so many text rows takes, for each size."""
    model = small_model(folder / "model")
    peaks = []
    for n_rows in sizes:
        manifest = folder / f"{n_rows}.jsonl"
        write_text_rows(manifest, n_rows)
        got = measured(manifest, model, folder / "cache")
        assert got["rows"] == n_rows
        assert got["rejected"] == 0
        print(f"{n_rows} rows: {got['rows_per_s']:.0f} rows/s, peak {got['peak_kib'] / 1024:.0f} MiB")
        peaks.append(got["peak_kib"])
    return peaks


def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    few, many = peaks_kib(tmp_path, 5_000, 20_000)
    # What 15,000 rows more would take if they were kept is over 20 MB; allocators and thread timing move a few.
    assert many - few < 10_000


@pytest.mark.soak
def test_a_million_rows(tmp_path: Path) -> None:
    few, many = peaks_kib(tmp_path, 100_000, 1_000_000)
    assert many - few < 16_000  # the index's four bytes a row are 3.6 MB of it


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    manifest = tmp_path / "rows.jsonl"
    write_text_rows(manifest, 60_000)
    model = small_model(tmp_path / "model")
    command = [sys.executable, "-m", "stoker", "check", str(manifest), "--model", str(model)]
    process = subprocess.Popen(
        command, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for _ in eventually(20):
        if "stoker-cpu0" in engine_threads(process.pid) or len(engine_threads(process.pid)) > 3:
            break
    assert engine_threads(process.pid), "it is not at work: nothing is tested"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    took = time.monotonic() - began
    assert process.returncode == 130, err
    assert b"interrupted" in err
    assert took < 1.0 + 1.5 + float(os.environ.get("STOKER_TEST_SLACK_S", "0"))  # the interpreter's own end is part
