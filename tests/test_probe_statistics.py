"""Quantiles, the simulation of steps, and the verdict: pure functions against closed forms and brute force."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stoker import InvalidArgumentError
from stoker.probing import steps
from stoker.probing.cost import step_cost
from stoker.probing.measure import (
    Measurement,
    Objects,
    Phase,
    engine_concurrency,
    is_still_growing,
    levels_up_to,
    unsaturated,
)
from stoker.probing.profile import LatencyProfile
from stoker.probing.quantiles import SHARES, quantile
from stoker.probing.steps import Answers, Fetching, cold_step_s, simulate
from stoker.probing.verdict import judge, profile_of
from stoker.settings import Speed, resolve_speed
from stoker.testing import Latency
from stoker.testing.__main__ import main as serve_by_hand

# --- quantiles


@pytest.mark.parametrize("n", [1, 2, 3, 100, 1001])
def test_quantiles_are_numpys(n: int) -> None:
    values = sorted(random.Random(n).expovariate(1) for _ in range(n))
    for share in (*SHARES, 0.123, 0.777):
        assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-12)


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1), ([1.0], math.nan)])
def test_there_is_no_quantile_of_nothing(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"quantile of nothing|between 0 and 1"):
        quantile(values, share)


# --- steps


def constant(seconds: float) -> Answers:
    return Answers(first_byte_s=[seconds], took_s=[seconds])


@pytest.mark.parametrize(("n", "concurrency"), [(1, 1), (7, 1), (7, 3), (6, 3), (5, 64), (512, 256)])
def test_equal_answers_come_in_rounds(n: int, concurrency: int) -> None:
    fetching = Fetching(n_requests=n, concurrency=concurrency)
    assert cold_step_s(constant(0.05), fetching) == pytest.approx(math.ceil(n / concurrency) * 0.05)


@pytest.mark.parametrize("n", [8, 128, 512])
def test_a_step_waits_for_the_largest_of_its_draws(n: int) -> None:
    # One answer in 200 takes 1 s, the others 0.03 s: the largest of n is the long one with probability 1 - 0.995^n.
    took = [1.0] + [0.03] * 199
    found = cold_step_s(Answers(first_byte_s=took, took_s=took), Fetching(n_requests=n, concurrency=n), seed=5)
    expected = 0.03 + 0.97 * (1 - 0.995**n)
    assert found == pytest.approx(expected, abs=0.13)  # 195 steps: three standard errors


@pytest.mark.parametrize("train_s", [0.0, 0.1, 0.4, 2.0])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_with_prefetch_the_slower_of_both_sets_the_pace(train_s: float, depth: int) -> None:
    fetching = Fetching(n_requests=12, concurrency=4)  # three rounds of 0.1 s
    times = simulate(constant(0.1), fetching, prefetch_steps=depth, train_s=train_s)
    assert times.step_s == pytest.approx(max(train_s, 0.3))
    assert times.wait_s == pytest.approx(max(0.0, 0.3 - train_s))
    without = simulate(constant(0.1), fetching, prefetch_steps=0, train_s=train_s)
    assert without.step_s == pytest.approx(train_s + 0.3)


def test_what_the_storage_answers_at_most_sets_the_pace() -> None:
    fetching = Fetching(n_requests=100, concurrency=1000, requests_per_s=50)
    assert simulate(constant(0.001), fetching, prefetch_steps=4, train_s=0.0).step_s == pytest.approx(2.0)


def brute_force(durations: Iterator[int], n: int, concurrency: int, depth: int, train: int, n_steps: int) -> list[int]:
    """When each step begins, by a clock that moves by one."""
    begins: list[int] = []
    left = [[next(durations) for _ in range(n)] for _ in range(n_steps)]  # of each step, in the order of the plan
    wanted = [0]
    running: list[tuple[int, int]] = []  # (end, step)
    started = [0] * n_steps
    now = 0
    while len(begins) < n_steps:
        running = [(end, step) for end, step in running if end > now]
        while True:
            step = len(begins)
            is_there = started[step] == n and all(s != step for _, s in running)
            if not is_there or wanted[step] > now:
                break
            begins.append(now)
            wanted.append(now + train)
            if len(begins) == n_steps:
                return begins
        for step in range(n_steps):
            gate = max(0, step - depth)
            if gate >= len(wanted) or wanted[gate] > now:
                break
            while started[step] < n and len(running) < concurrency:
                running.append((now + left[step][started[step]], step))
                started[step] += 1
            if started[step] < n:
                break
        now += 1
    return begins


@pytest.mark.parametrize("seed", range(12))
def test_steps_are_those_of_a_clock_that_ticks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    n, concurrency = rng.randrange(1, 12), rng.randrange(1, 9)
    depth, train = rng.randrange(0, 4), rng.choice([0, 3, 15, 40])
    n_steps = 30
    durations = [rng.choice([1, 2, 3, 5, 30]) for _ in range(n * n_steps)]
    expected = brute_force(iter(durations), n, concurrency, depth, train, n_steps)

    given = iter(durations)
    monkeypatch.setattr(steps, "_MOST_DRAWS", n * n_steps)
    monkeypatch.setattr(steps, "_MOST_STEPS", n_steps)

    def draws(self: Any, k: int) -> tuple[list[float], list[float]]:
        taken = [float(next(given)) for _ in range(k)]
        return taken, taken

    monkeypatch.setattr(steps._Requests, "_draws", draws)
    found = simulate(
        constant(1), Fetching(n_requests=n, concurrency=concurrency), prefetch_steps=depth, train_s=float(train)
    )
    first = min(depth + 2, n_steps // 2)
    wanted = [0, *(begin + train for begin in expected)]
    waits = [begin - want for begin, want in zip(expected, wanted, strict=False)]
    assert found.wait_s == pytest.approx(sum(waits[first:]) / (n_steps - first))
    assert found.step_s == pytest.approx((wanted[n_steps] - wanted[first]) / (n_steps - first))


def test_the_usual_tail_costs_what_it_is_known_to_cost() -> None:
    # Of the default latency model it is known, from another simulation, that steps of 1 s with 512 objects wait for
    # 31 / 18 / 2.7 / 0 % of the time with 1, 2, 4 and 8 steps ahead, and hardly at all with second requests.
    rng, latency = random.Random(1), Latency()
    took = [latency.draw(rng.random(), rng.random()) for _ in range(50_000)]
    answers = Answers(first_byte_s=took, took_s=took)
    fetching = Fetching(n_requests=512, concurrency=256)
    for depth, known in ((1, 0.31), (2, 0.18), (4, 0.027), (8, 0.0)):
        runs = [simulate(answers, fetching, prefetch_steps=depth, train_s=1.0, seed=s).wait_ratio for s in range(3)]
        assert sum(runs) / 3 == pytest.approx(known, abs=0.05)  # two standard errors of 585 steps
    hedged = Fetching(n_requests=512, concurrency=256, hedge_share=0.02)
    assert simulate(answers, hedged, prefetch_steps=1, train_s=1.0).wait_ratio < 0.015


def test_second_requests_are_never_more_than_their_share() -> None:
    # Every hundredth is stuck for ever, and so is every second request: with a share of 0.001 most stay stuck.
    took = [100.0] + [0.01] * 99
    answers = Answers(first_byte_s=took, took_s=took)
    few = steps._Requests(answers, Fetching(n_requests=1000, concurrency=1000, hedge_share=0.001), seed=1)
    for _ in range(20):
        few.step_ready(0.0)
    assert 0 < few._n_hedged <= 0.001 * few._n_seen
    plain = Fetching(n_requests=50, concurrency=50)
    hedged = Fetching(n_requests=50, concurrency=50, hedge_share=0.05)
    # Late is what comes after 0.01 s, so that a stuck one ends after 0.01 s and a draw of its own.
    assert cold_step_s(answers, plain, seed=3) > 20
    assert cold_step_s(answers, hedged, seed=3) < 2


# --- the verdict


def phase(concurrency: int, rate: float, *, first_s: float = 0.03, body_s: float = 0.001, **changes: Any) -> Phase:
    values: dict[str, Any] = {
        "concurrency": concurrency,
        "elapsed_s": 1.0,
        "answers": int(rate),
        "bytes": int(rate * 1e5),
        "cpu_s": 0.1,
        "whole_s": 1.0,
        "requests": int(rate) + concurrency,
        "repeated": 0,
        "unanswered": 0,
        "throttled": 0,
        "limit": 256,
        "failed_tries": {},
        "first_byte_s": (first_s,) * 10,
        "took_s": (first_s + body_s,) * 10,
        "object_bytes": (1e5,) * 10,
    }
    return Phase(**(values | changes))


def measurement(*phases: Phase, are_local: bool = False, steady: Phase | None = None) -> Measurement:
    objects = Objects(objects=1000, are_parts=False, are_local=are_local, rows=100, media=250, inline=0, sized=50)
    return Measurement(objects=objects, phases=phases, steady=steady)


@pytest.mark.parametrize(
    ("limit", "is_capped", "phases"),
    [
        ("latency", False, [phase(1, 30), phase(4, 120), phase(16, 480)]),
        ("connections", False, [phase(1, 5, body_s=0.2), phase(4, 20, body_s=0.2), phase(16, 79, body_s=0.2)]),
        ("bandwidth", True, [phase(4, 120), phase(16, 400, body_s=0.01), phase(64, 410, body_s=0.12)]),
        ("requests", True, [phase(4, 120), phase(16, 400), phase(64, 410, first_s=0.15)]),
        ("cpu", True, [phase(4, 120), phase(16, 400), phase(64, 410, first_s=0.15, cpu_s=0.99)]),
        (
            "throttled",
            True,
            [phase(4, 120), phase(16, 300, throttled=30, failed_tries={"FETCH_THROTTLED": 30}), phase(64, 310)],
        ),
        ("unknown", False, [phase(1, 0)]),
    ],
)
def test_what_limits_is_told_apart(limit: str, is_capped: bool, phases: list[Phase]) -> None:
    verdict = judge(measurement(*phases), n_fetch_threads=1)
    assert verdict.limit == limit
    assert verdict.sentence
    assert (verdict.requests_per_s is not None) == is_capped
    if is_capped:
        assert verdict.requests_per_s == max(p.requests_per_s for p in phases)
        assert verdict.knee == 16
    assert judge(measurement(*phases, are_local=True), n_fetch_threads=1).limit in ("files", "unknown")


def test_levels_grow_by_four_as_long_as_the_rate_does() -> None:
    assert levels_up_to(1, are_local=False) == [1]
    assert levels_up_to(64, are_local=False) == [1, 4, 16, 64]
    assert levels_up_to(100, are_local=False) == [1, 4, 16, 64, 100]
    assert levels_up_to(100, are_local=True) == [1, 4, 16]
    growing = [phase(1, 30), phase(4, 100), phase(16, 390)]
    assert is_still_growing(growing, 64)
    assert unsaturated(growing).concurrency == 16
    assert not is_still_growing([*growing, phase(64, 400)], 256)
    assert unsaturated([*growing, phase(64, 400)]).concurrency == 16
    chance = [phase(1, 8), phase(4, 7)]  # so few answers say nothing
    assert is_still_growing(chance, 16)
    assert unsaturated(chance).concurrency == 4
    assert not is_still_growing([phase(1, 30), phase(4, 100, throttled=60)], 16)
    assert not is_still_growing([phase(1, 30, bytes=30 << 28)], 16), "too many bytes would be in flight"


@pytest.mark.parametrize(
    ("begins", "most", "comes_to"), [(8, 1024, 64), (64, 1024, 64), (128, 1024, 128), (8, 32, 32), (32, 32, 32)]
)
def test_the_engine_doubles_what_is_in_flight_while_that_brings_more(begins: int, most: int, comes_to: int) -> None:
    phases = [phase(1, 10), phase(4, 40), phase(16, 160), phase(64, 600), phase(256, 630)]
    speed = dataclasses.replace(
        resolve_speed(Speed(), usable_cpus=1), fetch_concurrency=begins, max_fetch_concurrency=most
    )
    assert engine_concurrency(phases, speed) == comes_to


def test_samples_become_requests() -> None:
    found = measurement(phase(1, 30), phase(4, 120))
    cost = step_cost(
        found,
        judge(found, n_fetch_threads=1),
        samples=10,
        train_s=0.5,
        concurrency=16,
        prefetch_steps=3,
        hedge_share=0,
    )
    # 2.5 media a row, of which a fifth say their size.
    assert (cost.objects, cost.header_reads) == (25, 20)
    assert cost.cold_s[0] == pytest.approx(3 * 0.031)  # rounds of 16
    assert set(cost.steady_s) == set(cost.wait_ratio) == {1, 2, 3, 4}
    assert all(ratio == (0.0, 0.0) for ratio in cost.wait_ratio.values())


# --- the profile


def test_a_profile_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    steady = phase(16, 400, failed_tries={"FETCH_SERVER": 10}, first_byte_s=tuple(n / 100 for n in range(101)),
                   took_s=tuple(n / 100 + 0.1 for n in range(101)), object_bytes=(1e5,) * 101)  # fmt: skip
    found = measurement(phase(1, 30), phase(4, 120), steady=steady)
    made = profile_of(found, judge(found, n_fetch_threads=1), host="storage.example.org")
    made.save(tmp_path / "p.json")
    assert LatencyProfile.load(tmp_path / "p.json") == made
    assert [share for share, _ in made.first_byte_s] == list(SHARES)
    assert [seconds for _, seconds in made.first_byte_s] == pytest.approx(SHARES)
    assert dict(made.connection_bytes_per_s)[0.5] == pytest.approx(1e6)
    assert made.errors == {"FETCH_SERVER": pytest.approx(10 / 410)}
    drawn = [Latency.from_profile(tmp_path / "p.json").draw((k + 0.5) / 1000, 0.3) for k in range(1000)]
    assert np.quantile(drawn, [0.1, 0.5, 0.99]) == pytest.approx([0.1, 0.5, 0.99], abs=0.002)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1"),
        ("[]", "no latency profile"),
        ("{}", "no latency profile"),
        ('{"stoker_latency_profile": 2}', "version 2"),
        ('{"stoker_latency_profile": 1}', "not a sound"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InvalidArgumentError, match=said):
        LatencyProfile.load(tmp_path / "p.json")
    with pytest.raises(SystemExit) as ended:  # as one line, not as a traceback
        serve_by_hand(["--profile", str(tmp_path / "p.json")])
    assert ended.value.code == 2


@pytest.mark.parametrize("quantiles", [[], [[0, 1]], [[0, 2], [1, 1]], [[0, -1], [1, 1]], [[0, 1], [1, math.inf]], 3])
def test_impossible_quantiles_are_refused(tmp_path: Path, quantiles: Any) -> None:
    found = measurement(phase(1, 30))
    made = profile_of(found, judge(found, n_fetch_threads=1), host="h")
    object.__setattr__(made, "first_byte_s", quantiles)
    made.save(tmp_path / "p.json")
    with pytest.raises(InvalidArgumentError, match="not a sound"):
        LatencyProfile.load(tmp_path / "p.json")
