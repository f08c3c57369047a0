"""AWS Signature Version 4 in its header form, for S3: what a client sends and what the server expects.

Source: AWS documentation, "Signature Calculations for the Authorization Header"; compared with botocore in the tests.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

__all__ = ["Authorization", "Credentials", "parse_authorization", "sign", "signature"]

_ALGORITHM = "AWS4-HMAC-SHA256"
_SPACES = re.compile(r" +")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A key pair, and the token that comes with temporary ones."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """What an ``Authorization`` header says."""

    access_key_id: str
    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str


def parse_authorization(header: str) -> Authorization | None:
    """Takes the header apart; None if it is not of this form."""
    algorithm, _, rest = header.partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    scope = fields.get("Credential", "").rsplit("/", 4)
    if algorithm != _ALGORITHM or len(scope) != 5 or scope[4] != "aws4_request":
        return None
    return Authorization(
        access_key_id=scope[0],
        date=scope[1],
        region=scope[2],
        service=scope[3],
        signed_headers=tuple(fields.get("SignedHeaders", "").split(";")),
        signature=fields.get("Signature", ""),
    )


@functools.lru_cache(maxsize=64)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = [part.partition("=")[::2] for part in query.split("&")]
    return "&".join(
        sorted(f"{quote(unquote(name), safe='-_.~')}={quote(unquote(value), safe='-_.~')}" for name, value in pairs)
    )


def signature(
    *,
    secret_access_key: str,
    region: str,
    service: str,
    method: str,
    key_path: str,
    query: str,
    headers: Mapping[str, str],
    signed_headers: Iterable[str],
) -> str:
    """Returns the signature of a request.

    Args:
        secret_access_key: The secret half of the key pair.
        region: Part of the scope.
        service: Part of the scope, ``s3``.
        method: Such as ``GET``.
        key_path: ``/bucket/key`` as it is meant, not percent-encoded; S3 encodes once and normalises nothing.
        query: As sent, without the question mark.
        headers: All of them, names in lower case; ``x-amz-date`` and ``x-amz-content-sha256`` must be among them.
        signed_headers: Names in lower case.
    """
    names = sorted(signed_headers)
    amz_date = headers["x-amz-date"]
    canonical = "\n".join(
        (
            method,
            quote(key_path, safe="/-_.~", errors="surrogateescape"),
            _canonical_query(query),
            *(f"{name}:{_SPACES.sub(' ', headers.get(name, '').strip())}" for name in names),
            "",
            ";".join(names),
            headers["x-amz-content-sha256"],
        )
    )
    scope = f"{amz_date[:8]}/{region}/{service}/aws4_request"
    to_sign = f"{_ALGORITHM}\n{amz_date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    return hmac.digest(_signing_key(secret_access_key, amz_date[:8], region, service), to_sign.encode(), "sha256").hex()


def sign(
    *,
    credentials: Credentials,
    region: str,
    method: str,
    host: str,
    key_path: str,
    payload: bytes = b"",
    now: datetime.datetime | None = None,
) -> dict[str, str]:
    """Returns the headers to send, signature included; ``key_path`` as in `signature`."""
    amz_date = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": host,
        "x-amz-content-sha256": hashlib.sha256(payload).hexdigest(),
        "x-amz-date": amz_date,
    }
    if credentials.session_token is not None:
        headers["x-amz-security-token"] = credentials.session_token
    value = signature(
        secret_access_key=credentials.secret_access_key,
        region=region,
        service="s3",
        method=method,
        key_path=key_path,
        query="",
        headers=headers,
        signed_headers=list(headers),
    )
    scope = f"{credentials.access_key_id}/{amz_date[:8]}/{region}/s3/aws4_request"
    names = ";".join(sorted(headers))
    return {**headers, "authorization": f"{_ALGORITHM} Credential={scope}, SignedHeaders={names}, Signature={value}"}
