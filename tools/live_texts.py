"""Compares token ids with the reference library itself, live, on random texts.

    python tools/live_texts.py [20000 [SEED]]

Words, scripts, combining marks, added tokens, fragments of both, code and white space, in any order. Needs the package
tokenizers beside the built one. Prints how many texts differ; the exit status says whether any does.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from stoker import _core

FILE = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl" / "tokenizer.json"
BLOCKS = (
    (0x20, 0x7F), (0x00, 0x30), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00),
    (0xE00, 0x1000), (0x1100, 0x1200), (0x1AB0, 0x1AD0), (0x1E00, 0x2000), (0x2000, 0x2100), (0x3000, 0x3100),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xFFFF), (0xF900, 0xFB10), (0x10000, 0x12000), (0x16100, 0x16130),
    (0x1D100, 0x1D200), (0x1F300, 0x1F700), (0x2F800, 0x2FA20),
)  # fmt: skip
FRAGMENTS = (
    "'s", "'S", "'\u017f", "'ll", "'LL", "'rE", "'Ve", "'d", "'x", "\r\n", "\n\n", " \n", "  ", "\t", "   \n  ", "\x85",
    "\u00a0", "\u3000", "\u00e9", "e\u0301", "\u0301", "\u0323\u0301", "a\u0323\u0302", "\u1100\u1161\u11a8",
    "\u1112\u1161", "\uac00\u11a7", "\u2026", "\u2014", "\u2019s", "12345", "\u0663", "\u2167", "\u00bd", "...", "!!!",
    "://", "<|", "|>", "<|im_", "<think", "</", "</tool_call", "\ufeff", "\u200d", "\U0001f468\u200d\U0001f469", "\x00",
    "    def f(self, x: int) -> str:\n        return f\"{x!r}\"\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b;\n}\n",
    "#include <vector>\n", "SELECT * FROM t WHERE a='b';", "\\frac{1}{2}", "https://a.b/c?d=e&f=%20#g",
    "{\"a\": [1, 2.5e-3]}",
    "\t\t\n", "\n\n\n\n", " \u3000 ", "\u2028", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
)  # fmt: skip


class Texts:
    """An endless, seeded source of texts that visit every branch of the pipeline."""

    def __init__(self, seed: int, reference: Tokenizer) -> None:
        self._rng = random.Random(seed)
        self._words: list[str] = [reference.decode([i]) for i in range(0, 151643, 7)]
        self._added: list[str] = [token["content"] for token in json.loads(FILE.read_text())["added_tokens"]]

    def _run(self, block: tuple[int, int], n: int) -> str:
        return "".join(chr(self._rng.randrange(*block)) for _ in range(n))

    def _piece(self) -> str:
        rng = self._rng
        kind = rng.random()
        if kind < 0.25:
            return rng.choice(self._words)
        if kind < 0.45:
            return rng.choice(FRAGMENTS)
        if kind < 0.5:
            return rng.choice(self._added)
        if kind < 0.7:
            return "".join(self._run(rng.choice(BLOCKS), 1) for _ in range(rng.randrange(1, 6)))
        if kind < 0.8:
            return rng.choice(" abcdefghijklmnopqrstuvwxyzABC.!") * rng.randrange(1, 40)
        if kind < 0.9:
            return "".join(rng.choice("etaoinshrdlucm ") for _ in range(rng.randrange(1, 30)))
        return self._run(rng.choice(BLOCKS), rng.randrange(1, 100))

    def next(self) -> str:
        """A text, often empty or short."""
        return "".join(self._piece() for _ in range(self._rng.randrange(0, 25)))


def same(ours: _core.Tokenizer, reference: Tokenizer, text: str) -> bool:
    """Whether a text has the reference's ids."""
    ids: list[int] = reference.encode(text, add_special_tokens=False).ids
    return bool(ours.encode(text).tolist() == ids)


def reference() -> Tokenizer:
    """The library's own tokenizer."""
    return Tokenizer.from_file(str(FILE))


def differing(n_texts: int, seed: int) -> list[str]:
    """The texts whose ids differ, of `n_texts`."""
    ours, theirs = _core.Tokenizer(FILE), reference()
    texts = Texts(seed, theirs)
    different = []
    for _ in range(n_texts):
        text = texts.next()
        if not same(ours, theirs, text):
            different.append(text)
    return different


if __name__ == "__main__":
    n_texts = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    found = differing(n_texts, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    sys.stdout.write(f"{n_texts} texts, {len(found)} differ\n")
    sys.stdout.writelines(f"{text!a}\n" for text in found[:10])
    sys.exit(int(bool(found)))
