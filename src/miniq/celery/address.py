"""From a URL of kombu and its transport options to a client.

`miniq://HOST:PORT` and `miniqs://` (TLS) are a server, `miniq+http://` and `miniq+https://` the same. An API key is the
password: `miniq://:KEY@HOST`. `miniq+folder:///PATH` is a broker in this process, which all connections of the process
share, because a folder belongs to one process.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import miniq
from miniq.client._sync.client import Client
from miniq.errors import InvalidRequest

PORT = 5000
FOLDER = "folder://"
CLIENT_OPTIONS = ("api_key", "timeout", "retry", "ca", "verify", "client_cert", "client_key")
_TLS = {"ca_certs": "ca", "certfile": "client_cert", "keyfile": "client_key"}
"""The names that `broker_use_ssl` has for options of ours."""


class Address(NamedTuple):
    """What `miniq.connect` is called with."""

    url: str
    options: dict[str, Any]
    is_embedded: bool = False

    def connect(self, **changes: Any) -> Client:
        """A client. It checks no connection yet."""
        if self.is_embedded:
            return _embedded(self.url)
        return miniq.connect(self.url, **(self.options | changes))

    def close(self, client: Client) -> None:
        """End the use of a client."""
        if self.is_embedded:
            _release(self.url)
        else:
            client.close()


def address_of(connection: Any, secure: bool) -> Address:
    """The address that a `kombu.Connection` has."""
    options = {name: value for name, value in connection.transport_options.items() if name in CLIENT_OPTIONS}
    host = connection.hostname or "127.0.0.1"
    if host.startswith(FOLDER):
        path = unquote(urlsplit(host).path)
        if not path or urlsplit(host).netloc:
            text = f"broker_url: miniq+{host!s} names no folder; use miniq+folder:///absolute/path (three slashes)"
            raise InvalidRequest(text, field="broker_url")
        return Address(f"rocksdb:{path}", {}, is_embedded=True)
    key, port, prefix = connection.password or connection.userid, connection.port, connection.virtual_host or ""
    if "://" in host:
        parts = urlsplit(host)
        if parts.scheme not in ("http", "https"):
            text = f"broker_url: miniq+{parts.scheme}:// is not supported; use miniq://, miniqs:// or miniq+folder://"
            raise InvalidRequest(text, field="broker_url")
        secure, prefix = parts.scheme == "https", parts.path
        key, host, port = parts.password or parts.username, parts.hostname or "127.0.0.1", parts.port
        key = key and unquote(key)
    if key:
        options.setdefault("api_key", key)
    given = connection.ssl
    if given:
        secure = True
        options |= _tls_options(given)
    host = f"[{host}]" if ":" in host else host
    prefix = prefix.strip("/")
    scheme = "https" if secure else "http"
    return Address(f"{scheme}://{host}:{port or PORT}{'/' if prefix else ''}{prefix}", options)


def _tls_options(given: Any) -> dict[str, Any]:
    """The options for `broker_use_ssl`."""
    if not isinstance(given, Mapping):
        return {}
    options = {ours: given[name] for name, ours in _TLS.items() if given.get(name) is not None}
    required = given.get("cert_reqs")
    if required in (ssl.CERT_NONE, "CERT_NONE", "none"):
        options["verify"] = False
    return options


_lock = threading.RLock()
_open: dict[str, tuple[Client, int]] = {}
"""The brokers in this process by URL, with the number of connections that use each."""


def _embedded(url: str) -> Client:
    with _lock:
        client, users = _open.get(url, (None, 0))
        if client is None:
            client = miniq.connect(url)
        _open[url] = client, users + 1
        return client


def _release(url: str) -> None:
    with _lock:
        if url in _open:
            client, users = _open.pop(url)
            if users > 1:
                _open[url] = client, users - 1
            else:
                client.close()
