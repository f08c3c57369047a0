"""A storage server to run against: S3's protocol on loopback, with latency, faults and a bandwidth limit.

A part for tests and demonstrations, never imported by the product. ::

    from stoker.testing import Behaviour, Fault, Latency, StorageServer

    behaviour = Behaviour(latency=Latency(), faults=(Fault(kind="reset", share=0.01),), seed=7)
    with StorageServer(behaviour=behaviour) as server:
        server.put("bucket", "a/b.jpg", data)
        ...  # read it by server.endpoint_url, server.access_key_id, server.secret_access_key
        server.stats()

``python -m stoker.testing --help`` runs one by hand.
"""

from __future__ import annotations

from stoker.testing.behaviour import Behaviour, Fault, FaultKind, Latency
from stoker.testing.server import StorageServer, StorageServerError

__all__ = ["Behaviour", "Fault", "FaultKind", "Latency", "StorageServer", "StorageServerError"]
