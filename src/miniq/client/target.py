"""What the URLs and options of all servers have in common, checked: host and port, patience, the API key."""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
LONGEST = 1e9
"""Seconds that a socket can be told to wait."""
_SECRET = re.compile(r"[!-~]+")


class RemoteOptions(Struct, frozen=True, kw_only=True):
    """What `connect` takes beside the URL of any server."""

    timeout: float = 30.0
    """Seconds to wait for a connection, and for an answer or its next part; a long poll may take its `wait` more."""
    retry: float = 10.0
    """Seconds for which a call is repeated while the broker is away; 0 is never."""
    api_key: str | None = None
    """Without it, the one in the environment as MINIQ_API_KEY, if any."""


class Address(NamedTuple):
    scheme: str
    host: str
    port: int | None
    path: str

    def shown(self, port: int | None) -> str:
        """Host and port for people, and for those who take them so."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if port is None else f"{host}:{port}"


O = TypeVar("O", bound=RemoteOptions)  # noqa: E741


def read_options(kind: type[O], options: dict[str, Any]) -> O:
    """Options as a record; `InvalidRequest` names what is wrong with them. Paths are taken as text."""
    known = kind.__struct_fields__
    for field, value in options.items():
        if field not in known:
            raise InvalidRequest(f"{field}: no such option; there are {', '.join(known)}", field=field)
        if isinstance(value, os.PathLike):
            options = options | {field: os.fspath(value)}
    try:
        given = msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`") or "options"
        raise InvalidRequest(f"{field}: {text}", field=field) from None
    if not 0 < given.timeout <= LONGEST:
        raise InvalidRequest(f"timeout: {given.timeout:g} s; use more than 0, at most {LONGEST:g}", field="timeout")
    if not (math.isfinite(given.retry) and given.retry >= 0):
        raise InvalidRequest(f"retry: {given.retry:g} s; use 0 or more", field="retry")
    if given.api_key is None and os.environ.get("MINIQ_API_KEY"):
        given = msgspec.structs.replace(given, api_key=os.environ["MINIQ_API_KEY"])
    if given.api_key is not None and _SECRET.fullmatch(given.api_key) is None:
        raise InvalidRequest("api_key: not a key; keys have letters, digits and signs, and no spaces", field="api_key")
    return given


def read_address(url: str, right: str) -> Address:
    """The parts of a URL; `right` is what would be one."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        if not host.isascii():
            host = host.encode("idna").decode()
    except ValueError as error:
        raise bad_url(url, str(error), right) from None
    if _HOST.fullmatch(host) is None:
        raise bad_url(url, "there is no host in it" if not host else f"{host!r} is no host name", right)
    if port == 0:
        raise bad_url(url, "0 is no port", right)
    if parts.username is not None:
        raise bad_url(url, "it has a user name; give the key as api_key", right)
    if parts.query or parts.fragment:
        raise bad_url(url, "it has a query or a fragment", right)
    return Address(scheme, host, port, parts.path)


def bad_url(url: str, problem: str, right: str) -> InvalidRequest:
    return InvalidRequest(f"url: cannot connect to {url!r}, {problem}; use {right}", field="url")
