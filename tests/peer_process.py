"""One of several peers, each a process of its own: does what its standard input says, a line for a line.

Called as ``peer_process.py SETTINGS_JSON PEER_RANK PEER_COUNT JOB [STATE_JSON]``. ``take N`` answers the digests of the
next N batches, of which the last is held; ``close`` closes the loader, lets go of it and answers the
shared blocks still open.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from pathlib import Path

from stoker import Loader, Settings, StokerError, Topology


def blocks() -> list[str]:
    """Shared blocks that this process has open or mapped."""
    found = Path("/proc/self/maps").read_text().splitlines()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            found.append(os.readlink(fd))
    return [at for at in found if "stoker-pack" in at]


def main(settings_json: str, rank: int, count: int, job: str, state: str = "null") -> None:
    settings = Settings.from_dict(json.loads(settings_json))
    loader = Loader(settings, topology=Topology(peer_rank=rank, peer_count=count, job=job))
    print(json.dumps("made"), flush=True)
    held = None
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "close":
            break
        answer: object = None
        digests: list[str] = []
        try:
            if state != "null":
                loader.load_state_dict(json.loads(state))
                state = "null"
            if word == "take":
                for _ in range(int(rest[0])):
                    held = next(loader)
                    digests.append(held.digest())
                answer = {"digests": digests, "state": loader.state_dict()}
        except StokerError as error:
            answer = {"error": error.code, "text": str(error), "digests": digests}
        except KeyboardInterrupt:
            answer = {"error": "KeyboardInterrupt", "digests": digests}
        print(json.dumps(answer), flush=True)
    loader.close()
    del loader, held
    gc.collect()
    print(json.dumps(blocks()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
