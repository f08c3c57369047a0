"""Tokens as people read them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

__all__ = ["Vocabulary"]


@cache
def _bytes_of_characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in kept}
    for n, byte in enumerate(byte for byte in range(256) if byte not in kept):
        table[chr(256 + n)] = byte
    return table


class Vocabulary:
    """Ids to text, from a checkpoint folder's ``tokenizer.json``."""

    def __init__(self, folder: str | Path) -> None:
        content = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
        characters = _bytes_of_characters()
        self._bytes: dict[int, bytes] = {
            number: bytes(characters.get(c, 0x3F) for c in token) for token, number in content["model"]["vocab"].items()
        }
        self._added = {token["id"]: str(token["content"]) for token in content["added_tokens"]}

    def is_added(self, number: int) -> bool:
        """Whether it is a token like ``<|im_end|>`` and no piece of text."""
        return number in self._added

    def added(self) -> list[str]:
        """The tokens like ``<|im_end|>``."""
        return list(self._added.values())

    def text(self, number: int) -> str:
        """One token; what is only a part of a character is shown as bytes."""
        if number in self._added:
            return self._added[number]
        raw = self._bytes.get(number)
        if raw is None:
            return f"<no token {number}>"
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02x}>" for byte in raw)

    def texts(self, numbers: list[int]) -> str:
        """Several tokens, as the text that they are together."""
        out = bytearray()
        for number in numbers:
            if number in self._added:
                out += self._added[number].encode("utf-8")
            else:
                out += self._bytes.get(number, b"?")
        return out.decode("utf-8", "replace")
