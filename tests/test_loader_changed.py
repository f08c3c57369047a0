"""An object is replaced between the reading of its header and of its body: seen, and dealt with as the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loader_data import DataSet, encoded, ledger, picture, settings_for
from stoker import BadSampleError, InvalidArgumentError, Loader, Settings
from stoker.testing import StorageServer

N_ROWS = 12
REPLACED, RESIZED = 7, 9
"""Rows, one a step and none ahead: when the first is delivered all headers are read, and no later body."""


@pytest.fixture
def server() -> Any:
    with StorageServer() as started:
        for n in range(N_ROWS):
            started.put("media", f"{n}.png", encoded(picture(256, 256, n), "PNG"))
        yield started


def run_of(server: StorageServer, scratch: Path, changed: str, **changes: Any) -> Settings:
    data = DataSet(scratch / "data")
    for n in range(N_ROWS):
        data.chat(n, [f"s3://media/{n}.png"])
    return settings_for(
        data.write(),
        scratch,
        epochs=1,
        shuffle="none",
        pack={"packs_per_step": 1, "tokens_per_pack": 128},
        speed={"prefetch_steps": 0},
        media={"changed": changed},
        bad_samples={"max_fraction": 1.0},
        storage=server.settings(),
        **changes,
    )


def run(settings: Settings, server: StorageServer) -> tuple[list[int], dict[str, Any], str]:
    """Lines of the delivered, the report, and what ended it."""
    lines: list[int] = []
    ended_by = ""
    with Loader(settings) as loader:
        try:
            for n, batch in enumerate(loader):
                lines += [loader.describe(i).line - 1 for i in batch.layout.sample_ids.tolist() if i >= 0]
                if n == 0:
                    assert lines[0] not in (REPLACED, RESIZED)
                    server.put("media", f"{REPLACED}.png", encoded(picture(256, 256, 100), "PNG"))
                    server.put("media", f"{RESIZED}.png", encoded(picture(256, 128, 101), "PNG"))
        except BadSampleError as error:
            ended_by = str(error)
        return lines, loader.report().values, ended_by


def undisturbed(settings: Settings) -> tuple[list[int], dict[str, Any]]:
    """The same of a run beside which nothing changes."""
    with Loader(settings) as loader:
        lines = [loader.describe(i).line - 1 for b in loader for i in b.layout.sample_ids.tolist() if i >= 0]
        return lines, loader.report().values


def test_a_replaced_object_is_used_and_counted(server: StorageServer, tmp_path: Path) -> None:
    settings = run_of(server, tmp_path, "accept")
    lines, report, _ = run(settings, server)
    assert sorted(lines) == [n for n in range(N_ROWS) if n != RESIZED]
    assert report["pipeline"]["changed_media"] == 1
    assert [entry["code"] for entry in ledger(settings)] == ["MEDIA_SIZE_MISMATCH"]
    # A run that measures now sees nothing that changes.
    _, again = undisturbed(settings.replace(index_dir=str(tmp_path / "again")))
    assert again["pipeline"]["changed_media"] == 0


def test_a_replaced_object_is_a_bad_sample_if_the_settings_say_so(server: StorageServer, tmp_path: Path) -> None:
    settings = run_of(server, tmp_path, "skip")
    lines, report, ended_by = run(settings, server)
    assert (ended_by, sorted(lines)) == ("", [n for n in range(N_ROWS) if n not in (REPLACED, RESIZED)])
    assert report["bad_samples"] == {"MEDIA_CHANGED": 1, "MEDIA_SIZE_MISMATCH": 1}
    assert {entry["line"] - 1: entry["code"] for entry in ledger(settings)} == {
        REPLACED: "MEDIA_CHANGED",
        RESIZED: "MEDIA_SIZE_MISMATCH",
    }


def test_a_replaced_object_ends_the_run_if_the_settings_say_so(server: StorageServer, tmp_path: Path) -> None:
    settings = run_of(server, tmp_path, "stop")
    order, _ = undisturbed(settings)
    lines, _, ended_by = run(settings, server)
    assert "MEDIA_CHANGED" in ended_by
    assert f"rows.jsonl:{REPLACED + 1} (byte" in ended_by
    assert f"s3://media/{REPLACED}.png" in ended_by
    assert [n for n in lines if n != RESIZED] == [n for n in order[: order.index(REPLACED)] if n != RESIZED]


def test_the_choice_stands_in_the_fingerprint(server: StorageServer, tmp_path: Path) -> None:
    with Loader(run_of(server, tmp_path, "accept")) as loader:
        next(loader.steps())
        state = loader.state_dict()
    with Loader(run_of(server, tmp_path, "skip")) as loader, pytest.raises(InvalidArgumentError, match="media_changed"):
        loader.load_state_dict(state)
