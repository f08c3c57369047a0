"""One process of a trainer that is told what to do, line by line, so that a test need not start it anew for each run.

Takes lines of JSON ``{"settings", "rank", "size", "state", "n_steps", "step_s"}``, each a run of so many steps in all
that goes on from a state, with so much time between two steps. Writes ``{"step", "digests", "state"}`` for each step,
and at the end of a run ``{"end": "done"}``, or ``{"end": CODE, "text", "state"}`` with the state of its loader.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from stoker import Loader, Settings, StokerError

# Ray prints what it thinks of a killed actor on standard output, in the middle of a line if it comes to that.
_told = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def tell(value: dict[str, Any]) -> None:
    _told.write(json.dumps(value) + "\n")
    _told.flush()


def run(order: dict[str, Any]) -> None:
    loader = Loader(Settings.from_dict(order["settings"]), dp_rank=order["rank"], dp_size=order["size"])
    try:
        if order["state"] is not None:
            loader.load_state_dict(order["state"])
        at = 0 if order["state"] is None else order["state"]["step"]
        if at < order["n_steps"]:
            for step in loader.steps():
                tell({"step": at, "digests": [batch.digest() for batch in step], "state": loader.state_dict()})
                del step
                at += 1
                if at >= order["n_steps"]:
                    break
                time.sleep(order["step_s"])  # it trains
        tell({"end": "done"})
    except StokerError as error:
        tell({"end": error.code, "text": str(error), "state": loader.state_dict()})
    finally:
        loader.close()


if __name__ == "__main__":
    tell({"ready": True})
    for line in sys.stdin:
        run(json.loads(line))
