"""What the slowest answers of a storage cost: the wait ratio of steps that each need 256 objects.

Every step meets the hundredth percentile of the storage's latency. A server on loopback answers as object stores do
(`stoker.testing.Latency`: p50 30 ms, p99 145 ms, p99.9 940 ms); the rank is emulated (eight H100 that train
Qwen3-VL-8B), so that it sleeps for as long as a step would take. The engine has its default settings. Figures, each
over the steps behind the cold start:

- the wait ratio with fresh latency at every request, where a second request for a late object helps;
- the same with one percent of errors (503 SlowDown or a reset);
- the same with objects that stay slow, where it cannot help;
- the share of second requests in each;
- for comparison, the first without second requests, and with one step of prefetch with and without them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
SIDE_PX = 448
N_STEPS = 12
OBJECTS_PER_STEP = 256
PACKS_PER_STEP = 16
TOKENS_PER_PACK = 3600
"""Sixteen of these samples: 196 visual tokens and a line of text."""
N_ROWS = OBJECTS_PER_STEP * (N_STEPS + 8)
BAR_WAIT = 0.02
BAR_WAIT_ERRORS = 0.05
BAR_HEDGES = 0.02


def _manifest(folder: Path) -> Path:
    answer = {"role": "assistant", "content": "A photograph."}
    rows = [
        {"messages": [{"role": "user", "content": "<image>"}, answer], "images": [f"{n}.jpg"]}
        | {"width": SIDE_PX, "height": SIDE_PX}
        for n in range(N_ROWS)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def _measured(server: Any, manifest: Path, index: Path, behaviour: Any, **speed: Any) -> tuple[float, float, float]:
    """Returns (wait ratio, second requests per request, samples per step) of one run."""
    from stoker import Settings
    from stoker.ladder.emulation import RankModel
    from stoker.ladder.engine import Engine

    server.behave(behaviour)
    settings = Settings.from_dict(
        {
            "data": [{"manifest": str(manifest), "media_root": "s3://bench/"}],
            "model": str(MODEL),
            "pack": {"tokens_per_pack": TOKENS_PER_PACK, "packs_per_step": PACKS_PER_STEP},
            "speed": speed,
            "storage": server.settings(),
            "index_dir": str(index),
        }
    )
    rank = Engine(settings=settings)(model=RankModel(), rank=0, n_ranks=1)
    try:
        for _ in range(N_STEPS + 1):
            time.sleep(rank.weigh(rank.take()).train_s)
        report = rank.report()
    finally:
        rank.close()
    fetch = report["pipeline"]["fetch"]
    return report["wait_ratio"], fetch["hedges"] / fetch["requests"], report["samples"] / report["steps"]


def run() -> list[dict[str, Any]]:
    """Measures; see the module's text."""
    from _pictures import crops, encoded
    from stoker.testing import Behaviour, Fault, Latency, StorageServer

    fresh = Behaviour(latency=Latency(), seed=1)
    errors = Behaviour(
        latency=Latency(), faults=(Fault(kind="error", share=0.005), Fault(kind="reset", share=0.005)), seed=1
    )
    slow = Behaviour(latency=Latency(), stays_slow=True, seed=1)
    results: list[dict[str, Any]] = []

    def result(name: str, value: float, unit: str, bar: float | None = None) -> None:
        results.append({"name": name, "value": value, "unit": unit, "bar": bar, "ok": bar is None or value <= bar})

    with tempfile.TemporaryDirectory() as scratch, StorageServer() as server:
        pictures = [encoded(image, "JPEG", quality=88) for image in crops(SIDE_PX)]
        for n in range(N_ROWS):
            server.put("bench", f"{n}.jpg", pictures[n % len(pictures)])
        manifest = _manifest(Path(scratch))
        runs: list[tuple[str, Any, float | None, dict[str, Any]]] = [
            ("defaults, fresh latency", fresh, BAR_WAIT, {}),
            ("defaults, 1 % errors", errors, BAR_WAIT_ERRORS, {}),
            ("defaults, objects stay slow", slow, BAR_WAIT, {}),
            ("hedge_share 0, fresh latency", fresh, None, {"hedge_share": 0.0}),
            ("one step ahead, fresh latency", fresh, None, {"prefetch_steps": 1}),
            ("one step ahead, hedge_share 0", fresh, None, {"prefetch_steps": 1, "hedge_share": 0.0}),
        ]
        for name, behaviour, bar, speed in runs:
            print(f"tail: {name}", file=sys.stderr)
            wait, hedges, samples = _measured(server, manifest, Path(scratch) / "index", behaviour, **speed)
            result(f"{name}: wait ratio", wait, "of the step", bar)
            result(f"{name}: second requests", hedges, "of requests", BAR_HEDGES)
            if samples < OBJECTS_PER_STEP:
                raise RuntimeError(f"{samples} objects a step, {OBJECTS_PER_STEP} are wanted")
    return results
