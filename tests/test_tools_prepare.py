"""`prepare` and `decode_image` give what a loader gives, and typed errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
from loader_data import DataSet, encoded, good_data, picture, settings_for
from PIL import Image


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("data"), 16)


@pytest.fixture(scope="module")
def settings(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> stoker.Settings:
    made = settings_for(data, tmp_path_factory.mktemp("scratch"), shuffle="none", epochs=1)
    return made.replace(pack={"tokens_per_pack": 1024, "packs_per_step": 1})


def test_prepare_gives_what_the_loader_gives(data: DataSet, settings: stoker.Settings) -> None:
    seen = 0
    with stoker.Loader(settings) as loader:
        for batch in loader:
            image = patch = 0
            for i, sample_id in enumerate(batch.layout.sample_ids.tolist()):
                line = loader.describe(sample_id).line
                features = stoker.prepare(data.lines[line - 1], settings)
                at = slice(*batch.layout.cu_seqlens[i : i + 2].tolist())
                np.testing.assert_array_equal(features.input_ids, batch.input_ids[at])
                np.testing.assert_array_equal(features.labels, batch.labels[at])
                np.testing.assert_array_equal(features.position_ids, batch.position_ids[:, at])
                n = int(batch.layout.image_counts[i])
                assert features.image_grid_thw == batch.image_grid_thw[image : image + n]
                if features.image_patches is not None:
                    assert batch.image_patches is not None
                    own = batch.image_patches[patch : patch + len(features.image_patches)]
                    np.testing.assert_array_equal(features.image_patches, own)
                    patch += len(own)
                image += n
                seen += 1
    assert seen == len(data.lines)


def test_prepare_gives_the_loaders_clips(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n, (n_frames, rate) in enumerate([(2, {}), (3, {"fps": 1}), (5, {"fps": 4, "raw_fps": 8}), (2, {"fps": 24})]):
        frames = [data.good_image(10 * n + k, height=64 + 32 * n, width=96) for k in range(n_frames)]
        data.chat(n, [{"type": "video", "video": frames, **rate}, *([data.good_image(90 + n)] if n % 2 else [])])
    made = settings_for(data.write(), tmp_path, shuffle="none", epochs=1)
    settings = made.replace(pack={"packs_per_step": 1})  # no dummy fills a step up
    n_clips = 0
    with stoker.Loader(settings) as loader:
        for batch in loader:
            clip = patch = 0
            for i, sample_id in enumerate(batch.layout.sample_ids.tolist()):
                features = stoker.prepare(data.lines[loader.describe(sample_id).line - 1], settings)
                at = slice(*batch.layout.cu_seqlens[i : i + 2].tolist())
                np.testing.assert_array_equal(features.input_ids, batch.input_ids[at])
                np.testing.assert_array_equal(features.position_ids, batch.position_ids[:, at])
                n = int(batch.layout.video_counts[i])
                assert features.video_grid_thw == batch.video_grid_thw[clip : clip + n]
                assert features.video_patches is not None
                assert batch.video_patches is not None
                own = batch.video_patches[patch : patch + len(features.video_patches)]
                np.testing.assert_array_equal(features.video_patches, own)
                clip, patch, n_clips = clip + n, patch + len(own), n_clips + n
    assert n_clips == 4


def test_what_is_told_of_a_clip(settings: stoker.Settings, tmp_path: Path) -> None:
    data = DataSet(tmp_path)
    frames = [data.good_image(k, height=64, width=96) for k in range(3)]
    row = {"messages": [{"role": "user", "content": [{"type": "video", "video": frames, "fps": 2}]}, _ANSWER]}
    features = stoker.prepare(row, settings, media_root=str(tmp_path))
    (clip,) = features.clips
    assert not features.media
    assert [frame.reference for frame in clip.frames] == frames
    assert clip.frame_numbers == (0, 1, 2)
    assert clip.seconds == (0.25, 1.0)  # the last frame stands for both of its patch
    assert clip.grid_thw == (2, 4, 6)
    assert [end - begin for begin, end in clip.tokens] == [6, 6]
    pads = {int(features.input_ids[i]) for begin, end in clip.tokens for i in range(begin, end)}
    assert len(pads) == 1
    assert features.n_patches == 48

    data.image("broken.jpg", encoded(picture(64, 96, 1), "JPEG")[:300])
    row = {"messages": [{"role": "user", "content": [{"type": "video", "video": [*frames, "broken.jpg"]}]}, _ANSWER]}
    with pytest.raises(stoker.BadSampleError, match=r"broken\.jpg") as error:
        stoker.prepare(row, settings, media_root=str(tmp_path))
    assert error.value.code == "IMG_TRUNCATED"


def test_a_row_may_be_a_mapping_a_string_or_bytes(data: DataSet, settings: stoker.Settings) -> None:
    line = data.lines[3]
    made = [stoker.prepare(row, settings) for row in (line, line.decode(), json.loads(line))]
    for other in made[1:]:
        np.testing.assert_array_equal(made[0].input_ids, other.input_ids)
        np.testing.assert_array_equal(made[0].image_patches, other.image_patches)


def test_ranges_cover_the_sample(data: DataSet, settings: stoker.Settings) -> None:
    n_media = 0
    for line in data.lines:
        features = stoker.prepare(line, settings)
        ends = [0]
        for turn in features.turns:
            assert turn.tokens[0] == ends[-1]
            ends.append(turn.tokens[1])
        assert ends[-1] == len(features.input_ids)
        assert [turn.role for turn in features.turns] == ["user", "assistant"]
        for media in features.media:
            n_media += 1
            begin, end = media.tokens
            assert len(set(features.input_ids[begin:end].tolist())) == 1
            assert features.input_ids[begin - 1] != features.input_ids[begin] != features.input_ids[end]
            assert (end - begin) * 4 == media.patches[1] - media.patches[0]
            assert media.upright_size == media.stored_size == media.prepared_size
    assert n_media > 10


def test_orientation_and_sizes_are_told(settings: stoker.Settings, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "turned.jpg").write_bytes(encoded(picture(256, 512, 1), "JPEG", exif=exif))
    row = {"messages": [{"role": "user", "content": [{"type": "image", "image": "turned.jpg"}]}, _ANSWER]}
    (media,) = stoker.prepare(row, settings, media_root=str(tmp_path)).media
    assert (media.stored_size, media.orientation, media.upright_size) == ((256, 512), 6, (512, 256))
    assert media.size_from == "header"


def test_an_orientation_behind_the_pixels_is_found(settings: stoker.Settings, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (128, 256, 3), dtype=np.uint8))
    (tmp_path / "turned.webp").write_bytes(encoded(noise, "WEBP", lossless=True, exif=exif))  # longer than a first read
    row = {"messages": [{"role": "user", "content": [{"type": "image", "image": "turned.webp"}]}, _ANSWER]}
    (media,) = stoker.prepare(row, settings, media_root=str(tmp_path)).media
    assert (media.stored_size, media.orientation, media.upright_size) == ((128, 256), 6, (256, 128))


_ANSWER = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ('{"messages": [', "JSON_SYNTAX"),
        ({"nothing": 1}, "ROW_SCHEMA"),
        ({"messages": [{"role": "user", "content": "Hm?"}]}, "NO_LOSS_TOKENS"),
        ({"messages": [{"role": "user", "content": "<image>"}, _ANSWER]}, "MEDIA_COUNT"),
        ({"messages": [{"role": "user", "content": "<image>"}, _ANSWER], "images": ["none.jpg"]}, "MEDIA_NOT_FOUND"),
        ({"messages": [{"role": "user", "content": "word " * 2000}, _ANSWER]}, "SEQ_TOO_LONG"),
    ],
)
def test_a_bad_row_raises_its_code(settings: stoker.Settings, row: Any, code: str, tmp_path: Path) -> None:
    with pytest.raises(stoker.BadSampleError) as error:
        stoker.prepare(row, settings, media_root=str(tmp_path))
    assert error.value.code == code


def test_decode_image_follows_the_media_settings() -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    original = picture(64, 96, 7)
    turned = encoded(original, "PNG", exif=exif)
    upright = stoker.decode_image(turned)
    stored = stoker.decode_image(turned, media=stoker.Media(exif="ignore"))
    np.testing.assert_array_equal(stored, np.asarray(original))
    np.testing.assert_array_equal(upright, stored[::-1, ::-1])
    glass = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert stoker.decode_image(encoded(glass, "PNG"))[0, 0].tolist() == [255, 255, 255]
    assert stoker.decode_image(encoded(glass, "PNG"), reference="hf-5.18-pil")[0, 0].tolist() == [10, 20, 30]
    with pytest.raises(stoker.BadSampleError) as error:
        stoker.decode_image(b"<html>not a picture</html>")
    assert error.value.code == "IMG_NOT_AN_IMAGE"


@pytest.mark.parametrize(
    ("kept", "media"), [(1.0, stoker.Media(allow_missing_eoi=True)), (0.6, stoker.Media(allow_truncated=True))]
)
def test_decode_image_uses_files_that_end_early_where_the_settings_say_so(kept: float, media: stoker.Media) -> None:
    whole = encoded(picture(256, 256, 7), "JPEG")
    cut = whole[: min(int(len(whole) * kept), len(whole) - 2)]
    with pytest.raises(stoker.BadSampleError) as error:
        stoker.decode_image(cut)
    assert error.value.code == "IMG_TRUNCATED"
    pixels = stoker.decode_image(cut, media=media)
    np.testing.assert_array_equal(pixels[:16], stoker.decode_image(whole)[:16])


def test_decoding_is_pillows_for_a_plain_picture() -> None:
    data = encoded(picture(50, 70, 3), "JPEG")
    with Image.open(io.BytesIO(data)) as opened:
        np.testing.assert_array_equal(stoker.decode_image(data), np.asarray(opened.convert("RGB")))
