"""What the engine asks of S3, against moto: somebody else's idea of S3's behaviour, and botocore to put objects."""

from __future__ import annotations

import hashlib
import logging
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from difficult_keys import DIFFICULT_KEYS
from loader_data import digests, good_data, settings_for
from moto.server import ThreadedMotoServer
from stoker import BadSampleError, InvalidArgumentError, StokerError, UnavailableError, _core

KEYS = [key for key in DIFFICULT_KEYS if "\n" not in key]
"""moto's router takes a line feed for the end of the path, also from botocore; test_source_s3.py has that one."""
BODY = bytes(range(256)) * 4
REGION = "us-east-1"
ALLOWED = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'


@dataclass(frozen=True)
class Moto:
    port: int
    user: dict[str, Any]
    """Long-lived keys."""
    role: dict[str, Any]
    """Keys with a session token."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, service: str, **keys: str) -> Any:
        return botocore.session.Session().create_client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=keys.get("access_key_id", "anything"),
            aws_secret_access_key=keys.get("secret_access_key", "anything"),
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )

    def fetch(
        self, url: str, *, offset: int = 0, length: int | None = None, if_match: str = "", **storage: Any
    ) -> tuple[bytes, int, str]:
        given = {"endpoint": self.url, "region": REGION, **self.user, **storage}
        body, size, tag = _core.fetch(
            url, offset=offset, length=length, if_match=if_match, storage=given, environ={}, outage_limit_s=0.1
        )
        return bytes(body), size, tag

    def refusal(self, url: str, **more: Any) -> StokerError:
        with pytest.raises(StokerError) as raised:
            self.fetch(url, **more)
        return raised.value


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    """Objects in two buckets; from then on every signature and token is checked."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    empty = Moto(port, {}, {})
    iam = empty.client("iam")
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=ALLOWED)
    iam.create_role(RoleName="role", AssumeRolePolicyDocument="{}")
    iam.put_role_policy(RoleName="role", PolicyName="all", PolicyDocument=ALLOWED)
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    user = {"access_key_id": made["AccessKeyId"], "secret_access_key": made["SecretAccessKey"]}
    sts = empty.client("sts", **user)
    lent = sts.assume_role(RoleArn="arn:aws:iam::123456789012:role/role", RoleSessionName="test")["Credentials"]
    role = {
        "access_key_id": lent["AccessKeyId"],
        "secret_access_key": lent["SecretAccessKey"],
        "session_token": lent["SessionToken"],
    }
    s3 = empty.client("s3")
    s3.create_bucket(Bucket="bucket")
    s3.create_bucket(Bucket="europe", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="bucket", Key="big", Body=BODY)
    s3.put_object(Bucket="bucket", Key="empty", Body=b"")
    s3.put_object(Bucket="europe", Key="big", Body=BODY)
    for key in KEYS:
        s3.put_object(Bucket="bucket", Key=key, Body=key.encode())
    check = urllib.request.Request(
        f"{empty.url}/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(check).close()
    yield Moto(port, user, role)
    server.stop()


@pytest.mark.parametrize("key", KEYS)
def test_keys_that_botocore_put_are_read(moto: Moto, key: str) -> None:
    assert moto.fetch(f"s3://bucket/{key}")[0] == key.encode()


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (0, 1024), (5, 10), (1023, 1), (1000, 500), (7, None)])
def test_ranges(moto: Moto, offset: int, length: int | None) -> None:
    body, size, tag = moto.fetch("s3://bucket/big", offset=offset, length=length)
    assert body == (BODY[offset:] if length is None else BODY[offset : offset + length])
    assert size == len(BODY)
    assert tag == f'"{hashlib.md5(BODY).hexdigest()}"'


@pytest.mark.parametrize(("key", "offset", "size"), [("big", 1024, 1024), ("big", 5000, 1024), ("empty", 0, 0)])
def test_what_lies_past_the_end_is_nothing(moto: Moto, key: str, offset: int, size: int) -> None:
    """416 without Content-Range, as S3 answers: the size stands in the body."""
    assert moto.fetch(f"s3://bucket/{key}", offset=offset, length=100)[:2] == (b"", size)


def test_an_object_of_another_tag_is_refused(moto: Moto) -> None:
    _, _, tag = moto.fetch("s3://bucket/big")
    assert moto.fetch("s3://bucket/big", if_match=tag)[0] == BODY
    refused = moto.refusal("s3://bucket/big", if_match='"another"')
    assert isinstance(refused, BadSampleError)
    assert refused.code == "MEDIA_CHANGED"


def test_what_is_not_there(moto: Moto) -> None:
    gone = moto.refusal("s3://bucket/gone")
    assert isinstance(gone, BadSampleError)
    assert gone.code == "MEDIA_NOT_FOUND"
    assert "NoSuchKey" in gone.message
    nowhere = moto.refusal("s3://nowhere-at-all/k")
    assert isinstance(nowhere, InvalidArgumentError)
    assert nowhere.code == "MANIFEST"
    assert 'bucket "nowhere-at-all" does not exist' in nowhere.message


def test_a_bucket_of_another_region_is_read(moto: Moto) -> None:
    assert moto.fetch("s3://europe/big")[0] == BODY
    assert moto.fetch("s3://europe/big", region="eu-west-1")[0] == BODY


def test_addresses(moto: Moto) -> None:
    for addressing in ("path", "virtual"):
        endpoint = f"http://localhost:{moto.port}"  # bucket.localhost is loopback too
        assert moto.fetch("s3://bucket/big", endpoint=endpoint, addressing=addressing)[0] == BODY


def test_signatures_are_checked_and_right(moto: Moto) -> None:
    assert moto.fetch("s3://bucket/big", requester_pays=True)[0] == BODY, "a header more is signed"
    assert moto.fetch("s3://bucket/big", **moto.role)[0] == BODY
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"secret_access_key": "x" * 40}, "SignatureDoesNotMatch"),
        ({"access_key_id": "AKIANOBODY"}, "InvalidAccessKeyId"),
        ({**moto.role, "session_token": ""}, "InvalidAccessKeyId"),
        ({**moto.role, "session_token": "another"}, "InvalidToken"),
    ]
    for wrong, code in wrongs:
        refused = moto.refusal("s3://bucket/big", **wrong)
        assert isinstance(refused, UnavailableError)
        assert refused.code == "FETCH_CREDENTIALS"
        assert code in refused.message


def test_nobody_is_denied(moto: Moto) -> None:
    denied = moto.refusal("s3://bucket/big", anonymous=True)
    assert denied.code == "FETCH_DENIED"


def test_a_run(moto: Moto, tmp_path: Path) -> None:
    """Manifest and pictures, put by botocore."""
    data = good_data(tmp_path / "data", 12)
    s3 = moto.client("s3", **moto.user)
    for path in [data.manifest, *(data.folder / "images").iterdir()]:
        s3.put_object(Bucket="bucket", Key=f"run/{path.relative_to(data.folder)}", Body=path.read_bytes())
    storage = {"endpoint_url": moto.url, "region": REGION, **moto.role, "requester_pays": True}
    local = settings_for(data, tmp_path)
    there = settings_for("s3://bucket/run/rows.jsonl", tmp_path, storage=storage)
    assert digests(there, 3) == digests(local, 3)
