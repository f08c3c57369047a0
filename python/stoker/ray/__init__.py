"""Stoker on a Ray cluster: one coordinator, many workers, and a client in each trainer process.

Nothing here is imported by ``import stoker``; a run uses it when its settings have a ``ray:`` section.

==================  ===================================================================================================
what they say       `protocol`
the coordinator     `coordinator`, what clients ask it; `course`, what happens between; `planning`, the plan's thread;
                    `workforce`, its workers; `telling`, `waiters`, `background`
decides, pure       `placement`, where workers run and how packs travel; `scheduler` (with `task`, `waiting`), who makes
                    which pack; `roster`, who takes part; `shelf`, the packs of each rank
a worker            `worker`
a rank's client     `client`; `meeting`, how it finds the coordinator; `asking`, `fetching`, `pulling`; `counting`,
                    `views`, `stores`
seen from outside   `commands`, ``stoker ray ...``; `checkup`, `nodes`, `status`; `cluster`, clusters made and taken
                    down; `ladder`, ``stoker ladder --ray``
==================  ===================================================================================================
"""

from __future__ import annotations

__all__: list[str] = []
