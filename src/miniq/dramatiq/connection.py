"""The client of a broker or backend of Dramatiq: opened when it is needed, once per process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from dramatiq.errors import ConnectionClosed

from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.client.url import REMOTE, locate
from miniq.errors import Closed, Overloaded, StoreUnavailable

URL = "http://127.0.0.1:5000"


class Connection:
    """A client per process: the command `dramatiq` forks its workers, and a folder can be used only by the process that
    opened it."""

    def __init__(self, url: str, client: Client | None, options: dict[str, Any]) -> None:
        self._url = url
        self._options = options
        self._lock = Lock()
        self._client = client
        self._process = os.getpid()
        if client is None and locate(url)[0] in REMOTE:
            _ = self.client  # wrong options are told where they are given; a server is not contacted yet

    @property
    def client(self) -> Client:
        """The client of this process."""
        client = self._client
        if client is None or self._process != os.getpid():
            with self._lock:
                if self._client is None or self._process != os.getpid():
                    self._client = connect(self._url, **self._options)
                    self._process = os.getpid()
                client = self._client
        return client

    def close(self) -> None:
        """Close it; the next use opens another one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._process == os.getpid():
            client.close()


@contextmanager
def connection_errors() -> Iterator[None]:
    """What Dramatiq tries again is `BrokerConnectionError`."""
    try:
        yield
    except (StoreUnavailable, Overloaded, Closed) as error:
        raise ConnectionClosed(error) from None
