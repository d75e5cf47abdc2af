"""Where a broker is and how to talk to it: the URL and the options of `connect("http://…")`, checked."""

from __future__ import annotations

import math
import os
import re
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_SECRET = re.compile(r"[!-~]+")
PORTS = {"http": 80, "https": 443}


class HttpOptions(Struct, frozen=True, kw_only=True):
    """What `connect` takes beside an HTTP URL."""

    timeout: float = 30.0
    """Seconds to wait for a connection, and for an answer or its next part; a long poll may take its `wait` more."""
    retry: float = 10.0
    """Seconds for which a call is repeated while the broker is away; 0 is never."""
    api_key: str | None = None
    """Without it, the one in the environment as MINIQ_API_KEY, if any."""
    ca: str | None = None
    """A file with the certificates of authorities to trust, instead of the system's."""
    verify: bool = True
    """Whether to check the broker's certificate; False is for trying things out."""


class Target(Struct, frozen=True):
    """One broker: its address, what every request to it says, and how patient its callers are."""

    url: str
    """For people."""
    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """What comes before the path of every call."""
    headers: bytes
    """The header lines of every request."""
    timeout: float
    retry: float


def read_target(url: str, options: dict[str, Any]) -> Target:
    """The broker that a URL and options mean; `InvalidRequest` names what is wrong with them."""
    given = _options(options)
    scheme, host, port, prefix = _address(url)
    shown = f"[{host}]" if ":" in host else host
    if port != PORTS[scheme]:
        shown = f"{shown}:{port}"
    headers = f"host: {shown}\r\nuser-agent: miniq\r\n"
    if given.api_key is not None:
        headers += f"authorization: Bearer {given.api_key}\r\n"
    tls = _tls(given) if scheme == "https" else None
    if tls is None and (given.ca is not None or not given.verify):
        field = "verify" if given.ca is None else "ca"
        raise InvalidRequest(f"{field}: is for https only, and the url is {url!r}", field=field)
    return Target(f"{scheme}://{shown}{prefix}", host, port, tls, prefix, headers.encode(), given.timeout, given.retry)


def _options(options: dict[str, Any]) -> HttpOptions:
    known = HttpOptions.__struct_fields__
    for field in options:
        if field not in known:
            raise InvalidRequest(f"{field}: no such option; there are {', '.join(known)}", field=field)
    if isinstance(options.get("ca"), os.PathLike):
        options = options | {"ca": os.fspath(options["ca"])}
    try:
        given = msgspec.convert(options, HttpOptions)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`") or "options"
        raise InvalidRequest(f"{field}: {text}", field=field) from None
    if not (math.isfinite(given.timeout) and given.timeout > 0):
        raise InvalidRequest(f"timeout: {given.timeout:g} s; use more than 0", field="timeout")
    if not (math.isfinite(given.retry) and given.retry >= 0):
        raise InvalidRequest(f"retry: {given.retry:g} s; use 0 or more", field="retry")
    if given.api_key is None and os.environ.get("MINIQ_API_KEY"):
        given = msgspec.structs.replace(given, api_key=os.environ["MINIQ_API_KEY"])
    if given.api_key is not None and _SECRET.fullmatch(given.api_key) is None:
        raise InvalidRequest("api_key: not a key; keys have letters, digits and signs, and no spaces", field="api_key")
    return given


def _address(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path of a URL."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        if not host.isascii():
            host = host.encode("idna").decode()
    except ValueError as error:
        raise _bad_url(url, str(error)) from None
    if _HOST.fullmatch(host) is None:
        raise _bad_url(url, "there is no host in it" if not host else f"{host!r} is no host name")
    if port == 0:
        raise _bad_url(url, "0 is no port")
    if parts.username is not None:
        raise _bad_url(url, "it has a user name; give the key as api_key")
    if parts.query or parts.fragment:
        raise _bad_url(url, "it has a query or a fragment")
    return scheme, host, port or PORTS[scheme], quote(parts.path.rstrip("/"), safe="/%~!$&'()*+,;=:@")


def _bad_url(url: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"url: cannot connect to {url!r}, {problem}; use http://HOST:PORT", field="url")


def _tls(given: HttpOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given.ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"ca: {given.ca!r} is not a readable file with certificates: {error}", field="ca"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    if not given.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
