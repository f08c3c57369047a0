"""The image cases of tools/cases that are in scope: JPEG, PNG, and what only pretends to be a picture."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stoker import _core

OTHER_FORMATS: dict[str, str] = {}
"""Pictures that the cases accept and this build names but does not decode."""


@pytest.fixture(scope="module")
def cases(case_files: Path) -> tuple[Path, list[dict[str, Any]]]:
    found = json.loads((case_files / "manifest.json").read_text())["cases"]
    images = [case for case in found if case["kind"] == "image"]
    assert len(images) > 40
    return case_files, images


def code_of(data: bytes, **limits: Any) -> tuple[str, str]:
    """Returns the code and text of the error that decoding gives."""
    try:
        _core.decode_image(data, **limits)
    except Exception as error:
        return str(getattr(error, "code", "?")), str(error)
    return "", ""


def check_accepted(folder: Path, case: dict[str, Any], data: bytes) -> list[str]:
    expect = case["expect"]
    wrong = []
    pixels = _core.decode_image(data)
    width, height = expect["size"] if "size" in expect else (pixels.shape[1], pixels.shape[0])
    if pixels.shape != (height, width, 3):
        return [f"{pixels.shape} for {width}x{height}"]
    for probe in expect.get("pixels", []):
        got = pixels[probe["y"], probe["x"]].astype(int)
        if np.abs(got - probe["rgb"]).max() > probe["tol"]:
            wrong.append(f"pixel {probe} is {got}")
    if (
        "same_pixels_as" in expect
        and (pixels != _core.decode_image((folder / expect["same_pixels_as"]).read_bytes())).any()
    ):
        wrong.append("pixels differ from the clean file's")
    if "warn" in expect and expect["warn"] not in _core.image_notes(data):
        wrong.append(f"notes are {_core.image_notes(data)}, without {expect['warn']}")
    if "mean_rgb" in expect and np.abs(pixels.mean(axis=(0, 1)) - expect["mean_rgb"]).max() > expect["mean_tol"]:
        wrong.append("another mean colour")
    if "resized" in expect:
        width, height = expect["resized"]
        patch = case["config"]["patch_size"]
        patches = _core.image_patches(data, (height, width), patch, case["config"]["merge_size"])
        if len(patches) != expect["visual_tokens"] * 4:
            wrong.append(f"{len(patches)} patches")
        for probe in expect.get("pixels_after_resize", []):
            resized = _core.resize(pixels, (height, width))
            if resized[probe["y"], probe["x"]].tolist() != probe["rgb"]:
                wrong.append(f"resized pixel {probe} is {resized[probe['y'], probe['x']]}")
    return wrong


def check(folder: Path, case: dict[str, Any]) -> list[str]:
    data = (folder / case["file"]).read_bytes()
    expect = case["expect"]
    other = OTHER_FORMATS.get(case["id"]) or OTHER_FORMATS.get(case["file"])
    begin = time.monotonic()
    if other:
        code, text = code_of(data)
        return [] if code == "IMG_UNSUPPORTED" and other in text else [f"{code} {text}"]
    if expect["result"] == "accept":
        return check_accepted(folder, case, data)
    if expect["code"] == "IMG_ASPECT":  # the model family's rule, not the decoder's
        return []
    code, text = code_of(data)
    wrong = [] if code == expect["code"] else [f"{code!r} ({text}) for {expect['code']}"]
    if expect.get("message_has", "") not in text:
        wrong.append(f"{text!r} lacks {expect['message_has']!r}")
    if time.monotonic() - begin > expect.get("max_seconds", 5.0):
        wrong.append("too slow")
    return wrong


CASES = [
    pytest.param("IMG-01", marks=pytest.mark.case("IMG-01", "accepted, Adobe inversion honoured")),
    pytest.param("IMG-02", marks=pytest.mark.case("IMG-02", "accepted, Adobe inversion honoured")),
    pytest.param("IMG-03", marks=pytest.mark.case("IMG-03", "32 x 64, red above blue")),
    pytest.param("IMG-04", marks=pytest.mark.case("IMG-04", "accepted upright; counter `exif_unreadable`")),
    pytest.param("IMG-05", marks=pytest.mark.case("IMG-05", "IMG_TRUNCATED")),
    pytest.param("IMG-06", marks=pytest.mark.case("IMG-06", "IMG_TRUNCATED")),
    pytest.param(
        "IMG-07", marks=pytest.mark.case("IMG-07", "accepted, pixels of the clean file; counter `jpeg_extraneous`")
    ),
    pytest.param("IMG-08", marks=pytest.mark.case("IMG-08", "IMG_NOT_AN_IMAGE: looks like HTML")),
    pytest.param("IMG-09", marks=pytest.mark.case("IMG-09", "IMG_NOT_AN_IMAGE: looks like text, like S3 error XML")),
    pytest.param("IMG-10", marks=pytest.mark.case("IMG-10", "IMG_EMPTY")),
    pytest.param("IMG-11", marks=pytest.mark.case("IMG-11", "accepted, white and red")),
    pytest.param("IMG-12", marks=pytest.mark.case("IMG-12", "accepted, white, grey 127 and blue")),
    pytest.param("IMG-13", marks=pytest.mark.case("IMG-13", "accepted: 0, 64, 128, 255")),
    pytest.param("IMG-14", marks=pytest.mark.case("IMG-14", "accepted: (255, 128, 0)")),
    pytest.param("IMG-15", marks=pytest.mark.case("IMG-15", "accepted, grey and white")),
    pytest.param("IMG-16", marks=pytest.mark.case("IMG-16", "the first frame; counter `animated_first_frame`")),
    pytest.param("IMG-17", marks=pytest.mark.case("IMG-17", "IMG_TOO_MANY_SCANS within a second")),
    pytest.param("IMG-18", marks=pytest.mark.case("IMG-18", "IMG_TOO_LARGE: 20000x20000")),
    pytest.param("IMG-19", marks=pytest.mark.case("IMG-19", "IMG_TOO_LARGE: 65500x65500")),
    pytest.param("IMG-21", marks=pytest.mark.case("IMG-21", "28 x 560, 20 tokens")),
    pytest.param("IMG-22", marks=pytest.mark.case("IMG-22", "56 x 84 and the like")),
    pytest.param("IMG-23", marks=pytest.mark.case("IMG-23", "enlarged, the same colour")),
    pytest.param("IMG-24", marks=pytest.mark.case("IMG-24", "accepted, nothing inflated")),
    pytest.param("IMG-25", marks=pytest.mark.case("IMG-25", "accepted, the clean file's pixels")),
    pytest.param("IMG-26", marks=pytest.mark.case("IMG-26", "IMG_TRUNCATED")),
    pytest.param("IMG-27", marks=pytest.mark.case("IMG-27", "accepted, the stored numbers")),
    pytest.param("IMG-28", marks=pytest.mark.case("IMG-28", "the first picture")),
    pytest.param("IMG-29", marks=pytest.mark.case("IMG-29", "IMG_UNSUPPORTED: HEIF (heic)")),
    pytest.param("IMG-30", marks=pytest.mark.case("IMG-30", "decoded as BMP")),
    pytest.param("IMG-31", marks=pytest.mark.case("IMG-31", "decoded, all four")),
    pytest.param("IMG-32", marks=pytest.mark.case("IMG-32", "8 x 4, red on top")),
    pytest.param("IMG-33", marks=pytest.mark.case("IMG-33", "IMG_UNSUPPORTED: TIFF float32")),
    pytest.param("IMG-34", marks=pytest.mark.case("IMG-34", "three equal channels of 128")),
]


@pytest.mark.parametrize("case_id", CASES)
def test_a_picture_comes_out_as_wanted(cases: tuple[Path, list[dict[str, Any]]], case_id: str) -> None:
    folder, images = cases
    mine = [case for case in images if case["id"] == case_id]
    assert mine, f"{case_id} has no file"
    assert {case["file"]: found for case in mine if (found := check(folder, case))} == {}


def test_nothing_but_the_first_16_bytes_is_shown(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = cases
    _, text = code_of((folder / "IMG-08" / "photo.jpg").read_bytes())
    assert "HTML" in text
    assert "3c 21 44 4f 43 54 59 50 45 20 68 74 6d 6c 3e 0a" in text
    assert "Moved" not in text


def test_limits_are_the_callers(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = cases
    data = (folder / "IMG-07" / "clean.jpg").read_bytes()
    assert code_of(data, max_pixels=96 * 96) == ("", "")
    code, text = code_of(data, max_pixels=96 * 96 - 1)
    assert code == "IMG_TOO_LARGE"
    assert "96x96 = 9216 px > limit 9215" in text


def test_too_large_pictures_take_no_memory(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    """Decided from the header: neither the pixels nor a progressive file's coefficients are allocated."""
    import resource

    folder, _ = cases
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("IMG-18/bomb.png", "IMG-19/huge_baseline.jpg", "IMG-19/huge_progressive.jpg", "IMG-24/text_5MiB.png"):
        code_of((folder / name).read_bytes())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10 * 1024


