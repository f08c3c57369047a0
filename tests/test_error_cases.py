"""Trouble with errors on their way between processes: they come whole, or say at once that they cannot."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stoker
from loader_data import good_data, settings_for
from stoker import Loader, StokerError, _core, errors

CLASSES = {
    "invalid_argument": stoker.InvalidArgumentError,
    "bad_sample": stoker.BadSampleError,
    "unavailable": stoker.UnavailableError,
    "exhausted": stoker.ExhaustedError,
    "cancelled": stoker.CancelledError,
    "internal": stoker.InternalError,
}
EVERY = [(CLASSES[action], name) for name, action, _ in _core.reasons()]
MESSAGE = "rows.jsonl:7: cut at 60 %\n  (in 'Größe', byte 808)"


def raise_error(kind: type[StokerError], code: str) -> None:
    """What a worker process does."""
    raise kind(MESSAGE, code) from ValueError("the cause")


class Ungiving:
    """What cannot be handed to another process."""

    def __getstate__(self) -> object:
        raise RuntimeError("this has a socket in it")


def give_ungiving() -> Ungiving:
    return Ungiving()


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.case("LDR-20", "every error comes out of a worker process with its class, code and message")
def test_every_error_comes_whole_out_of_a_process(worker: ProcessPoolExecutor) -> None:
    assert {kind for kind, _ in EVERY} == {getattr(errors, name) for name in errors.__all__} - {StokerError}
    for kind, code in EVERY:
        error = worker.submit(raise_error, kind, code).exception(timeout=30)
        assert type(error) is kind
        assert isinstance(error, StokerError)
        assert (error.code, error.message, str(error)) == (code, MESSAGE, f"{code}: {MESSAGE}")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.code, again.message) == (kind, code, MESSAGE)


@pytest.mark.case("LDR-20", "a user's exception that cannot be pickled is told as text")
def test_what_user_code_raises_comes_as_text(tmp_path: Path, worker: ProcessPoolExecutor) -> None:
    settings = settings_for(
        good_data(tmp_path / "data", 8),
        tmp_path,
        user_code={"row": "user_functions:raise_ungiving", "version": "1"},
        bad_samples={"policy": "stop"},
    )
    began = time.monotonic()
    error = worker.submit(first_batch_of, settings).exception(timeout=30)
    assert isinstance(error, stoker.BadSampleError)
    assert error.code == "USER_CODE"
    assert "Ungiving" in error.message
    assert time.monotonic() - began < 20


def first_batch_of(settings: stoker.Settings) -> str:
    with Loader(settings) as loader:
        return next(loader).digest()


@pytest.mark.case("LDR-20", "what cannot be handed over is an error within 5 s that says why")
def test_what_cannot_be_handed_over_is_an_error_at_once(tmp_path: Path, worker: ProcessPoolExecutor) -> None:
    worker.submit(int).result(30)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="this has a socket in it"):
        worker.submit(give_ungiving).result(5)
    with Loader(settings_for(good_data(tmp_path / "data", 8), tmp_path)) as loader:
        batch = next(loader)
        for given, what in ((loader, "a loader cannot be pickled"), (batch, "a batch cannot be pickled")):
            with pytest.raises(stoker.InvalidArgumentError, match=what):
                pickle.dumps(given)
            with pytest.raises(stoker.InvalidArgumentError, match=what):
                worker.submit(repr, given).result(5)
        # What tells of a run goes anywhere.
        told: list[Any] = [loader.settings, loader.topology, loader.report()]
        told += [loader.describe(int(batch.layout.sample_ids[0]))]
        for given in told:
            assert repr(worker.submit(same, given).result(5)) == repr(given)
    assert time.monotonic() - began < 10


def same(given: Any) -> Any:
    return given
