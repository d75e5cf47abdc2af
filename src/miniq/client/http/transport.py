"""Opens transports over HTTP."""

from typing import Any

from miniq.client._async.http import AsyncHttp
from miniq.client._sync.http import Http
from miniq.client.http.target import read_target


def open(url: str, options: dict[str, Any]) -> Http:
    """A transport to the broker at `url`, for any number of threads; `options` are those of `HttpOptions`."""
    return Http(read_target(url, options))


async def open_async(url: str, options: dict[str, Any]) -> AsyncHttp:
    """A transport to the broker at `url` in the running event loop; `options` are those of `HttpOptions`."""
    return AsyncHttp(read_target(url, options))
