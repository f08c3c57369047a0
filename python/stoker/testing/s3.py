"""What S3 answers: objects, ranges, conditions, signatures, errors. Knows nothing of sockets."""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import unquote
from xml.sax.saxutils import escape

from stoker.testing.behaviour import Behaviour
from stoker.testing.http import Answer, Request
from stoker.testing.sigv4 import Credentials, parse_authorization, signature
from stoker.testing.store import ObjectStore

__all__ = ["S3Service", "Seen"]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_MAX_SKEW_S = 900.0
_WRONG_CRC32 = "AAAAAQ=="


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the log keeps it."""

    method: str
    name: str
    """``bucket/key``."""
    range: str | None
    status: int
    fault: str | None


class S3Service:
    """Turns requests into answers.

    Threads: one.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        credentials: Credentials,
        region: str,
        anonymous_buckets: Collection[str],
        behaviour: Behaviour,
        n_log: int = 100_000,
    ) -> None:
        self._behaviour = behaviour
        self.log: deque[Seen] = deque(maxlen=n_log)
        self._store = store
        self._credentials = credentials
        self._expired_ids: set[str] = set()
        self._region = region
        self._anonymous_buckets = frozenset(anonymous_buckets)
        self._n_asked: dict[tuple[str, str], int] = {}

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Changes it for the requests to come; the counts per key start anew."""
        self._behaviour = behaviour
        self._n_asked.clear()

    def rotate(self, credentials: Credentials) -> None:
        """From now on only these keys are let in; what comes with earlier ones has expired."""
        self._expired_ids.add(self._credentials.access_key_id)
        self._expired_ids.discard(credentials.access_key_id)
        self._credentials = credentials

    def respond(self, request: Request) -> Answer:
        """Returns the answer to one request; never raises for what a client may send."""
        path, _, query = request.target.partition("?")
        key_path = unquote(path, errors="surrogateescape")
        bucket, _, key = key_path[1:].partition("/")
        name = f"{bucket}/{key}"
        answer = self._refusal(request, key_path, query, bucket)
        if answer is None:
            asked = ("PUT" if request.method == "PUT" else "GET", name)
            nth = self._n_asked.get(asked, 0)
            self._n_asked[asked] = nth + 1
            delay_s, fault = self._behaviour.decide(request.method, name, nth)
            if fault is not None and fault.kind == "error":
                answer = _error(fault.status, fault.code, fault.message, key)
                answer.headers.update(fault.headers)
            else:
                answer = self._serve(request, query, bucket, key)
                if fault is not None and fault.kind == "wrong_checksum" and "x-amz-checksum-crc32" in answer.headers:
                    answer.headers["x-amz-checksum-crc32"] = _WRONG_CRC32
            answer.delay_s, answer.fault = delay_s, fault
        if request.method == "HEAD" and answer.status >= 300:
            answer.body = b""  # S3 tells nothing more to HEAD
        answer.headers.setdefault("Server", "stoker.testing")
        answer.headers.setdefault("Date", _http_date(int(time.time())))
        kind = None if answer.fault is None else answer.fault.kind
        self.log.append(Seen(request.method, name, request.headers.get("range"), answer.status, kind))
        return answer

    def _refusal(self, request: Request, key_path: str, query: str, bucket: str) -> Answer | None:
        """Returns the 403 that a badly signed request gets."""
        headers = request.headers
        given = headers.get("authorization")
        if given is None:
            if bucket in self._anonymous_buckets:
                return None
            return _error(403, "AccessDenied", "Access Denied")
        said = parse_authorization(given)
        if said is None or not {"x-amz-date", "x-amz-content-sha256", "host"} <= headers.keys():
            return _error(400, "AuthorizationHeaderMalformed", "The authorization header is malformed.")
        if said.access_key_id in self._expired_ids:
            return _error(400, "ExpiredToken", "The provided token has expired.")
        if said.access_key_id != self._credentials.access_key_id:
            return _error(
                403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
            )
        if headers.get("x-amz-security-token") != self._credentials.session_token:
            return _error(400, "InvalidToken", "The provided token is malformed or otherwise invalid.")
        if said.region != self._region or said.service != "s3":
            return _error(
                400,
                "AuthorizationHeaderMalformed",
                f"The authorization header is malformed; the region '{said.region}' is wrong; expecting "
                f"'{self._region}'",
            )
        at_s = _parse_date(headers["x-amz-date"])
        if at_s is None:
            return _error(403, "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
        if abs(at_s - time.time()) > _MAX_SKEW_S:
            return _error(403, "RequestTimeTooSkewed", "The difference between the request time and now is too large.")
        must_sign = {"host", *(header for header in headers if header.startswith("x-amz-"))}
        expected = signature(
            secret_access_key=self._credentials.secret_access_key,
            region=self._region,
            service="s3",
            method=request.method,
            key_path=key_path,
            query=query,
            headers=headers,
            signed_headers=said.signed_headers,
        )
        if not must_sign <= set(said.signed_headers):
            return _error(403, "AccessDenied", "There were headers present in the request which were not signed")
        if said.date != headers["x-amz-date"][:8] or not hmac.compare_digest(expected, said.signature):
            return _error(
                403,
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided.",
            )
        return None

    def _serve(self, request: Request, query: str, bucket: str, key: str) -> Answer:
        if request.method == "PUT" and bucket and key and query in ("", "x-id=PutObject"):
            return self._put(request, bucket, key)
        if request.method not in ("GET", "HEAD"):
            return _error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.", key)
        if not key:
            if request.method == "HEAD" and self._store.has_bucket(bucket):
                return Answer(200)
            if self._store.has_bucket(bucket):
                return _error(501, "NotImplemented", "This server does not list buckets.")
            return _error(404, "NoSuchBucket", "The specified bucket does not exist", key)
        found = self._store.get(bucket, key)
        if found is None:
            if not self._store.has_bucket(bucket):
                return _error(404, "NoSuchBucket", "The specified bucket does not exist", key)
            return _error(404, "NoSuchKey", "The specified key does not exist.", key)
        wanted = request.headers.get("if-match")
        if wanted not in (None, "*") and found.etag not in [tag.strip() for tag in str(wanted).split(",")]:
            return _error(
                412, "PreconditionFailed", "At least one of the preconditions you specified did not hold", key
            )
        known = request.headers.get("if-none-match")
        if known is not None and (known == "*" or found.etag in [tag.strip() for tag in known.split(",")]):
            return Answer(304, {"ETag": found.etag})
        headers = {"ETag": found.etag, "Accept-Ranges": "bytes", "Content-Type": "binary/octet-stream"}
        if found.content_encoding:
            headers["Content-Encoding"] = found.content_encoding
        size = len(found.body)
        asked = _RANGE.fullmatch(request.headers.get("range", ""))
        if asked is None or asked.group() == "bytes=-":
            if request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
                headers["x-amz-checksum-crc32"] = found.crc32
                headers["x-amz-checksum-type"] = "FULL_OBJECT"
            return Answer(200, headers, found.body)
        first, last = _span(asked.group(1), asked.group(2), size)
        if first >= size or first > last:
            refused = _error(416, "InvalidRange", "The requested range is not satisfiable", key)
            refused.headers["Content-Range"] = f"bytes */{size}"
            return refused
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, headers, memoryview(found.body)[first : last + 1])

    def _put(self, request: Request, bucket: str, key: str) -> Answer:
        said = request.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        if said.startswith("STREAMING-"):
            return _error(501, "NotImplemented", "This server takes bodies in one piece only.", key)
        if said != "UNSIGNED-PAYLOAD" and said != hashlib.sha256(request.body).hexdigest():
            return _error(400, "XAmzContentSHA256Mismatch", "The provided hash does not match what was computed.", key)
        made = self._store.put(bucket, key, request.body, request.headers.get("content-encoding", ""))
        return Answer(200, {"ETag": made.etag})


@functools.lru_cache(maxsize=16)
def _parse_date(amz_date: str) -> float | None:
    try:
        return datetime.datetime.strptime(amz_date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None


@functools.lru_cache(maxsize=2)
def _http_date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


def _span(first: str, last: str, size: int) -> tuple[int, int]:
    """Returns the inclusive span that a range header means."""
    if not first:
        return max(0, size - int(last)), size - 1 if int(last) > 0 else -1
    return int(first), min(int(last), size - 1) if last else size - 1


def _error(status: int, code: str, message: str, key: str = "") -> Answer:
    shown_key = f"<Key>{escape(key.encode('utf-8', 'replace').decode())}</Key>" if key else ""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{escape(code)}</Code>'
        f"<Message>{escape(message)}</Message>{shown_key}<RequestId>0</RequestId></Error>"
    )
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())
