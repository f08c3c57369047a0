"""Ids and labels of random conversations beside the reference: its renderer, its marks of what an assistant says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_chats import Chats, dumps
from stoker import _core
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

TESTDATA = Path(__file__).resolve().parent.parent / "testdata"
VISION = range(151652, 151657)
END, FEED = 151645, 198


def marked_qwen3() -> str:
    """The template with the reference's marks around what an assistant says: content, calls, the end and its line."""
    text = (TESTDATA / "qwen3-vl" / "chat_template.jinja").read_text()
    opening, closing = "{{- '<|im_start|>' + message.role + '\\n' }}\n", "{{- '<|im_end|>\\n' }}\n"
    begin = text.index(opening, text.index('message.role == "assistant"')) + len(opening)
    end = text.index(closing, begin) + len(closing)
    return f"{text[:begin]}{{%- generation %}}\n{text[begin:end]}{{%- endgeneration %}}\n{text[end:]}"


def marked_qwen2() -> str:
    text = json.loads((TESTDATA / "qwen2_5-vl" / "chat_template.json").read_text())["chat_template"]
    begin = text.index("{% if message['content'] is string %}")
    end = text.index("{% endfor %}{% if add_generation_prompt %}")
    body = text[begin:end]
    said = "{% generation %}" + body + "{% endgeneration %}"
    either = "{% if message['role'] == 'assistant' %}" + said + "{% else %}" + body + "{% endif %}"
    return f"{text[:begin]}{either}{text[end:]}"


def expected(template: str, tokenizer: Tokenizer, row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """(ids, trained) by the reference, vision tokens not trained."""
    rendered, said = render_jinja_template(
        conversations=[row["messages"]],
        tools=row.get("tools"),
        chat_template=template,
        return_assistant_tokens_mask=True,
    )
    encoding = tokenizer.encode(rendered[0], add_special_tokens=False)
    trained = [0] * len(encoding.ids)
    for begin, end in said[0]:
        first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
        assert first is not None
        assert last is not None
        for i in range(first, last + 1):
            trained[i] = int(encoding.ids[i] not in VISION)
    return encoding.ids, trained


def random_row(chats: Chats) -> dict[str, Any]:
    messages = chats.next()
    for message in messages:
        if isinstance(message.get("content"), list) and message["role"] in ("user", "tool"):
            message["content"] = [
                {"type": "image", "image": "x.png"} if {"image", "video"} & {p.get("type"), *p} else p
                for p in message["content"]
            ]
        elif isinstance(message.get("content"), list):  # Qwen3-VL shows pictures in questions only
            message["content"] = [p for p in message["content"] if "text" in p]
    tools = chats.tools()
    return {"messages": messages, **({"tools": tools} if tools else {})}


def compare(model: Path, template: str, n_chats: int, seed: int) -> tuple[int, list[Any]]:
    """How many conversations were compared, and those that differ."""
    tokenizer = Tokenizer.from_file(str(TESTDATA / "qwen3-vl" / "tokenizer.json"))
    chats = Chats(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < n_chats:
        row = random_row(chats)
        # Under the reference's rules these are a place for a picture; a row that has none is refused.
        if "<|image_pad|>" not in dumps(row):
            rows.append(row)
    found = _core.encode_rows(str(model), [dumps(row).encode() for row in rows])
    n_compared, different = 0, []
    for row, (ids, trained, code, message) in zip(rows, found, strict=True):
        wanted_ids, wanted = expected(template, tokenizer, row)
        if code:  # the reference also trains what says nothing but its end
            assert code == "NO_LOSS_TOKENS", (message, row)
            assert {i for i, t in zip(wanted_ids, wanted, strict=True) if t} <= {END, FEED}, row
            continue
        n_compared += 1
        if (ids, trained) != (wanted_ids, wanted):
            different.append(row)
    return n_compared, different


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    for source in ("qwen2_5-vl/preprocessor_config.json", "qwen2_5-vl/chat_template.json", "qwen3-vl/tokenizer.json"):
        (folder / Path(source).name).symlink_to(TESTDATA / source)
    return folder


FAMILIES = {"qwen3-vl": marked_qwen3, "qwen2-vl": marked_qwen2}


@pytest.mark.parametrize("family", FAMILIES)
def test_random_chats_have_the_references_ids_and_labels(family: str, qwen2: Path) -> None:
    marked: Callable[[], str] = FAMILIES[family]
    n_compared, different = compare(TESTDATA / family if family == "qwen3-vl" else qwen2, marked(), 150, seed=4)
    assert different == []
    assert n_compared > 100


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_many_random_chats_have_the_references_ids_and_labels(family: str, qwen2: Path) -> None:
    marked: Callable[[], str] = FAMILIES[family]
    n_compared, different = compare(TESTDATA / family if family == "qwen3-vl" else qwen2, marked(), 3000, seed=6)
    assert different == []
    assert n_compared >= 2000
