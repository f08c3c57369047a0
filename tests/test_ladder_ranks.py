"""Emulated ranks: what training costs, how a rung is summed up, and that no rank can hang the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from stoker.ladder import LadderResult, RankModel, StepRecord
from stoker.ladder.python_serial import PythonSerial, to_messages
from stoker.ladder.ranks import RankFailedError, RankJob, run_ranks
from stoker.ladder.result import summarise
from stoker.ladder.takers import Weighed
from stoker.testing.processes import left_in_group

# --- what training costs ---


@pytest.mark.parametrize(
    ("tokens", "images", "samples_per_s"),
    [
        (396, [784], 19.3),
        (1424, [4096], 4.7),
        (2952, [9408], 2.0),
        (7020, [448] * 60, 0.9),  # a clip: two frames of 448 x 256 attend to each other
        (1000, [], 8.6),
    ],
)
def test_a_gpu_eats_what_was_calculated(tokens: int, images: list[int], samples_per_s: float) -> None:
    model = RankModel()
    assert model.flops_per_s / model.flops([tokens], images) == pytest.approx(samples_per_s, abs=0.06)


def test_a_rank_is_done_when_its_last_gpu_is() -> None:
    model = RankModel(n_gpus=2, flops_per_s=10.0)
    assert model.step_s([10.0, 30.0]) == 3.0
    assert model.step_s([10.0, 30.0, 20.0]) == 3.0
    assert model.step_s([10.0]) == 1.0
    assert model.deal([5.0, 1.0, 1.0, 1.0, 9.0]) == [5.0, 12.0]


# --- summing up ---


def record(rank: int, step: int, **times: float) -> StepRecord:
    plain = {"wait_s": 1.0, "train_s": 2.0, "barrier_s": 1.0, "step_s": 4.0, "cpu_s": 0.5}
    return StepRecord(
        rank=rank, step=step, n_samples=10, n_tokens=100, n_patches=7, digests=(f"{rank}{step}",), **{**plain, **times}
    )


def test_a_rung_is_summed_up_without_its_first_step() -> None:
    records = [
        record(0, 0, wait_s=50.0, step_s=99.0),
        record(1, 0, wait_s=60.0, step_s=99.0),
        record(0, 1),
        record(1, 1, wait_s=2.0, barrier_s=0.0),
    ]
    result = summarise("x", records, digest_steps=2)
    assert (result.steps, result.wait_ratio, result.gpu_busy) == (1, (1 / 4 + 2 / 4) / 2, 0.5)
    assert (result.data_s_per_step, result.train_s_per_step, result.barrier_s_per_step) == (1.5, 2.0, 0.5)
    assert (result.first_step_s, result.cpu_s) == (60.0, 1.0)
    assert (result.samples_per_s, result.tokens_per_s, result.samples_per_step) == (5.0, 50.0, 10.0)


def test_the_digest_is_of_order_and_content_of_the_first_steps() -> None:
    records = [record(rank, step) for step in range(3) for rank in range(2)]
    one = summarise("x", records, digest_steps=2).digest
    assert summarise("y", list(reversed(records)), digest_steps=2).digest == one
    assert summarise("y", [replace(r, digests=()) if r.step == 2 else r for r in records], digest_steps=2).digest == one
    swapped = [replace(r, digests=(f"{1 - r.rank}{r.step}",)) for r in records]
    assert summarise("y", swapped, digest_steps=2).digest != one
    assert summarise("y", records, digest_steps=0).digest is None


def test_digests_are_compared_where_there_are_any() -> None:
    records = [record(0, step) for step in range(2)]
    rungs = [summarise("a", records, digest_steps=0), summarise("b", records, digest_steps=1)]
    assert LadderResult(rungs=tuple(rungs)).digests_agree
    rungs.append(replace(rungs[-1], digest="other"))
    assert not LadderResult(rungs=tuple(rungs)).digests_agree


def test_a_missing_step_is_noticed() -> None:
    with pytest.raises(ValueError, match="same from every rank"):
        summarise("x", [record(0, 0), record(0, 1), record(1, 0)], digest_steps=0)


# --- the processes ---


@dataclass(frozen=True, kw_only=True)
class FakeTaker:
    """Gives steps at once; does something nasty at one of them."""

    nasty: str = ""
    nasty_rank: int = 1
    nasty_step: int = 2

    def __call__(self, *, model: RankModel, rank: int, n_ranks: int) -> FakeLoop:
        return FakeLoop(self, rank)


class FakeLoop:
    def __init__(self, spec: FakeTaker, rank: int) -> None:
        self._spec = spec
        self._rank = rank
        self._step = -1

    def take(self) -> int:
        self._step += 1
        if self._rank == self._spec.nasty_rank and self._step == self._spec.nasty_step:
            match self._spec.nasty:
                case "raise":
                    raise ValueError("told to")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(0)
                case "hang":
                    time.sleep(600)
        return self._step

    def weigh(self, data: int) -> Weighed:
        step, rank = data, self._rank
        return Weighed(
            train_s=0.002,
            n_samples=1 + rank,
            n_tokens=10,
            n_patches=4,
            digests=lambda: (f"{rank}.{step}.0", f"{rank}.{step}.1"),
        )

    def report(self) -> dict[str, Any]:
        return {"rank": self._rank}

    def close(self) -> None:
        pass


def job(taker: FakeTaker, **changed: float) -> RankJob:
    values = {"n_steps": 4, "digest_steps": 2, "step_timeout_s": 30.0, **changed}
    return RankJob(make_taker=taker, model=RankModel(), **values)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def test_ranks_report_every_step_in_order() -> None:
    seen: list[StepRecord] = []
    output = run_ranks(job(FakeTaker()), n_ranks=2, on_step=seen.append)
    records = output.records
    assert seen == records
    assert output.reports == {0: {"rank": 0}, 1: {"rank": 1}}
    for rank in range(2):
        mine = [r for r in records if r.rank == rank]
        assert [r.step for r in mine] == [0, 1, 2, 3]
        assert [r.digests for r in mine] == [(f"{rank}.{s}.0", f"{rank}.{s}.1") if s < 2 else () for s in range(4)]
        for r in mine:
            assert r.train_s >= 0.002
            assert r.step_s == pytest.approx(r.wait_s + r.train_s + r.barrier_s)
    # The barrier makes steps equally long: a rank asks for a step when all have finished the last.
    zero, one = (sum(r.step_s for r in records if r.rank == rank and r.step > 0) for rank in range(2))
    assert zero == pytest.approx(one, abs=0.05)


@pytest.mark.parametrize("nasty", ["raise", "kill", "exit"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_ends_all_and_is_named(nasty: str, rank: int) -> None:
    started = time.monotonic()
    expected = f"rank {rank} " + ("failed.*told to" if nasty == "raise" else "has died")
    with pytest.raises(RankFailedError, match=f"(?s){expected}"):
        run_ranks(job(FakeTaker(nasty=nasty, nasty_rank=rank)), n_ranks=2, on_step=lambda _: None)
    assert time.monotonic() - started < 20


def test_the_rank_that_failed_is_named_even_if_another_is_heard_first() -> None:
    """Both have spoken before anybody listens: the one that was left alone, and the one that broke the barrier."""
    from stoker.ladder import ranks

    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    pipes[1][1].send("an error")
    running = {ours: rank for rank, (ours, _) in enumerate(pipes)}
    alone = ranks._LeftAlone(30.0)
    assert "rank 1 failed: an error" in str(ranks._first_failure(0, alone, running))
    assert "rank 0 failed: the other ranks" in str(ranks._first_failure(0, alone, running))
    for pair in pipes:
        for end in pair:
            end.close()


def test_a_rank_that_hangs_is_given_up() -> None:
    with pytest.raises(RankFailedError, match="within 1 s"):
        run_ranks(job(FakeTaker(nasty="hang"), step_timeout_s=1.0), n_ranks=2, on_step=lambda _: None)


def test_an_interrupt_ends_all_ranks_soon(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group; only the parent may speak, and nobody may stay."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from test_ladder_ranks import FakeTaker, job
            from stoker.ladder.ranks import run_ranks
            if __name__ == "__main__":
                try:
                    run_ranks(job(FakeTaker(nasty="hang")), n_ranks=2, on_step=lambda r: print(r.step, flush=True))
                except KeyboardInterrupt:
                    sys.exit(130)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "1":
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert left_in_group(process.pid) == []


# --- the loop that people start with ---


def test_both_forms_of_a_row_become_the_same_messages() -> None:
    expected = [
        {"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Which?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "That."}]},
    ]
    conversations = {
        "image": ["a.png", "b.png"],
        "conversations": [{"from": "human", "value": "<image><image>Which?"}, {"from": "gpt", "value": "That."}],
    }
    images = [{"type": "image", "image": "a.png"}, {"type": "image"}]
    messages = {
        "images": ["b.png"],
        "messages": [
            {"role": "user", "content": [*images, {"type": "text", "text": "Which?"}]},
            {"role": "assistant", "content": "That."},
        ],
    }
    assert to_messages(conversations) == (expected, ["a.png", "b.png"])
    assert to_messages(messages) == (expected, ["a.png", "b.png"])


def test_the_serial_loop_counts_what_it_prepares(tmp_path: Path) -> None:
    for package in ("PIL", "transformers", "botocore", "jinja2"):
        pytest.importorskip(package)
    from stoker.demo import find_testdata, make_dataset
    from stoker.testing import StorageServer

    dataset = make_dataset(tmp_path, n_samples=6)
    with StorageServer() as server:
        server.put_folder("b", dataset.folder, prefix="data/")
        spec = PythonSerial(
            data=(("s3://b/data/train.jsonl", ""),),
            model_folder=str(find_testdata() / "qwen3-vl"),
            seed=1,
            storage=server.settings(),
            samples_per_step=6,
        )
        loop = spec(model=RankModel(), rank=0, n_ranks=1)
        taken = loop.weigh(loop.take())
        loop.close()
        asked = server.requests()
    assert sorted(seen.name for seen in asked if seen.method == "GET") == sorted(
        f"b/data/{path.relative_to(dataset.folder).as_posix()}"
        for path in [dataset.manifest, *dataset.folder.glob("images/*")]
    )
    assert taken.n_samples == 6
    assert taken.n_patches == pytest.approx(dataset.n_pixels / 256, rel=0.06)
    assert taken.n_tokens > taken.n_patches / 4
    assert taken.train_s > 0
