"""What ranks lose by waiting for each other: 64 emulated ranks over a simulated clock, before balance and after.

Nothing is slept and no pixel is read: the real planner cuts the real steps, and a rank's time is the FLOPs of its packs
at an H100's speed, as everywhere here. Ranks meet at the end of a step (replicated weights), or in the vision tower and
in the language model of each micro-batch (sharded weights), where a step takes the sum of the phases' maxima. Before:
packs filled as samples come and dealt as they come. After: as the settings say. On

- the mixture that planning is designed against (33 % text only, 60 % images, 7 % clips), as a manifest with sizes in
  its rows, packs of 16,384 tokens, one to a rank;
- the same with four packs to a rank, so that ranks may even out over a step;
- the demo's rows.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "testdata" / "qwen3-vl"
N_RANKS = 64
N_STEPS = 200
N_ROWS = 60_000  # some 80 steps of a pack a rank; then the next pass follows
BARS = {"per_step": 1 - 1 / 1.05, "per_phase": 1 - 1 / 1.15}
MEETING = {"per_step": "meeting at the end of a step", "per_phase": "meeting in each phase"}


def write_mixture(path: Path, n_rows: int) -> None:
    """Writes rows as a Qwen3-VL-8B trainer meets them, with sizes; see core/plan/mixture_for_test.h."""
    rng = random.Random(4)
    with path.open("w", encoding="utf-8") as file:
        for i in range(n_rows):
            kind = rng.random()
            words, parts = max(4, round((500 if kind < 0.33 else 250) * math.exp(0.8 * rng.gauss(0, 1)))), []
            if 0.33 <= kind < 0.93:
                for k in range(rng.choice([2, 3, 4]) if rng.random() < 0.2 else 1):
                    area = min(4e6, 0.55e6 * math.exp(0.8 * rng.gauss(0, 1)))
                    width = max(64, round(math.sqrt(area * rng.uniform(0.6, 1.6))))
                    height = max(64, round(area / width))
                    parts.append({"type": "image", "image": f"{i}-{k}.jpg", "width": width, "height": height})
            elif kind >= 0.93:
                frames = [f"{i}-{k}.jpg" for k in range(rng.randrange(16, 129))]
                parts.append({"type": "video", "video": frames, "width": 448, "height": 256, "fps": 2})
            question = {"role": "user", "content": [*parts, {"type": "text", "text": "word " * (words // 2)}]}
            answer = {"role": "assistant", "content": "word " * (words - words // 2)}
            file.write(json.dumps({"messages": [question, answer]}) + "\n")


def _forecast(manifest: Path, scratch: Path, *, packs_per_rank: int, tokens_per_pack: int) -> Any:
    from stoker import Settings
    from stoker.costs import QWEN3_VL_8B
    from stoker.forecasting.forecast import Asked, forecast

    QWEN3_VL_8B.write(scratch / "costs.json")  # the test model is a tiny one
    settings = Settings.from_dict(
        {
            "data": [{"manifest": str(manifest)}],
            "model": str(MODEL),
            "seed": 4,
            "window_samples": 4096,
            "pack": {
                "tokens_per_pack": tokens_per_pack,
                "packs_per_step": packs_per_rank * N_RANKS,
                "cost_file": str(scratch / "costs.json"),
            },
            "index_dir": str(scratch / "index"),
        }
    )
    asked = Asked(dp_sizes=(N_RANKS,), steps=N_STEPS, epochs=4, measure=True, compare=True)
    return forecast(settings, asked, lambda what, done, total: None)


def _results(name: str, found: Any, *, has_bar: bool) -> list[dict[str, Any]]:
    policies = {policy["policy"]: policy for policy in found["policies"]}
    out = []
    for meeting, said in MEETING.items():
        for when, policy in (("before", "as they come"), ("after", "as set")):
            value = policies[policy]["ranks"][0]["lost"][meeting]
            bar = BARS[meeting] if has_bar and when == "after" else None
            out.append(_result(f"{name}, {said}: lost {when}", value, "of a step", bar))
    for when, policy in (("before", "as they come"), ("after", "as set")):
        ranks = policies[policy]["ranks"][0]
        seconds = ranks["step_s"]["per_phase"] / policies[policy]["per_step"]["samples"]
        out.append(_result(f"{name}, sharded: {when}", 1 / seconds, "samples/s"))
    out.append(_result(f"{name}: fill", policies["as set"]["fill"], "of a pack"))
    out.append(_result(f"{name}: steps", policies["as set"]["ranks"][0]["steps"], "steps"))
    return out


def _result(name: str, value: float, unit: str, bar: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": bar is None or value <= bar}


def run() -> list[dict[str, Any]]:
    """Plans; see the module's text."""
    from stoker.demo.dataset import make_dataset
    from stoker.demo.run import default_folder

    out = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_mixture(scratch / "mixture.jsonl", N_ROWS)
        for per_rank in (1, 4):
            found = _forecast(
                scratch / "mixture.jsonl",
                scratch,
                packs_per_rank=per_rank,
                tokens_per_pack=16384,
            )
            name = f"mixture, {N_RANKS} ranks of {per_rank} pack{'' if per_rank == 1 else 's'}"
            out += _results(name, found, has_bar=True)
        demo = make_dataset(default_folder() / "data")
        found = _forecast(demo.manifest, scratch, packs_per_rank=1, tokens_per_pack=4096)
        out += _results(f"the demo's rows, {N_RANKS} ranks of 1 pack", found, has_bar=False)
    return out
