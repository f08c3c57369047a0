"""Settings of packing: what is refused, and what stands in the fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, good_data, settings_for
from stoker import InvalidArgumentError, Loader, Settings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return good_data(tmp_path_factory.mktemp("data"), 16)


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        ({"form": "rows"}, "it takes packed"),
        ({"samples_per_pack": 2}, "belongs to pack.form: samples"),
        ({"form": "samples", "samples_per_pack": 0}, "samples_per_pack must be from 1"),
        ({"max_images": -1}, "max_images must be from 0"),
        ({"align_samples_to": 0}, "align_samples_to is 0"),
        ({"align_samples_to": 16, "pad_to": 24}, "no multiple of pack.align_samples_to"),
        ({"pad_to": 0}, "pad_to must be positive"),
        ({"pad_to": "longest"}, "pad_to"),
        ({"tokens_per_pack": 100, "pad_to": 128}, "from 1 to pack.tokens_per_pack, 100"),
        ({"tokens_per_pack": 16, "align_samples_to": 16, "vision_uniform": "image"}, "no sample fits"),
        ({"form": "token_budget", "pad_to": "tokens_per_pack"}, "rows as long as the budget"),
        ({"vision_uniform": "video"}, "`pack.vision_uniform`: 'video' is not served"),
        ({"balance": "none", "cost_file": "costs.json"}, "cost_file belongs to"),
    ],
)
def test_what_does_not_go_together_is_said(pack: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as error:
        Settings.from_dict({"data": [{"manifest": "m.jsonl"}], "model": "m", "pack": pack})
    assert error.value.code == "SETTINGS"


def test_each_setting_is_part_of_the_fingerprint_and_its_default_is_not(data: DataSet, tmp_path: Path) -> None:
    plain = settings_for(data, tmp_path)

    def prints(**pack: Any) -> str:
        with Loader(plain.replace(pack=pack)) as loader:
            return str(loader.state_dict()["fingerprint"])

    changes: list[dict[str, Any]] = [
        {},
        {"form": "samples"},
        {"form": "samples", "samples_per_pack": 2},
        {"form": "token_budget"},
        {"balance": "tokens"},
        {"balance": "none"},
        {"max_images": 9},
        {"max_patches": 4096},
        {"align_samples_to": 8},
        {"pad_to": 8},
        {"pad_to": "tokens_per_pack"},
        {"vision_uniform": "image"},
        {"vision_uniform": "image+video"},
    ]
    found = [prints(**change) for change in changes]
    assert len(set(found)) == len(found)
    assert prints(pad_to=1, align_samples_to=1, max_images=0) == found[0]


def test_a_sample_over_a_pack_limit_is_a_bad_one(data: DataSet, tmp_path: Path) -> None:
    limited = settings_for(data, tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    limited = limited.replace(pack={"max_patches": 500, "tokens_per_pack": 1024})
    with Loader(limited) as loader:
        batches = list(loader)
    assert max(batch.counts.patches for batch in batches) <= 500
    n_kept = sum(int((batch.layout.sample_ids >= 0).sum()) for batch in batches)
    lines = [json.loads(line) for line in (tmp_path / "index" / "ledger.jsonl").read_text().splitlines()]
    assert {line["code"] for line in lines} == {"PACK_LIMIT"}
    assert n_kept + len(lines) == len(data.lines)
    assert "pack.max_patches is 500" in lines[0]["message"]


def test_a_limit_below_the_pack_says_why(data: DataSet, tmp_path: Path) -> None:
    tight = settings_for(data, tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    tight = tight.replace(pack={"tokens_per_pack": 300, "pad_to": 128, "vision_uniform": "image"})
    with Loader(tight) as loader:
        assert {len(batch.input_ids) for batch in loader} <= {128, 256}
    lines = [json.loads(line) for line in (tmp_path / "index" / "ledger.jsonl").read_text().splitlines()]
    assert {line["code"] for line in lines} == {"SEQ_TOO_LONG"}
    assert "limit 253" in lines[0]["message"]
    assert "300, less what alignment, padding" in lines[0]["message"]


@pytest.mark.parametrize("form", ["packed", "samples", "token_budget"])
def test_without_balance_a_curriculum_keeps_its_order(data: DataSet, tmp_path: Path, form: str) -> None:
    rows = {"samples_per_pack": 3} if form == "samples" else {}
    settings = settings_for(data, tmp_path, epochs=1, shuffle="none", bad_samples={"max_fraction": 1.0})
    settings = settings.replace(
        pack={"balance": "none", "form": form, "tokens_per_pack": 1024, "packs_per_step": 1, **rows}
    )
    with Loader(settings) as loader:
        ids = [int(i) for batch in loader for i in batch.layout.sample_ids if i >= 0]
    assert ids == list(range(len(data.lines)))
