"""What goes wrong with data and settings: the right typed error or ledger line, nothing hangs, every good row comes."""

from __future__ import annotations

import io
import pickle
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from loader_data import DataSet, encoded, good_data, ledger, picture, settings_for, taken
from PIL import Image
from stoker import BadSampleError, Batch, InvalidArgumentError, Loader, Settings, StokerError, UnavailableError
from stoker.testing import Behaviour, Fault, StorageServer


def huge_header(*, progressive: bool) -> bytes:
    """A small JPEG whose frame header claims 65,500 x 65,500 pixels."""
    body = bytearray(encoded(picture(64, 64, 1), "JPEG", progressive=progressive))
    at = body.find(b"\xff\xc2" if progressive else b"\xff\xc0")
    assert at > 0
    struct.pack_into(">HH", body, at + 5, 65500, 65500)
    return bytes(body)


def truncated_jpeg(seed: int = 9) -> bytes:
    """A JPEG that ends in the middle of its data; the header is whole."""
    body = encoded(picture(256, 256, seed), "JPEG", quality=95)
    return body[: len(body) * 2 // 3]


def everything_bad(folder: Path) -> tuple[DataSet, dict[int, tuple[str, str | None, str]]]:
    """Good rows with every kind of bad one between; {line: (code, end of the media, part of the message)}."""
    data = good_data(folder, 8)
    bad: dict[int, tuple[str, str | None, str]] = {}

    def image(name: str, body: bytes) -> str:
        return data.image(f"bad/{name}", body)

    def add(line: int, code: str, media: str | None = None, message: str = "") -> None:
        bad[line] = (code, media, message)
        data.chat(1000 + line, [data.good_image(1000 + line)])

    add(data.row(b'{"messages": [{"role": "user", "content": "cut'), "JSON_SYNTAX")
    add(data.row(b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'), "JSON_UTF8")
    add(data.row({"text": "no conversation"}), "ROW_SCHEMA", None, "text")
    add(data.chat(0, ["bad/missing.jpg"]), "MEDIA_NOT_FOUND", "bad/missing.jpg")
    add(
        data.chat(0, [image("page.jpg", b"<!doctype html><html>not here</html>")]),
        "IMG_NOT_AN_IMAGE",
        "page.jpg",
        "HTML",
    )
    add(data.chat(0, [image("junk.jpg", bytes(range(128, 256)))]), "IMG_NOT_AN_IMAGE", "junk.jpg")
    add(
        data.chat(0, [image("junk_code.jpg", b"<Error><Code>\xff\xfe\x80</Code></Error>")]),
        "IMG_NOT_AN_IMAGE",
        "code.jpg",
    )
    add(data.chat(0, [image("truncated.jpg", truncated_jpeg())]), "IMG_TRUNCATED", "truncated.jpg")
    add(data.chat(0, [image("empty.jpg", b"")]), "IMG_EMPTY", "empty.jpg")
    add(data.chat(0, [image("huge.jpg", huge_header(progressive=False))]), "IMG_TOO_LARGE", "huge.jpg", "65500")
    add(data.chat(0, [image("huge_p.jpg", huge_header(progressive=True))]), "IMG_TOO_LARGE", "huge_p.jpg", "65500")
    two = {"from": "gpt", "value": "yes"}
    good = data.good_image(2000)
    add(
        data.row({"image": [good], "conversations": [{"from": "human", "value": "<image>\n<image>\nTwo?"}, two]}),
        "MEDIA_COUNT",
        None,
        "2",
    )
    add(
        data.row({"image": [good, good], "conversations": [{"from": "human", "value": "<image> One?"}, two]}),
        "MEDIA_COUNT",
    )
    add(data.row({"image": [good], "conversations": [{"from": "human", "value": "None?"}, two]}), "MEDIA_COUNT")
    add(data.chat(0, [good], answer=""), "NO_LOSS_TOKENS")
    add(data.chat(0, [good], answer="word " * 500), "SEQ_TOO_LONG", None, "limit 384")
    add(data.chat(0, ["ftp://host/a.jpg"]), "MEDIA_SCHEME", "ftp://host/a.jpg")
    thin = {"type": "image", "image": good, "height": 3, "width": 30000}
    add(data.chat(0, [thin]), "IMG_ASPECT", good)
    lying = {"type": "image", "image": data.good_image(2001, height=256, width=384), "height": 256, "width": 256}
    add(data.chat(0, [lying]), "MEDIA_SIZE_MISMATCH", "2001.jpg", "planned 256x256")
    swapped = {"type": "image", "image": data.good_image(2002, height=256, width=320), "height": 320, "width": 256}
    add(data.chat(0, [swapped]), "MEDIA_SIZE_MISMATCH", "2002.jpg", "media.sizes: ignore")
    sized = {"type": "image", "image": image("late.jpg", truncated_jpeg()), "height": 256, "width": 256}
    add(data.chat(0, [sized]), "IMG_TRUNCATED", "late.jpg")
    late_page = {"type": "image", "image": image("late_page.jpg", b"<html>"), "height": 256, "width": 256}
    add(data.chat(0, [late_page]), "IMG_NOT_AN_IMAGE", "late_page.jpg")
    late_huge = {
        "type": "image",
        "image": image("late_huge.jpg", huge_header(progressive=True)),
        "height": 256,
        "width": 256,
    }
    add(data.chat(0, [late_huge]), "IMG_TOO_LARGE", "late_huge.jpg")
    return data.write(), bad


@pytest.mark.case("X-ROW-SIZES", "MEDIA_SIZE_MISMATCH; where sides are swapped it names `media.sizes: ignore`")
@pytest.mark.case("IMG-20", "IMG_ASPECT through the ledger, with the picture's name")
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("speed", [{}, {"cpu_threads": 1, "prefetch_steps": 0, "fetch_concurrency": 1}])
def test_every_bad_row_has_its_line_and_every_good_row_comes(
    tmp_path: Path, remote: bool, speed: dict[str, Any]
) -> None:
    data, bad = everything_bad(tmp_path / "data")
    settings = settings_for(
        data, tmp_path, epochs=1, shuffle="rows", bad_samples={"max_fraction": 1.0}, speed=speed, window_samples=20
    )
    if remote:
        with StorageServer(tmp_path) as server:
            settings = settings.replace(data=[{"manifest": "s3://data/rows.jsonl"}], storage=server.settings())
            check_everything(settings, data, bad)
    else:
        check_everything(settings, data, bad)


def check_everything(settings: Settings, data: DataSet, bad: dict[int, tuple[str, str | None, str]]) -> None:
    with Loader(settings) as loader:
        ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
        lines = sorted(loader.describe(i).line for i in ids)
        report = loader.report().values
    assert lines == [n for n in range(1, len(data.lines) + 1) if n not in bad]
    entries = {entry["line"]: entry for entry in ledger(settings)}
    assert len(entries) == len(ledger(settings)) == len(bad), "a line twice, or one missing"
    for line, (code, media, message) in bad.items():
        entry = entries[line]
        assert entry["code"] == code, (line, entry)
        assert entry["byte_offset"] == data.offset(line)
        assert entry["manifest"] == settings.data[0].manifest
        assert entry["pass"] == 0
        assert message in entry["message"], entry
        assert entry["message"]
        assert (entry["media"] or "").endswith(media or "")
        assert (entry["media"] is None) == (media is None), entry
    counted: dict[str, int] = {}
    for code, _, _ in bad.values():
        counted[code] = counted.get(code, 0) + 1
    assert report["bad_samples"] == counted
    assert report["samples"] == len(ids)


@pytest.mark.parametrize("late", [False, True])
def test_stop_names_the_row(tmp_path: Path, late: bool) -> None:
    data = good_data(tmp_path / "data", 10)
    size = {"height": 256, "width": 256} if late else {}
    ref = data.image("bad.jpg", truncated_jpeg() if late else b"<html>")
    line = data.chat(99, [{"type": "image", "image": ref, **size}])
    data.write()
    settings = settings_for(data, tmp_path, bad_samples={"policy": "stop"}, epochs=1)
    with Loader(settings) as loader:
        for _ in range(3):  # it comes again at every further call
            with pytest.raises(BadSampleError, match=rf"rows.jsonl:{line}.*bad.jpg") as error:
                list(loader)
            assert error.value.code == ("IMG_TRUNCATED" if late else "IMG_NOT_AN_IMAGE")
        thawed = pickle.loads(pickle.dumps(error.value))
        assert (type(thawed), thawed.code, thawed.message) == (BadSampleError, error.value.code, error.value.message)
    assert [entry["line"] for entry in ledger(settings)] == [line]


def test_too_many_bad_ends_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 48)
    for _ in range(16):
        data.row(b"{")
    data.write()
    settings = settings_for(data, tmp_path, epochs=1, shuffle="none", bad_samples={"max_fraction": 0.2})
    n_batches = set()
    for rank, speed in ((0, {"prefetch_steps": 8}), (1, {"prefetch_steps": 0})):
        with Loader(settings.replace(speed=speed), dp_rank=rank, dp_size=2) as loader:
            batches: list[Batch] = []
            with pytest.raises(InvalidArgumentError, match=r"16 of 64 .*max_fraction is 0.2.*rows.jsonl:49") as error:
                batches.extend(iter(loader.__next__, None))
            assert error.value.code == "TOO_MANY_BAD"
            n_batches.add(loader.report().values["batches"])
    assert len(n_batches) == 1
    assert n_batches.pop() > 8
    with Loader(settings.replace(bad_samples={"max_fraction": 0.25})) as loader:
        assert sum((b.layout.sample_ids >= 0).sum() for b in loader) == 48


def test_a_resumed_run_ends_no_earlier_than_one_that_was_not(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 48)
    for _ in range(4):
        data.row(b"{")
    for n in range(12):
        data.chat(500 + n, [data.good_image(500 + n)])
    data.write()
    settings = settings_for(data, tmp_path, epochs=1, shuffle="none", bad_samples={"max_fraction": 0.1})
    with Loader(settings) as loader:
        states, whole = [], []
        for step in loader.steps():
            whole.append([b.digest() for b in step])
            states.append(loader.state_dict())
    late = next(i for i, state in enumerate(states) if state["window"] == 3)
    with Loader(settings) as loader:  # the window that it starts with has a quarter of bad rows
        loader.load_state_dict(states[late])
        assert [[b.digest() for b in step] for step in loader.steps()] == whole[late + 1 :]


def test_too_many_late_ones_end_the_run(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(24):
        ref = data.image(f"{n}.jpg", truncated_jpeg(n)) if n % 2 else data.good_image(n)
        data.chat(n, [{"type": "image", "image": ref, "height": 256, "width": 256}])
    settings = settings_for(data.write(), tmp_path, bad_samples={"max_fraction": 0.1})
    with Loader(settings) as loader:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"the last is .*rows.jsonl") as error:
                list(loader)
            assert error.value.code == "TOO_MANY_BAD"


# --- a sample that turns out bad after planning


class Kept:
    """A batch's samples one by one, as arrays."""

    def __init__(self, batch: Batch) -> None:
        self.ids = batch.layout.sample_ids.tolist()
        self.samples: dict[int, tuple[npt.NDArray[Any], ...]] = {}
        cu = batch.layout.cu_seqlens.tolist()
        grids = batch.image_grid_thw
        assert cu[-1] == batch.counts.tokens == batch.input_ids.size == batch.labels.size == batch.position_ids[0].size
        assert len(grids) == batch.layout.image_counts.sum()
        patches = batch.image_patches if batch.image_patches is not None else np.empty((0, 3, 16, 16), np.uint8)
        assert sum(h * w for _, h, w in grids) == len(patches) == batch.counts.patches
        image = patch = 0
        for i, sample in enumerate(self.ids):
            n_images = int(batch.layout.image_counts[i])
            mine = grids[image : image + n_images]
            n_patches = sum(h * w for _, h, w in mine)
            begin, end = cu[i], cu[i + 1]
            self.samples[sample] = (
                batch.input_ids[begin:end],
                batch.labels[begin:end],
                batch.position_ids[:, begin:end],
                np.array(mine),
                patches[patch : patch + n_patches],
            )
            image += n_images
            patch += n_patches


def late_bad_data(folder: Path, broken: set[int]) -> DataSet:
    """Rows with sizes; `broken` ones' images end too early."""
    data = DataSet(folder)
    for n in range(24):
        images = []
        for k in range(n % 3):
            height, width = ((256, 256), (320, 256))[(n + k) % 2]
            body = encoded(picture(height, width, 10 * n + k), "JPEG", quality=90)
            if n in broken and k == n % 3 - 1:
                body = body[: len(body) // 2]
            ref = data.image(f"{n}-{k}.jpg", body)
            images.append({"type": "image", "image": ref, "height": height, "width": width})
        data.chat(n, images, answer=f"{n} " + "word " * (7 * n % 40))
    return data.write()


@pytest.mark.parametrize("broken", [{1}, {2, 5, 7}, {n for n in range(24) if n % 3}, {1, 4, 7, 10, 13, 16, 19, 22}])
def test_a_late_bad_sample_leaves_the_others_as_they_were(tmp_path: Path, broken: set[int]) -> None:
    changes: dict[str, Any] = {"epochs": 1, "bad_samples": {"max_fraction": 1.0}, "window_samples": 24}
    whole = settings_for(late_bad_data(tmp_path / "whole", set()), tmp_path, **changes)
    hurt = settings_for(late_bad_data(tmp_path / "hurt", broken), tmp_path, **changes)
    with Loader(whole) as one, Loader(hurt) as other:
        n_dummies = 0
        seen_broken: set[int] = set()
        for good, bad in zip(one, other, strict=True):
            expected, found = Kept(good), Kept(bad)
            lines = {i: one.describe(i).line - 1 for i in expected.ids if i >= 0}
            kept = [i for i in expected.ids if i < 0 or lines[i] not in broken]
            lost = [i for i in expected.ids if i not in kept]
            seen_broken |= {lines[i] for i in lost}
            assert [i for i in found.ids if i >= 0] == [i for i in kept if i >= 0]
            for i in kept:
                for a, b in zip(expected.samples[i], found.samples[i], strict=True):
                    np.testing.assert_array_equal(a, b)
            assert bad.counts.is_step_target_upper_bound == bool(lost)
            assert bad.counts.step_target_tokens == good.counts.step_target_tokens
            assert bad.counts.target_tokens == (bad.labels != -100).sum()
            lost_all_images = bool(good.image_grid_thw) and not any(
                n for i, n in zip(expected.ids, good.layout.image_counts.tolist(), strict=True) if i in kept
            )
            dummies = found.ids[len(kept) :]
            assert dummies == ([-1] if lost_all_images or not kept else [])
            n_dummies += len(dummies)
            if dummies:
                ids, labels, positions, grid, patches = found.samples[-1]
                assert (labels == -100).all()
                if lost_all_images:
                    assert grid.tolist() == [[1, 2, 2]]
                    assert (patches == 255).all()
                    assert ids.size == 3
                    assert positions.tolist() == [[0, 1, 2]] * 4
            else:
                assert bad.layout.max_seqlen == np.diff(bad.layout.cu_seqlens).max()
            if not kept:
                assert bad.counts.target_tokens == 0
    assert seen_broken == broken
    if len(broken) > 3:
        assert n_dummies > 0, "no pack lost its last image: the case is not covered"
    assert {entry["line"] - 1 for entry in ledger(hurt)} == broken


def test_resume_after_a_pack_with_a_late_bad_sample(tmp_path: Path) -> None:
    data = late_bad_data(tmp_path / "hurt", {2, 5, 7, 8})
    settings = settings_for(data, tmp_path, bad_samples={"max_fraction": 1.0})
    with Loader(settings) as loader:
        steps, states = loader.steps(), []
        expected = []
        for _ in range(6):
            states.append(loader.state_dict())
            expected.append([b.digest() for b in next(steps)])
    for i in range(6):
        with Loader(settings) as loader:
            loader.load_state_dict(states[i])
            assert [b.digest() for b in next(loader.steps())] == expected[i]
    keys = [(entry["pass"], entry["order_index"]) for entry in ledger(settings)]
    assert len({k[1] for k in keys}) >= 4


def test_the_line_of_a_sample_names_its_first_bad_image(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 4)
    page = data.image("page.jpg", b"<html>" + b" " * 1000)
    sized = {"type": "image", "image": page, "height": 256, "width": 256}
    early = data.chat(50, [data.good_image(900), "missing.jpg", page, page])
    late = data.chat(51, [sized, {**sized, "image": data.image("cut.jpg", truncated_jpeg())}, sized, sized])
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    for run in range(4):
        again = settings.replace(bad_samples={"ledger": str(tmp_path / f"ledger-{run}")}, speed={"cpu_threads": 8})
        again = again.replace(pack={"tokens_per_pack": 1024})
        with Loader(again) as loader:
            list(loader)
        found = {entry["line"]: (entry["code"], Path(entry["media"]).name) for entry in ledger(again)}
        assert found == {early: ("MEDIA_NOT_FOUND", "missing.jpg"), late: ("IMG_NOT_AN_IMAGE", "page.jpg")}


# --- storage


@pytest.fixture
def remote(tmp_path: Path) -> tuple[DataSet, Settings]:
    """Data to be put into a server, and settings that lack only the server."""
    data = good_data(tmp_path / "data", 24)
    settings = settings_for("s3://data/rows.jsonl", tmp_path, outage_limit_s=0.5)
    return data, settings


def test_wrong_credentials(remote: tuple[DataSet, Settings], tmp_path: Path) -> None:
    _, settings = remote
    with StorageServer(tmp_path) as server:
        for wrong in ({"secret_access_key": "wrong"}, {"access_key_id": "NOBODY"}):
            bad = settings.replace(storage={**server.settings(), **wrong})
            with Loader(bad) as loader, pytest.raises(UnavailableError) as error:
                next(loader)
            assert error.value.code == "FETCH_CREDENTIALS"
            assert "s3://data/rows.jsonl" in str(error.value)
            assert server.secret_access_key not in str(error.value)


def test_wrong_credentials_for_media_only(remote: tuple[DataSet, Settings], tmp_path: Path) -> None:
    data, settings = remote
    local = tmp_path / "rows.jsonl"
    local.write_bytes(data.manifest.read_bytes())
    with StorageServer(tmp_path) as server:
        bad = settings.replace(
            data=[{"manifest": str(local), "media_root": "s3://data"}],
            storage={**server.settings(), "secret_access_key": "wrong"},
        )
        with Loader(bad) as loader:
            for _ in range(2):
                with pytest.raises(UnavailableError) as error:
                    next(loader)
                assert error.value.code == "FETCH_CREDENTIALS"
    assert ledger(bad) == [], "trouble with storage is no bad sample"


def test_a_missing_manifest(remote: tuple[DataSet, Settings], tmp_path: Path) -> None:
    _, settings = remote
    with StorageServer(tmp_path) as server:
        gone = settings.replace(data=[{"manifest": "s3://data/other.jsonl"}], storage=server.settings())
        with Loader(gone) as loader, pytest.raises(InvalidArgumentError, match=r"other\.jsonl") as error:
            next(loader)
        assert error.value.code == "MANIFEST"
    with (
        Loader(settings.replace(data=[{"manifest": str(tmp_path / "none.jsonl")}])) as loader,
        pytest.raises(InvalidArgumentError, match=r"none\.jsonl") as error,
    ):
        next(loader)
    assert error.value.code == "MANIFEST"


def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_server_that_is_down_at_the_start(remote: tuple[DataSet, Settings]) -> None:
    _, settings = remote
    down = settings.replace(
        storage={
            "endpoint_url": f"http://127.0.0.1:{closed_port()}",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
    )
    with Loader(down) as loader, pytest.raises(UnavailableError, match=r"rows\.jsonl") as error:
        next(loader)
    assert error.value.code == "OUTAGE"


@pytest.mark.parametrize("how", ["down", "error", "silence"])
def test_a_server_that_fails_in_mid_run(remote: tuple[DataSet, Settings], tmp_path: Path, how: str) -> None:
    _, settings = remote
    with StorageServer(tmp_path) as server:
        settings = settings.replace(storage=server.settings(), speed={"prefetch_steps": 1, "fetch_concurrency": 4})
        if how == "silence":
            settings = settings.replace(outage_limit_s=2.0)
        with Loader(settings) as loader:
            taken(loader, 4)
            state = loader.state_dict()
            if how == "down":
                server.close()
            elif how == "error":
                server.behave(Behaviour(faults=(Fault(kind="error"),)))
            else:  # nothing ends such a request but its own time limits, so it comes back before they pass
                server.behave(Behaviour(faults=(Fault(kind="stall", stall_s=0.4, after_bytes=100),)))
                assert len(taken(loader, 8)) == 8
                return
            with pytest.raises(UnavailableError) as error:
                for _ in loader:
                    pass
            assert error.value.code == "OUTAGE"
            assert ledger(settings) == []
            reached = loader.state_dict() if how == "error" else state
        if how == "error":
            server.behave(Behaviour())
            with Loader(settings) as loader:
                loader.load_state_dict(reached)
                assert len(taken(loader, 4)) == 4


def test_storage_that_comes_back_costs_no_sample(remote: tuple[DataSet, Settings], tmp_path: Path) -> None:
    data, settings = remote
    faults = (
        Fault(kind="error", first=2, share=0.5),
        Fault(kind="cut", first=1, share=0.5, after_bytes=300, match="*.jpg"),
        Fault(kind="reset", first=1, share=0.3),
    )
    settings = settings.replace(epochs=1, outage_limit_s=30.0)
    with StorageServer(tmp_path, behaviour=Behaviour(faults=faults, seed=2)) as server:
        with Loader(settings.replace(storage=server.settings())) as loader:
            found = [[b.digest() for b in step] for step in loader.steps()]
            report = loader.report()
            fetch = report.values["pipeline"]["fetch"]
            assert 0 < fetch["retries"] <= sum(fetch["failed_tries"].values())
            assert all(f"{code} {n}" in str(report) for code, n in fetch["failed_tries"].items())
    local = settings.replace(data=[{"manifest": str(data.manifest)}])
    with Loader(local) as loader:
        assert [[b.digest() for b in step] for step in loader.steps()] == found


def test_a_manifest_that_changes_during_the_run(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 64)
    with Loader(settings_for(data, tmp_path, shuffle="none", speed={"prefetch_steps": 0})) as loader:
        taken(loader, 2)
        data.manifest.write_bytes(data.manifest.read_bytes().replace(b"What is", b"What wa"))
        with pytest.raises(InvalidArgumentError, match=r"rows\.jsonl") as error:
            for _ in loader:
                pass
        assert error.value.code == "MANIFEST"


# --- the model's folder


@pytest.mark.parametrize("what", ["no folder", "tokenizer.json", "preprocessor_config.json", "half a tokenizer"])
def test_a_wrong_model_folder(tmp_path: Path, what: str) -> None:
    data = good_data(tmp_path / "data", 4)
    settings = settings_for(data, tmp_path)
    folder = Path(settings.model)
    if what == "no folder":
        settings = settings.replace(model=str(tmp_path / "elsewhere"))
    elif what == "half a tokenizer":
        text = (folder / "tokenizer.json").read_text()
        (folder / "tokenizer.json").write_text(text[: len(text) // 2])
    else:
        (folder / what).unlink()
    with Loader(settings) as loader:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError) as error:
                next(loader)
            assert error.value.code in ("MODEL_FOLDER", "TOKENIZER")
            assert str(tmp_path) in str(error.value)


# --- errors travel


@pytest.mark.parametrize("kind", sorted(StokerError.__subclasses__(), key=str))
def test_errors_pickle_with_code_and_message(kind: type[StokerError]) -> None:
    error = kind("what happened", "IMG_TRUNCATED")
    out = io.BytesIO()
    pickle.dump(error, out)
    thawed = pickle.loads(out.getvalue())
    assert type(thawed) is kind
    assert (thawed.code, thawed.message, str(thawed)) == (
        "IMG_TRUNCATED",
        "what happened",
        "IMG_TRUNCATED: what happened",
    )


def test_exif_turned_pictures_match_upright_sizes(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    body = encoded(picture(256, 320, 5), "JPEG", exif=exif)
    ref = data.image("turned.jpg", body)
    line = data.chat(60, [{"type": "image", "image": ref, "height": 320, "width": 256}])
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    with Loader(settings) as loader:
        lines = [loader.describe(i).line for b in loader for i in b.layout.sample_ids.tolist() if i >= 0]
    assert line in lines
    with Loader(settings.replace(media={"exif": "ignore"})) as loader:
        list(loader)
    assert [(entry["line"], entry["code"]) for entry in ledger(settings)] == [(line, "MEDIA_SIZE_MISMATCH")]
