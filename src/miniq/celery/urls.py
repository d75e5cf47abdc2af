"""The URLs of Celery's settings: `miniq://KEY@HOST:PORT/PREFIX?queue=NAME`, as those of `miniq.connect`.

`miniq+https://…` is a server with TLS, `miniq+tcp://…` one over ZeroMQ, and `miniq+folder:///PATH` a store in a folder,
for tests and single processes. Celery removes the first part of a scheme with a plus before it passes the URL on.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from miniq.celery.address import Address
from miniq.client._sync.client import Client
from miniq.errors import InvalidRequest

SCHEMES = {"miniq": "http", "http": "http", "https": "https", "miniqs": "https", "tcp": "tcp"}
PORTS = {"http": 5000, "https": 5000, "tcp": 5557}
_FLOATS = ("timeout", "retry")
_EXAMPLE = "use miniq://127.0.0.1:5000, miniq+https://HOST:5000 or miniq+folder:///PATH"


class Server(Struct, frozen=True):
    """What a URL says."""

    url: str
    """For `miniq.connect`."""
    options: dict[str, Any]
    """Those of `miniq.connect`."""
    others: dict[str, str]
    """Other parameters of the URL, such as `queue`."""

    def connect(self, **options: Any) -> Client:
        """A client. One of a folder is that of all users in this process, of kombu's connections as well."""
        return Address(self.url, self.options | options, self.url.startswith("rocksdb:")).connect()


def read_address(url: str, field: str) -> Server:
    """The address in a URL of a setting; `InvalidRequest` names the setting."""
    scheme, _, rest = url.removeprefix("miniq+").partition("://")
    others = dict(parse_qsl(urlsplit(f"//{rest}").query))
    if scheme == "folder":
        path = unquote(rest.partition("?")[0])
        if not path:
            raise InvalidRequest(f"{field}: {url!r} names no folder; {_EXAMPLE}", field=field)
        return Server(f"rocksdb:{path}", {}, others)
    if scheme == "memory":
        return Server("memory:", {}, others)
    if scheme not in SCHEMES:
        raise InvalidRequest(f"{field}: the scheme {scheme!r} is not one of MiniQ's; {_EXAMPLE}", field=field)
    parts = urlsplit(f"//{rest}")
    try:
        port = parts.port
    except ValueError:
        raise InvalidRequest(f"{field}: has no valid port; {_EXAMPLE}", field=field) from None
    host = parts.hostname or "127.0.0.1"
    kind = SCHEMES[scheme]
    address = f"{kind}://{f'[{host}]' if ':' in host else host}:{port or PORTS[kind]}{parts.path.rstrip('/')}"
    options: dict[str, Any] = {}
    key = parts.password or parts.username
    if key:
        options["api_key"] = unquote(key)
    for name in ("api_key", "ca", "client_cert", "client_key", "curve_key", *_FLOATS):
        if name in others:
            value = others.pop(name)
            try:
                options[name] = float(value) if name in _FLOATS else value
            except ValueError:
                raise InvalidRequest(f"{field}: {name}={value} is not a number of seconds", field=field) from None
    return Server(address, options, others)
