"""Several brokers on one database: a client stays with one while it answers, and else goes to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from miniq.api.operation import AsTable, Call
from miniq.api.operations import operation_of
from miniq.client._sync.client import Client
from miniq.client._sync.transport import Transport
from miniq.errors import StoreUnavailable

PAUSE = 0.5
"""Seconds until the next round, if no broker was reachable."""

T = TypeVar("T")


class Failover(Transport):
    """Performs calls on one of several brokers, and stays with it while it answers."""

    def __init__(self, urls: Sequence[str], turn: int, retry: float, connect: Callable[[str], Client]) -> None:
        first = turn % len(urls)
        self._urls = [*urls[first:], *urls[:first]]
        self._retry = retry
        self._connect = connect
        self._clients: dict[str, Client] = {}
        self._current = 0

    def perform(self, call: Call[T]) -> T:
        """Try the brokers in turn, in rounds, for `retry` seconds. A call that may have been carried out goes to
        another broker only if repeating it changes nothing."""
        repeat = operation_of(call.call if isinstance(call, AsTable) else call).repeat
        deadline: float | None = None
        while True:
            for tried in range(len(self._urls)):
                try:
                    return self._client().perform(call)
                except StoreUnavailable:
                    now = time.monotonic()
                    deadline = now + self._retry if deadline is None else deadline
                    self._current = (self._current + 1) % len(self._urls)
                    if repeat != "freely" or (tried == len(self._urls) - 1 and now >= deadline):
                        raise
            time.sleep(PAUSE)

    def _client(self) -> Transport:
        url = self._urls[self._current]
        if url not in self._clients:
            self._clients[url] = self._connect(url)
        return self._clients[url]._transport

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
