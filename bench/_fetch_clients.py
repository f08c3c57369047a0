"""The storage clients that people use from Python, as contenders of the group ``fetch``.

    python bench/_fetch_clients.py CLIENT IN_FLIGHT ENDPOINT N_OBJECTS OBJECT_BYTES

The protocol is that of ``fetch_bench``: a line of standard input is a number of GETs to do, the answer is one JSON
object a line. Each object arrives as ``bytes`` or what the client has instead, whole, and is looked at: its length, and
the number at its beginning.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Bytes = Any
"""Whatever gives its bytes without a copy: collections.abc.Buffer, which Python 3.11 lacks."""
BUCKET = "bench"
REGION = "us-east-1"
KEY_ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # of AWS's own documentation
THREADS = 32
"""For clients that need one for each request: more only compete for the interpreter."""


@dataclass(frozen=True)
class Task:
    in_flight: int
    endpoint: str
    n_objects: int
    object_bytes: int

    def key(self, n: int) -> str:
        return f"train/{self.object_of(n):06}.jpg"

    def object_of(self, n: int) -> int:
        return n * 1237 % self.n_objects

    def check(self, n: int, body: Bytes) -> None:
        view = memoryview(body)
        if len(view) != self.object_bytes or int.from_bytes(view[:8], sys.byteorder) != self.object_of(n):
            raise ValueError(f"{self.key(n)}: {len(view)} bytes, and not its own")


Run = Callable[[range], None]
"""Does the GETs with these numbers."""


def _in_threads(task: Task, get: Callable[[str], Bytes]) -> Run:
    pool = ThreadPoolExecutor(min(THREADS, task.in_flight))

    def one(n: int) -> None:
        task.check(n, get(task.key(n)))

    def run(numbers: range) -> None:
        for _ in pool.map(one, numbers):
            pass

    return run


def _in_loop(task: Task, get: Callable[[str], Awaitable[Bytes]], loop: asyncio.AbstractEventLoop) -> Run:
    async def work(numbers: Any) -> None:
        for n in numbers:
            task.check(n, await get(task.key(n)))

    async def all_of(numbers: range) -> None:
        shared = iter(numbers)  # each worker takes the next: so many are in flight until the end
        await asyncio.gather(*(work(shared) for _ in range(task.in_flight)))

    def run(numbers: range) -> None:
        loop.run_until_complete(all_of(numbers))

    return run


def obstore(task: Task) -> Run:
    """Rust's object_store, called from threads, which costs it less than asyncio.

    Every request signed; it checks no checksums of bodies.
    """
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=task.endpoint,
        region=REGION,
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return _in_threads(task, lambda key: store.get(key).bytes())


def s3torchconnector(task: Task) -> Run:
    """AWS's own client in C, as a map dataset read from threads.

    Every request signed; there is no checksum to check, since the server sends none.
    """
    from s3torchconnector import S3ClientConfig, S3MapDataset

    os.environ.update(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=SECRET)  # it takes them from nowhere else
    uris = [f"s3://{BUCKET}/train/{n:06}.jpg" for n in range(task.n_objects)]
    dataset = S3MapDataset.from_objects(
        uris,
        region=REGION,
        endpoint=task.endpoint,
        s3client_config=S3ClientConfig(force_path_style=True, throughput_target_gbps=100),
        transform=lambda reader: reader.read(),
    )
    return _in_threads(task, lambda key: dataset[int(key[6:12])])


def boto3(task: Task) -> Run:
    """One client for all threads. Every request signed; checksums are checked only where they are required: never."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=task.endpoint,
        region_name=REGION,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        config=Config(
            max_pool_connections=THREADS,
            s3={"addressing_style": "path"},
            response_checksum_validation="when_required",
        ),
    )

    def get(key: str) -> Bytes:
        body: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body

    return _in_threads(task, get)


def aiohttp(task: Task) -> Run:
    """Plain HTTP: nothing is signed, nothing is checked."""
    import aiohttp

    loop = asyncio.new_event_loop()

    async def opened() -> Any:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=task.in_flight))

    session = loop.run_until_complete(opened())

    async def get(key: str) -> Bytes:
        async with session.get(f"{task.endpoint}/{BUCKET}/{key}") as answer:
            answer.raise_for_status()
            body: bytes = await answer.read()
            return body

    return _in_loop(task, get, loop)


CLIENTS: dict[str, Callable[[Task], Run]] = {c.__name__: c for c in (obstore, s3torchconnector, boto3, aiohttp)}


def main(name: str, in_flight: str, endpoint: str, n_objects: str, object_bytes: str) -> None:
    run = CLIENTS[name](Task(int(in_flight), endpoint, int(n_objects), int(object_bytes)))
    n_done = 0
    for line in sys.stdin:
        n_gets = int(line)
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        run(range(n_done, n_done + n_gets))
        wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
        n_done += n_gets
        print(json.dumps({"gets": n_gets, "wall_ns": wall, "cpu_ns": cpu}), flush=True)
    os._exit(0)  # no goodbyes of sessions and pools


if __name__ == "__main__":
    main(*sys.argv[1:])
