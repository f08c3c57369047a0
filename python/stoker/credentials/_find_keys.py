"""Prints the keys that botocore finds, or why it finds none, as one line of JSON. `KeyFinder` runs it."""

from __future__ import annotations

import datetime
import json
import os
import sys
from typing import Any


def find(profile: str, fallback_region: str) -> dict[str, Any]:
    """Returns the fields of `FoundKeys`, or ``error``."""
    try:
        import botocore.session
    except ImportError:
        return {"error": 'finding its keys takes the package botocore: pip install "stoker[aws]"'}
    try:
        session = botocore.session.Session(profile=profile or None)
        # botocore knows AWS_DEFAULT_REGION only.
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or fallback_region
        if region:
            session.set_config_variable("region", region)
        if session.get_config_variable("metadata_service_num_attempts") == 1:  # its default; busy nodes miss one
            session.set_config_variable("metadata_service_num_attempts", 3)
        credentials = session.get_credentials()
        if credentials is None:
            return {"error": "botocore found none either: no role, sign-on, process, container or instance gives any"}
        frozen = credentials.get_frozen_credentials()
    except Exception as error:  # botocore's own, and whatever its plug-ins and processes do
        return {"error": f"botocore: {type(error).__name__}: {error}"}
    end: datetime.datetime | None = getattr(credentials, "_expiry_time", None)
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "session_token": frozen.token or "",
        "valid_for_s": None if end is None else (end - datetime.datetime.now(datetime.UTC)).total_seconds(),
        "provider": f"botocore ({credentials.method})",
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(find(*sys.argv[1:])))
