"""``python -m stoker.testing``: the storage server by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stoker.errors import InvalidArgumentError
from stoker.testing.behaviour import Behaviour, Fault, Latency
from stoker.testing.process import run_by_hand, run_controlled


def _measured(path: str) -> Latency:
    try:
        return Latency.from_profile(path)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stoker.testing",
        description="An S3-compatible storage server on loopback for tests: serves the sub-folders of ROOT as buckets.",
        epilog="Example: python -m stoker.testing ./buckets --port 9000 --latency --error-share 0.01",
    )
    parser.add_argument("root", nargs="?", type=Path, help="folder of buckets; without it objects come by PUT only")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one (default 9000)")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--access-key-id", default="stoker")
    parser.add_argument("--secret-access-key", default="stoker-secret")
    parser.add_argument("--anonymous", action="append", default=[], metavar="BUCKET", help="needs no signature")
    parser.add_argument("--latency", action="store_true", help="think like a distant object store (median 30 ms)")
    parser.add_argument(
        "--profile", type=_measured, metavar="FILE", help="think like a storage that `stoker probe --save` measured"
    )
    parser.add_argument("--error-share", type=float, default=0.0, help="half 503 SlowDown, half connection resets")
    parser.add_argument("--bandwidth", type=float, metavar="BYTES_PER_S", help="for all connections together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control-fd", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Runs until interrupted."""
    options = _parse(arguments)
    if options.control_fd is not None:
        run_controlled(options.control_fd)
        return 0
    share = options.error_share / 2
    behaviour = Behaviour(
        latency=options.profile or (Latency() if options.latency else None),
        faults=(Fault(kind="error", share=share), Fault(kind="reset", share=share)) if share > 0 else (),
        bandwidth_bytes_per_s=options.bandwidth,
        seed=options.seed,
    )
    config = {
        "root": None if options.root is None else str(options.root.resolve()),
        "behaviour": behaviour.to_dict(),
        "region": options.region,
        "anonymous_buckets": options.anonymous,
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
        "session_token": None,
        "port": options.port,
    }

    def announce(port: int) -> None:
        sys.stdout.write(
            f"export AWS_ENDPOINT_URL_S3=http://127.0.0.1:{port} AWS_REGION={options.region} "
            f"AWS_ACCESS_KEY_ID={options.access_key_id} AWS_SECRET_ACCESS_KEY={options.secret_access_key}\n"
        )
        sys.stdout.flush()

    try:
        run_by_hand(config, announce)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
