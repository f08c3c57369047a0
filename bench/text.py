"""Tokenizer speed beside Hugging Face ``tokenizers``, one thread each, on chat text that neither has seen before.

The corpus is made from what every machine of ours carries, by a fixed seed:

- 45 % prose: docstrings of the standard library, and the documentation in installed packages' metadata (Markdown);
- 30 % code: stretches of the standard library's modules in Markdown fences;
- 25 % other languages: sentences from the translation catalogues in /usr/share/locale (German, French, Spanish,
  Portuguese, Polish, Vietnamese, Turkish, Russian, Ukrainian, Greek, Chinese, Japanese, Korean, Arabic, Hindi). Where
  there are none, the first two take their place; the share that was found is a result of its own.

A stretch of text is used once, so a sample, or a part of one, never comes back; that words do is the nature of text.
Samples are rounds of a chat: turn marks, a question, an answer. They go to both tokenizers in alternating chunks, the
first of which warms up and is not counted, and the ids are compared. Time is the process's CPU time: other load on the
machine does not count, threads of either tokenizer would.

fastokens and gigatoken run beside them where they are installed (``pip install -r requirements/bench.txt``), through
the call of theirs that makes no Python object per token, on one thread.
"""

from __future__ import annotations

import ast
import gettext
import importlib.metadata
import os
import random
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
LOCALES = Path("/usr/share/locale")
LANGUAGES = ("de", "fr", "es", "pt_BR", "pl", "vi", "tr", "ru", "uk", "el", "zh_CN", "zh_TW", "ja", "ko", "ar", "hi")
BAR_RATIO = 20.0
CORPUS_CHARS = 4_000_000
N_CHUNKS = 24


def _code_files(rng: random.Random) -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(root.rglob("*.py")) if "site-packages" not in p.parts and "test" not in str(p)]
    rng.shuffle(files)
    return files


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 60:
                yield text


def _cut(text: str, rng: random.Random) -> Iterator[str]:
    """Cuts text at line ends into stretches of about 100 to 2,000 characters."""
    at = 0
    while at < len(text):
        end = text.find("\n", at + int(100 * 20 ** rng.random()))
        end = len(text) if end < 0 else end + 1
        yield text[at:end]
        at = end


def _prose_and_code(rng: random.Random, n_prose: int, n_code: int) -> tuple[list[str], list[str]]:
    prose: list[str] = []
    code: list[str] = []
    packages = Path(sysconfig.get_paths()["purelib"])
    seen: set[str] = set()
    for path in sorted(packages.glob("*.dist-info/METADATA")):
        body = path.read_text(errors="replace").partition("\n\n")[2]
        for piece in _cut(body, rng):
            if piece not in seen:
                seen.add(piece)
                prose.append(piece)
    for path in _code_files(rng):
        if sum(map(len, prose)) > n_prose and sum(map(len, code)) > n_code:
            break
        source = path.read_text(errors="replace")
        documentation = list(_docstrings(source))
        prose.extend(documentation)
        for text in documentation:
            source = source.replace(text, "")
        code.extend(f"```python\n{piece}```\n" for piece in _cut(source, rng))
    return prose, code


def _other_languages(rng: random.Random, n_chars: int) -> list[str]:
    """Paragraphs of neighbouring catalogue entries, each language the same share."""
    found: list[str] = []
    for language in LANGUAGES:
        sentences: list[str] = []
        for path in sorted((LOCALES / language / "LC_MESSAGES").glob("*.mo")):
            try:
                with path.open("rb") as file:
                    catalogue = gettext.GNUTranslations(file)
            except (OSError, UnicodeDecodeError, ValueError):
                continue
            entries: dict[object, object] = vars(catalogue)["_catalog"]
            sentences.extend(v for k, v in entries.items() if k and isinstance(v, str) and len(v) > 20)
        sentences = list(dict.fromkeys(sentences))
        n_found = at = 0
        while at < len(sentences) and n_found < n_chars // len(LANGUAGES):
            n = rng.randrange(2, 12)
            found.append(" ".join(sentences[at : at + n]) + "\n")
            n_found += len(found[-1])
            at += n
    return found


