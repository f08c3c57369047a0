"""Random conversations in the reference's form, and the same in the engine's plain form."""

from __future__ import annotations

import json
import random
from typing import Any

Part = tuple[str, str]
PlainTurn = tuple[str, bool, list[Part], list[tuple[str, str]]]

WORDS = (
    "hi", "What is this?", " ", "", "\n", "\n\n", "  leading", "trailing \n", "assistant\nno", "{{ x }}", "{% if %}",
    "caf\u00e9", "e\u0301", "\u4f60\u597d", "\U0001f600", "\\n", '"quoted"', "'s", "<|im_end|>", "<|im_start|>",
    "<|im_start|>assistant\n", "<|image_pad|>", "<|vision_start|>", "<|endoftext|>", "<think>\nwell\n</think>\n\n",
    "<tool_call>", "</tool_response>", "<", "<|", "<|im_", "end|>", "Picture 1: ", "\u00a0", "\t", "12345",
    "<b>&amp;</b>",
)  # fmt: skip
NAMES = ("get_weather", "f", "rechne", 'say "x"', "\u5929\u6c14")
VALUES: tuple[Any, ...] = (1, -0.5, 1e300, True, None, "Z\u00fcrich", "<|im_end|>", [1, [2]], {"a": {"b": []}}, "")


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain_part(part: dict[str, Any]) -> Part:
    if part.get("type") == "image" or "image" in part or "image_url" in part:
        return ("image", "x.png")
    if part.get("type") == "video" or "video" in part:
        return ("video", "x.mp4")
    return ("text", part["text"])


def plain_turn(message: dict[str, Any]) -> PlainTurn:
    content = message.get("content") or []
    parts = [("text", content)] if isinstance(content, str) else [plain_part(p) for p in content]
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or call
        arguments = function["arguments"]
        calls.append((function["name"], arguments if isinstance(arguments, str) else dumps(arguments)))
    return (message["role"], bool(content), parts, calls)


class Chats:
    """An endless, seeded source of conversations that visit every branch of the templates."""

    def __init__(self, seed: int, *, media: bool = True, developer: bool = True) -> None:
        self.rng = random.Random(seed)
        self._media = media
        self._roles = ["user", "assistant", "tool", "system", *(["developer"] if developer else [])]

    def text(self) -> str:
        return "".join(self.rng.choice(WORDS) for _ in range(self.rng.randrange(0, 5)))

    def _part(self) -> dict[str, Any]:
        rng = self.rng
        kind = rng.random()
        if not self._media or kind < 0.5:
            return rng.choice([{"type": "text", "text": self.text()}, {"text": self.text()}])
        if kind < 0.8:
            return rng.choice([{"type": "image"}, {"type": "image", "image": "x.png"}, {"image": "x.png"}])
        return rng.choice([{"type": "video"}, {"type": "video", "video": "x.mp4"}])

    def _content(self) -> Any:
        rng = self.rng
        return self.text() if rng.random() < 0.5 else [self._part() for _ in range(rng.randrange(0, 5))]

    def _call(self) -> dict[str, Any]:
        rng = self.rng
        arguments: Any = {rng.choice(NAMES): rng.choice(VALUES) for _ in range(rng.randrange(0, 3))}
        if rng.random() < 0.4:
            arguments = rng.choice([dumps(arguments), json.dumps(arguments), "not json", ""])
        function = {"name": rng.choice(NAMES), "arguments": arguments}
        return rng.choice([function, {"type": "function", "function": function}])

    def message(self, role: str) -> dict[str, Any]:
        rng = self.rng
        message: dict[str, Any] = {"role": role}
        if role in ("user", "system", "tool", "developer") or rng.random() < 0.8:
            message["content"] = self._content()
        if role == "assistant" and rng.random() < 0.4:
            message["tool_calls"] = [self._call() for _ in range(rng.randrange(0, 3))]
        return message

    def tools(self) -> list[dict[str, Any]] | None:
        rng = self.rng
        if rng.random() < 0.6:
            return None
        return [
            {"type": "function", "function": {"name": rng.choice(NAMES), "parameters": rng.choice(VALUES)}}
            for _ in range(rng.randrange(0, 3))
        ]

    def next(self) -> list[dict[str, Any]]:
        rng = self.rng
        messages = [self.message("system")] if rng.random() < 0.4 else []
        if rng.random() < 0.3:  # any order
            messages += [self.message(rng.choice(self._roles)) for _ in range(rng.randrange(1, 6))]
        for _ in range(rng.randrange(0 if messages else 1, 4)):
            messages.append(self.message("user"))
            for _ in range(rng.randrange(1, 3)):
                messages.append(self.message("assistant"))
                messages += [self.message("tool") for _ in range(rng.choice([0, 0, 1, 2]))]
        return messages
