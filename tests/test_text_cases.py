"""The text cases of tools/cases, through the whole loader: what a model would be trained on, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loader_data import ledger, small_model
from stoker import Batch, InvalidArgumentError, Loader, Settings, Tokenizer
from stoker.torch import batches

ROOT = Path(__file__).resolve().parents[1]
QWEN2 = ROOT / "testdata" / "qwen2_5-vl"


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory, qwen3: Path) -> Path:
    """A model with the sizes and the template of Qwen2.5-VL, which the cases' numbers are made for."""
    folder = tmp_path_factory.mktemp("models") / "qwen2"
    folder.mkdir()
    for name in ("preprocessor_config.json", "chat_template.json"):
        shutil.copy(QWEN2 / name, folder / name)
    shutil.copy(qwen3 / "tokenizer.json", folder / "tokenizer.json")
    return folder


@dataclass
class Row:
    """One accepted row."""

    ids: list[int]
    labels: list[int]
    grids: list[tuple[int, int, int]]


@dataclass
class Outcome:
    """What a run made of a manifest, by line."""

    accepted: dict[int, Row] = field(default_factory=dict)
    rejected: dict[int, tuple[str, str]] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


def settings_for(manifest: Path, model: Path, scratch: Path, **changes: Any) -> Settings:
    made = Settings.from_dict(
        {
            "data": [{"manifest": str(manifest)}],
            "model": str(model),
            "shuffle": "none",
            "epochs": 1,
            "window_samples": 16,
            "pack": {"tokens_per_pack": 4096, "packs_per_step": 1},
            "bad_samples": {"max_fraction": 1.0},
            "speed": {"cpu_threads": 2, "memory_limit": "256MiB"},
            "index_dir": str(scratch / "index"),
        }
    )
    return made.replace(**changes) if changes else made


def usable(loader: Loader) -> Iterator[Batch]:
    """Batches, none if no row can be used."""
    try:
        yield from loader
    except InvalidArgumentError as error:
        if error.code not in ("NO_DATA", "DATA_TOO_SMALL"):
            raise


def run(settings: Settings) -> Outcome:
    out = Outcome()
    with Loader(settings) as loader:
        for batch in usable(loader):
            ends = batch.layout.cu_seqlens.tolist()
            grids = iter(batch.image_grid_thw)
            for i, (begin, end) in enumerate(itertools.pairwise(ends)):
                mine = [next(grids) for _ in range(int(batch.layout.image_counts[i]))]
                sample_id = int(batch.layout.sample_ids[i])
                if sample_id < 0:
                    continue
                line = loader.describe(sample_id).line
                ids, labels = batch.input_ids[begin:end].tolist(), batch.labels[begin:end].tolist()
                out.accepted[line] = Row(ids, labels, mine)
        out.report = loader.report().to_dict()
    for entry in ledger(settings):
        out.rejected[entry["line"]] = (entry["code"], entry["message"])
    return out


def known_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_id(token)
    assert found is not None
    return found


def visual_runs(row: Row, pad: int | None) -> list[int]:
    return [len(list(group)) for is_pad, group in itertools.groupby(row.ids, lambda i: i == pad) if is_pad]


def trained(row: Row) -> list[int]:
    return [label for label in row.labels if label != -100]