def corpus(seed: int = 7) -> tuple[list[str], float]:
    """Returns chat samples, each of them different, and the share of characters in other languages."""
    rng = random.Random(seed)
    other = _other_languages(rng, CORPUS_CHARS // 4)
    n_rest = CORPUS_CHARS - sum(map(len, other))
    prose, code = _prose_and_code(rng, n_rest * 6 // 10, n_rest * 4 // 10)
    kinds: list[list[str]] = []
    for pieces, n_chars in ((prose, n_rest * 6 // 10), (code, n_rest * 4 // 10), (other, CORPUS_CHARS)):
        rng.shuffle(pieces)
        kept: list[str] = []
        n_kept = 0
        for piece in pieces:
            if n_kept >= n_chars:
                break
            kept.append(piece)
            n_kept += len(piece)
        kinds.append(kept)
    pieces = [piece for kind in kinds for piece in kind]
    rng.shuffle(pieces)
    samples: list[str] = []
    while pieces:
        question = pieces.pop()
        answer = "".join(pieces.pop() for _ in range(min(len(pieces), rng.randrange(1, 4))))
        samples.append(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n")
    return samples, sum(map(len, kinds[2])) / sum(map(len, samples))


def _fastokens(file: Path) -> Callable[[list[str]], Any]:
    import fastokens
    import numpy as np

    tokenizer = fastokens.Tokenizer.from_file(str(file))
    return lambda texts: np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32)


def _gigatoken(file: Path) -> Callable[[list[str]], Any]:
    import awkward
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(file.read_bytes())
    return lambda texts: awkward.to_numpy(awkward.flatten(tokenizer.encode_batch(texts, parallel=False)))


class Contender:
    """A tokenizer under test: CPU seconds per chunk, and chunks in which its ids were others."""

    def __init__(self, name: str, encode: Callable[[list[str]], Any]) -> None:
        self.name = name
        self._encode = encode
        self.seconds: list[float] = []
        self.n_different = 0

    def take(self, chunk: list[str], expected: list[int]) -> None:
        begin = time.process_time()
        ids = self._encode(chunk)
        self.seconds.append(time.process_time() - begin)
        self.n_different += int(ids.tolist() != expected)


def contenders(file: Path) -> list[Contender]:
    """Those that are installed."""
    found = []
    for name, make in (("fastokens", _fastokens), ("gigatoken", _gigatoken)):
        try:
            found.append(Contender(f"{name} {importlib.metadata.version(name)}", make(file)))
        except (ImportError, importlib.metadata.PackageNotFoundError):
            continue
    return found


def run() -> list[dict[str, Any]]:
    """Measures; see the module's text."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    import tokenizers
    from stoker import _core

    samples, share_other = corpus()
    ours = _core.Tokenizer(MODEL / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    others = contenders(MODEL / "tokenizer.json")
    n_tokens: list[int] = []
    our_s: list[float] = []
    their_s: list[float] = []
    n_different = 0
    size = -(-len(samples) // N_CHUNKS)
    for at in range(0, len(samples), size):
        chunk = samples[at : at + size]
        begin = time.process_time()
        encodings = theirs.encode_batch_fast(chunk, add_special_tokens=False)
        middle = time.process_time()
        ids = ours.encode_many(chunk)
        end = time.process_time()
        expected = [i for encoding in encodings for i in encoding.ids]
        n_different += int(ids.tolist() != expected)
        for other in others:
            other.take(chunk, expected)
        n_tokens.append(len(expected))
        their_s.append(middle - begin)
        our_s.append(end - middle)
    n_tokens, our_s, their_s = n_tokens[1:], our_s[1:], their_s[1:]
    ratio = sum(their_s) / sum(our_s)
    spread = statistics.quantiles((t / o for t, o in zip(their_s, our_s, strict=True)), n=4)
    n_chars = sum(map(len, samples[size:]))

    def result(name: str, value: float, unit: str, bar: float | None = None, *, ok: bool = True) -> dict[str, Any]:
        return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": ok}

    name = f"Hugging Face tokenizers {tokenizers.__version__}"
    return [
        result("stoker", sum(n_tokens) / sum(our_s) / 1e6, "million tokens/s"),
        result(name, sum(n_tokens) / sum(their_s) / 1e6, "million tokens/s"),
        *(result(other.name, sum(n_tokens) / sum(other.seconds[1:]) / 1e6, "million tokens/s") for other in others),
        *(result(f"{other.name}: chunks with different ids", other.n_different, "chunks") for other in others),
        result("ratio", ratio, "times", BAR_RATIO, ok=ratio >= BAR_RATIO),
        result("ratio, quartiles over chunks: first", spread[0], "times"),
        result("ratio, quartiles over chunks: third", spread[2], "times"),
        result("chunks with different ids", n_different, "chunks", 0, ok=n_different == 0),
        result("tokens measured", sum(n_tokens), "tokens"),
        result("characters per token", n_chars / sum(n_tokens), "characters"),
        result("share of other languages", share_other, "of characters"),
    ]
