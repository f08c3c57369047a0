"""Peers as processes of their own, killed at any moment: nobody hangs, nothing is left, the run goes on as it was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loader_data import digests, good_data, settings_for
from stoker import Settings

SCRIPT = Path(__file__).with_name("peer_process.py")
N_STEPS = 40


class Peer:
    """A process that holds one loader."""

    def __init__(
        self, settings: Settings, rank: int, count: int, job: str, state: dict[str, Any] | None = None
    ) -> None:
        command = [sys.executable, str(SCRIPT), json.dumps(settings.to_dict(hide_secrets=False))]
        command += [str(rank), str(count), job, json.dumps(state)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, f"peer ended with {self.process.wait(10)}"
        return json.loads(said)

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def processes(
    settings: Settings, count: int, job: str, state: dict[str, Any] | None = None, ranks: list[int] | None = None
) -> Iterator[list[Peer]]:
    made = [Peer(settings, rank, count, job, state) for rank in ranks or range(count)]
    try:
        for peer in made:
            assert peer.answer() == "made"
        yield made
        for peer in made:
            if peer.process.poll() is None:
                assert peer.ask("close") == [], "blocks are left"
        assert [name for name in os.listdir("/dev/shm") if "stoker" in name] == []
    finally:
        for peer in made:
            peer.kill()
            for pipe in (peer.process.stdin, peer.process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture(scope="module")
def run_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("peer_kills")
    return settings_for(good_data(folder / "data", 24), folder, outage_limit_s=30.0)


@pytest.fixture(scope="module")
def alone(run_settings: Settings) -> list[str]:
    return [digest for step in digests(run_settings, N_STEPS) for digest in step]


def test_a_killed_leader_ends_the_others_and_a_killed_follower_does_not(
    run_settings: Settings, tmp_path: Path, alone: list[str]
) -> None:
    with processes(run_settings, 3, str(tmp_path)) as (leader, follower, doomed):
        for peer in (leader, follower, doomed):
            peer.tell("take 6")
        for peer in (leader, follower, doomed):
            assert peer.answer()["digests"] == alone[:6]
        doomed.kill()  # it held a batch
        for peer in (leader, follower):
            peer.tell("take 40")
        for peer in (leader, follower):
            assert peer.answer()["digests"] == alone[6:46]
        follower.tell("take 100000")
        leader.kill()
        began = time.monotonic()
        answer = follower.answer()
        assert time.monotonic() - began < 3
        assert answer["error"] == "PEER_LOST"
        assert f"process {leader.process.pid}" in answer["text"]
        n = min(len(answer["digests"]), len(alone) - 46)
        assert answer["digests"][:n] == alone[46 : 46 + n]


def test_ctrl_c_is_heard_while_a_peer_waits_for_the_others(run_settings: Settings, tmp_path: Path) -> None:
    for rank in (0, 1):
        with processes(run_settings, 2, str(tmp_path), ranks=[rank]) as (peer,):
            peer.tell("take 1")
            time.sleep(0.3)  # whenever it comes: before, while or after it opens
            began = time.monotonic()
            peer.process.send_signal(signal.SIGINT)
            assert peer.answer()["error"] == "KeyboardInterrupt"
            assert time.monotonic() - began < 2


def check_kills(settings: Settings, job: str, wanted: list[str], seed: int, n_kills: int) -> None:
    """Kills one peer of several at random moments, again and again, and goes on from the last state there is."""
    rng = random.Random(seed)
    state: dict[str, Any] | None = None
    for turn in range(n_kills):
        count = rng.choice([2, 3])
        at = 4 * (state["step"] if state else 0)
        n = min(rng.choice([4, 8]), len(wanted) - at)
        if n <= 0:
            state = None
            continue
        with processes(settings, count, f"{job}-{turn}", state) as peers:
            for peer in peers:
                peer.tell(f"take {n}")
            time.sleep(rng.random() * 0.4)  # no wait for anything: it spreads the kills
            victim = rng.randrange(count)
            peers[victim].kill()
            for rank, peer in enumerate(peers):
                if rank == victim:
                    continue
                answer = peer.answer()
                got = answer["digests"]
                assert got == wanted[at : at + len(got)], f"seed {seed}, turn {turn}"
                if "error" in answer:
                    assert answer["error"] == "PEER_LOST"
                else:
                    assert len(got) == n
                    state = answer["state"]


def test_a_run_whose_peers_are_killed_goes_on_as_it_was(
    run_settings: Settings, tmp_path: Path, alone: list[str]
) -> None:
    check_kills(run_settings.replace(outage_limit_s=3.0), str(tmp_path), alone, seed=5, n_kills=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_killed_peers(run_settings: Settings, tmp_path: Path, alone: list[str], seed: int) -> None:
    check_kills(run_settings.replace(outage_limit_s=3.0), str(tmp_path), alone, seed=100 + seed, n_kills=25)
