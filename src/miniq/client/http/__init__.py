"""The HTTP transport, in parts: `target.py` (URL and options), `requests.py` and `answers.py` (calls to bytes and
back, no I/O), and `sync.py` and `aio.py`, which do the I/O."""

from typing import Any

from miniq.client.http.aio import AsyncHttp
from miniq.client.http.sync import Http
from miniq.client.http.target import read_target


def open(url: str, options: dict[str, Any]) -> Http:
    """A transport to the broker at `url`, for any number of threads; `options` are those of `HttpOptions`."""
    return Http(read_target(url, options))


async def open_async(url: str, options: dict[str, Any]) -> AsyncHttp:
    """A transport to the broker at `url` in the running event loop; `options` are those of `HttpOptions`."""
    return AsyncHttp(read_target(url, options))
