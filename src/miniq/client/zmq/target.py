"""The URL and the options of `connect("tcp://…")`, validated."""

from __future__ import annotations

import os
import tomllib
from typing import Any

import msgspec
from msgspec import Struct

from miniq.client.target import RemoteOptions, bad_url, read_address, read_options
from miniq.errors import InvalidRequest

PORT = 5557
RIGHT = "tcp://HOST:PORT"


class ZmqOptions(RemoteOptions, frozen=True, kw_only=True):
    """The options of `connect` for ZeroMQ."""

    curve_key: str | None = None
    """The file written by `miniq keys curve create`; by default the one that MINIQ_CURVE_KEY names."""


class CurveKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A client's key pair, and the broker's public key."""

    public: str
    secret: str
    server: str


class Target(Struct, frozen=True):
    """The address of a broker's command server, keys and timeouts."""

    url: str
    """For error texts."""
    host: str
    port: int
    api_key: str | None
    curve: CurveKey | None
    timeout: float
    retry: float


def read_target(url: str, options: dict[str, Any]) -> Target:
    """The target for a URL and options; `InvalidRequest` names what is invalid."""
    given = read_options(ZmqOptions, options)
    address = read_address(url, RIGHT)
    if address.path not in ("", "/"):
        raise bad_url(url, "it has a path", RIGHT)
    port = address.port or PORT
    file = given.curve_key or os.environ.get("MINIQ_CURVE_KEY")
    curve = _read_key(file) if file else None
    shown = f"tcp://{address.shown(port)}"
    return Target(shown, address.host, port, given.api_key, curve, given.timeout, given.retry)


def _read_key(path: str) -> CurveKey:
    try:
        with open(path, "rb") as file:
            key = msgspec.convert(tomllib.load(file), CurveKey)
        if {len(half) for half in (key.public, key.secret, key.server)} != {40}:
            raise ValueError("a key has 40 characters")
    except OSError as error:
        raise InvalidRequest(f"curve_key: cannot read {path!r}: {error.strerror}", field="curve_key") from None
    except ValueError as error:
        raise InvalidRequest(
            f"curve_key: {path!r} is not a file of `miniq keys curve create`: {error}", field="curve_key"
        ) from None
    return key
