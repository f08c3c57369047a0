"""What it costs a job to learn the sizes of its pictures: no index, no sizes in the rows, 30 ms of latency.

A job of 1, 8 and 64 ranks goes through one epoch of 1,024 pictures in two windows, against `stoker.testing`'s storage
server (p50 30 ms, as object stores answer). Ranks are processes that share by `exchange: tcp`; 64 are loaders of one
process, since this is about requests and not about processors. Figures:

- header requests per object over the whole job, counted by the server;
- time to the first batch: from all ranks' loaders being open to the last rank's first batch;
- the same of 8 ranks that share nothing (an index directory each), for comparison;
- the same of 8 ranks of which one is killed while it measures: its share is measured again, everything else is not.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent.parent / "testdata" / "qwen3-vl"
N_OBJECTS = 1024
WINDOW = 512
SIDE_PX = 256
TOKENS_PER_PACK = 384
PACKS_PER_STEP = 64
BAR_HEADERS = 1.02
KILLED_RANK = 3
BAR_KILLED = 1.0 + 1.5 / 8
"""Once each, the killed rank's share of a window again, and what others were at when they took it over."""
_PATIENCE_S = 300.0


def _photo() -> bytes:
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(1).integers(0, 256, size=(SIDE_PX, SIDE_PX, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG", quality=60)
    return out.getvalue()


def _manifest(folder: Path) -> Path:
    answer = {"role": "assistant", "content": "A photograph."}
    rows = [
        {"messages": [{"role": "user", "content": "<image>"}, answer], "images": [f"{n}.jpg"]} for n in range(N_OBJECTS)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def _settings(manifest: Path, storage: dict[str, Any], index: Path, n_ranks: int, exchange: str) -> dict[str, Any]:
    return {
        "data": [{"manifest": str(manifest), "media_root": "s3://bench/"}],
        "model": str(MODEL),
        "epochs": 1,
        "window_samples": WINDOW,
        "pack": {"tokens_per_pack": TOKENS_PER_PACK, "packs_per_step": PACKS_PER_STEP},
        "speed": {
            "cpu_threads": 1,
            "fetch_concurrency": max(4, 128 // n_ranks),
            "memory_limit": "256MiB",
            "prefetch_steps": 1,
            "hedge_share": 0.0,
        },
        "storage": storage,
        "index_dir": str(index),
        "exchange": exchange,
    }


def _rank(values: dict[str, Any], rank: int, n_ranks: int, opened: Any, all_done: Any) -> tuple[float, int]:
    """Goes through the epoch; returns (when its first batch was there, batches)."""
    from stoker import Loader, Settings

    with Loader(Settings.from_dict(values), dp_rank=rank, dp_size=n_ranks) as loader:
        loader.state_dict()  # opens it
        opened()
        next(loader)
        first = time.monotonic()
        n = 1 + sum(1 for _ in loader)
        all_done()
        return first, n


def _as_process(order: str) -> int:
    """One rank in a process of its own, led through its standard input and output."""
    values, rank, n_ranks = json.loads(order)

    def say(word: str) -> None:
        sys.stdout.write(word + "\n")
        sys.stdout.flush()

    def meet(word: str) -> None:
        say(word)
        sys.stdin.readline()

    first, n = _rank(values, rank, n_ranks, lambda: meet("open"), lambda: meet("done"))
    say(json.dumps([first, n]))
    return 0


def _processes(all_values: list[dict[str, Any]], server: Any, kills: bool) -> tuple[float, float]:
    """Returns (time to the first batch, header requests per object)."""
    n_ranks = len(all_values)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank, values in enumerate(all_values):
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        command = [sys.executable, str(Path(__file__).resolve()), json.dumps([values, rank, n_ranks])]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        ranks.append(subprocess.Popen(command, **pipes))
    try:
        for process in ranks:
            _read(process)
        server.reset_stats()
        began = time.monotonic()
        for process in ranks:
            _tell(process)
        if kills:
            while server.stats()["requests"] < WINDOW // 4:
                time.sleep(0.002)
            killed = ranks.pop(KILLED_RANK)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        for process in ranks:
            _read(process)
        headers = _headers(server)
        for process in ranks:
            _tell(process)
        firsts = [json.loads(_read(process))[0] for process in ranks]
        return max(firsts) - began, headers
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with {process.wait()}")
    return line


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _threads(all_values: list[dict[str, Any]], server: Any) -> tuple[float, float]:
    """The same with loaders of one process."""
    n_ranks = len(all_values)
    began = [0.0]

    def start() -> None:
        server.reset_stats()
        began[0] = time.monotonic()

    opened = threading.Barrier(n_ranks, action=start)
    done = threading.Barrier(n_ranks)
    firsts: list[float] = []
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            waits = (lambda: opened.wait(_PATIENCE_S), lambda: done.wait(_PATIENCE_S))
            firsts.append(_rank(all_values[rank], rank, n_ranks, *waits)[0])
        except BaseException as error:  # an exception in a thread would be lost
            problems.append(error)
            opened.abort()
            done.abort()

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + random.randrange(10000)))
    os.environ.pop("RANK", None)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return max(firsts) - began[0], _headers(server)


def _headers(server: Any) -> float:
    return sum(1 for seen in server.requests() if seen.range is not None and seen.status == 206) / N_OBJECTS


def run() -> list[dict[str, Any]]:
    """Measures the group."""
    from stoker.testing import Behaviour, Latency, StorageServer

    results: list[dict[str, Any]] = []

    def tell(name: str, measured: tuple[float, float], bar: float | None) -> None:
        first_s, headers = measured
        results.append(
            {
                "name": f"{name}: header requests per object",
                "value": headers,
                "unit": "requests",
                "bar": bar,
                "ok": bar is None or 1.0 <= headers <= bar,
            }
        )
        results.append(
            {"name": f"{name}: time to the first batch", "value": first_s, "unit": "s", "bar": None, "ok": True}
        )

    with tempfile.TemporaryDirectory() as scratch, StorageServer(behaviour=Behaviour(latency=Latency())) as server:
        folder = Path(scratch)
        manifest = _manifest(folder)
        photo = _photo()
        for n in range(N_OBJECTS):
            server.put("bench", f"{n}.jpg", photo)

        def values(index: str, n_ranks: int, exchange: str = "tcp") -> dict[str, Any]:
            return _settings(manifest, server.settings(), folder / index, n_ranks, exchange)

        tell("1 rank", _processes([values("one", 1)], server, False), BAR_HEADERS)
        # An index directory each, so that nothing but the exchange tells one what another measured.
        eight = [values(f"eight-{rank}", 8) for rank in range(8)]
        tell("8 ranks", _processes(eight, server, False), BAR_HEADERS)
        apart = [values(f"apart-{rank}", 8, "dir") for rank in range(8)]
        tell("8 ranks that share nothing", _processes(apart, server, False), None)
        tell(
            "8 ranks, one killed",
            _processes([values(f"killed-{rank}", 8) for rank in range(8)], server, True),
            BAR_KILLED,
        )
        tell("64 ranks", _threads([values(f"many-{rank}", 64) for rank in range(64)], server), BAR_HEADERS)
    return results


if __name__ == "__main__":
    sys.exit(_as_process(sys.argv[1]))
