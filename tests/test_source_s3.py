"""Requests to S3 against botocore, the reference: the same URL and the same signature for any key."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import botocore.session
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials
from difficult_keys import DIFFICULT_KEYS
from stoker import _core

KEY_ID = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzEXAMPLE//token=="


@lru_cache  # making a client takes longer than everything else here
def client_of(token: str | None, region: str, endpoint: str | None, style: str) -> Any:
    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
        s3={"addressing_style": style},
    )
    return botocore.session.Session().create_client(
        "s3",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        aws_session_token=token,
        config=config,
        region_name=region,
        endpoint_url=endpoint,
    )


def sent_by_botocore(
    key: str,
    *,
    bucket: str = "bucket",
    token: str | None = None,
    region: str,
    endpoint: str | None = None,
    style: str = "auto",
) -> tuple[str, dict[str, str]]:
    """URL and headers of the GET that botocore would send."""
    s3 = client_of(token, region, endpoint, style)
    caught: list[tuple[str, dict[str, str]]] = []

    def catch(request: Any, **_: Any) -> AWSResponse:
        caught.append(
            (request.url, {k.lower(): v.decode() if isinstance(v, bytes) else v for k, v in request.headers.items()})
        )
        return AWSResponse(request.url, 404, {}, None)

    s3.meta.events.register("before-send.s3.GetObject", catch)
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it makes of an answer without a body
            s3.get_object(Bucket=bucket, Key=key)
    finally:
        s3.meta.events.unregister("before-send.s3.GetObject", catch)
    return caught[0]


def signed_by_stoker(url: str, key: str, date: str, path: str, **more: Any) -> tuple[str, dict[str, str]]:
    when = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    host = url.split("://")[1].split("/")[0]
    target, headers = _core.sign_s3(
        host=host,
        path=path,
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        region="eu-west-1",
        unix_time=int(when.timestamp()),
        **more,
    )
    return url.split("://")[0] + "://" + host + target, dict(headers)


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("key", DIFFICULT_KEYS)
def test_path_style_requests_equal_botocores(key: str, token: str | None) -> None:
    url, headers = sent_by_botocore(key, token=token, endpoint="http://127.0.0.1:9", region="eu-west-1")
    ours_url, ours = signed_by_stoker(
        url,
        key,
        headers["x-amz-date"],
        f"/bucket/{key}",
        headers=[("x-amz-checksum-mode", "ENABLED")],
        session_token=token or "",
    )
    assert ours_url == url
    assert ours["authorization"] == headers["authorization"]
    assert ours["x-amz-content-sha256"] == headers["x-amz-content-sha256"]
    assert ours.get("x-amz-security-token") == headers.get("x-amz-security-token")


def test_twenty_thousand_random_keys_headers_and_queries_equal_botocores() -> None:
    rng = random.Random(5)
    alphabet = "abcXYZ019-_.~/ +%=&?#:;,@!$'()*\"\\[]{}|^`<>é图\U0001f600\t"
    credentials = Credentials(KEY_ID, SECRET, None)

    def text(longest: int) -> str:
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, longest)))

    for _ in range(20_000):
        key, region = text(30), rng.choice(["eu-west-1", "us-east-1"])
        query = [(text(6).replace("\t", ""), text(6)) for _ in range(rng.randint(0, 3))]
        extra = [(f"x-amz-meta-{i}", f" a{'  ' * rng.randint(0, 2)}b ") for i in range(rng.randint(0, 2))]
        request = AWSRequest(
            method="GET",
            url="https://s3.example.org" + quote(f"/bucket/{key}", safe="/~"),
            params=dict(query),
            headers=dict(extra),
        )
        auth = S3SigV4Auth(credentials, "s3", region)
        request.context["client_config"] = Config()
        request.context["timestamp"] = "20260102T030405Z"
        signing = auth.canonical_request  # uses the context's time
        request.headers["X-Amz-Content-SHA256"] = _core.sign_s3(
            host="h", path="/", access_key_id="a", secret_access_key="b", region="r", unix_time=0
        )[1][0][1]
        request.headers["X-Amz-Date"] = "20260102T030405Z"
        signature = auth.signature(auth.string_to_sign(request, signing(request)), request)
        _, headers = _core.sign_s3(
            host="s3.example.org",
            path=f"/bucket/{key}",
            query=list(dict(query).items()),
            headers=extra,
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
            region=region,
            unix_time=int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()),
        )
        assert dict(headers)["authorization"].endswith("Signature=" + signature), (key, query, extra)


ADDRESSES: list[tuple[str, dict[str, str]]] = [
    ("plain", {"region": "eu-west-1"}),
    ("with.dots", {"region": "eu-west-1"}),
    ("plain", {"region": "cn-north-1"}),
    ("plain", {"region": "eu-west-1", "addressing": "path"}),
    ("plain", {"endpoint": "http://127.0.0.1:9000", "region": "r"}),
    ("plain", {"endpoint": "http://minio.local:9000", "addressing": "virtual", "region": "r"}),
]


@pytest.mark.parametrize(("bucket", "storage"), ADDRESSES)
def test_addresses_equal_botocores(bucket: str, storage: dict[str, str]) -> None:
    url, _ = sent_by_botocore(
        "d/a b.png",
        bucket=bucket,
        region=storage["region"],
        endpoint=storage.get("endpoint"),
        style=storage.get("addressing", "auto"),
    )
    keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
    ours, _ = _core.prepare_s3(f"s3://{bucket}/d/a b.png", storage={**storage, **keys}, environ={})
    assert ours == url


def test_settings_come_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "# a comment\n[default]\nregion = from-config\n[profile other]\nregion=other-region\nendpoint_url = http://10.0.0.1:1\n"
        "s3 =\n  addressing_style = virtual\n"
    )
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=FILEKEY\naws_secret_access_key=s\n[other]\naws_access_key_id=OTHERKEY\naws_secret_access_key=s\n"
    )
    files = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}

    def asked(storage: dict[str, Any], **environ: str) -> tuple[str, str]:
        url, headers = _core.prepare_s3("s3://b/k", storage=storage, environ={**files, **environ})
        return url, next((h for h in headers if h.startswith("authorization")), "")

    url, auth = asked({})
    assert url == "https://b.s3.from-config.amazonaws.com/k"
    assert "Credential=FILEKEY/" in auth
    url, auth = asked({}, AWS_PROFILE="other")
    assert url == "http://b.10.0.0.1:1/k"
    assert "Credential=OTHERKEY/" in auth
    assert "Credential=ENVKEY/" in asked({}, AWS_ACCESS_KEY_ID="ENVKEY", AWS_SECRET_ACCESS_KEY="s")[1]
    assert "/env-region/s3/" in asked({}, AWS_REGION="env-region", AWS_DEFAULT_REGION="no")[1]
    assert "/env-region/s3/" in asked({}, AWS_DEFAULT_REGION="env-region")[1]
    assert "/set-region/s3/" in asked({"region": "set-region"}, AWS_REGION="no")[1]
    mine = {"access_key_id": "MYKEY", "secret_access_key": "s"}
    assert "Credential=MYKEY/" in asked(mine, AWS_ACCESS_KEY_ID="ENVKEY", AWS_SECRET_ACCESS_KEY="s")[1]
    assert asked({"endpoint": "http://1.1.1.1"}, AWS_ENDPOINT_URL_S3="http://2.2.2.2")[0] == "http://1.1.1.1/b/k"
    both = {"AWS_ENDPOINT_URL_S3": "http://2.2.2.2", "AWS_ENDPOINT_URL": "http://3.3.3.3"}
    assert asked({}, **both)[0] == "http://2.2.2.2/b/k"
    assert asked({}, AWS_ENDPOINT_URL="http://3.3.3.3:80/")[0] == "http://3.3.3.3/b/k"
    for environ, mode in (
        ({}, ["x-amz-checksum-mode: ENABLED"]),
        ({"AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}, []),
    ):
        _, headers = _core.prepare_s3("s3://b/k", storage=mine, environ=environ)
        assert [line for line in headers if line.startswith("x-amz-checksum")] == mode
    url, auth = asked({"anonymous": True})
    assert auth == ""


def test_error_bodies() -> None:
    fields = b"<Code>NoSuchKey</Code><Message>a &amp; b\n</Message><Region>eu-x</Region>"
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error>' + fields + b"</Error>"
    assert _core.parse_s3_error(body) == {"code": "NoSuchKey", "message": "a & b ", "region": "eu-x", "endpoint": ""}
    empty = {"code": "", "message": "", "region": "", "endpoint": ""}
    for other in (
        b"",
        b"<html><body>502</body></html>",
        b"<Error",
        b"<Error><Code>x",
        b"<" * 100_000,
        b"\0\xff<>" * 1000,
    ):
        assert _core.parse_s3_error(other) == empty
