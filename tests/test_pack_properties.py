"""What packs owe under any settings, over made-up samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker import _core

DUMMY_TOKENS = 3
"""Of each kind of vision that a dummy holds."""


def up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@st.composite
def pack_settings(draw: st.DrawFn) -> dict[str, Any]:
    form = draw(st.sampled_from(["packed", "packed", "samples", "token_budget"]))
    align = draw(st.sampled_from([1, 1, 2, 16]))
    tokens = draw(st.integers(64, 1024)) // align * align
    pads = [pad for pad in (1, align * 3, align * 4) if pad != tokens]
    if form != "token_budget":  # where that is refused: a row as long as the budget would be alone in it
        pads.append(tokens)
    return {
        "tokens_per_pack": tokens,
        "form": form,
        "samples_per_pack": draw(st.integers(1, 9)) if form == "samples" else 1,
        "balance": draw(st.sampled_from(["flops", "flops", "tokens", "none"])),
        "max_images": draw(st.sampled_from([0, 0, 4, 9])),
        "max_patches": draw(st.sampled_from([0, 0, 500, 2000])),
        "align_samples_to": align,
        "pad_to": draw(st.sampled_from(pads)),
        "vision_uniform": draw(st.sampled_from(["none", "image", "image+video"])),
    }


def longest_sample(pack: dict[str, Any]) -> int:
    """As the settings are documented: room for a dummy is kept in every pack of a sequence, or for a row of it."""
    kinds = {"none": 0, "image": 1, "image+video": 2}[pack["vision_uniform"]]
    tokens = pack["tokens_per_pack"]
    unit = pack["pad_to"] if pack["pad_to"] > 1 else pack["align_samples_to"]
    if pack["form"] == "packed":
        return int(tokens // unit * unit - up(DUMMY_TOKENS * kinds, pack["align_samples_to"]))
    return int((tokens // 2 if pack["form"] == "token_budget" and kinds else tokens) // unit * unit)


def drawn(pack: dict[str, Any], n: int, seed: int) -> np.ndarray[Any, Any]:
    """(n, 8), as plan_window takes it; what does not fit alone is unusable."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, max(2, int(pack["tokens_per_pack"] * rng.choice([0.1, 0.5, 1.2]))), n)
    images = rng.integers(0, 4, n) * (rng.random(n) < 0.6)
    videos = (rng.random(n) < 0.2).astype(np.int64)
    patches = rng.integers(4, 400, n) * (images + 2 * videos)
    fits = tokens <= longest_sample(pack)
    if pack["max_images"]:
        fits &= images + videos <= pack["max_images"]
    if pack["max_patches"]:
        fits &= patches <= pack["max_patches"]
    tokens = tokens * (fits & (rng.random(n) < 0.9))
    return np.stack([np.arange(n), tokens, tokens // 2, patches, images, videos, tokens * 50, patches**2], axis=1)


@settings(max_examples=150, deadline=None)
@given(pack=pack_settings(), n=st.integers(0, 300), seed=st.integers(0, 2**31), window=st.integers(0, 1))
def test_what_every_pack_owes(pack: dict[str, Any], n: int, seed: int, window: int) -> None:
    if longest_sample(pack) < 1:
        return
    samples = drawn(pack, n, seed)
    plan = _core.plan_window(window, samples, pack)
    assert sorted(m for members in plan.packs for m in members) == np.flatnonzero(samples[:, 1]).tolist()
    for members, sums in zip(plan.packs, plan.sums, strict=True):
        _, tokens, _, patches, images, videos, language, _ = samples[members].T
        lacks_image = pack["vision_uniform"] != "none" and images.sum() == 0
        lacks_video = pack["vision_uniform"] == "image+video" and videos.sum() == 0
        assert (sums["needs_image_dummy"], sums["needs_video_dummy"]) == (lacks_image, lacks_video)
        dummy = DUMMY_TOKENS * (int(lacks_image) + int(lacks_video))
        aligned = [up(int(t), pack["align_samples_to"]) for t in [*tokens, *([dummy] if dummy else [])]]
        if pack["form"] == "packed":
            assert sums["total_tokens"] == up(sum(aligned), pack["pad_to"])
            assert sums["cost_language"] == language.sum()
        else:
            assert sums["row_tokens"] == up(max(aligned), pack["pad_to"])
            assert sums["total_tokens"] == sums["row_tokens"] * len(aligned)
            assert sums["cost_language"] == language.max() * len(members)
        if pack["form"] == "samples":
            assert len(members) <= pack["samples_per_pack"]
        else:
            assert sums["total_tokens"] <= pack["tokens_per_pack"]
        assert not pack["max_images"] or images.sum() + videos.sum() <= pack["max_images"]
        assert not pack["max_patches"] or patches.sum() <= pack["max_patches"]
    assert _core.plan_window(window, samples, pack).digest() == plan.digest()


@settings(max_examples=60, deadline=None)
@given(dp_size=st.integers(1, 16), n_micro=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_every_place_of_a_step_is_taken_once(dp_size: int, n_micro: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = dp_size * n_micro
    costs = [(int(a), int(b)) for a, b in zip(rng.integers(0, 10**12, n), rng.integers(0, 10**12, n), strict=True)]
    places = _core.assign_step(costs, dp_size=dp_size)
    assert sorted(places) == sorted((r, m) for r in range(dp_size) for m in range(n_micro))
