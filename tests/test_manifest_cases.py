"""The row cases of tools/cases that the manifest decides: lines, forms, texts, placeholders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stoker import _core

ROOT = Path(__file__).resolve().parents[1]

# Decided after the row is read: by the source (schemes, missing files) or by the text (lengths, labels, templates).
LATER_CODES = {"MEDIA_SCHEME", "MEDIA_NOT_FOUND", "SEQ_TOO_LONG", "NO_LOSS_TOKENS", "TURN_ORDER"}
LATER_FILES = {"TXT-10/no_token.jsonl"}
CASES = [
    pytest.param("JSL-01", marks=pytest.mark.case("JSL-01", "3 rows, the first at byte 3")),
    pytest.param("JSL-02", marks=pytest.mark.case("JSL-02", "rows in lines 1, 4 and 5")),
    pytest.param("JSL-03", marks=pytest.mark.case("JSL-03", "3 rows, characters kept")),
    pytest.param("JSL-04", marks=pytest.mark.case("JSL-04", "3 rows; JSON_ROW_TOO_LONG above `data.max_row_bytes`")),
    pytest.param("JSL-05", marks=pytest.mark.case("JSL-05", "2, 1, 1 and 1 images")),
    pytest.param("JSL-06", marks=pytest.mark.case("JSL-06", "the same sample from both")),
    pytest.param("JSL-07", marks=pytest.mark.case("JSL-07", "one image, no image")),
    pytest.param("JSL-08", marks=pytest.mark.case("JSL-08", "accepted; an id is for people only")),
    pytest.param("JSL-09", marks=pytest.mark.case("JSL-09", "JSON_NONFINITE; accepted with `data.nonfinite: null`")),
    pytest.param(
        "JSL-10", marks=pytest.mark.case("JSL-10", "JSON_DUPLICATE_KEY for `images`; a note twice is accepted")
    ),
    pytest.param("JSL-11", marks=pytest.mark.case("JSL-11", "escape: U+FFFD, counted; bytes: JSON_UTF8")),
    pytest.param("JSL-12", marks=pytest.mark.case("JSL-12", "2 rows, two JSON_SYNTAX with file, line, column, byte")),
    pytest.param("JSL-13", marks=pytest.mark.case("JSL-13", "MEDIA_COUNT: placeholders 1, images 2")),
    pytest.param("JSL-14", marks=pytest.mark.case("JSL-14", "accepted, no visual token")),
    *("JSL-15", "JSL-16", "JSL-17", "JSL-18"),  # to the end in test_loader_rows.py
    pytest.param(
        "JSL-19", marks=pytest.mark.case("JSL-19", "same sample twice, ROW_AMBIGUOUS, ROW_SCHEMA with the keys")
    ),
    *("TXT-01", "TXT-02", "TXT-03", "TXT-04"),
    *("TXT-05", "TXT-08", "TXT-09", "TXT-11"),
    *("LDR-03", "LDR-04", "LDR-21", "PCK-07"),
]


def cases_of(folder: Path, case_id: str) -> Iterator[dict[str, Any]]:
    found = json.loads((folder / "manifest.json").read_text())["cases"]
    mine = [case for case in found if case["id"] == case_id and case["kind"] == "jsonl"]
    assert mine, f"{case_id} has no file"
    yield from mine


def read(path: Path, **options: Any) -> dict[int, dict[str, Any] | tuple[str, str]]:
    """Returns, by line number, a row's sample or (code, message) as a ledger would have them."""
    manifest = _core.Manifest.open(str(path))
    rows: dict[int, dict[str, Any] | tuple[str, str]] = {}
    for i in range(manifest.n_rows):
        offset, _, line = manifest.row(i)
        try:
            sample = _core.parse_row(manifest.read(i), **options)
        except Exception as error:
            rows[line] = (str(getattr(error, "code", "?")), f"{manifest.describe(i)}: {error}")
            continue
        rows[line] = sample | {"offset": offset, "n_bytes": manifest.row(i)[1]}
    return rows


def texts(sample: dict[str, Any], role: str) -> str:
    return "".join(part.get("text", "") for turn in sample["turns"] if turn["role"] == role for part in turn["parts"])


def n_images(sample: dict[str, Any]) -> int:
    return sum("image" in part for turn in sample["turns"] for part in turn["parts"])


