"""Memory of encoded objects: leased before it is taken, however large they turn out to be and many are in flight."""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from loader_data import encoded, picture, settings_for, small_model
from stoker import Loader
from stoker.testing import Behaviour, Latency, StorageServer

SIDE_PX = 64


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _watched(
    folder: str, speed: dict[str, Any], storage: dict[str, Any], n_steps: int, stop_s: float, window: int = 512
) -> dict[str, Any]:
    """One run in a process of its own: a trainer that stops after its first step. What it saw, and what it took."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = settings_for(f"{folder}/rows.jsonl", Path(folder), storage=storage, speed=speed)
    settings = settings.replace(
        data=[{"manifest": f"{folder}/rows.jsonl", "media_root": "s3://media/"}],
        window_samples=window,
        pack={"packs_per_step": 8},
        outage_limit_s=120.0,
    )
    seen: dict[str, Any] = {"digests": [], "in_flight": 0, "in_use": 0}
    is_over = threading.Event()
    with Loader(settings) as loader:
        before = _rss_bytes()
        peak = before

        def watch() -> None:
            nonlocal peak
            while not is_over.wait(0.01):
                peak = max(peak, _rss_bytes())
                if p := loader.report().values["pipeline"]:
                    seen["in_flight"] = max(seen["in_flight"], p["fetch"]["in_flight"])

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            for n, step in enumerate(loader.steps()):
                seen["digests"] += [batch.digest() for batch in step]
                if n == 0:
                    time.sleep(stop_s)  # the trainer writes a checkpoint
                if n + 1 == n_steps:
                    break
        finally:
            is_over.set()
            watching.join()
        seen["memory"] = loader.report().values["pipeline"]["memory"]
        seen["grown"] = peak - before
    return seen


def watched(*args: Any) -> dict[str, Any]:
    """`_watched` in a fresh interpreter, so that no other test's memory is measured."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, Any] = pool.apply(_watched, args)
    return found


def store(server: StorageServer, folder: Path, *, n_rows: int, sizes: list[int], with_sizes: bool) -> None:
    """Rows with a small picture each, whose files are filled up to the given sizes, in turn."""
    rng = random.Random(1)
    small_model(folder / "model")
    rows = []
    for n in range(n_rows):
        body = encoded(picture(SIDE_PX, SIDE_PX, n), "JPEG")
        server.put("media", f"{n}.jpg", body + rng.randbytes(max(0, sizes[n % len(sizes)] - len(body))))
        image: dict[str, Any] = {"type": "image", "image": f"{n}.jpg"}
        if with_sizes:
            image |= {"height": SIDE_PX, "width": SIDE_PX}
        question = {"role": "user", "content": [image, {"type": "text", "text": "What?"}]}
        rows.append({"messages": [question, {"role": "assistant", "content": f"Number {n}."}]})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("with_sizes", [True, False])
def test_what_is_in_flight_stays_in_its_room_and_changes_no_batch(tmp_path: Path, with_sizes: bool) -> None:
    """With sizes in the rows nothing is known of the objects' bytes: most turn out larger than was reserved."""
    sizes = [1000, 300_000, 2_000_000, 30_000, 100_000]  # 490 kB on average: all in flight would be 250 MB
    with StorageServer() as server:
        store(server, tmp_path, n_rows=256, sizes=sizes, with_sizes=with_sizes)
        speed = {"fetch_concurrency": 512, "prefetch_steps": 16, "cpu_threads": 2}
        tight = watched(str(tmp_path), {**speed, "memory_limit": "64MiB"}, server.settings(), 4, 0.5)
        ample = watched(str(tmp_path), {**speed, "memory_limit": "2GiB"}, server.settings(), 4, 0.0)
    assert tight["digests"] == ample["digests"]
    memory = tight["memory"]
    assert memory["encoded_limit_bytes"] == 16 << 20
    assert 0 < memory["encoded_peak_bytes"] <= memory["encoded_limit_bytes"]
    assert memory["peak_bytes"] <= memory["limit_bytes"] == 64 << 20
    assert tight["grown"] < (64 << 20) + (48 << 20), "connections and code take a little beside the budget"


def test_an_object_larger_than_all_room_goes_alone(tmp_path: Path) -> None:
    with StorageServer() as server:
        store(server, tmp_path, n_rows=40, sizes=[20 << 20, 2000, 2000, 2000, 2000], with_sizes=True)
        speed = {"fetch_concurrency": 64, "prefetch_steps": 4, "cpu_threads": 2, "memory_limit": "48MiB"}
        seen = watched(str(tmp_path), speed, server.settings(), 2, 0.0)
    memory = seen["memory"]
    assert len(seen["digests"]) == 16
    assert memory["encoded_limit_bytes"] < (20 << 20) <= memory["encoded_peak_bytes"] < (21 << 20)


@pytest.mark.soak
def test_four_thousand_in_flight_and_a_trainer_that_stops_for_a_minute(tmp_path: Path) -> None:
    rng = random.Random(2)
    sizes = [int(1000 * 10 ** rng.uniform(0, 1.5)) for _ in range(799)] + [50_000_000]  # up to 30 kB, and one of 50 MB
    slow = Behaviour(latency=Latency(median_s=2.0, sigma=0.3), seed=1)
    with StorageServer(behaviour=slow) as server:
        store(server, tmp_path, n_rows=8192, sizes=sizes, with_sizes=False)
        speed = {"fetch_concurrency": 4096, "prefetch_steps": 200, "cpu_threads": 2, "memory_limit": "3GiB"}
        seen = watched(str(tmp_path), speed, server.settings(), 4, 60.0, 8192)
    memory = seen["memory"]
    print({**seen, "digests": len(seen["digests"])})
    assert seen["in_flight"] >= 4000
    assert memory["peak_bytes"] <= memory["limit_bytes"] == 3 << 30
    assert seen["grown"] < 1.1 * (3 << 30)
