"""One process of a trainer whose batches come from a cluster.

Called as ``ray_rank.py SETTINGS_YAML OUT [N]``; where it stands it learns from the launcher's variables, as under
torchrun. Writes to OUT: a line of digests for each step, or the error that it ended with. With N it stops after
N steps, and then waits for a signal with the last batch at hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from stoker import Loader, Settings, StokerError, Topology


def topology() -> Topology:
    """Of this process, from what torchrun sets; ``STOKER_TEST_TP`` neighbours are one data-parallel rank."""
    tp = int(os.environ.get("STOKER_TEST_TP", "1"))
    return Topology.from_sizes(world_size=int(os.environ["WORLD_SIZE"]), tp=tp)


def main(settings_file: str, out: str, n_steps: int) -> None:
    """See above."""
    with Path(out).open("w") as told:

        def tell(value: object) -> None:
            told.write(json.dumps(value) + "\n")
            told.flush()

        try:
            loader = Loader(Settings.load(settings_file), topology=topology())
            for step in loader.steps():
                tell([batch.digest() for batch in step])
                n_steps -= 1
                if n_steps == 0:
                    tell("waits")
                    while True:
                        time.sleep(60)
            tell({"ray": loader.report().to_dict()["ray"]})
            loader.close()
        except StokerError as error:
            tell({"error": error.code, "text": str(error)})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else -1)