def test_probe_asks_for_the_bytes_that_it_needs(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    """A phone's JPEG: 60 kB of metadata before the size. Served range by range, it is answered as the whole file."""
    folder, _ = cases
    plain = (folder / "IMG-03" / "orient6.jpg").read_bytes()
    padded = plain[:2] + b"\xff\xe2" + (60000).to_bytes(2, "big") + bytes(59998) + plain[2:] + bytes(20000)
    want = _core.probe_image(padded, len(padded))
    assert (want["height"], want["width"], want["orientation"]) == (32, 64, 6)
    have, requests = padded[:1024], 1
    while "need" in (found := _core.probe_image(have, len(padded))):
        begin, end = found["need"]
        assert begin == len(have) < end <= len(padded)
        have += padded[begin:end]
        requests += 1
    assert found == want
    assert requests <= 3
    assert len(have) < len(padded)


@pytest.mark.case("IMG-06", "with `allow_missing_eoi` the clean file's pixels; counter `end_missing`")
def test_a_missing_end_marker_can_be_allowed(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = cases
    cut = (folder / "IMG-06" / "no_end_marker.jpg").read_bytes()
    clean = (folder / "IMG-06" / "clean.jpg").read_bytes()
    assert (_core.decode_image(cut, allow_missing_eoi=True) == _core.decode_image(clean)).all()
    assert _core.image_notes(cut, allow_missing_eoi=True) == ["end_missing"]
    assert code_of((folder / "IMG-05" / "trunc60.jpg").read_bytes(), allow_missing_eoi=True)[0] == "IMG_TRUNCATED"


@pytest.mark.case("IMG-05", "with `allow_truncated` accepted, the missing part grey; counter `truncated`")
def test_truncated_pictures_can_be_allowed(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = cases
    cut = (folder / "IMG-05" / "trunc60.jpg").read_bytes()
    clean = (folder / "IMG-06" / "clean.jpg").read_bytes()
    pixels = _core.decode_image(cut, allow_truncated=True)
    assert (pixels[:32] == _core.decode_image(clean)[:32]).all()
    assert _core.image_notes(cut, allow_truncated=True) == ["truncated"]
    png = (folder / "IMG-26").glob("*.png")
    assert _core.image_notes(next(png).read_bytes(), allow_truncated=True) == ["truncated"]


@pytest.mark.case("X-HEADER-SIZE", "taller than its data: IMG_CORRUPT; shorter: IMG_CORRUPT (more than 64 stray bytes)")
def test_a_header_that_lies_about_its_size(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = cases
    clean = (folder / "IMG-06" / "clean.jpg").read_bytes()
    at = clean.index(b"\xff\xc0") + 5
    for height in (96 * 20, 16):
        assert code_of(clean[:at] + height.to_bytes(2, "big") + clean[at + 2 :])[0] == "IMG_CORRUPT", height


@pytest.mark.case("X-JPEG-WARNING", "more than 64 stray bytes, or data that ends at a marker: IMG_CORRUPT")
def test_data_that_the_library_only_warns_about(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = cases
    clean = (folder / "IMG-06" / "clean.jpg").read_bytes()
    assert code_of(clean[:-2] + bytes(100) + clean[-2:])[0] == "IMG_CORRUPT"
    assert code_of(clean[: len(clean) // 2] + clean[-2:])[0] == "IMG_CORRUPT"


@pytest.mark.case("X-LATE-ORIENTATION", "turned; a probe of the first bytes names the range that says so")
def test_orientation_behind_the_pixels() -> None:
    from picture_variants import photo, png, png_chunk, saved

    tiff = bytes.fromhex("49492a0008000000010012010300010000000600000000000000")
    pictures = {
        "png": png(60, 40, 8, 2, late=png_chunk(b"eXIf", tiff)),
        "webp": saved(photo("RGB", 60, 40), "WEBP", lossless=True, exif=b"Exif\0\0" + tiff),
    }
    for name, data in pictures.items():
        assert _core.decode_image(data).shape == (60, 40, 3), name
        found = _core.probe_image(data[:200], len(data))
        begin, end = found["need"]
        finished = _core.finish_probe(data[:200], len(data), data[begin:end])
        assert finished["orientation"] == _core.probe_image(data, len(data))["orientation"] == 6, name
