"""`stoker plan`: what a run will be like, beside what the run's loaders then give."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from interrupts import check_ctrl_c_ends_the_walk
from loader_data import (
    TOKENS_PER_PACK,
    DataSet,
    good_data,
    settings_for,
    small_model,
)
from stoker import Loader, Settings
from stoker.cli import app
from typer.testing import CliRunner, Result

FLOPS_PER_S = 395.8e12


def plan(settings: Settings, scratch: Path, *options: str) -> Result:
    run = scratch / "run.yaml"
    run.write_text(yaml.safe_dump(settings.to_dict()))
    return CliRunner().invoke(app, ["plan", str(run), *options], env={"COLUMNS": "200", "NO_COLOR": "1"})


def planned(settings: Settings, scratch: Path, *options: str, status: int = 0) -> dict[str, Any]:
    done = plan(settings, scratch, "--json", *options)
    assert done.exit_code == status, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """60 rows whose sizes stand in them, two of them too long, one no JSON."""
    data = good_data(tmp_path_factory.mktemp("data"), 60, sizes=True)
    data.chat(200, [], answer="word " * 2000)
    data.row(b"{not json")
    data.chat(201, [], answer="word " * 500)
    return data.write()


def delivered(settings: Settings, dp_size: int) -> dict[str, np.ndarray[Any, Any]]:
    """What the run's loaders give: (steps, ranks, micro-batches) of tokens, samples, and FLOPs of each phase."""
    ranks: list[list[list[tuple[float, ...]]]] = []
    for rank in range(dp_size):
        with Loader(settings, dp_rank=rank, dp_size=dp_size) as loader:
            ranks.append([[_work(batch) for batch in step] for step in loader.steps()])
    of_all = np.array(ranks).transpose(1, 0, 2, 3)
    return dict(zip(("tokens", "samples", "language", "vision"), np.moveaxis(of_all, 3, 0), strict=True))


