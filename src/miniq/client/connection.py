"""How a URL becomes a client: `connect`, `connect_async`, and the one place that tells the transports apart."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any, Protocol

from miniq.client._async.client import AsyncClient
from miniq.client._async.transport import AsyncTransport
from miniq.client._sync.client import Client
from miniq.client._sync.transport import Transport
from miniq.errors import InvalidRequest

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
"""Two letters at least: C: is a drive."""

STORES = frozenset({"rocksdb", "leveldb", "postgresql", "postgres", "mongodb", "mongodb+srv", "memory"})
"""Schemes of stores, on which a broker is opened in this process."""


class Door(Protocol):
    """A module that opens transports to the URLs of its schemes."""

    def open(self, url: str, options: dict[str, Any]) -> Transport: ...

    async def open_async(self, url: str, options: dict[str, Any]) -> AsyncTransport: ...


def connect(url: str | os.PathLike[str], **options: Any) -> Client:
    """A client of the broker at `url`.

    `http://HOST:PORT` or `https://HOST:PORT` is a server; connections are made when they are needed. `options`:

    - `api_key`: the key to show; without it the one in the environment as MINIQ_API_KEY, if any
    - `timeout`: seconds to wait for a connection, and for an answer (30); a receive may take its `wait` more
    - `retry`: seconds for which calls are repeated while the server is away (10); 0 is never. A send that is
      repeated adds its messages once.
    - `ca`, `verify`: with https, a file of authorities to trust instead of the system's, and whether to check
      the server's certificate at all (True)

    `tcp://HOST:PORT` is a server too, over ZeroMQ; the port is that of its command server. `api_key`, `timeout` and
    `retry` are the same, and where the server speaks CURVE there is

    - `curve_key`: the file that `miniq keys curve create` made; without it the one that MINIQ_CURVE_KEY names

    A folder, `rocksdb:DIR`, `leveldb:DIR`, `postgresql://USER@HOST/DATABASE`, `mongodb://HOST/NAME` or `memory:` opens
    a broker in this process, whose `options` are the fields of `Options`.

    With `tracing=True`, or a `TracerProvider` of OpenTelemetry, sends, receives and acks are written down as spans, and
    messages carry the trace context in their headers (needs `miniq[otel]`).
    """
    door, address = _find(url)
    provider = options.pop("tracing", False)
    transport = door.open(address, options)
    if provider is not False:
        from miniq.client._sync.tracing import TracedTransport

        transport = TracedTransport(transport, provider)
    return Client(transport)


def connect_async(url: str | os.PathLike[str], **options: Any) -> Connecting:
    """The same for event loops: `async with connect_async(url) as mq`, or `mq = await connect_async(url)`."""
    return Connecting(url, options)


class Connecting:
    """A connection that is about to be made, by `await` or by `async with`."""

    def __init__(self, url: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._url = url
        self._options = options
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AsyncClient:
        door, address = _find(self._url)
        options = dict(self._options)
        provider = options.pop("tracing", False)
        transport = await door.open_async(address, options)
        if provider is not False:
            from miniq.client._async.tracing import TracedAsyncTransport

            transport = TracedAsyncTransport(transport, provider)
        return AsyncClient(transport)


def _find(url: str | os.PathLike[str]) -> tuple[Door, str]:
    """The transport for a URL, imported only now, and the URL as that transport takes it."""
    scheme, address = _split(url)
    if scheme in STORES:
        from miniq.client import embedded

        return embedded, address
    if scheme is not None and scheme.lower() in ("http", "https"):
        from miniq.client import http

        return http, address
    if scheme is not None and scheme.lower() == "tcp":
        from miniq.client import zmq

        return zmq, address
    raise InvalidRequest(
        f"url: cannot connect to {url!r}; use http://HOST:PORT, tcp://HOST:PORT, a folder, rocksdb:DIR, leveldb:DIR, "
        "postgresql://USER@HOST/DATABASE, mongodb://HOST/NAME or memory:",
        field="url",
    )


def _split(url: str | os.PathLike[str]) -> tuple[str | None, str]:
    """The scheme of a URL, and the URL; a plain folder is one of the default engine."""
    if isinstance(url, os.PathLike):
        return "rocksdb", f"rocksdb:{os.fspath(url)}"
    if not isinstance(url, str) or not url:
        return None, ""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return "rocksdb", f"rocksdb:{url}"
    rest = url[scheme.end() :]
    if scheme[1] in ("rocksdb", "leveldb") and (not rest or rest.startswith("//")):
        return None, url  # no folder, or one that was surely not meant to be at the root
    if scheme[1] == "memory" and rest:
        return None, url
    return scheme[1], url
