"""How a URL becomes a client: `connect`, `connect_async`, and the choice of the transport."""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from miniq.client._async.client import AsyncClient
from miniq.client._async.transport import AsyncTransport
from miniq.client._sync.client import Client
from miniq.client._sync.transport import Transport
from miniq.client.url import STORES, ZMQ, locate


class Opener(Protocol):
    """A module that opens transports to the URLs of its schemes."""

    def open(self, url: str, options: dict[str, Any]) -> Transport: ...

    async def open_async(self, url: str, options: dict[str, Any]) -> AsyncTransport: ...


def connect(url: str | os.PathLike[str], **options: Any) -> Client:
    """A client of the broker at `url`.

    `http://HOST:PORT` or `https://HOST:PORT` is a server; connections are opened on demand. `options`:

    - `api_key`: by default the environment's MINIQ_API_KEY, if set
    - `timeout`: seconds to wait for a connection, and for a reply (30); a receive may take its `wait` longer
    - `retry`: seconds for which calls are retried while the server is unreachable (10); 0 disables retries. A retried
      send adds its messages once.
    - `ca`, `verify`: with https, a file of certificate authorities to trust instead of the system's (by default the one
      that MINIQ_CA names), and whether to verify the server's certificate (True)
    - `client_cert`, `client_key`: with https, the files of this client's certificate and private key, if the server
      requires one; by default those that MINIQ_CLIENT_CERT and MINIQ_CLIENT_KEY name

    `tcp://HOST:PORT` is a server over ZeroMQ; the port is that of its command server. `api_key`, `timeout` and `retry`
    are the same, and if the server requires CURVE:

    - `curve_key`: the file written by `miniq keys curve create`; by default the one that MINIQ_CURVE_KEY names

    A folder, `rocksdb:DIR`, `leveldb:DIR`, `postgresql://USER@HOST/DATABASE`, `mongodb://HOST/NAME` or `memory:` opens
    a broker in this process; `options` are the fields of `Options`. A folder is created if it does not exist;
    one whose name looks like an address is written with `./`. `api_key` is accepted and not needed: a program that
    can open the store may do everything.

    With `tracing=True`, or a `TracerProvider` of OpenTelemetry, sends, receives and acks are recorded as spans, and
    messages carry the trace context in their headers (needs the extra `otel`).
    """
    opener, address = _find(url)
    provider = options.pop("tracing", False)
    transport = opener.open(address, options)
    if provider is not False:
        from miniq.client._sync.tracing import TracedTransport

        transport = TracedTransport(transport, provider)
    return Client(transport)


def connect_async(url: str | os.PathLike[str], **options: Any) -> Connecting:
    """The same for event loops: `async with connect_async(url) as mq`, or `mq = await connect_async(url)`."""
    return Connecting(url, options)


class Connecting:
    """The result of `connect_async`: `await` it, or use it with `async with`."""

    def __init__(self, url: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._url = url
        self._options = options
        self._client: AsyncClient | None = None

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("__") else ": not connected yet; use `mq = await miniq.connect_async(url)`"
        raise AttributeError(name + hint, name=name, obj=self)

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AsyncClient:
        opener, address = _find(self._url)
        options = dict(self._options)
        provider = options.pop("tracing", False)
        transport = await opener.open_async(address, options)
        if provider is not False:
            from miniq.client._async.tracing import TracedAsyncTransport

            transport = TracedAsyncTransport(transport, provider)
        return AsyncClient(transport)


def _find(url: str | os.PathLike[str]) -> tuple[Opener, str]:
    """The transport for a URL, which is imported on first use, and the complete URL."""
    scheme, address = locate(url)
    name = "embedded" if scheme in STORES else "zmq" if scheme == ZMQ else "http.transport"
    return cast(Opener, import_module(f"miniq.client.{name}")), address