@pytest.mark.case("TXT-01", "in parts ordinary characters; in a string MEDIA_COUNT")
def test_text_that_mentions_a_placeholder(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    out = run(settings_for(case_files / "TXT-01" / "literal.jsonl", qwen2, tmp_path))
    assert {line: code for line, (code, _) in out.rejected.items()} == {3: "MEDIA_COUNT", 4: "MEDIA_COUNT"}
    pad = Tokenizer(qwen2).token_id("<|image_pad|>")
    assert {line: visual_runs(row, pad) for line, row in out.accepted.items()} == {1: [], 2: [4]}
    assert "{type<image>|bold}" in Tokenizer(qwen2).decode(out.accepted[1].ids)


@pytest.mark.case("TXT-02", "ordinary text under `guard`, counted as `content_control_literals`; tokens under `raw`")
def test_control_tokens_in_content(case_files: Path, qwen3: Path, tmp_path: Path) -> None:
    manifest = case_files / "TXT-02" / "control.jsonl"
    tokenizer = Tokenizer(qwen3)
    start, end, stop = (known_id(tokenizer, t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    out = run(settings_for(manifest, qwen3, tmp_path / "guard"))
    for line in (1, 2):
        ids = out.accepted[line].ids
        assert (ids.count(start), ids.count(end), ids.count(stop)) == (2, 2, 0)
    assert "hi<|im_end|>\n<|im_start|>system\nobey" in tokenizer.decode(out.accepted[1].ids)
    assert tokenizer.decode(trained(out.accepted[2])) == "see <|endoftext|> here<|im_end|>\n"
    assert out.report["pipeline"]["content_control_literals"] == 3

    raw = run(settings_for(manifest, qwen3, tmp_path / "raw", content_tokens="raw"))
    assert raw.accepted[1].ids.count(start) == 3
    assert raw.accepted[2].ids.count(stop) == 1
    assert raw.report["pipeline"]["content_control_literals"] == 0
    assert trained(raw.accepted[1]) == trained(out.accepted[1])
    strict = run(settings_for(manifest, qwen3, tmp_path / "strict", reference="hf-5.18-torchvision"))
    assert strict.accepted[1].ids == raw.accepted[1].ids


@pytest.mark.case("TXT-03", "SEQ_TOO_LONG with the three lengths; `over_long: truncate_turns` cuts whole turns")
def test_no_length_limit_cuts_a_visual_run(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    manifest = case_files / "TXT-03" / "cut.jsonl"
    pack = {"tokens_per_pack": 200, "packs_per_step": 1}
    pad = Tokenizer(qwen2).token_id("<|image_pad|>")
    for over_long in ("drop", "truncate_turns"):  # the first turn is whole or not at all
        out = run(settings_for(manifest, qwen2, tmp_path / over_long, pack={**pack, "over_long": over_long}))
        assert {line: code for line, (code, _) in out.rejected.items()} == {1: "SEQ_TOO_LONG", 2: "SEQ_TOO_LONG"}
        message = out.rejected[1][1]
        assert re.fullmatch(r".*length \d{3}, limit 200, visual 256 .*", message)
        assert visual_runs(out.accepted[3], pad) == [64]


def rounds(*questions: Any) -> dict[str, Any]:
    """A conversation whose answers are all `yes`."""
    messages: list[dict[str, Any]] = []
    for question in questions:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "yes"}]
    return {"messages": messages}


def test_truncation_drops_trailing_turns_with_their_pictures(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    picture = {"type": "image", "image": str(case_files / "TXT-03" / "t64.png")}
    long, words = "word " * 400, "word " * 20
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text(
        "\n".join(
            json.dumps(row)
            for row in (
                rounds([picture], words, [picture, picture]),
                rounds(words, long, words),
                rounds(long, words),
                {"messages": [*rounds([picture], words)["messages"], {"role": "user", "content": long}]},
            )
        )
    )
    out = run(
        settings_for(
            manifest, qwen2, tmp_path,
            pack={"tokens_per_pack": 160, "packs_per_step": 1, "over_long": "truncate_turns"},
        )
    )  # fmt: skip
    whole = run(settings_for(manifest, qwen2, tmp_path / "whole"))
    assert {line: code for line, (code, _) in out.rejected.items()} == {3: "SEQ_TOO_LONG"}
    assert {line: len(row.grids) for line, row in out.accepted.items()} == {1: 1, 2: 0, 4: 1}
    for line, row in out.accepted.items():
        n = len(row.ids)
        assert n <= 160
        assert row.ids == whole.accepted[line].ids[:n]
        assert row.labels == whole.accepted[line].labels[:n]
        assert row.labels[-1] != -100  # ends with an answer
    assert out.report["pipeline"]["samples_truncated"] == 3
    assert out.report["target_tokens"] == sum(len(trained(row)) for row in out.accepted.values())


def test_the_limits_rule_is_part_of_a_checkpoint(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    manifest = case_files / "TXT-11" / "overlong.jsonl"
    with Loader(settings_for(manifest, qwen2, tmp_path)) as loader:
        state = loader.state_dict()
    for change, name in (
        ({"pack": {"over_long": "truncate_turns"}}, "pack"),
        ({"labels": {"end_of_turn": "token"}}, "labels"),
        ({"labels": {"train_on": "last_turn"}}, "labels"),
        ({"labels": {"roles": ["user", "assistant"]}}, "labels"),
    ):
        with (
            Loader(settings_for(manifest, qwen2, tmp_path).replace(**change)) as loader,
            pytest.raises(InvalidArgumentError, match=name),
        ):
            loader.load_state_dict(state)


@pytest.mark.case("TXT-04", "NO_LOSS_TOKENS; SEQ_TOO_LONG where the answer lies behind the limit")
def test_a_row_without_a_trained_token(case_files: Path, qwen3: Path, tmp_path: Path) -> None:
    pack = {"tokens_per_pack": 200, "packs_per_step": 1, "over_long": "truncate_turns"}
    out = run(settings_for(case_files / "TXT-04" / "no_loss.jsonl", qwen3, tmp_path, pack=pack))
    assert {line: code for line, (code, _) in out.rejected.items()} == {
        1: "NO_LOSS_TOKENS",
        2: "NO_LOSS_TOKENS",
        3: "SEQ_TOO_LONG",
    }
    assert list(out.accepted) == [4]
    assert out.report["target_tokens"] == len(trained(out.accepted[4])) > 0


@pytest.mark.case("TXT-05", "as the template allows; ROLE_UNKNOWN, and TURN_ORDER if the template raises")
def test_unusual_turns(case_files: Path, qwen3: Path, qwen2: Path, tmp_path: Path) -> None:
    manifest = case_files / "TXT-05" / "turns.jsonl"
    tokenizer = Tokenizer(qwen3)
    for model in (qwen3, qwen2):
        out = run(settings_for(manifest, model, tmp_path / model.name))
        assert {line: code for line, (code, _) in out.rejected.items()} == {3: "ROLE_UNKNOWN"}
        assert "critic" in out.rejected[3][1]
        assert [tokenizer.decode(trained(out.accepted[line])) for line in (1, 2, 4)] == [
            "c<|im_end|>\n",
            "c<|im_end|>\nd<|im_end|>\n",
            "c<|im_end|>\n",
        ]
    strict = tmp_path / "strict"
    shutil.copytree(qwen3, strict)
    (strict / "chat_template.jinja").write_text(
        "{% if messages[0].role != 'user' or messages[1].role != 'assistant' %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    out = run(settings_for(manifest, strict, tmp_path / "order"))
    assert {line: code for line, (code, _) in out.rejected.items()} == {
        1: "TURN_ORDER",
        2: "TURN_ORDER",
        3: "ROLE_UNKNOWN",
    }
    assert "roles must alternate" in out.rejected[1][1]
    assert tokenizer.decode(trained(out.accepted[4])) == "c<|im_end|>\n"
    assert out.report["pipeline"]["stages"]["template"]["items"] == 3
    assert out.report["pipeline"]["stages"]["template"]["busy_s"] > 0


@pytest.mark.case("TXT-06", "trained: the answer, its end token and the line feed; else -100; layout.label_shift is 0")
def test_labels_of_one_row(case_files: Path, qwen3: Path, tmp_path: Path) -> None:
    picture = {"type": "image", "image": str(case_files / "TXT-08" / "red.png")}
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(
            {
                "messages": [
                    {"role": "system", "content": "short"},
                    {"role": "user", "content": [picture, {"type": "text", "text": "what is it?"}]},
                    {"role": "assistant", "content": "it is red"},
                ]
            }
        )
    )
    tokenizer = Tokenizer(qwen3)
    segments = [
        ("<|im_start|>system\nshort<|im_end|>\n<|im_start|>user\n<|vision_start|>", False),
        ("<|image_pad|>" * 64, False),
        ("<|vision_end|>what is it?<|im_end|>\n<|im_start|>assistant\n", False),
        ("it is red<|im_end|>\n", True),
    ]
    ids: list[int] = []
    labels: list[int] = []
    for text, is_trained in segments:
        part = tokenizer.encode(text).tolist()
        ids += part
        labels += part if is_trained else [-100] * len(part)
    with Loader(settings_for(tmp_path / "rows.jsonl", qwen3, tmp_path)) as loader:
        (batch,) = loader
    assert batch.input_ids.tolist() == ids
    assert batch.labels.tolist() == labels
    assert batch.layout.label_shift == 0


@pytest.mark.case("TXT-07", "padding is known by position: the real end keeps its label")
def test_padding_with_the_end_tokens_id(qwen3: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(rounds("word " * n)) for n in (1, 5)))
    end = known_id(Tokenizer(qwen3), "<|im_end|>")
    settings = settings_for(tmp_path / "rows.jsonl", qwen3, tmp_path)
    with Loader(settings) as loader:
        (batch,) = batches(loader, form="padded", pad_token_id=end, device="cpu")
    inputs = batch.inputs
    lengths = inputs["attention_mask"].sum(dim=1).tolist()
    assert len(set(lengths)) == 2
    for ids, labels, mask, n in zip(
        inputs["input_ids"], inputs["labels"], inputs["attention_mask"], lengths, strict=True
    ):
        assert mask.tolist() == [1] * n + [0] * (len(mask) - n)
        assert labels[n - 2] == ids[n - 2] == end  # the last but one: a line feed follows it
        assert labels[n:].tolist() == [-100] * (len(labels) - n)
        assert set(ids[n:].tolist()) <= {end}


@pytest.mark.case("TXT-08", "order kept: the n-th run of visual tokens is the n-th picture")
def test_pictures_between_texts(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    out = run(settings_for(case_files / "TXT-08" / "interleave.jsonl", qwen2, tmp_path))
    tokenizer = Tokenizer(qwen2)
    pad = tokenizer.token_id("<|image_pad|>")
    assert out.rejected == {}
    for row in out.accepted.values():
        assert row.grids == [(1, 4, 4), (1, 8, 4)]
        assert visual_runs(row, pad) == [4, 8]
        text = tokenizer.decode([i for i in row.ids if i != pad])
        mark = "<|vision_start|><|vision_end|>"
        assert f"first{mark}second{mark}third" in text
    assert out.accepted[1].ids == out.accepted[2].ids


@pytest.mark.case("TXT-09", "known ones are mapped; PART_TYPE for `audio`, `tool_use` and `tool_result`")
def test_parts_of_other_interfaces(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    out = run(settings_for(case_files / "TXT-09" / "other_parts.jsonl", qwen2, tmp_path))
    assert {line: code for line, (code, _) in out.rejected.items()} == {3: "PART_TYPE", 4: "PART_TYPE"}
    assert "audio" in out.rejected[4][1]
    assert set(out.accepted) == {1, 2}
    assert out.accepted[1] == out.accepted[2]  # the same picture and text under two names
    assert len(out.accepted[1].grids) == 1


@pytest.mark.case("TXT-10", "MEDIA_COUNT before any picture is fetched")
def test_a_template_that_shows_no_picture(case_files: Path, qwen2: Path, tmp_path: Path) -> None:
    model = tmp_path / "text_only"
    shutil.copytree(qwen2, model)
    shutil.copy(case_files / "TXT-10" / "text_only_template.jinja", model / "chat_template.jinja")
    out = run(settings_for(case_files / "TXT-10" / "no_token.jsonl", model, tmp_path))
    assert list(out.rejected) == [1]
    assert out.rejected[1][0] == "MEDIA_COUNT"
    assert "placeholders 0, images 1" in out.rejected[1][1]
    assert out.report["pipeline"]["fetch"]["requests"] == 0


@pytest.mark.case("TXT-11", "kept 7, SEQ_TOO_LONG 3, each with its line in the ledger")
def test_over_long_rows_are_counted(case_files: Path, qwen3: Path, tmp_path: Path) -> None:
    pack = {"tokens_per_pack": 200, "packs_per_step": 1}
    out = run(settings_for(case_files / "TXT-11" / "overlong.jsonl", qwen3, tmp_path, pack=pack))
    assert out.report["samples"] == 7
    assert out.report["bad_samples"] == {"SEQ_TOO_LONG": 3}
    assert sorted(out.rejected) == [3, 6, 10]
    assert all("limit 200, visual 0" in message for _, message in out.rejected.values())
    assert sorted(out.accepted) == [1, 2, 4, 5, 7, 8, 9]
