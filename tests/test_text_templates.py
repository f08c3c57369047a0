"""Native chat templates beside the reference's own Jinja environment, on random conversations."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from random_chats import Chats, dumps, plain_turn
from stoker import BadSampleError, InvalidArgumentError, _core, render_chat
from stoker.jinja import make_renderer
from transformers.utils.chat_template_utils import render_jinja_template

TESTDATA = Path(__file__).resolve().parent.parent / "testdata"
QWEN2 = TESTDATA / "qwen2_5-vl" / "chat_template.json"
QWEN3 = TESTDATA / "qwen3-vl" / "chat_template.jinja"
DEFAULT_SYSTEM = (
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}"
)


def texts() -> dict[str, str]:
    qwen2 = json.loads(QWEN2.read_text())["chat_template"]
    assert DEFAULT_SYSTEM in qwen2
    return {
        "qwen3-vl": QWEN3.read_text(),
        "qwen2-vl": qwen2,
        "qwen2-vl without system": qwen2.replace(DEFAULT_SYSTEM, ""),
    }


def reference(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    rendered, _ = render_jinja_template(conversations=[messages], chat_template=template, **options)
    text = rendered[0]
    assert isinstance(text, str)
    return text


def differing(name: str, folder: Path, n_chats: int, seed: int) -> list[Any]:
    template = texts()[name]
    (folder / "chat_template.jinja").write_text(template)
    chats = Chats(seed)
    different = []
    for _ in range(n_chats):
        messages, tools = chats.next(), chats.tools()
        options = {
            "add_generation_prompt": chats.rng.random() < 0.5,
            "add_vision_id": chats.rng.random() < 0.5,
        }
        wanted = reference(template, messages, tools=tools, **options)
        chunks = _core.render_chat(
            folder, [plain_turn(m) for m in messages], [dumps(t) for t in tools or []], **options
        )
        if "".join(chunk.text for chunk in chunks) != wanted:
            different.append(messages)
    return different


def test_the_shipped_file_is_the_one_that_the_hub_has() -> None:
    body = QWEN2.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    assert blob == "732bd68bc5427d1fb6c06a59b3bf2456b2155d24"  # Qwen2-VL-2B, Qwen2.5-VL-3B and 7B Instruct


@pytest.mark.parametrize("name", texts())
def test_random_chats_render_to_the_references_text(name: str, tmp_path: Path) -> None:
    assert differing(name, tmp_path, 400, seed=3) == []


@pytest.mark.soak
@pytest.mark.parametrize("name", texts())
def test_many_random_chats_render_to_the_references_text(name: str, tmp_path: Path) -> None:
    assert differing(name, tmp_path, 20_000, seed=5) == []


# --- jinja2 in the engine's service

FOREIGN = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content | trim }}{% else %}{% for part in message.content %}
{%- if part.type == 'text' %}{{ part.text }}{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}
{%- endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}"""


def as_row(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The row of a conversation whose pictures all have a name."""
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = [
                {"type": "image", "image": "x.png"} if "image" in (p.get("type"), *p) else p for p in message["content"]
            ]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def test_jinja_and_native_agree_and_say_so() -> None:
    chats = Chats(17, media=False, developer=False)
    for _ in range(60):
        row = as_row(chats.next(), chats.tools())
        assert render_chat(row, model=QWEN3, template="check") == render_chat(row, model=QWEN3)
        assert render_chat(row, model=QWEN3, template="jinja") == render_chat(row, model=QWEN3)


def test_an_unknown_template_is_rendered_by_jinja(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(FOREIGN)
    row = as_row(
        [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]},
            {
                "role": "assistant",
                "content": " <|im_end|> ",
                "tool_calls": [{"name": "f", "arguments": {"a": "\u00fc"}}],
            },
        ]
    )
    wanted = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what?<|im_end|>\n"
        '<|im_start|>assistant\n<|im_end|>{"a": "\u00fc"}<|im_end|>\n'
    )
    assert render_chat(row, model=tmp_path) == wanted
    with pytest.raises(InvalidArgumentError) as refused:
        render_chat(row, model=tmp_path, template="native")
    assert refused.value.code == "TEMPLATE_UNKNOWN"
    assert str(tmp_path / "chat_template.jinja") in refused.value.message


def test_the_rows_control_tokens_are_known_in_what_jinja_renders() -> None:
    """Where a row's words lie is worked out from the rendered text alone, and equals what the native renderer knows."""
    chats = Chats(23, media=False, developer=False)
    rows = [dumps(as_row(chats.next(), chats.tools())).encode() for _ in range(250)]
    model = str(TESTDATA / "qwen3-vl")
    n_guarded = 0
    for reference_name in ("stoker", "hf-5.18-torchvision"):
        native = _core.encode_rows(model, rows, reference=reference_name)
        jinja = _core.encode_rows(model, rows, reference=reference_name, engine="jinja", make_renderer=make_renderer)
        for row, ours, theirs in zip(rows, native, jinja, strict=True):
            if ours[2] in ("TURN_ORDER", "ROLE_UNKNOWN"):  # jinja2 cannot know what a template leaves out
                continue
            n_guarded += reference_name == "stoker" and b"<|im_end|>" in row and not ours[2]
            assert ours[:3] == theirs[:3], row
    assert n_guarded > 20


def test_what_a_template_says_reaches_the_user(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hi"}]}
    file = tmp_path / "chat_template.jinja"
    file.write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadSampleError, match="roles must alternate") as order:
        render_chat(row, model=tmp_path)
    assert order.value.code == "TURN_ORDER"
    file.write_text("{{ messages[0].nothing.at_all }}")
    with pytest.raises(BadSampleError, match="UndefinedError") as failed:
        render_chat(row, model=tmp_path)
    assert failed.value.code == "TEMPLATE_FAILED"
    file.write_text("{{ strftime_now('%Y') }}")
    with pytest.raises(BadSampleError, match="no two runs"):
        render_chat(row, model=tmp_path)
    file.write_text("{% for %}")
    with pytest.raises(InvalidArgumentError, match="line 1"):
        render_chat(row, model=tmp_path)


def test_special_tokens_come_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ documents }}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": None, "eos_token": {"content": "<e>"}}))
    assert render_chat([{"role": "user", "content": "hi"}], model=tmp_path) == "<e>None"
