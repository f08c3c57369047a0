"""One life of a run that is killed again and again: goes on from its state file, logs each step, then saves a state.

Called as ``killed_run.py SETTINGS_JSON FOLDER N_STEPS DP_SIZE``; all ranks live in this process. Prints what it is
doing, so that whoever kills it may choose the moment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from stoker import Loader, Settings


def main(settings_json: str, folder: Path, n_steps: int, dp_size: int) -> None:
    settings = Settings.from_dict(json.loads(settings_json))
    saved = folder / "state.json"
    state = json.loads(saved.read_text()) if saved.exists() else None
    print("opening", flush=True)
    loaders = [Loader(settings, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(state)
    print("opened", flush=True)
    ranks = [loader.steps() for loader in loaders]
    at = 0 if state is None else state["step"]
    with (folder / "log.jsonl").open("a") as log:
        while at < n_steps:
            digests = sorted(batch.digest() for rank in ranks for batch in next(rank))
            log.write(json.dumps({"step": at, "digests": digests}) + "\n")
            log.flush()
            at += 1
            print(f"step {at}", flush=True)
            save(loaders[at % dp_size].state_dict(), saved)
    for loader in loaders:
        loader.close()


def save(state: dict[str, object], path: Path) -> None:
    """As a trainer should: beside it, then renamed."""
    text = json.dumps(state)
    beside = path.with_suffix(".new")
    with beside.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        print("writing", flush=True)
        file.write(text[len(text) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
