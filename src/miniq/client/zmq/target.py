"""Where a broker is and how to talk to it: the URL and the options of `connect("tcp://…")`, checked."""

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
    """What `connect` takes beside a ZeroMQ URL."""

    curve_key: str | None = None
    """The file that `miniq keys curve create` made. Without it, the one in the environment as MINIQ_CURVE_KEY."""


class CurveKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A client's key pair, and the broker's public key."""

    public: str
    secret: str
    server: str


class Target(Struct, frozen=True):
    """One broker: the address of its command server, and how patient its callers are."""

    url: str
    """For people."""
    host: str
    port: int
    api_key: str | None
    curve: CurveKey | None
    timeout: float
    retry: float


def read_target(url: str, options: dict[str, Any]) -> Target:
    """The broker that a URL and options mean; `InvalidRequest` names what is wrong with them."""
    given = read_options(ZmqOptions, options)
    address = read_address(url, RIGHT)
    if address.path not in ("", "/"):
        raise bad_url(url, "it has a path", RIGHT)
    port = address.port or PORT
    file = given.curve_key or os.environ.get("MINIQ_CURVE_KEY") or None
    curve = None if file is None else _read_key(file)
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
