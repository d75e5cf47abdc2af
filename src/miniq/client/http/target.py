"""The URL and the options of `connect("http://…")`, validated."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from miniq.client.target import RemoteOptions, from_environment, read_address, read_options
from miniq.client.url import without_password
from miniq.errors import InvalidRequest
from miniq.files import check_regular

PORTS = {"http": 80, "https": 443}


class HttpOptions(RemoteOptions, frozen=True, kw_only=True):
    """The options of `connect` for HTTP."""

    ca: str | None = None
    """A file of certificate authorities to trust instead of the system's; by default the one that MINIQ_CA names."""
    client_cert: str | None = None
    """The file of this client's certificate, if the broker requires one; by default what MINIQ_CLIENT_CERT names."""
    client_key: str | None = None
    """The file of its private key, if that is another one; by default what MINIQ_CLIENT_KEY names."""
    verify: bool = True
    """Whether to verify the broker's certificate; False is for tests only."""


FILES = ("ca", "client_cert", "client_key")
_DEFAULTS = HttpOptions()


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
    tls = _tls(from_environment(given, *FILES)) if scheme == "https" else None
    if tls is None:
        for field in (*FILES, "verify"):
            if getattr(given, field) != getattr(_DEFAULTS, field):
                text = f"{field}: is for https only, and the url is {without_password(url)!r}"
                raise InvalidRequest(text, field=field)
    return Target(f"{scheme}://{shown}{prefix}", host, port, tls, prefix, headers.encode(), given.timeout, given.retry)


def _tls(given: HttpOptions) -> ssl.SSLContext:
    for field in FILES:
        if (path := getattr(given, field)) is not None:
            check_regular(path, field)
    try:
        context = ssl.create_default_context(cafile=given.ca)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"ca: {given.ca!r} is not a readable file with certificates: {error}", field="ca"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    cert, key = given.client_cert, given.client_key
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, lambda: "")  # an encrypted key is refused instead of asked for
        except (OSError, ValueError) as error:
            if key is None and b"PRIVATE KEY-" not in _content(cert):
                text = f"client_cert: {cert!r} contains no private key; name its file with client_key (--client-key)"
            else:
                text = f"client_cert: {cert!r} and {key or cert!r} are not a certificate and its private key: {error}"
            raise InvalidRequest(text, field="client_cert") from None
    elif key is not None:
        raise InvalidRequest(
            "client_key: given without client_cert; set both, or client_cert alone", field="client_key"
        )
    if not given.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _content(path: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b"PRIVATE KEY-"  # unknown
