"""Random pictures and conversations through the executed reference (tools/live_reference.py), a short form."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import reference_python
import stoker
from loader_data import DataSet

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import live_reference

N_PICTURES, N_CONVERSATIONS = 16, 10


def check(counts: Counter[str]) -> None:
    assert not {name: n for name, n in counts.items() if name.startswith("DIFFER")}
    assert counts["compared"] + counts["refused by both"] == N_PICTURES + N_CONVERSATIONS
    assert counts["compared"] > N_PICTURES
    assert counts["decoded"] >= counts["pictures"]


def test_the_pillow_backend() -> None:
    check(
        live_reference.compare(
            "hf-5.18-pil",
            n_pictures=N_PICTURES,
            n_conversations=N_CONVERSATIONS,
            seed=7,
            largest_side=500,
            say=lambda _: None,
            families=["qwen3-vl"],
        )
    )


@pytest.mark.parametrize(
    ("profile", "seconds"), [("hf-4.57", 1.0), ("hf-5.18-torchvision", 2 / 24), ("qvu+hf", 1.0), ("stoker", 1.0)]
)
def test_seconds_of_a_qwen2_5_clip_whose_row_does_not_say(profile: str, seconds: float, tmp_path: Path) -> None:
    # As the executed processors say: transformers 4.57.3 takes `fps` for 2, 5.18.0 the source's rate for 24.
    folder = live_reference.family_folders(tmp_path)["qwen2_5-vl"]
    data = DataSet(tmp_path)
    frames = [data.good_image(k, height=56, width=84) for k in range(4)]
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "video", "video": frames}]},
            {"role": "assistant", "content": "Yes."},
        ]
    }
    settings = stoker.Settings.from_dict({"data": [{"manifest": "x"}], "model": str(folder), "reference": profile})
    (clip,) = stoker.prepare(row, settings, media_root=str(tmp_path)).clips
    assert clip.seconds_per_grid == seconds


def test_every_profile_where_torchvision_is_installed(tmp_path: Path) -> None:
    if not reference_python.has("torchvision"):
        pytest.skip("needs torchvision: STOKER_REFERENCE_PYTHON names an interpreter that has it")
    out = tmp_path / "counts.json"
    sizes = ["--pictures", str(N_PICTURES), "--conversations", str(N_CONVERSATIONS), "--largest-side", "500"]
    code = "import live_reference; sys.exit(live_reference.main())"
    done = reference_python.run(code, *sizes, "--texts", "100", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())
    assert {"stoker", "hf-5.18-torchvision", "hf-5.18-pil", "texts"} <= set(results)
    assert all(counts["clips"] for name, counts in results.items() if name != "texts")
