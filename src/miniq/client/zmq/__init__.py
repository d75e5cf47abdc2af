"""The ZeroMQ transport, in parts: `target.py` (URL and options), `requests.py` (calls to bytes and back, no I/O),
`line.py` (one connection and what becomes of it), and `sync.py` and `aio.py`, which move the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miniq.client.zmq.aio import AsyncZmq
    from miniq.client.zmq.sync import Zmq


def open(url: str, options: dict[str, Any]) -> Zmq:
    """A transport to the broker at `url`, for callers of any thread; `options` are those of `ZmqOptions`."""
    from miniq.client.zmq.sync import Zmq
    from miniq.client.zmq.target import read_target

    return Zmq(read_target(url, options))


async def open_async(url: str, options: dict[str, Any]) -> AsyncZmq:
    """A transport to the broker at `url` in the running event loop; `options` are those of `ZmqOptions`."""
    from miniq.client.zmq.aio import AsyncZmq
    from miniq.client.zmq.target import read_target

    return AsyncZmq(read_target(url, options))
