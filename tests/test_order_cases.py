"""Trouble with order, resume and bad samples that people reported, to the end: through the loader."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from loader_data import DataSet, encoded, ledger, picture, settings_for
from stoker import InvalidArgumentError, Loader, Settings


def texts(folder: Path, n_rows: int, *, words: int = 5) -> DataSet:
    data = DataSet(folder)
    for n in range(n_rows):
        data.chat(n, [], answer=f"{n} " + "word " * words)
    return data.write()


def late_bad(data: DataSet, n: int) -> str:
    """A picture whose damage shows only when it is decoded."""
    body = encoded(picture(256, 256, n), "JPEG", quality=90)
    return data.image(f"late-{n}.jpg", body[: len(body) // 2])


def steps_of(settings: Settings, dp_size: int) -> list[list[list[list[int]]]]:
    """Sample ids by rank, step and micro-batch."""
    ranks = []
    for rank in range(dp_size):
        with Loader(settings, dp_rank=rank, dp_size=dp_size) as loader:
            ranks.append([[batch.layout.sample_ids.tolist() for batch in step] for step in loader.steps()])
    return ranks


@pytest.mark.case("LDR-03", "as many steps and micro-batches on every rank, whatever is bad; dummies marked, no loss")
def test_ranks_get_equal_numbers_of_batches(tmp_path: Path) -> None:
    few = settings_for(texts(tmp_path / "few", 5, words=100), tmp_path, epochs=1).replace(
        pack={"packs_per_step": 4, "tokens_per_pack": 256}
    )
    data = DataSet(tmp_path / "hurt")
    for n in range(16):  # late ones keep their pack, early ones are planned around
        picture_of = {1: "absent.jpg", 2: late_bad(data, n)}.get(n % 4)
        images = [] if picture_of is None else [{"type": "image", "image": picture_of, "height": 256, "width": 256}]
        data.chat(n, images)
    hurt = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    for settings, n_good in ((few, 5), (hurt, 8)):
        ranks = steps_of(settings, 2)
        assert {len(steps) for steps in ranks} == {len(ranks[0])}
        assert {len(step) for steps in ranks for step in steps} == {2}
        packs = [pack for steps in ranks for step in steps for pack in step]
        assert [-1] in packs, "no dummy: choose other data"
        assert len({i for pack in packs for i in pack if i >= 0}) == n_good


@pytest.mark.case("LDR-04", "DATA_TOO_SMALL at the start; NO_DATA after one pass; nothing spins")
def test_a_rank_without_any_sample(tmp_path: Path) -> None:
    three = settings_for(texts(tmp_path / "three", 3), tmp_path, pack={"packs_per_step": 8})
    with Loader(three, dp_rank=7, dp_size=8) as loader:
        with pytest.raises(InvalidArgumentError, match="3 rows for steps of 8 packs") as error:
            next(loader)
        assert error.value.code == "DATA_TOO_SMALL"
    all_bad = DataSet(tmp_path / "bad", [b"{"] * 20).write()
    with Loader(settings_for(all_bad, tmp_path, bad_samples={"max_fraction": 1.0})) as loader:
        with pytest.raises(InvalidArgumentError, match="whole pass") as error:
            next(loader)
        assert error.value.code == "NO_DATA"
    one_pass = three.replace(epochs=1)
    ranks = steps_of(one_pass, 8)
    assert {len(steps) for steps in ranks} == {1}
    assert sorted(i for steps in ranks for pack in steps[0] for i in pack if i >= 0) == [0, 1, 2]


@pytest.mark.case("LDR-11", "every sample once: the plan is computed again from its cursor")
def test_no_sample_lives_in_the_process_only(tmp_path: Path) -> None:
    """Each step from a process state of its own: what did not fit the pack before must come all the same."""
    data = DataSet(tmp_path / "data")
    for n, words in enumerate((70, 60, 80) * 4):
        data.chat(n, [], answer="word " * words)
    settings = settings_for(data.write(), tmp_path, epochs=1, pack={"packs_per_step": 1, "tokens_per_pack": 200})
    seen: Counter[int] = Counter()
    state = None
    while True:
        with Loader(settings) as loader:
            if state is not None:
                loader.load_state_dict(state)
            step = next(loader.steps(), None)
            if step is None:
                break
            seen.update(step[0].layout.sample_ids.tolist())
            state = loader.state_dict()
    assert seen == Counter(range(12))


@pytest.mark.case("LDR-21", "each good row exactly once, 10 ledger lines, nothing in a bad one's place")
def test_a_bad_sample_is_never_replaced_by_another(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    bad = set()
    for n in range(100):
        if n % 10 == 3:
            ref = late_bad(data, n) if n % 20 == 3 else "absent.jpg"
            bad.add(data.chat(n, [{"type": "image", "image": ref, "height": 256, "width": 256}]))
        else:
            data.chat(n, [])
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0})
    with Loader(settings) as loader:
        ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
        lines = Counter(loader.describe(i).line for i in ids)
    assert lines == Counter(set(range(1, 101)) - bad)
    assert sorted(entry["line"] for entry in ledger(settings)) == sorted(bad)
