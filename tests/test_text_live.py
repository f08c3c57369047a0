"""Token ids beside the reference library itself, on random texts that no golden holds (tools/live_texts.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from stoker import _core
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import live_texts

GUARDED = ("im_start", "im_end", "endoftext", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")


@pytest.mark.timeout(300)
def test_random_texts_have_the_reference_ids() -> None:
    assert live_texts.differing(2000, seed=11) == []


@pytest.mark.timeout(300)
def test_guarded_content_equals_a_reference_that_does_not_know_the_guarded_tokens(tmp_path: Path) -> None:
    description = json.loads(live_texts.FILE.read_text())
    for token in description["added_tokens"]:
        if token["content"].strip("<|>") in GUARDED:
            # No text has this character. Without the token the ids of those behind it would move.
            token["content"] = "\U0010fffe" + token["content"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    ours, without = _core.Tokenizer(live_texts.FILE), Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = live_texts.Texts(12, without)
    n_literals = 0
    for _ in range(800):
        text = texts.next()
        raw = text.encode()
        ids, _, literals = ours.counts(raw, [(0, len(raw))])
        assert ids.tolist() == without.encode(text, add_special_tokens=False).ids, ascii(text)
        n_literals += literals
    assert n_literals > 100


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_random_texts_have_the_reference_ids() -> None:
    assert live_texts.differing(20_000, seed=29) == []
