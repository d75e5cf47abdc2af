"""How a URL becomes a client: `connect`, `connect_async`, and the one place that tells the transports apart."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Protocol

from miniq.client._async.client import AsyncClient
from miniq.client._async.transport import AsyncTransport
from miniq.client._sync.client import Client
from miniq.client._sync.transport import Transport
from miniq.client.url import STORES, ZMQ, locate


class Door(Protocol):
    """A module that opens transports to the URLs of its schemes."""

    def open(self, url: str, options: dict[str, Any]) -> Transport: ...

    async def open_async(self, url: str, options: dict[str, Any]) -> AsyncTransport: ...


def connect(url: str | os.PathLike[str], **options: Any) -> Client:
    """A client of the broker at `url`.

    `http://HOST:PORT` or `https://HOST:PORT` is a server; connections are made when they are needed. `options`:

    - `api_key`: without it, the one in the environment as MINIQ_API_KEY, if any
    - `timeout`: seconds to wait for a connection, and for a reply (30); a receive may take its `wait` more
    - `retry`: seconds for which calls are repeated while the server is unreachable (10); 0 is never. A repeated
      send adds its messages once.
    - `ca`, `verify`: with https, a file of authorities to trust instead of the system's, and whether to check
      the server's certificate at all (True)

    `tcp://HOST:PORT` is a server too, over ZeroMQ; the port is that of its command server. `api_key`, `timeout` and
    `retry` are the same, and where the server requires CURVE there is

    - `curve_key`: the file that `miniq keys curve create` made; without it the one that MINIQ_CURVE_KEY names

    A folder, `rocksdb:DIR`, `leveldb:DIR`, `postgresql://USER@HOST/DATABASE`, `mongodb://HOST/NAME` or `memory:` opens
    a broker in this process, whose `options` are the fields of `Options`. A folder is created if it does not exist;
    one whose name looks like an address is written with `./`.

    With `tracing=True`, or a `TracerProvider` of OpenTelemetry, sends, receives and acks are recorded as spans, and
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
    """A connection that `await` or `async with` makes."""

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
    scheme, address = locate(url)
    if scheme in STORES:
        from miniq.client import embedded

        return embedded, address
    if scheme == ZMQ:
        from miniq.client import zmq

        return zmq, address
    from miniq.client import http

    return http, address
