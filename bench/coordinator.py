"""Whether one coordinator on one core serves 1,024 ranks at a step per 2.3 s: tasks, references, ledger; no pixels.

Coordinator and workers are the real actors, with the real plan over rows of text, some 16 to a pack; a pack of text is
an object of 100 kB. Ranks are stubs, many clients in each of few processes, that take a step each, in step with each
other, and drop what they got.

Figures: CPU seconds of the coordinator's process per step, of all its threads; their share of a core at a step per
2.3 s; and how fast steps came when nobody slept (on a machine that also ran the ranks, the workers and Ray's own
processes).
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
MODEL = BENCH.parent / "testdata" / "qwen3-vl"
N_RANKS = 1024
STEP_S = 2.3
N_PROCESSES = 4
N_WORKERS = 4
WORKER_CPUS = 4
N_WARM_STEPS = 3
N_STEPS = 12
N_ROWS = 16384
TOKENS_PER_PACK = 512
BAR_CORES = 1.0


def _rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    with path.open("w") as out:
        for n in range(N_ROWS):
            turns = [
                {"role": "user", "content": f"Question {n}?"},
                {"role": "assistant", "content": "yes " * (n % 30 + 1)},
            ]
            out.write(json.dumps({"messages": turns}) + "\n")
    return path


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(n_steps: int = N_STEPS) -> dict[str, float]:
    """One run on a cluster of its own."""
    import ray
    import stoker
    from _stub_ranks import Ranks
    from stoker.ray.coordinator import create

    with tempfile.TemporaryDirectory() as name:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])
        ray.init(
            num_cpus=N_WORKERS * WORKER_CPUS,
            object_store_memory=1 << 30,
            include_dashboard=False,
            log_to_driver=False,
            namespace="stoker",
        )
        try:
            settings = stoker.Settings.from_dict(
                {
                    "data": [{"manifest": str(_rows(Path(name)))}],
                    "model": str(MODEL),
                    "index_dir": f"{name}/index",
                    "window_samples": N_ROWS,
                    "pack": {"tokens_per_pack": TOKENS_PER_PACK, "packs_per_step": N_RANKS},
                    "ray": {"workers": N_WORKERS, "worker_cpus": WORKER_CPUS},
                }
            )
            coordinator = create("stoker-bench-1")
            ray.get(coordinator.open.remote(settings, settings.ray))
            share = N_RANKS // N_PROCESSES
            processes = [
                ray.remote(Ranks)
                .options(num_cpus=0, max_concurrency=8)
                .remote(coordinator, list(range(i * share, (i + 1) * share)), N_RANKS)
                for i in range(N_PROCESSES)
            ]
            state = _first_state(settings)
            ray.get([p.join.remote(state) for p in processes])
            pid = ray.get(coordinator.status.remote())["pid"]
            for step in range(N_WARM_STEPS):
                ray.get([p.step.remote(step) for p in processes])
            cpu, began = _cpu_s(pid), time.monotonic()
            for step in range(N_WARM_STEPS, N_WARM_STEPS + n_steps):
                n = sum(ray.get([p.step.remote(step) for p in processes]))
                assert n == N_RANKS
            cpu, took = _cpu_s(pid) - cpu, time.monotonic() - began
            status = ray.get(coordinator.status.remote())
            ray.get([p.leave.remote() for p in processes])
        finally:
            ray.shutdown()
    return {
        "cpu_s_per_step": cpu / n_steps,
        "steps_per_s": n_steps / took,
        "payload_bytes": float(status["counters"].get("payload_bytes_seen", 0)),
    }


def _first_state(settings: Any) -> dict[str, Any]:
    import stoker

    with stoker.Loader(dataclasses.replace(settings, ray=None)) as loader:
        return loader.state_dict()


def run() -> list[dict[str, Any]]:
    """The figures against their bars."""
    m = measured()
    share = m["cpu_s_per_step"] / STEP_S
    return [
        {
            "name": f"coordinator: CPU per step of {N_RANKS} ranks",
            "value": m["cpu_s_per_step"],
            "unit": "s",
            "bar": STEP_S * BAR_CORES,
            "ok": m["cpu_s_per_step"] <= STEP_S * BAR_CORES,
        },
        {
            "name": f"coordinator: share of a core at a step per {STEP_S} s",
            "value": share,
            "unit": "cores",
            "bar": BAR_CORES,
            "ok": share <= BAR_CORES,
        },
        {
            "name": "coordinator: steps as fast as they came",
            "value": m["steps_per_s"],
            "unit": "steps/s",
            "bar": None,
            "ok": True,
        },
        {
            "name": "coordinator: payload that it saw",
            "value": m["payload_bytes"],
            "unit": "bytes",
            "bar": 0.0,
            "ok": m["payload_bytes"] == 0,
        },
    ]
