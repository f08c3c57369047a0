"""Settings: what a file may say, and what is said back when it says something else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import stoker
import yaml
from stoker import InvalidArgumentError, Settings, _core
from stoker.plain_values import parse_bytes
from stoker.settings import resolve_speed

LEAST: dict[str, Any] = {"data": [{"manifest": "rows.jsonl"}], "model": "model"}


def refused(changes: dict[str, Any]) -> str:
    with pytest.raises(InvalidArgumentError) as error:
        Settings.from_dict({**LEAST, **changes})
    assert error.value.code == "SETTINGS"
    return error.value.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sead": 1}, "`seed`"),
        ({"sped": {}}, "`speed`"),
        ({"speed": {"cpu_thread": 1}}, "`speed.cpu_threads`"),
        ({"speed": {"memory": 1}}, "`speed.memory_limit`"),
        ({"pack": {"token_per_pack": 1}}, "`pack.tokens_per_pack`"),
        ({"data": [{"manifest": "a", "media_rot": "b"}]}, "`data[0].media_root`"),
        ({"bad_samples": {"policy": "skp"}}, "`skip`"),
        ({"shuffle": "row"}, "`rows`"),
        ({"xyzzy": 1}, "there are data, model"),
    ],
)
def test_a_wrong_key_names_the_nearest_right_one(changes: dict[str, Any], named: str) -> None:
    assert named in refused(changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": []}, "data"),
        ({"data": "rows.jsonl"}, "data"),
        ({"data": [{}]}, "data[0].manifest"),
        ({"data": [{"manifest": "a", "weight": 2.0}, {"manifest": "b"}]}, "weight"),
        ({"data": [{"manifest": "a", "weight": 2.0, "repeat": 1.0}]}, "weight and repeat"),
        ({"data": [{"manifest": "a", "repeat": float("nan")}]}, "repeat"),
        ({"data": [{"manifest": "a", "repeat": 0}]}, "repeat"),
        ({"data": [{"manifest": "a", "samples": -1}]}, "samples"),
        ({"data": [{"manifest": "a", "weight": "half"}]}, "weight"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"epochs": 2**64}, "epochs"),
        ({"window_samples": 0}, "window_samples"),
        ({"window_samples": 10**12}, "window_samples"),
        ({"pack": {"tokens_per_pack": 15}}, "tokens_per_pack"),
        ({"pack": {"tokens_per_pack": 2**31}}, "tokens_per_pack"),
        ({"pack": {"packs_per_step": 0}}, "packs_per_step"),
        ({"pack": {"packs_per_step": 2**31}}, "packs_per_step"),
        ({"pack": None}, "pack"),
        ({"speed": {"cpu_threads": 0}}, "cpu_threads"),
        ({"speed": {"cpu_threads": 10**6}}, "cpu_threads"),
        ({"speed": {"cpu_threads": "many"}}, "cpu_threads"),
        ({"speed": {"fetch_threads": 0}}, "fetch_threads"),
        ({"speed": {"fetch_threads": 2**40}}, "fetch_threads"),
        ({"speed": {"fetch_concurrency": 0}}, "fetch_concurrency"),
        ({"speed": {"fetch_concurrency": 2**40}}, "fetch_concurrency"),
        ({"speed": {"prefetch_steps": -1}}, "prefetch_steps"),
        ({"speed": {"prefetch_steps": 2**40}}, "prefetch_steps"),
        ({"speed": {"memory_limit": "lots"}}, "lots"),
        ({"speed": {"memory_limit": 0}}, "memory_limit"),
        ({"speed": {"memory_limit": -5}}, "memory_limit"),
        ({"speed": {"memory_limit": 2**64}}, "memory_limit"),
        ({"bad_samples": {"max_fraction": 1.1}}, "max_fraction"),
        ({"bad_samples": {"max_fraction": float("nan")}}, "max_fraction"),
        ({"media": {"max_pixels": 0}}, "max_pixels"),
        ({"media": {"max_scans": 0}}, "max_scans"),
        ({"outage_limit_s": -1}, "outage_limit_s"),
        ({"outage_limit_s": float("nan")}, "outage_limit_s"),
        ({"outage_limit_s": "1m"}, "outage_limit_s"),
        ({"stall_warning_s": -1}, "stall_warning_s"),
        ({"stall_limit_s": float("nan")}, "stall_limit_s"),
        ({"ray": {"adress": "auto"}}, "`ray.address`"),
        ({"ray": "ray://head:10001"}, "Ray Client"),
        ({"ray": "head"}, "host:port"),
        ({"ray": ""}, "ray.address"),
        ({"ray": True}, "`ray`"),
        ({"ray": {"run": "a b"}}, "ray.run"),
        ({"ray": {"placement": "spred"}}, "auto, local, pack, spread"),
        ({"ray": {"placement": {}}}, "ray.placement"),
        ({"ray": {"placement": {"nodes": {"a": 1}}}}, "ray.placement"),
        ({"ray": {"placement": {"resources": {}}}}, "ray.placement"),
        ({"ray": {"placement": {"resources": {"a": 1}, "labels": {"b": "c"}}}}, "ray.placement"),
        ({"ray": {"placement": {"resources": {"disk": 0}}}}, "ray.placement.resources.disk"),
        ({"ray": {"placement": {"resources": {"disk": "1"}}}}, "ray.placement.resources.disk"),
        ({"ray": {"placement": {"labels": {"zone": 1}}}}, "ray.placement.labels.zone"),
        ({"ray": {"handover": "refrence"}}, "`reference`"),
        ({"ray": {"retrieval": "layz"}}, "`lazy`"),
        ({"ray": {"workers": 0}}, "ray.workers"),
        ({"ray": {"worker_cpus": 0}}, "ray.worker_cpus"),
        ({"ray": {"worker_memory": "some"}}, "some"),
        ({"ray": {"store_limit": 0}}, "ray.store_limit"),
        ({"ray": {"rank_timeout_s": 0}}, "ray.rank_timeout_s"),
        ({"ray": {"runtime_env": "pip"}}, "ray.runtime_env"),
    ],
)
def test_a_value_that_does_not_fit_names_its_key(changes: dict[str, Any], named: str) -> None:
    assert named in refused(changes)


def test_a_run_moves_to_ray_by_one_line() -> None:
    here = Settings.from_dict(LEAST)
    assert here.ray is None
    assert here.to_dict()["ray"] is None
    there = Settings.from_dict({**LEAST, "ray": "auto"})
    assert there.ray == stoker.RaySettings(address="auto")
    assert there == here.replace(ray="auto") == Settings.from_dict({**LEAST, "ray": {"address": "auto"}})
    assert there.replace(ray=None) == here
    assert Settings.from_dict({**LEAST, "ray": "10.0.0.1:6379"}).ray == stoker.RaySettings(address="10.0.0.1:6379")
    assert hash(there) is not None


@pytest.mark.parametrize(
    "placement", ["spread", {"resources": {"disk": 0.5}}, {"labels": {"zone": "a", "kind": "cpu"}}], ids=str
)
def test_a_ray_section_comes_back_as_it_was(placement: Any) -> None:
    section = {"placement": placement, "workers": 4, "store_limit": "2GiB", "runtime_env": {"env_vars": {"A": "hush"}}}
    settings = Settings.from_dict({**LEAST, "ray": section})
    assert Settings.from_dict(settings.to_dict()) == settings
    assert settings.ray is not None
    assert settings.ray.placement == placement
    assert settings.replace(ray={"workers": "auto"}).ray == dataclasses.replace(settings.ray, workers="auto")
    assert "hush" not in str(settings.to_dict(hide_secrets=True)) + repr(settings)


@pytest.mark.parametrize("key", ["data", "model"])
def test_what_is_missing_is_named(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{key}` is missing"):
        Settings.from_dict({k: v for k, v in LEAST.items() if k != key})


def test_a_file_is_read_with_paths_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    values = {
        "data": [{"manifest": "a/rows.jsonl"}, {"manifest": "s3://b/rows.jsonl", "media_root": "/mnt/x"}],
        "model": "../model",
        "seed": 7,
        "speed": {"cpu_threads": 3, "memory_limit": "2GiB"},
        "bad_samples": {"ledger": "bad.jsonl"},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(file)
    assert Path(settings.data[0].manifest) == folder / "a" / "rows.jsonl"
    assert settings.data[1].manifest == "s3://b/rows.jsonl"
    assert settings.data[1].media_root == "/mnt/x"
    assert Path(settings.model).resolve() == tmp_path / "model"
    assert Path(settings.bad_samples.ledger) == folder / "bad.jsonl"
    assert settings == Settings.load("run/run.yaml")
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    "content", ["", "- a\n- b\n", "just text", "data: [\n", "\x00", "data:\n  - manifest: a\nmodel: m\nsead: 1\n"]
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(InvalidArgumentError) as error:
        Settings.load(file)
    assert error.value.code == "SETTINGS"
    assert str(file) in error.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"nothing\.yaml"):
        Settings.load(tmp_path / "nothing.yaml")


def test_replace_changes_what_it_names() -> None:
    settings = Settings.from_dict(LEAST)
    changed = settings.replace(seed=5, speed={"cpu_threads": 2})
    assert (changed.seed, changed.speed.cpu_threads, changed.speed.fetch_threads) == (5, 2, 1)
    assert settings.seed == 0
    with pytest.raises(InvalidArgumentError, match="cpu_threads"):
        settings.replace(speed={"cpu_thread": 2})


def test_secrets_are_neither_shown_nor_kept() -> None:
    secret = "not-to-be-seen"
    proxy = f"http://me:{secret}@proxy:3128"
    storage = {"secret_access_key": secret, "access_key_id": secret, "proxy": proxy}
    settings = Settings.from_dict({**LEAST, "storage": storage})
    assert secret not in repr(settings)
    assert secret not in str(settings.to_dict(hide_secrets=True))
    assert settings.replace(seed=1).storage.secret_access_key == secret


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4GiB", 4 << 30),
        ("500MB", 500_000_000),
        ("1.5 GiB", 3 << 29),
        ("7", 7),
        (12, 12),
        ("2kib", 2048),
        ("1TiB", 1 << 40),
    ],
)
def test_amounts_of_memory(text: int | str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


def test_auto_is_divided_by_the_ranks_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = Settings.from_dict(LEAST).speed
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = resolve_speed(speed, usable_cpus=12)
    assert (alone.cpu_threads, alone.memory_limit_bytes) == (12, 4 << 30)
    assert (alone.fetch_concurrency, alone.max_fetch_concurrency) == (128, 1024)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    shared = resolve_speed(speed, usable_cpus=12)
    assert (shared.cpu_threads, shared.memory_limit_bytes) == (2, 512 << 20)
    assert (shared.fetch_concurrency, shared.max_fetch_concurrency) == (16, 128)
    said = Settings.from_dict(LEAST | {"speed": {"fetch_concurrency": 200}}).speed
    own = resolve_speed(said, usable_cpus=12)
    assert (own.fetch_concurrency, own.max_fetch_concurrency) == (200, 200)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert resolve_speed(speed, usable_cpus=12) == alone


def test_auto_takes_what_the_reference_does() -> None:
    own = Settings.from_dict(LEAST)
    facts = own.resolved_profile()
    assert [facts[k] for k in ("exif", "alpha", "grey16", "content_tokens")] == ["apply", "white", "scale", "guard"]
    pil = own.replace(reference="hf-5.18-pil").resolved_profile()
    assert [pil[k] for k in ("exif", "alpha", "grey16", "content_tokens")] == ["apply", "drop", "clip", "raw"]
    freed = own.replace(media={"alpha": "drop"}, content_tokens="raw").resolved_profile()
    assert (freed["alpha"], freed["content_tokens"]) == ("drop", "raw")
    assert freed["facts"] != facts["facts"]


@pytest.mark.parametrize("name", _core.profile_names()[1:])
def test_a_setting_that_contradicts_a_strict_reference_is_named(name: str) -> None:
    said = refused({"reference": name, "content_tokens": "guard"})
    assert "content_tokens: guard contradicts" in said
    assert name in said
    assert "media.grey16: scale contradicts" in refused({"reference": name, "media": {"grey16": "scale"}})
    assert Settings.from_dict({**LEAST, "reference": name, "media": {"grey16": "clip"}}).reference == name


def test_settings_and_engine_know_the_same_references() -> None:
    assert list(get_args(get_type_hints(Settings)["reference"])) == _core.profile_names()
