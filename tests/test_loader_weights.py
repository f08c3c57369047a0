"""Weights of turns: refused unless asked for, then beside the labels of every batch; the oracle reads the rows."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import stoker
import stoker.torch
import torch
from loader_data import DataSet, digests, encoded, ledger, picture, settings_for

DELIVER = {"weights": "deliver"}
WEIGHTS: list[Any] = [None, None, None, 0, 0.25, 0.5, 1, 3, True, False, 0.1]


def weighted_data(folder: Path, weights: list[Any], n_rows: int = 24, seed: int = 1) -> DataSet:
    """Conversations of several rounds, some with a picture, whose turns have one of the weights or say nothing."""
    rng = random.Random(seed)
    data = DataSet(folder)
    for n in range(n_rows):
        messages: list[dict[str, Any]] = []
        for k in range(rng.randrange(1, 4)):
            image = [{"type": "image", "image": data.good_image(10 * n + k)}] if rng.random() < 0.3 else []
            question = [*image, {"type": "text", "text": f"Question {k} of {n}?"}]
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": f"Answer {n} " + "word " * rng.randrange(1, 9)},
            ]
        for message in messages:
            weight = rng.choice(weights)
            if weight is not None:
                message["loss" if isinstance(weight, bool) else rng.choice(["loss_scale", "weight"])] = weight
        messages[-1].pop("loss", None)  # every row trains something
        for key in ("loss_scale", "weight"):
            if messages[-1].get(key) == 0:
                del messages[-1][key]
        data.row({"messages": messages})
    return data.write()


def expected(row: dict[str, Any], features: stoker.Features) -> npt.NDArray[np.float32]:
    """The weight of every token, from the row and from where the turns lie."""
    out = np.zeros(len(features.input_ids), dtype=np.float32)
    assert len(features.turns) == len(row["messages"])
    for turn, message in zip(features.turns, row["messages"], strict=True):
        said = [message[key] for key in ("loss", "loss_scale", "weight") if key in message]
        weight = float(said[0]) if said else float(message["role"] == "assistant")
        at = slice(*turn.tokens)
        out[at] = np.where(features.labels[at] != -100, np.float32(weight), np.float32(0))
        # What is trained does not depend on how much.
        assert (features.labels[at] != -100).any() == (weight > 0)
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return weighted_data(tmp_path_factory.mktemp("data"), WEIGHTS)


def settings_of(data: DataSet, scratch: Path, **changes: Any) -> stoker.Settings:
    return settings_for(data, scratch, epochs=1, labels=DELIVER, window_samples=8, **changes)


def test_weights_of_a_batch_are_those_of_its_turns(data: DataSet, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path)
    seen: set[float] = set()
    with stoker.Loader(settings) as loader:
        for batch in loader:
            weights = batch.loss_weights
            assert weights is not None
            assert weights.dtype == np.float32
            ends = batch.layout.cu_seqlens.tolist()
            for sample_id, begin, end in zip(batch.layout.sample_ids.tolist(), ends, ends[1:], strict=False):
                if sample_id < 0:
                    assert not weights[begin:end].any()
                    continue
                line = data.lines[loader.describe(sample_id).line - 1]
                features = stoker.prepare(line, settings)
                np.testing.assert_array_equal(features.labels, batch.labels[begin:end])
                np.testing.assert_array_equal(weights[begin:end], expected(json.loads(line), features))
                np.testing.assert_array_equal(features.loss_weights, weights[begin:end])
                assert weights[begin] == 0
            np.testing.assert_array_equal(weights > 0, batch.labels != -100)
            seen.update(weights.tolist())
    assert seen == {float(np.float32(x)) for x in (0, 0.1, 0.25, 0.5, 1, 3)}


def test_they_are_refused_unless_asked_for(data: DataSet, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path).replace(labels={"weights": "reject"}, bad_samples={"max_fraction": 1.0})
    with stoker.Loader(settings) as loader:
        assert all(batch.loss_weights is None for batch in loader)
    rows = [json.loads(line) for line in data.lines]
    fractional = {
        n
        for n, row in enumerate(rows, 1)
        if any(m.get(key, 1) not in (0, 1) for m in row["messages"] for key in ("loss_scale", "weight"))
    }
    refused = {entry["line"]: entry for entry in ledger(settings)}
    assert set(refused) == fractional
    assert all(entry["code"] == "ROW_SCHEMA" for entry in refused.values())
    assert all("labels.weights: deliver" in entry["message"] for entry in refused.values())


def test_without_weights_nothing_changes_but_the_array(tmp_path: Path) -> None:
    plain = weighted_data(tmp_path / "data", [None, 0, 1, True])
    off = settings_of(plain, tmp_path).replace(labels={"weights": "reject"})
    with stoker.Loader(off) as before, stoker.Loader(off.replace(labels=DELIVER)) as after:
        for a, b in itertools.zip_longest(before, after):
            assert b.loss_weights is not None
            np.testing.assert_array_equal(b.loss_weights, (a.labels != -100).astype(np.float32))
            np.testing.assert_array_equal(a.input_ids, b.input_ids)
            assert a.digest() != b.digest()
        with pytest.raises(stoker.InvalidArgumentError, match="loss_weights"):
            stoker.Loader(off).load_state_dict(after.state_dict())


def test_a_resumed_run_and_other_threads_give_the_same(data: DataSet, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path)
    whole = digests(settings)
    assert digests(settings.replace(speed={"cpu_threads": 1, "prefetch_steps": 0})) == whole
    with stoker.Loader(settings) as loader:
        next(loader.steps())
        state = loader.state_dict()
    with stoker.Loader(settings) as loader:
        loader.load_state_dict(state)
        assert [[batch.digest() for batch in step] for step in loader.steps()] == whole[1:]


def test_what_moves_up_brings_its_weights(tmp_path: Path) -> None:
    data = weighted_data(tmp_path / "data", WEIGHTS, seed=2)
    image = encoded(picture(256, 256, 5), "JPEG")
    data.chat(1, [data.image("cut.jpg", image[: len(image) // 2])])  # found bad after planning
    data.write()
    settings = settings_of(data, tmp_path, bad_samples={"max_fraction": 1.0}, shuffle="none")
    settings = settings.replace(pack={"tokens_per_pack": 4096, "packs_per_step": 1})
    with stoker.Loader(settings) as loader:
        for batch in loader:
            assert batch.loss_weights is not None
            np.testing.assert_array_equal(batch.loss_weights > 0, batch.labels != -100)
    assert [entry["line"] for entry in ledger(settings)] == [len(data.lines)]


def test_what_stands_in_for_a_lost_picture_weighs_nothing(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    data.row({"messages": [{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": "So.", "weight": 0.5}]})
    image = encoded(picture(256, 256, 5), "JPEG")
    data.chat(1, [data.image("cut.jpg", image[: len(image) // 2])])
    settings = settings_of(data.write(), tmp_path, bad_samples={"max_fraction": 1.0}, shuffle="none")
    with stoker.Loader(settings.replace(pack={"tokens_per_pack": 2048, "packs_per_step": 1})) as loader:
        (batch,) = loader
    assert batch.layout.sample_ids.tolist() == [0, -1]
    assert batch.loss_weights is not None
    np.testing.assert_array_equal(batch.loss_weights, 0.5 * (batch.labels != -100))
    assert not batch.loss_weights[batch.layout.cu_seqlens[1] :].any()


def test_turns_that_are_cut_away_take_their_weights_along(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    rounds = [("Hm?", "So.", 0.25), ("And?", "word " * 400, 2)]
    messages = []
    for question, answer, weight in rounds:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "weight": weight}]
    data.row({"messages": messages})
    settings = settings_of(data.write(), tmp_path)
    cut = settings.replace(pack={"tokens_per_pack": 128, "packs_per_step": 1, "over_long": "truncate_turns"})
    with stoker.Loader(cut) as loader:
        (batch,) = loader
    assert batch.loss_weights is not None
    np.testing.assert_array_equal(batch.loss_weights, 0.25 * (batch.labels != -100))
    whole = stoker.prepare(data.lines[0], settings.replace(pack={"tokens_per_pack": 1024}))
    assert whole.loss_weights is not None
    np.testing.assert_array_equal(batch.loss_weights, whole.loss_weights[: len(batch.loss_weights)])


@pytest.mark.parametrize("form", ["packed", "padded"])
def test_torch_has_them_beside_the_inputs_and_among_them_on_request(data: DataSet, tmp_path: Path, form: Any) -> None:
    settings = settings_of(data, tmp_path)
    with stoker.Loader(settings) as loader, stoker.Loader(settings) as other:
        batches = stoker.torch.batches(loader, form=form)
        named = stoker.torch.batches(other, form=form, loss_weights_key="loss_scale")
        for a, b in itertools.islice(zip(batches, named, strict=True), 3):
            assert "loss_weights" not in a.inputs
            assert a.loss_weights.dtype == torch.float32
            assert a.loss_weights.shape == a.inputs["labels"].shape
            assert torch.equal(a.loss_weights > 0, a.inputs["labels"] != -100)
            assert torch.equal(b.inputs["loss_scale"], a.loss_weights)
            assert set(b.inputs) == {*a.inputs, "loss_scale"}
    off = settings.replace(labels={"weights": "reject"}, bad_samples={"max_fraction": 1.0})
    with stoker.Loader(off) as loader:
        with pytest.raises(stoker.InvalidArgumentError, match=r"labels\.weights"):
            stoker.torch.batches(loader, loss_weights_key="loss_scale")
        assert next(iter(stoker.torch.batches(loader, form=form))).loss_weights is None
