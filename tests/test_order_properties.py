"""Every sampler gives each row of its side exactly once a pass, whatever seed, sizes and windows."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from stoker import _core

Row = tuple[int, int]
"""Source, and row or byte offset."""

SEEDS = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(
    n_rows=st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    seed=SEEDS,
    shuffle=st.booleans(),
    passes=st.integers(1, 3),
)
def test_rows(n_rows: list[int], seed: int, shuffle: bool, passes: int) -> None:
    sources = [(f"content {i}", n) for i, n in enumerate(n_rows)]
    order = _core.Order.make(sources, seed=seed, shuffle=shuffle, epochs=passes)
    all_rows = [(i, row) for i, n in enumerate(n_rows) for row in range(n)]
    assert order.size == passes * len(all_rows)
    for k in range(passes):
        seen = [order.at(k * len(all_rows) + i) for i in range(len(all_rows))]
        assert {visit for visit, _, _ in seen} == {k}
        assert Counter((source, row) for _, source, row in seen) == Counter(all_rows)
        if not shuffle:
            assert [(source, row) for _, source, row in seen] == all_rows


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 40)), min_size=1, max_size=4).filter(
        lambda entries: any(n for _, n in entries)
    ),
    seed=SEEDS,
    shuffle=st.booleans(),
    epochs=st.integers(1, 4),
)
def test_mixtures(entries: list[tuple[int, int]], seed: int, shuffle: bool, epochs: int) -> None:
    sources = [(f"content {i}", n) for i, (n, _) in enumerate(entries)]
    mixture = [(1, n) for _, n in entries]
    order = _core.Order.make(sources, seed=seed, shuffle=shuffle, mixture=mixture, epochs=epochs)
    visits: Counter[Row] = Counter()
    n_of_epoch = sum(n for _, n in mixture)
    for k in range(epochs):
        seen = [order.at(k * n_of_epoch + i)[1:] for i in range(n_of_epoch)]
        of_source = Counter(source for source, _ in seen)
        assert [of_source[i] for i in range(len(entries))] == [n for _, n in mixture]
        visits.update(seen)
        for i, (n_rows, n_samples) in enumerate(entries):
            times = [visits[i, row] for row in range(n_rows)]
            assert sum(times) == (k + 1) * n_samples
            assert max(times) - min(times) <= 1, "a row came twice more often than another"


TEXTS = st.lists(
    st.tuples(st.text('ab{}"é\u2028 ', min_size=0, max_size=30), st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n"])),
    min_size=0,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(TEXTS, min_size=1, max_size=3),
    seed=SEEDS,
    chunk_bytes=st.integers(1, 200),
    per_group=st.integers(1, 5),
    window_samples=st.integers(1, 30),
    held_out=st.sampled_from([0, 200_000, 500_000]),
    has_last_end=st.booleans(),
)
def test_chunks_and_split(
    files: list[list[tuple[str, str]]],
    seed: int,
    chunk_bytes: int,
    per_group: int,
    window_samples: int,
    held_out: int,
    has_last_end: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        counted, offsets = [], []
        lines: list[dict[int, bytes]] = []
        for i, rows in enumerate(files):
            text = "".join(text + end for text, end in rows).encode()
            path = Path(folder) / f"{i}.jsonl"
            path.write_bytes(text if has_last_end else text.rstrip(b"\n"))
            counted.append(_core.Manifest.open(str(path), held_out_millionths=held_out))
            offsets.append(_core.Manifest.open(str(path), counts_rows=False, held_out_millionths=held_out))
            lines.append({counted[i].row(row)[0]: counted[i].read(row) for row in range(counted[i].n_rows)})
        # Sides are a partition, equal rows are on one of them.
        sides: dict[bool, Counter[Row]] = {}
        for is_held_out in (False, True):
            sides[is_held_out] = Counter(
                (i, m.row(row)[0]) for i, m in enumerate(counted) for row in m.rows_of_side(is_held_out)
            )
        assert sides[False] + sides[True] == Counter((i, at) for i, each in enumerate(lines) for at in each)
        texts = [{lines[i][at] for i, at in sides[is_held_out]} for is_held_out in (False, True)]
        assert not texts[0] & texts[1]
        # Each row of a side once a pass, window by window.
        sources = [(m.fingerprint, m.size_bytes, m.about_n_rows) for m in offsets]
        if not any(size for _, size, _ in sources):
            return
        order = _core.ChunkOrder.make(
            sources, seed=seed, chunk_bytes=chunk_bytes, chunks_per_group=per_group, window_samples=window_samples
        )

        def rows_of(window: int, is_held_out: bool) -> Iterator[Row]:
            group = [
                (source, at)
                for source, begin, end in order.chunks_of(window)
                for at in offsets[source].find_rows(begin, end, held_out=is_held_out)
            ]
            return (group[i] for i in order.rows_of(window, len(group)))

        for is_held_out in (False, True):
            for visit in range(2):
                first = visit * order.windows_per_pass
                seen = Counter(
                    row for w in range(first, first + order.windows_per_pass) for row in rows_of(w, is_held_out)
                )
                assert seen == sides[is_held_out]
        assert all(m.read(at) == text for m, each in zip(offsets, lines, strict=True) for at, text in each.items())


@settings(max_examples=40, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=2, max_size=2, unique=True), n=st.integers(30, 200))
def test_another_seed_is_another_order_and_so_is_another_pass(seeds: list[int], n: int) -> None:
    def places(seed: int, visit: int) -> list[int]:
        order = _core.Order.make([("content", n)], seed=seed)
        return [order.at(visit * n + i)[2] for i in range(n)]

    assert places(seeds[0], 0) == places(seeds[0], 0)
    assert places(seeds[0], 0) != places(seeds[1], 0)
    assert places(seeds[0], 0) != places(seeds[0], 1)

    def chunks(seed: int, visit: int) -> list[list[tuple[int, int, int]]]:
        order = _core.ChunkOrder.make(
            [("content", n * 10, n)], seed=seed, chunk_bytes=10, chunks_per_group=4, window_samples=4
        )
        return [order.chunks_of(visit * order.windows_per_pass + w) for w in range(order.windows_per_pass)]

    assert chunks(seeds[0], 0) == chunks(seeds[0], 0)
    assert chunks(seeds[0], 0) != chunks(seeds[1], 0)
    assert chunks(seeds[0], 0) != chunks(seeds[0], 1)
