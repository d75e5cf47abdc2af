"""URLs and options that all servers have in common, validated: host and port, timeouts, the API key."""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from miniq.api import codec
from miniq.client.url import without_password
from miniq.errors import InvalidRequest

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
LONGEST = 1e9
"""The longest timeout of a socket, in seconds."""
_USER_NAME = "it has a user name; give the key as api_key"
_SECRET = re.compile(r"[!-~]+")


class RemoteOptions(Struct, frozen=True, kw_only=True):
    """The options of `connect` for any server."""

    timeout: float = 30.0
    """Seconds to wait for a connection, and for a reply or its next part; a long poll may take its `wait` longer."""
    retry: float = 10.0
    """Seconds for which a call is retried while the broker is unreachable; 0 disables retries."""
    api_key: str | None = None
    """By default the environment's MINIQ_API_KEY, if set."""


class Address(NamedTuple):
    scheme: str
    host: str
    port: int | None
    path: str

    def shown(self, port: int | None) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if port is None else f"{host}:{port}"


R = TypeVar("R", bound=RemoteOptions)


def read_options(kind: type[R], options: dict[str, Any]) -> R:
    """The options for a server, validated. Paths may be `os.PathLike`."""
    texts = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    for field in texts:
        if field not in kind.__struct_fields__:
            known = ", ".join(kind.__struct_fields__)
            raise InvalidRequest(f"{field}: no such option; there are {known}", field=field)
    try:
        given = msgspec.convert(texts, kind)
    except msgspec.ValidationError as error:
        raise codec.invalid(error, texts) from None
    if not 0 < given.timeout <= LONGEST:
        raise InvalidRequest(
            f"timeout: {given.timeout:.15g} s; use more than 0, at most {LONGEST:.15g}", field="timeout"
        )
    if not (math.isfinite(given.retry) and given.retry >= 0):
        raise InvalidRequest(f"retry: {given.retry:.15g} s; use 0 or more", field="retry")
    given = from_environment(given, "api_key")
    if given.api_key is not None and _SECRET.fullmatch(given.api_key) is None:
        raise InvalidRequest("api_key: not a key; keys have letters, digits and signs, and no spaces", field="api_key")
    return given


def from_environment(given: R, *names: str) -> R:
    """The options, with those of these that are not given taken from the environment: `ca` from MINIQ_CA."""
    found = {name: os.environ.get(f"MINIQ_{name.upper()}") for name in names if getattr(given, name) is None}
    return msgspec.structs.replace(given, **{name: value for name, value in found.items() if value})


def read_address(url: str, right: str) -> Address:
    """The parts of a URL; errors suggest the form `right`."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        if not host.isascii():
            host = host.encode("idna").decode()
    except ValueError as error:  # whose text may have a part of a password
        raise bad_url(url, _USER_NAME if "@" in url else str(error), right) from None
    if _HOST.fullmatch(host) is None:
        raise bad_url(url, "there is no host in it" if not host else f"{host!r} is not a host name", right)
    if port == 0:
        raise bad_url(url, "0 is not a port", right)
    if parts.username is not None:
        raise bad_url(url, _USER_NAME, right)
    if parts.query or parts.fragment:
        raise bad_url(url, "it has a query or a fragment", right)
    return Address(scheme, host, port, parts.path)


def bad_url(url: str, problem: str, right: str) -> InvalidRequest:
    url = without_password(url)
    return InvalidRequest(f"url: cannot connect to {url!r}, {problem}; use {right}", field="url")
