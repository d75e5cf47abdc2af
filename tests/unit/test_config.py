"""Options from flags, environment and file: who wins, and what is said of what is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from miniq import InvalidRequest, config
from miniq.options import Limits, Options

EXAMPLE = Path(__file__).parents[2] / "ops" / "miniq.toml"


def write(folder: Path, text: str) -> str:
    path = folder / "miniq.toml"
    path.write_text(text)
    return str(path)


def test_nothing_given_is_all_defaults() -> None:
    assert config.load({}, {}) == Options()


def test_flags_come_before_environment_before_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nhost = "file"\nstore = "memory:"\n[limits]\nbatch = 1\nheaders = 1\n')
    environ = {"MINIQ_PORT": "2", "MINIQ_HOST": "environment", "MINIQ_LIMITS__BATCH": "2"}
    found = config.load({"port": 3, "host": None}, environ, file)
    assert (found.port, found.host, found.store) == (3, "environment", "memory:")
    assert found.limits == Limits(batch=2, headers=1)


def test_environment_is_read_as_the_type_of_its_option() -> None:
    environ = {
        "MINIQ_PORT": "5001",
        "MINIQ_AUTO_CREATE": "False",
        "MINIQ_UPKEEP_INTERVAL": "0.5",
        "MINIQ_DURABILITY": "relaxed",
        "MINIQ_LIMITS__BODY_BYTES": "65536",
        "MINIQ_STORE": "123",
        "MINIQ_HOST": "",
        "MINIQ_URL": "http://elsewhere",
        "MINIQ_API_KEY": "mq_x_y",
        "HOME": "/",
    }
    assert config.load({}, environ) == Options(
        port=5001,
        auto_create=False,
        upkeep_interval=0.5,
        durability="relaxed",
        store="123",
        limits=Limits(body_bytes=65536),
    )


def test_any_free_port_is_meant_for_all_that_are_not_named() -> None:
    found = config.load({"port": 0, "consumer_port": 7}, {})
    assert (found.port, found.command_port, found.producer_port, found.consumer_port) == (0, 0, 0, 7)
    assert config.load({"port": 5001}, {}).command_port == Options().command_port


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 5001", ["prot", "5001", "no such option", "did you mean port?"]),
        ("[limits]\nbody = 5", ["limits.body", "5", "no such option", "did you mean limits.body_bytes?"]),
        ("[other]\nbody = 5", ["other", "no such option", "there are store, host, port"]),
        ("limits = 5", ["limits", "5"]),
        ('port = "5001"', ["port", "'5001'", "a whole number from 0 to 65535"]),
        ("port = 65536", ["port", "65536", "a whole number from 0 to 65535"]),
        ("port = true", ["port", "True"]),
        ("auto_create = 1", ["auto_create", "1", "true or false"]),
        ('durability = "sometimes"', ["durability", "'sometimes'", "fsync or relaxed"]),
        ("host = 5", ["host", "5", "text"]),
        ("min_free_bytes = -1", ["min_free_bytes", "-1", "at least 0"]),
        ("upkeep_interval = nan", ["upkeep_interval", "nan", "a number of at least 0"]),
        ("[limits]\nbatch = 0", ["limits.batch", "0", "above 0"]),
        ("port = \nhost = 5", ["not valid TOML", "line 1"]),
        ('tls_cert = "/nowhere.pem"', ["tls_cert", "/nowhere.pem", "PEM"]),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_value_and_what_would_be_right(
    tmp_path: Path, text: str, said: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        config.load({}, {}, write(tmp_path, text))
    for part in said:
        assert part in raised.value.text


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MINIQ_DURABILTY", "relaxed", "no such option ('relaxed'); did you mean MINIQ_DURABILITY?"),
        ("MINIQ_LIMITS__BODY_BYTE", "5", "did you mean MINIQ_LIMITS__BODY_BYTES?"),
        ("MINIQ_PORT", "tcp://10.0.0.1:5000", "a whole number from 0 to 65535"),
        ("MINIQ_PORT", "70000", "out of range"),
        ("MINIQ_LIMITS__BODY_BYTES", "1 MiB", "a whole number above 0"),
        ("MINIQ_AUTO_CREATE", "maybe", "true or false"),
        ("MINIQ_LIMITS", "5", "no such option"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(variable: str, value: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        config.load({}, {variable: value})
    assert variable in raised.value.text
    assert value in raised.value.text
    assert said in raised.value.text


@pytest.mark.parametrize("name", ["apikey", "password", "db_secret", "auth_token", "keys", "url2"])
def test_what_may_be_a_secret_is_not_shown(name: str, tmp_path: Path) -> None:
    value = {"keys": "mq_0a_hidden", "url2": "postgresql://me:hidden@host/db"}.get(name, "hidden")
    for environ, text in (({f"MINIQ_{name.upper()}": value}, ""), ({}, f'{name} = ["{value}"]')):
        with pytest.raises(InvalidRequest, match="no such option") as raised:
            config.load({}, environ, write(tmp_path, text))
        assert "hidden" not in raised.value.text


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("")
    with pytest.raises(InvalidRequest, match="tls_key: given without tls_cert"):
        config.load({"tls_key": str(key)}, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot read .*nothing\.toml"):
        config.load({}, {}, str(tmp_path / "nothing.toml"))


def test_the_example_has_every_option_at_its_default() -> None:
    assert config.load({}, {}, str(EXAMPLE)) == Options()
    text = EXAMPLE.read_text()
    found = tomllib.loads(text)
    assert found["limits"] == msgspec.to_builtins(Limits())
    assert {name for name in found if name != "limits"} == {
        name for name in Options.__struct_fields__ if getattr(Options(), name) is not None and name != "limits"
    }
    commented = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    assert set(commented) == set(Options.__struct_fields__)