def _work(batch: Any) -> tuple[float, ...]:
    real = np.asarray(batch.layout.sample_ids) >= 0
    lengths = np.diff(np.asarray(batch.layout.cu_seqlens))[: len(real)][real].astype(float)
    grids = [] if batch.image_grid_thw is None else np.asarray(batch.image_grid_thw).astype(float).tolist()
    patches = np.array([h * w for t, h, w in grids for _ in range(int(t))])
    language = 58.8e6 * lengths.sum() + 1e3 * (lengths**2).sum()  # FLOPs, as the test model's config.json has it
    return lengths.sum(), float(real.sum()), language, 504e3 * patches.sum() + 1e3 * (patches**2).sum()


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_it_foretells_what_the_ranks_get(sized: DataSet, tmp_path: Path, dp_size: int) -> None:
    settings = settings_for(sized, tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    (policy,) = planned(settings, tmp_path, "--epochs", "1", "--dp-size", str(dp_size))["policies"]
    got = delivered(settings, dp_size)
    n_steps, _, n_micro = got["tokens"].shape
    n_packs = int((got["samples"] > 0).sum())
    assert policy["packs"] == n_packs
    assert policy["empty_packs"] == got["tokens"].size - n_packs
    assert policy["fill"] == pytest.approx(got["tokens"].sum() / (n_packs * TOKENS_PER_PACK))
    assert policy["per_step"]["samples"] == pytest.approx(got["samples"].sum() / n_packs * 4)
    (ranks,) = policy["ranks"]
    assert (ranks["dp_size"], ranks["steps"], ranks["micro_batches"]) == (dp_size, n_steps, n_micro)

    total = got["language"] + got["vision"]
    for name, of in (("total", total), ("language", got["language"]), ("vision", got["vision"])):
        of_ranks = of.sum(axis=2)  # (steps, ranks)
        ratios = (of_ranks.max(axis=1) / of_ranks.mean(axis=1))[of_ranks.mean(axis=1) > 0]
        assert ranks["imbalance"][name] == pytest.approx({"mean": ratios.mean(), "worst": ratios.max()})
    steps = {
        "per_step": total.sum(axis=2).max(axis=1),
        "per_micro_batch": total.max(axis=1).sum(axis=1),
        "per_phase": (got["language"].max(axis=1) + got["vision"].max(axis=1)).sum(axis=1),
    }
    busy = total.sum(axis=2).mean(axis=1)
    assert ranks["busy_s"] == pytest.approx(busy.mean() / FLOPS_PER_S)
    for name, of_steps in steps.items():
        assert ranks["step_s"][name] == pytest.approx(of_steps.mean() / FLOPS_PER_S)
        assert ranks["lost"][name] == pytest.approx(1 - busy.sum() / of_steps.sum(), abs=1e-9)
    of_ranks = total.sum(axis=2)
    expected = np.stack([of_ranks.min(1), of_ranks.mean(1), of_ranks.max(1), steps["per_phase"]], 1) / FLOPS_PER_S
    np.testing.assert_allclose(ranks["steps_s"], expected)


def test_it_foretells_padding_and_dummies(sized: DataSet, tmp_path: Path) -> None:
    pack = {"tokens_per_pack": 512, "packs_per_step": 1, "vision_uniform": "image", "pad_to": 64}
    settings = settings_for(sized, tmp_path, epochs=1, pack=pack, bad_samples={"max_fraction": 1.0}, window_samples=2)
    (policy,) = planned(settings, tmp_path, "--epochs", "1")["policies"]
    with Loader(settings) as loader:
        batches = [(np.asarray(b.input_ids).size, np.asarray(b.layout.sample_ids), _work(b)[0]) for b in loader]
    assert policy["packs"] == len(batches)
    assert policy["packs_with_dummy"] == sum((ids == -1).any() for _, ids, _ in batches) > 0
    assert policy["padding"] == pytest.approx(1 - sum(real for *_, real in batches) / sum(n for n, *_ in batches))


def test_long_samples_are_named(sized: DataSet, tmp_path: Path) -> None:
    settings = settings_for(sized, tmp_path)
    data = planned(settings, tmp_path, "--epochs", "1", "--longest", "2")["data"]
    assert data["over_long"] == data["left_out_by_code"]["SEQ_TOO_LONG"] >= 2
    assert data["left_out_by_code"]["JSON_SYNTAX"] >= 1
    assert [(row["line"], row["fate"]) for row in data["longest"]] == [(61, "dropped"), (63, "dropped")]
    assert data["longest"][0]["manifest"] == str(sized.manifest)

    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes " * 150}]
    longer = good_data(tmp_path / "data", 8, sizes=True)
    longer.row({"messages": turns * 4})
    cut = settings_for(longer.write(), tmp_path, pack={"over_long": "truncate_turns", "packs_per_step": 1})
    data = planned(cut, tmp_path, "--epochs", "1", "--longest", "1")["data"]
    assert data["cut"] == 2  # a window of 16 is more than the nine rows of a pass
    assert [(row["line"], row["fate"]) for row in data["longest"]] == [(9, "cut")]


def test_no_media_are_read(sized: DataSet, tmp_path: Path) -> None:
    settings = settings_for(sized, tmp_path)
    before = planned(settings, tmp_path, "--epochs", "1")
    shutil.copytree(sized.folder, tmp_path / "moved", ignore=shutil.ignore_patterns("images"))
    moved = settings.replace(data=[{"manifest": str(tmp_path / "moved" / "rows.jsonl")}])
    assert planned(moved, tmp_path, "--epochs", "1")["policies"] == before["policies"]


def test_unknown_sizes_are_counted_and_can_be_measured(tmp_path: Path) -> None:
    data = good_data(tmp_path / "data", 24)
    settings = settings_for(data, tmp_path, epochs=1)
    blind = planned(settings, tmp_path, "--epochs", "1", status=1)
    rows = [json.loads(line)["messages"][0]["content"] for line in data.lines]
    unsized = [sum("width" not in part for part in row if part["type"] == "image") for row in rows]
    assert blind["data"]["unsized_media"] == sum(unsized)
    assert blind["data"]["unsized_samples"] == sum(n > 0 for n in unsized)
    said = plan(settings, tmp_path, "--epochs", "1").output
    assert "stoker index" in said
    assert "--measure" in said

    measured = planned(settings, tmp_path, "--epochs", "1", "--measure")
    assert measured["data"]["unsized_samples"] == 0
    with_sizes = settings_for(good_data(tmp_path / "sized", 24, sizes=True), tmp_path, epochs=1)
    assert measured["data"]["sample_tokens"] == planned(with_sizes, tmp_path, "--epochs", "1")["data"]["sample_tokens"]


def test_any_number_of_ranks_that_divides(sized: DataSet, tmp_path: Path) -> None:
    settings = settings_for(sized, tmp_path)
    refused = plan(settings, tmp_path, "--dp-size", "3")
    assert refused.exit_code == 2
    assert "dp_size 3 does not divide pack.packs_per_step 4" in refused.stderr
    assert "can be divided by 1, 2, 4" in refused.stderr
    assert plan(settings, tmp_path, "--dp-size", "99999999999").exit_code == 2
    many = ("--packs-per-step", "1024", "--epochs", "1", "--tokens-per-pack", "450")
    assert "DATA_TOO_SMALL" in plan(settings, tmp_path, *many).stderr
    finite = settings.replace(epochs=1)
    (policy,) = planned(finite, tmp_path, *many, "--dp-size", "1024", "--dp-size", "64")["policies"]
    assert [ranks["dp_size"] for ranks in policy["ranks"]] == [1024, 64]
    assert policy["empty_packs"] + policy["packs"] == 1024


def test_policies_stand_side_by_side(sized: DataSet, tmp_path: Path) -> None:
    settings = settings_for(sized, tmp_path, window_samples=128)
    picture = tmp_path / "plan.svg"
    result = planned(settings, tmp_path, "--compare", "--steps", "20", "--picture", str(picture))
    by_name = {policy["policy"]: policy for policy in result["policies"]}
    assert list(by_name) == [
        *("as set", "balance: tokens", "balance: none", "dealt in order", "largest first", "first fit"),
        *("as they come", "equal counts"),
    ]
    tokens = settings.replace(pack={"balance": "tokens"})
    (as_set,) = planned(tokens, tmp_path, "--steps", "20")["policies"]
    assert as_set["ranks"] == by_name["balance: tokens"]["ranks"]
    assert all(ranks["steps"] == 20 for policy in result["policies"] for ranks in policy["ranks"])
    lost = {name: policy["ranks"][0]["lost"]["per_phase"] for name, policy in by_name.items()}
    assert lost["as set"] < lost["as they come"] / 2
    assert by_name["as set"]["fill"] > by_name["as they come"]["fill"]
    drawn = ET.fromstring(picture.read_text())
    texts = " ".join(node.text or "" for node in drawn.iter() if node.tag.endswith("text"))
    assert all(name in texts for name in by_name)

    page = tmp_path / "plan.html"
    assert plan(settings, tmp_path, "--compare", "--picture", str(page)).exit_code == 0
    embedded = page.read_text().split('id="plan">')[1].split("</script>")[0]
    assert [policy["policy"] for policy in json.loads(embedded)["policies"]] == list(by_name)
    assert plan(settings, tmp_path, "--picture", "plan.png").exit_code == 2


def test_what_json_holds(sized: DataSet, tmp_path: Path) -> None:
    """Programs read it: keys are added, never taken away."""
    result = planned(settings_for(sized, tmp_path), tmp_path)
    assert list(result) == ["packs", "walked", "data", "flops_per_s", "is_fitted", "policies"]
    assert list(result["packs"]) == ["tokens_per_pack", "packs_per_step", "window_samples"]
    assert list(result["walked"]) == [
        *("positions", "positions_known", "positions_per_epoch", "steps", "is_finite", "elapsed_s", "positions_per_s"),
    ]
    assert list(result["data"]) == [
        *("usable", "left_out", "left_out_by_code", "over_long", "cut", "unsized_samples", "unsized_media"),
        *("sample_tokens", "longest"),
    ]
    (policy,) = result["policies"]
    assert list(policy) == [
        *("policy", "packs", "fill", "padding", "longest_pack", "packs_with_dummy", "empty_packs", "steps_per_epoch"),
        *("per_step", "ranks"),
    ]
    assert list(policy["ranks"][0]) == [
        *("dp_size", "micro_batches", "steps", "imbalance", "busy_s", "step_s", "lost", "steps_s"),
    ]


def test_people_can_read_it(sized: DataSet, tmp_path: Path) -> None:
    done = plan(settings_for(sized, tmp_path), tmp_path, "--dp-size", "2", "--dp-size", "1")
    assert done.exit_code == 0
    for said in (
        "a whole epoch",
        f"{sized.manifest}:61:",
        "left out: SEQ_TOO_LONG",
        "of 384 tokens: fill 0.",
        "2 ranks, 2 packs each",
        "1 rank, 4 packs each",
        "as set, a step takes the ranks",
    ):
        assert said in done.output, said
    help_ = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for said in ("--dp-size", "--compare", "No media are read", "Exit status", "stoker plan run.yaml --dp-size 8"):
        assert said in help_, said


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "yes " * 50}]}
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text((json.dumps(row) + "\n") * 1000)
    run = tmp_path / "run.yaml"
    run.write_text(
        yaml.safe_dump(
            {
                "data": [{"manifest": str(manifest)}],
                "model": str(small_model(tmp_path / "model")),
                "window_samples": 256,
            }
        )
    )
    check_ctrl_c_ends_the_walk(["plan", str(run), "--epochs", "100000"], tmp_path)
