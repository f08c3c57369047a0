"""Orders as a trainer sees them: samplers, sides of a split, and that nothing but seed and data decides them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, digests, eventually, ledger, settings_for, taken
from stoker import InvalidArgumentError, Loader, Settings
from stoker.testing import Behaviour, Latency, StorageServer

CHUNKED: dict[str, Any] = {"shuffle": "chunked", "chunks": {"size": 1024, "per_group": 3}}
"""Small enough for several groups."""


def texts(folder: Path, rows: range, *, name: str = "row") -> DataSet:
    data = DataSet(folder)
    for n in rows:
        data.chat(n, [], answer=f"{name} {n}: " + "word " * (n % 7))
    return data.write()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return texts(tmp_path_factory.mktemp("data") / "texts", range(60))


def visits(settings: Settings, *, dp_size: int = 1) -> list[bytes]:
    """The rows in the order in which they came; with several ranks rank after rank."""
    seen = []
    for rank in range(dp_size):
        with Loader(settings, dp_rank=rank, dp_size=dp_size) as loader:
            for batch in loader:
                for sample_id in batch.layout.sample_ids.tolist():
                    if sample_id >= 0:
                        where = loader.describe(sample_id)
                        with Path(where.manifest).open("rb") as file:
                            file.seek(where.byte_offset)
                            seen.append(file.readline().rstrip(b"\r\n"))
    return seen


@pytest.mark.parametrize("sampler", [{"shuffle": "rows"}, {"shuffle": "none"}, CHUNKED])
def test_the_sides_of_a_split_share_the_rows_out(data: DataSet, tmp_path: Path, sampler: dict[str, Any]) -> None:
    base = settings_for(data, tmp_path, epochs=1, **sampler)
    held_out = visits(base.replace(split={"held_out": 0.25, "use": "held_out"}))
    trained = visits(base.replace(split={"held_out": 0.25}, epochs=2))
    assert 5 < len(held_out) < 30
    assert Counter(held_out) + Counter(held_out) + Counter(trained) == Counter(data.lines * 2)
    assert visits(base.replace(split={"held_out": 0.25, "use": "held_out", "key": "2"})) != held_out
    assert visits(base.replace(seed=99, split={"held_out": 0.25, "use": "held_out"})) != held_out or (
        sampler["shuffle"] == "none"
    )


def test_a_row_stays_on_its_side(data: DataSet, tmp_path: Path) -> None:
    """Whatever becomes of the manifest around it."""
    split = {"held_out": 0.25, "use": "held_out"}
    before = set(visits(settings_for(data, tmp_path, epochs=1, split=split)))
    more = texts(tmp_path / "more", range(60, 90))
    merged = DataSet(tmp_path / "merged", [*reversed(data.lines), *more.lines, *data.lines[:20]]).write()
    after = visits(settings_for(merged, tmp_path, epochs=1, split=split))
    assert {row for row in after if row in set(data.lines)} == before
    assert max(Counter(after).values()) == 2, "no duplicate was held out: choose another share"
    assert set(after) & set(more.lines)


def test_a_split_of_a_mixture(data: DataSet, tmp_path: Path) -> None:
    other = texts(tmp_path / "other", range(40), name="other")
    settings = settings_for(data, tmp_path).replace(
        data=[{"manifest": str(data.manifest), "repeat": 2}, {"manifest": str(other.manifest), "samples": 7}],
        epochs=2,
    )
    held_out = Counter(visits(settings.replace(split={"held_out": 0.3, "use": "held_out"})))
    trained = Counter(visits(settings.replace(split={"held_out": 0.3})))
    assert not held_out & trained
    for side in (held_out, trained):
        assert {n for row, n in side.items() if row in data.lines} == {4}
        assert sum(n for row, n in side.items() if row in other.lines) == 14
    assert len([row for row in held_out + trained if row in data.lines]) == 60


def test_a_split_is_part_of_the_fingerprint_only_where_there_is_one(data: DataSet, tmp_path: Path) -> None:
    plain = settings_for(data, tmp_path)
    with Loader(plain) as loader:
        next(loader.steps())
        assert "split=" not in loader.state_dict()["fingerprint"]
        assert "chunks=" not in loader.state_dict()["fingerprint"]
    first = plain.replace(split={"held_out": 0.25})
    with Loader(first) as loader:
        taken(loader, 4)
        state = loader.state_dict()
    for other in (plain, first.replace(split={"use": "held_out"}), first.replace(split={"key": "x"})):
        with Loader(other) as loader, pytest.raises(InvalidArgumentError, match="`split`"):
            loader.load_state_dict(state)


def test_a_side_without_rows_is_said(data: DataSet, tmp_path: Path) -> None:
    nothing = {"held_out": 1e-6, "use": "held_out"}
    with Loader(settings_for(data, tmp_path, split=nothing)) as loader:
        with pytest.raises(InvalidArgumentError, match="none of 60 rows is on the side `held_out`"):
            next(loader)
    with Loader(settings_for(data, tmp_path, split=nothing, **CHUNKED)) as loader:
        with pytest.raises(InvalidArgumentError, match="whole pass") as error:
            next(loader)
        assert error.value.code == "NO_DATA"


def test_chunked_gives_each_row_once_a_pass_without_an_index(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=3, **CHUNKED)
    seen = visits(settings)
    assert not list((tmp_path / "index").glob("*.rows")), "it was scanned"
    assert Counter(seen) == Counter(data.lines * 3)
    assert Counter(visits(settings, dp_size=4)) == Counter(data.lines * 3)
    with Loader(settings) as loader:
        origins = [loader.describe(i) for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
    assert {(o.manifest, o.line) for o in origins} == {(str(data.manifest), 0)}
    assert Counter((o.pass_, o.byte_offset) for o in origins) == Counter(
        (k, data.offset(line)) for k in range(3) for line in range(1, 61)
    )


def test_chunked_resumes_from_every_step(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=2, pack={"tokens_per_pack": 160}, **CHUNKED)
    with Loader(settings) as loader:
        states, whole = [], []
        for step in loader.steps():
            whole.append([batch.digest() for batch in step])
            states.append(loader.state_dict())
    assert len(whole) > 6
    for i, state in enumerate(states):
        with Loader(settings) as loader:
            loader.load_state_dict(state)
            assert [[batch.digest() for batch in step] for step in loader.steps()] == whole[i + 1 :], f"step {i}"
    other = settings.replace(chunks={"size": 2048})
    with Loader(other) as loader, pytest.raises(InvalidArgumentError, match="`chunks`"):
        loader.load_state_dict(states[0])


def test_chunked_over_several_files_some_packed(tmp_path: Path) -> None:
    parts = [texts(tmp_path / f"part {i}", range(20 * i, 20 * i + 20)) for i in range(3)]
    for i, part in enumerate(parts):
        text = part.manifest.read_bytes()
        (tmp_path / f"{i}.jsonl").write_bytes(gzip.compress(text) if i == 1 else text)
    settings = settings_for(str(tmp_path / "?.jsonl"), tmp_path, epochs=1, **CHUNKED)
    with Loader(settings) as loader:
        ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
        origins = [loader.describe(i) for i in ids]
    assert len(set(ids)) == len(ids) == 60
    found = {(Path(o.manifest).name, o.byte_offset) for o in origins}
    assert found == {(f"{i}.jsonl", part.offset(k + 1)) for i, part in enumerate(parts) for k in range(20)}


def test_chunked_takes_no_row_for_one_that_stood_there_before(tmp_path: Path) -> None:
    """Rows are remembered by their offset, and the fingerprint of a large manifest sees a part of it only."""
    data = DataSet(tmp_path / "data")
    for n in range(60):
        data.row({"query": "?", "response": "word " * 20, "note": f"{n:03}" * 10_000})
    data.write()
    settings = settings_for(data, tmp_path, epochs=1, shuffle="chunked")
    with Loader(settings) as loader:
        taken(loader, 1000)
        before = loader.state_dict()["fingerprint"]
    with data.manifest.open("r+b") as file:
        file.seek(data.offset(31) + data.lines[30].index(b"word "))
        file.write(b"Zq4&xjW#" * 12)
    with Loader(settings) as loader:
        assert sum((batch.layout.sample_ids >= 0).sum() for batch in loader) == 60
        assert loader.state_dict()["fingerprint"] == before, "a sample saw it: change another row"


def test_chunked_says_where_a_bad_row_begins(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data")
    for n in range(30):
        data.chat(n, [])
        if n == 17:
            bad = data.row(b"{")
    settings = settings_for(data.write(), tmp_path, epochs=1, bad_samples={"max_fraction": 1.0}, **CHUNKED)
    assert len(digests(settings)) > 0
    (line,) = ledger(settings)
    assert (line["line"], line["byte_offset"], line["pass"]) == (None, data.offset(bad), 0)
    strict = settings.replace(bad_samples={"policy": "stop"})
    with Loader(strict) as loader, pytest.raises(Exception, match=rf"rows.jsonl \(byte {data.offset(bad)}\)"):
        taken(loader, 1000)


MANY = textwrap.dedent(
    """
    import resource, sys
    from stoker import Loader, Settings
    settings = Settings.from_dict({
        "data": [{"manifest": sys.argv[1] + "/part-*.jsonl"}], "model": sys.argv[2], "epochs": 1,
        "index_dir": sys.argv[1] + "/index", "pack": {"tokens_per_pack": 384, "packs_per_step": 4},
    })
    resource.setrlimit(resource.RLIMIT_NOFILE, (290, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Loader(settings) as loader:
        ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
        print(len(ids), len({loader.describe(i).manifest for i in ids}))
    """
)


def test_a_pattern_of_many_files(tmp_path: Path) -> None:
    """More than may be open at one time, where a rank shares its limit with everything else in the process."""
    data = DataSet(tmp_path)
    for n in range(300):
        data.chat(n, [])
        (tmp_path / f"part-{n:03}.jsonl").write_bytes(data.lines[-1] + b"\n")
    command = [sys.executable, "-c", MANY, str(tmp_path), str(settings_for("unused", tmp_path).model)]
    for _ in range(2):  # without an index, and with one
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["300", "300"]


def test_chunked_refuses_what_it_cannot_define(data: DataSet, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="shuffle: chunked takes every row once"):
        settings_for(data, tmp_path, **CHUNKED).replace(data=[{"manifest": str(data.manifest), "repeat": 2}])
    rows = tmp_path / "list.json"
    rows.write_text(json.dumps([json.loads(line) for line in data.lines]))
    with Loader(settings_for(str(rows), tmp_path, **CHUNKED)) as loader:
        with pytest.raises(InvalidArgumentError, match="shuffle: rows"):
            next(loader)


@pytest.mark.parametrize("sampler", [{"shuffle": "rows"}, CHUNKED])
def test_a_manifest_that_changes_ends_the_run(data: DataSet, tmp_path: Path, sampler: dict[str, Any]) -> None:
    copy = DataSet(tmp_path / "copy", list(data.lines)).write()
    with Loader(settings_for(copy, tmp_path, speed={"prefetch_steps": 0}, **sampler)) as loader:
        next(loader)
        copy.lines.append(copy.lines[0])
        copy.write()
        with pytest.raises(Exception, match="the file changed since it was indexed"):
            taken(loader, 1000)


@pytest.mark.case("LDR-13", "the same batches for 1, 4 and 16 threads; the same packs for 1, 2 and 4 ranks")
@pytest.mark.parametrize("sampler", [{"shuffle": "rows"}, CHUNKED])
def test_the_order_depends_on_nothing_but_data_and_settings(
    data: DataSet, tmp_path: Path, sampler: dict[str, Any]
) -> None:
    settings = settings_for(data, tmp_path, epochs=1, pack={"tokens_per_pack": 160}, **sampler)
    expected = digests(settings)
    assert len(expected) > 2
    for threads in (1, 4, 16):
        assert digests(settings.replace(speed={"cpu_threads": threads})) == expected
    for dp_size in (2, 4):
        ranks = [digests(settings, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
        for step, whole in enumerate(expected):
            assert sorted(d for rank in ranks for d in rank[step]) == sorted(whole)
    slow = Behaviour(latency=Latency(median_s=0.001, sigma=1.0, tails=((0.1, 0.01, 0.03),)), seed=5)
    with StorageServer(data.folder.parent, behaviour=slow) as server:
        remote = settings.replace(data=[{"manifest": f"s3://{data.folder.name}/rows.jsonl"}], storage=server.settings())
        assert digests(remote) == expected


@pytest.mark.case("LDR-14", "ranks share no sample; two passes are two orders")
def test_ranks_are_disjoint_and_passes_differ(data: DataSet, tmp_path: Path) -> None:
    settings = settings_for(data, tmp_path, epochs=2)
    ranks = []
    for rank in range(4):
        with Loader(settings, dp_rank=rank, dp_size=4) as loader:
            ids = [i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0]
            ranks.append([(i, loader.describe(i).line) for i in ids])
    everything = sorted(sample for rank in ranks for sample in rank)
    assert [i for i, _ in everything] == list(range(120)), "a sample came twice, or not at all"
    first, second = ([line for _, line in everything[k : k + 60]] for k in (0, 60))
    assert sorted(filter(None, first)) == sorted(filter(None, second)) == list(range(1, 61))
    assert first != second


@pytest.mark.case("LDR-15", "passes are counted by the engine: orders differ between passes and between seeds")
@pytest.mark.parametrize("sampler", [{"shuffle": "rows"}, CHUNKED])
def test_nobody_sets_the_epoch(data: DataSet, tmp_path: Path, sampler: dict[str, Any]) -> None:
    def passes(seed: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        with Loader(settings_for(data, tmp_path, seed=seed, epochs=2, **sampler)) as loader:
            ids = sorted(i for batch in loader for i in batch.layout.sample_ids.tolist() if i >= 0)
            rows = [(o.pass_, (o.manifest, o.byte_offset)) for o in map(loader.describe, ids)]
        return [row for k, row in rows if k == 0], [row for k, row in rows if k == 1]

    first, second = passes(7)
    assert first != second
    assert passes(8)[0] not in (first, second)
    assert passes(7) == (first, second)


SCAN = textwrap.dedent(
    """
    import sys
    from stoker import _core
    manifest = _core.Manifest.open(sys.argv[1], index_dir=sys.argv[2])
    print(manifest.n_rows, manifest.was_scanned, manifest.fingerprint)
    """
)


def test_a_killed_scanner_holds_up_nobody(tmp_path: Path) -> None:
    """Some scan at once, one that has the claim is killed: one other scans, all agree."""
    path = tmp_path / "big.jsonl"
    path.write_bytes(b'{"some": "row of a manifest that takes a moment to scan"}\n' * 4_000_000)
    for attempt in range(8):  # on a busy machine the scan may be over before it is killed
        index = tmp_path / f"index {attempt}"
        command = [sys.executable, "-c", SCAN, str(path), str(index)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as killed:
            assert any(list(index.glob("*.claim")) for _ in eventually(30, every_s=0.001)), "it never began"
            killed.kill()
        if list(index.glob("*.claim")) and not list(index.glob("*.rows")):
            break
    else:
        pytest.fail("it was always killed too late: make the file larger")
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [other.communicate(timeout=120)[0].split() for other in others]
    assert sorted(was_scanned for _, was_scanned, _ in said) == ["False", "False", "True"]
    assert {(n_rows, fingerprint) for n_rows, _, fingerprint in said} == {("4000000", said[0][2])}
    assert not list(index.glob("*.claim*"))
