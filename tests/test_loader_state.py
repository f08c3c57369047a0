"""States: what is accepted, what is refused, states of every rank, and torch checkpoints that hold one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loader_data import digests, good_data, settings_for, taken
from stoker import InvalidArgumentError, Loader, Settings, one_state


@pytest.fixture
def small(tmp_path: Path) -> Settings:
    """Forty rows in windows of sixteen."""
    return settings_for(good_data(tmp_path / "data", 40), tmp_path)


def state_after(settings: Settings, n_steps: int, **rank: Any) -> dict[str, Any]:
    with Loader(settings, **rank) as loader:
        steps = loader.steps()
        for _ in range(n_steps):
            next(steps)
        return loader.state_dict()


def of_steps(settings: Settings, state: dict[str, Any], n_steps: int, dp_size: int) -> list[list[str]]:
    """Digests of each of the next steps' packs over all ranks, sorted."""
    ranks = []
    for rank in range(dp_size):
        with Loader(settings, dp_rank=rank, dp_size=dp_size) as loader:
            loader.load_state_dict(state)
            steps = loader.steps()
            ranks.append([[batch.digest() for batch in next(steps)] for _ in range(n_steps)])
    return [sorted(digest for rank in ranks for digest in rank[i]) for i in range(n_steps)]


GO_ON = """
import json, sys
from pathlib import Path
import stoker
settings = stoker.Settings.from_dict(json.loads(sys.argv[1]))
with stoker.Loader(settings) as loader:
    loader.load_state_dict(json.loads(sys.argv[2]))
    steps = loader.steps()
    print(json.dumps([[batch.digest() for batch in next(steps)] for _ in range(3)]))
"""


@pytest.mark.case("LDR-10", "the batches that follow, bit for bit; what was only prefetched is not in the state")
def test_a_new_process_goes_on_where_the_state_was_taken(small: Settings) -> None:
    whole = digests(small, 8)
    with Loader(small.replace(speed={"prefetch_steps": 4})) as loader:
        taken(loader, 5 * 4)
        state = loader.state_dict()
        next(loader)  # later ones are prefetched, and this one was even handed out
    command = [sys.executable, "-c", GO_ON, json.dumps(small.to_dict(hide_secrets=False)), json.dumps(state)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == whole[5:8]


@pytest.mark.case("LDR-12", "2, 4 and 8 ranks go on with the same packs; a number that cannot be is refused")
def test_a_state_of_four_ranks_serves_any_other_number(tmp_path: Path) -> None:
    settings = settings_for(good_data(tmp_path / "data", 48), tmp_path, pack={"packs_per_step": 8})
    state = state_after(settings, 2, dp_rank=3, dp_size=4)
    wanted = [sorted(step) for step in digests(settings, 5)[2:]]
    for dp_size in (1, 2, 4, 8):
        assert of_steps(settings, state, 3, dp_size) == wanted
    with pytest.raises(InvalidArgumentError, match="dp_size 3 does not divide"):
        Loader(settings, dp_rank=0, dp_size=3)


def test_a_state_is_small_plain_and_the_same_on_every_rank(small: Settings) -> None:
    states = [state_after(small, 3, dp_rank=rank, dp_size=2) for rank in range(2)]
    assert states[0] == states[1]
    assert json.loads(json.dumps(states[0])) == states[0]
    assert len(json.dumps(states[0])) < 600
    assert {type(value) for value in states[0].values()} == {int, str}
    assert one_state(states) == states[0]


def test_states_of_different_steps_are_not_one(small: Settings) -> None:
    states = [state_after(small, n, dp_rank=0, dp_size=2) for n in (3, 3, 2)]
    with pytest.raises(InvalidArgumentError, match=r"`step` is 2 of rank 2 and 3 of rank 0") as error:
        one_state(states)
    assert error.value.code == "STATE"
    with pytest.raises(InvalidArgumentError, match="no state"):
        one_state([])


def test_a_stale_state_is_noticed_by_the_trainers_step(small: Settings) -> None:
    state = state_after(small, 3)
    with Loader(small) as loader:
        with pytest.raises(InvalidArgumentError, match="of step 3, the trainer stands at step 4") as error:
            loader.load_state_dict(state, expect_step=4)
        assert error.value.code == "STATE"
        loader.load_state_dict(state, expect_step=3)


def test_accepted_changes_go_on_at_the_windows_beginning(small: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """None of the window's samples is left out, and the step goes on counting."""
    state = state_after(small, 4)
    assert state["window"] > 0
    assert state["packs_delivered"] > 0
    changed = small.replace(pack={"tokens_per_pack": 500})
    with Loader(changed) as loader:
        with pytest.raises(InvalidArgumentError, match=r"`pack`.*accept_changed"):
            loader.load_state_dict(state)
        with pytest.raises(InvalidArgumentError, match="`pack`"):
            loader.load_state_dict(state, accept_changed=["labels"])
        loader.load_state_dict(state, accept_changed=["pack"])
        assert "none is left out" in caplog.text
        seen: set[int] = set()
        step = next(loader.steps())
        assert step[0].counts.step == 4
        while max(seen, default=0) < 16 * (state["window"] + 2):
            seen.update(sample for batch in step for sample in batch.layout.sample_ids.tolist())
            step = next(loader.steps())
    first = 16 * state["window"]
    assert set(range(first, first + 16)) <= seen
    assert min(seen) == first


def test_an_accepted_change_of_the_order_says_so(small: Settings, caplog: pytest.LogCaptureFixture) -> None:
    state = state_after(small, 4)
    with Loader(small.replace(seed=9)) as loader:
        loader.load_state_dict(state, accept_changed="seed")
        assert "order is another one" in caplog.text
        assert next(loader).counts.step == 4


DCP = """
import json, os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import stoker

class Data:
    def __init__(self, loader): self.loader = loader
    def state_dict(self): return self.loader.state_dict()
    def load_state_dict(self, state): self.loader.load_state_dict(state)

action, settings, folder = sys.argv[1], stoker.Settings.from_dict(json.loads(sys.argv[2])), sys.argv[3]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
with stoker.Loader(settings, dp_rank=rank, dp_size=size) as loader:
    if action == "save":
        steps = loader.steps()
        for _ in range(3): next(steps)
        dcp.save({"data": Data(loader)}, checkpoint_id=folder)
    else:
        dcp.load({"data": Data(loader)}, checkpoint_id=folder)
        steps = loader.steps()
        found = [[batch.digest() for batch in next(steps)] for _ in range(2)]
        everyone = [None] * size
        dist.all_gather_object(everyone, found)
        if rank == 0: print("FOUND", json.dumps([sorted(sum((r[i] for r in everyone), [])) for i in range(2)]))
dist.destroy_process_group()
"""


def run_dcp(action: str, settings: Settings, folder: Path, n_ranks: int) -> str:
    """Runs the script above as `n_ranks` gloo processes; returns what they printed."""
    script = folder.with_name("run_dcp.py")
    script.write_text(DCP)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}", str(script)]
    out = subprocess.run(
        [*launch, action, json.dumps(settings.to_dict(hide_secrets=False)), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def test_torch_distributed_checkpoints_hold_it_for_other_numbers_of_ranks(small: Settings, tmp_path: Path) -> None:
    wanted = [sorted(step) for step in digests(small, 5)[3:]]
    run_dcp("save", small, tmp_path / "checkpoint", 2)
    said = run_dcp("load", small, tmp_path / "checkpoint", 1)
    assert json.loads(said.split("FOUND ")[1].splitlines()[0]) == wanted
