"""The ZeroMQ transport, in parts: `target.py` (URL and options), `requests.py` (calls to bytes and back, no I/O),
`line.py` (one connection), and `sync.py` and `aio.py`, which do the I/O."""

from typing import Any

from miniq.client.zmq.aio import AsyncZmq
from miniq.client.zmq.sync import Zmq
from miniq.client.zmq.target import read_target


def open(url: str, options: dict[str, Any]) -> Zmq:
    """A transport to the broker at `url`, for any number of threads; `options` are those of `ZmqOptions`."""
    return Zmq(read_target(url, options))


async def open_async(url: str, options: dict[str, Any]) -> AsyncZmq:
    """A transport to the broker at `url` in the running event loop; `options` are those of `ZmqOptions`."""
    return AsyncZmq(read_target(url, options))
