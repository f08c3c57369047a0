"""Resumed at every step with another number of ranks, the steps are those of the run that was never interrupted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, encoded, ledger, picture, settings_for
from stoker import Loader, Settings

N_ROWS = 36


def hurt_data(folder: Path, seed: int) -> DataSet:
    """Texts and small pictures; some rows are bad at once, some only when their picture is decoded."""
    rng = random.Random(seed)
    data = DataSet(folder)
    for n in range(N_ROWS):
        kind = rng.random()
        answer = f"{n} " + "word " * rng.randrange(1, 60)
        if kind < 0.1:
            data.row(b'{"messages": [')
        elif kind < 0.2:
            data.chat(n, ["absent.jpg"], answer=answer)
        elif kind < 0.6:
            body = encoded(picture(256, 256, seed * 100 + n), "JPEG", quality=90)
            if kind < 0.3:  # its header is sound, its size stands in the row: nothing shows before it is decoded
                body = body[: len(body) // 2]
            ref = data.image(f"{n}.jpg", body)
            data.chat(n, [{"type": "image", "image": ref, "height": 256, "width": 256}], answer=answer)
        else:
            data.chat(n, [], answer=answer)
    return data.write()


def run_settings(folder: Path, seed: int, packs_per_step: int, tokens_per_pack: int, window: int) -> Settings:
    sources = [hurt_data(folder / name, 2 * seed + i) for i, name in enumerate(("one", "two"))]
    data = [
        {"manifest": str(source.manifest), "weight": weight} for source, weight in zip(sources, (3, 1), strict=True)
    ]
    pack = {"packs_per_step": packs_per_step, "tokens_per_pack": tokens_per_pack}
    return settings_for(sources[0], folder).replace(
        data=data,
        pack=pack,
        window_samples=window,
        bad_samples={"max_fraction": 1.0},
        speed={"cpu_threads": 1, "prefetch_steps": 1},
    )


def check_elastic(settings: Settings, rng: random.Random, n_steps: int) -> set[int]:
    """Every step over another number of ranks, its state from any of them. Returns the windows that steps began in."""
    packs_per_step = settings.pack.packs_per_step
    sizes = [n for n in range(1, packs_per_step + 1) if packs_per_step % n == 0]
    whole = [sorted(step) for step in digests(settings, n_steps)]
    state: dict[str, Any] | None = None
    windows = []
    for i, wanted in enumerate(whole):
        dp_size = rng.choice(sizes)
        chosen = rng.randrange(dp_size)
        found, after = [], None
        for rank in range(dp_size):
            with Loader(settings, dp_rank=rank, dp_size=dp_size) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                step = next(loader.steps())
                assert [batch.counts.step for batch in step] == [i] * (packs_per_step // dp_size)
                found += [batch.digest() for batch in step]
                if rank == chosen:
                    after = loader.state_dict()
        assert sorted(found) == wanted, f"step {i} over {dp_size} ranks"
        state = after
        assert state is not None
        windows.append(int(state["window"]))
    assert len(set(windows)) < len(windows), "no window was resumed in twice"
    return set(windows)


@pytest.mark.parametrize("seed", [1, 2])
def test_another_number_of_ranks_at_every_step(tmp_path: Path, seed: int) -> None:
    """A mixture over several passes, with rows that are bad from the start and samples that turn out bad."""
    settings = run_settings(tmp_path, seed, packs_per_step=4, tokens_per_pack=256, window=40)
    windows = check_elastic(settings, random.Random(seed), 8)
    assert max(windows) * 40 > 2 * N_ROWS, "one pass only"
    codes = {entry["code"] for entry in ledger(settings)}
    assert {"JSON_SYNTAX", "MEDIA_NOT_FOUND"} <= codes
    assert any(code.startswith("IMG_") for code in codes), "no sample turned out bad"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))])
def test_up_to_64_ranks(tmp_path: Path, seed: int) -> None:
    settings = run_settings(tmp_path, 10 + seed, packs_per_step=64, tokens_per_pack=128, window=300)
    check_elastic(settings, random.Random(seed), 8)
