"""The climb: its order, what each rung is given, what it shows and writes. The engine is played here."""

from __future__ import annotations

import io
import json
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stoker.ladder import RankModel
from stoker.ladder.climb import RUNGS, Plan, climb, rungs_from
from stoker.ladder.display import Display, result_table
from stoker.ladder.report import draw, write_report
from stoker.ladder.result import LadderResult
from stoker.ladder.takers import Weighed


@dataclass(frozen=True, kw_only=True)
class FakeSettings:
    """Like `stoker.Settings` as far as the ladder goes."""

    speed: dict[str, Any] = field(default_factory=dict)
    index_dir: str = ""

    def replace(self, **groups: Any) -> FakeSettings:
        return replace(self, **groups)


@dataclass(frozen=True, kw_only=True)
class FakeEngine:
    settings: FakeSettings
    samples_per_step: int | None = None
    digests: str = ""

    def __call__(self, *, model: RankModel, rank: int, n_ranks: int) -> FakeLoop:
        return FakeLoop(self, rank)


class FakeLoop:
    def __init__(self, spec: FakeEngine, rank: int) -> None:
        self._spec = spec
        self._rank = rank
        self._step = -1

    def take(self) -> int:
        self._step += 1
        if "prefetch_steps" in self._spec.settings.speed:
            time.sleep(0.01)  # fetches on demand
        return self._step

    def weigh(self, data: int) -> Weighed:
        digest = f"{self._rank}/{data}"
        if self._spec.digests and "prefetch_steps" not in self._spec.settings.speed:
            digest += self._spec.digests
        n_samples = self._spec.samples_per_step or 20 + self._rank
        return Weighed(train_s=0.005, n_samples=n_samples, n_tokens=1, n_patches=4, digests=lambda: (digest,))

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class WrongEngine(FakeEngine):
    digests: str = "differs when it prefetches"


def plan(**changed: Any) -> Plan:
    values: dict[str, Any] = {
        "settings": FakeSettings(),
        "python_serial": FakeEngine(settings=FakeSettings(speed={"prefetch_steps": 0})),
        "engine": FakeEngine,
        "steps": 2,
        **changed,
    }
    return Plan(**values)


@pytest.fixture(scope="module")
def climbed() -> tuple[LadderResult, str]:
    """One whole climb, and what it printed where there is no terminal."""
    printed = io.StringIO()
    console = Console(file=printed, width=80)
    steps = plan()
    with Display(console, steps) as display:
        result = climb(steps, display)
    result_table(console, result.rungs)
    return result, printed.getvalue()


def test_rungs_come_lowest_first_and_agree(climbed: tuple[LadderResult, str]) -> None:
    result, _ = climbed
    assert [rung.name for rung in result.rungs] == ["python-serial", "serial", "concurrent", "prefetch"]
    assert [rung.digest is None for rung in result.rungs] == [True, False, False, False]
    assert result.digests_agree
    assert all(rung.steps == 2 for rung in result.rungs)
    assert result.rungs[-1].wait_ratio < result.rungs[1].wait_ratio


def test_python_serial_takes_as_many_samples_as_the_engine(climbed: tuple[LadderResult, str]) -> None:
    result, _ = climbed
    assert {rung.samples_per_step for rung in result.rungs[1:]} == {20.5}
    assert result.rungs[0].samples_per_step == 20


def test_plain_lines_tell_each_step_once(climbed: tuple[LadderResult, str]) -> None:
    result, printed = climbed
    for name in RUNGS:
        assert len(re.findall(rf"^{name}: step \d/2 ", printed, re.M)) == 3
    assert "\x1b" not in printed
    assert "digest" in printed
    assert str(result.rungs[-1].digest)[:7] in printed  # nothing is cut off in 80 columns


def test_the_json_has_what_is_promised(climbed: tuple[LadderResult, str], tmp_path: Path) -> None:
    paths = write_report(climbed[0], tmp_path / "new" / "folder")
    found = json.loads(paths["json"].read_text())
    promised = {
        "name",
        "steps",
        "wait_ratio",
        "gpu_busy",
        "data_s_per_step",
        "train_s_per_step",
        "samples_per_s",
        "tokens_per_s",
        "cpu_s",
        "digest",
    }
    assert all(promised <= rung.keys() for rung in found["rungs"])
    assert found["digests_agree"] is True


def test_the_page_needs_nothing_else(climbed: tuple[LadderResult, str], tmp_path: Path) -> None:
    page = write_report(climbed[0], tmp_path)["html"].read_text()
    without_names = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|\bsrc=|<link|@import|url\(", without_names)
    assert "bit for bit, on 3 rungs" in page
    embedded = re.search(r'<script type="application/json" id="ladder">(.*?)</script>', page, re.S)
    assert embedded is not None
    assert json.loads(embedded.group(1)) == json.loads(json.dumps(climbed[0].to_dict()))


def test_the_picture_is_to_scale(climbed: tuple[LadderResult, str]) -> None:
    svg = ET.fromstring(draw(climbed[0]))
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in svg.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    assert len(bars) == 3 * len(climbed[0].rungs)
    for rung, of_rung in zip(climbed[0].rungs, zip(*[iter(bars)] * 3, strict=True), strict=True):
        widths = [float(bar.get("width", "nan")) for bar in of_rung]
        assert sum(widths) == pytest.approx(430, abs=1)
        assert widths[1] == pytest.approx(430 * rung.wait_ratio, abs=0.1)


def test_different_batches_are_noticed(tmp_path: Path) -> None:
    wrong = plan(engine=WrongEngine, rungs=("concurrent", "prefetch"), steps=1)
    with Display(Console(file=io.StringIO()), wrong) as display:
        result = climb(wrong, display)
    assert not result.digests_agree
    assert "different batches" in write_report(result, tmp_path)["html"].read_text()


def test_the_live_table_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # whatever runs the tests may have a dumb one
    printed = io.StringIO()
    steps = plan(rungs=("serial",), steps=2)
    with Display(Console(file=printed, width=160, force_terminal=True), steps) as display:
        climb(steps, display)
    assert "\x1b" in printed.getvalue()
    assert "serial" in printed.getvalue()


def test_the_digest_covers_what_all_engine_rungs_run() -> None:
    assert plan(steps=None).digest_steps == 1 + min(RUNGS[name].steps for name in ("serial", "concurrent", "prefetch"))
    assert plan(rungs=("python-serial",)).digest_steps == 0
    assert plan(rungs=("python-serial", "prefetch")).in_running_order == ("prefetch", "python-serial")
    assert plan(rungs=("prefetch", "serial")).in_running_order == ("serial", "prefetch")


def test_unknown_rungs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sideways.*python-serial, serial, concurrent, prefetch"):
        plan(rungs=("sideways",))
    assert rungs_from(["serial,prefetch", "concurrent"]) == ("serial", "prefetch", "concurrent")
    assert rungs_from([]) == tuple(RUNGS)