def meaning(sample: dict[str, Any]) -> tuple[Any, ...]:
    return sample["turns"], sample["media"], sample["tools"]


def wrong_with(row: dict[str, Any], got: dict[str, Any] | tuple[str, str], all_rows: dict[int, Any]) -> str:
    """Returns what differs from the wanted outcome of one row, or an empty text."""
    code = row.get("code", "")
    if row["result"] == "reject" and code not in LATER_CODES:
        if not isinstance(got, tuple):
            return "was accepted"
        return "" if got[0] == code and row.get("message_has", "") in got[1] else f"refused as {got}"
    if isinstance(got, tuple):
        return "" if row["result"] == "either" and got[0] == code else f"refused as {got}"
    wanted = {
        "offset": got["offset"],
        "user": texts(got, "user"),
        "images": n_images(got),
        "turns": len(got["turns"]),
        "id_text": got["id"],
        "reference": got["media"][0]["reference"].decode() if got["media"] else "",
    }
    for key, value in wanted.items():
        if key in row and row[key] != value:
            return f"{key} {value!r}"
    if row.get("row_bytes_min", 0) > got["n_bytes"]:
        return f"{got['n_bytes']} bytes"
    if row.get("warn") == "text_replaced" and got["text_replaced"] != 1:
        return "text_replaced not counted"
    if "same_tokens_as_line" in row and meaning(got) != meaning(all_rows[row["same_tokens_as_line"]]):
        return "means something else than the other row"
    return ""


@pytest.mark.parametrize("case_id", CASES)
def test_case(case_files: Path, case_id: str) -> None:
    n_checked = 0
    for case in cases_of(case_files, case_id):
        got = read(case_files / case["file"])
        expect = case["expect"]
        for row in expect.get("rows", []):
            if case["file"] in LATER_FILES:
                continue
            assert row["line"] in got, f"{case['file']}:{row['line']} was not read"
            problem = wrong_with(row, got[row["line"]], got)
            assert not problem, f"{case['file']}:{row['line']} {problem}"
            n_checked += 1
        if "rows" in expect:
            assert len(got) == len(expect["rows"])
        if "with_option" in expect:
            lenient = read(case_files / case["file"], nonfinite_is_null=True)
            accepted = [line for line, sample in lenient.items() if not isinstance(sample, tuple)]
            assert accepted == expect["with_option"]["rows_accepted"]
        if "rejected_lines" in expect:
            assert [line for line, r in got.items() if isinstance(r, tuple)] == expect["rejected_lines"]
        if "images_per_sample" in expect:
            assert [n_images(r) for r in got.values() if not isinstance(r, tuple)] == expect["images_per_sample"]
        n_checked += len(got)
    assert n_checked > 0


def test_syntax_errors_name_file_line_column_and_byte(case_files: Path) -> None:
    refused = [r for r in read(case_files / "JSL-12/syntax.jsonl").values() if isinstance(r, tuple)]
    for line, (_, message) in zip((2, 3), refused, strict=True):
        assert f"syntax.jsonl:{line} (byte " in message
        assert "column " in message


def test_messages_stay_short(case_files: Path) -> None:
    for path in case_files.glob("**/*.jsonl"):
        for result in read(path).values():
            if isinstance(result, tuple):
                assert len(result[1]) < 400 + len(str(path))


def test_an_indexed_manifest_reads_the_same(case_files: Path, tmp_path: Path) -> None:
    for path in [
        case_files / "JSL-01/bom.jsonl",
        case_files / "JSL-02/crlf_blank.jsonl",
        case_files / "JSL-04/long_line.jsonl",
    ]:
        plain = _core.Manifest.open(str(path))
        _core.Manifest.open(str(path), index_dir=str(tmp_path))
        indexed = _core.Manifest.open(str(path), index_dir=str(tmp_path))
        assert not indexed.was_scanned
        assert indexed.fingerprint == plain.fingerprint
        for i in range(plain.n_rows):
            assert indexed.row(i) == plain.row(i)
            assert indexed.read(i) == plain.read(i)


def test_a_row_over_the_limit_is_refused_and_the_next_is_read(case_files: Path) -> None:
    manifest = _core.Manifest.open(str(case_files / "JSL-04/long_line.jsonl"), max_row_bytes=1 << 20)
    assert manifest.read(0)
    with pytest.raises(Exception, match="JSON_ROW_TOO_LONG"):
        manifest.read(1)
    assert manifest.read(2)
