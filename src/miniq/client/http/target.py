"""The URL and the options of `connect("http://…")`, validated."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from miniq.client.target import RemoteOptions, read_address, read_options
from miniq.client.url import without_password
from miniq.errors import InvalidRequest

PORTS = {"http": 80, "https": 443}


class HttpOptions(RemoteOptions, frozen=True, kw_only=True):
    """The options of `connect` for HTTP."""

    ca: str | None = None
    """A file of certificate authorities to trust instead of the system's."""
    verify: bool = True
    """Whether to verify the broker's certificate; False is for tests only."""


class Target(Struct, frozen=True):
    """The address of a broker, the headers of every request, and timeouts."""

    url: str
    """For error texts."""
    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """Comes before the path of every request."""
    headers: bytes
    """The header lines of every request."""
    timeout: float
    retry: float
    lines: Callable[[], bytes] | None = None
    """Computes more header lines for each request."""


def read_target(url: str, options: dict[str, Any]) -> Target:
    """The target for a URL and options; `InvalidRequest` names what is invalid."""
    given = read_options(HttpOptions, options)
    address = read_address(url, "http://HOST:PORT")
    scheme, host = address.scheme, address.host
    port = address.port or PORTS[scheme]
    prefix = quote(address.path.rstrip("/"), safe="/%~!$&'()*+,;=:@")
    shown = address.shown(None if port == PORTS[scheme] else port)
    headers = f"host: {shown}\r\nuser-agent: miniq\r\n"
    if given.api_key is not None:
        headers += f"authorization: Bearer {given.api_key}\r\n"
    tls = _tls(given) if scheme == "https" else None
    if tls is None and (given.ca is not None or not given.verify):
        field = "verify" if given.ca is None else "ca"
        raise InvalidRequest(f"{field}: is for https only, and the url is {without_password(url)!r}", field=field)
    return Target(f"{scheme}://{shown}{prefix}", host, port, tls, prefix, headers.encode(), given.timeout, given.retry)


def _tls(given: HttpOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given.ca)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"ca: {given.ca!r} is not a readable file with certificates: {error}", field="ca"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    if not given.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
