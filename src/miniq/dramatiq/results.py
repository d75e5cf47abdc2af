"""Results of Dramatiq's actors, kept by MiniQ under ids made of Dramatiq's keys. The broker wakes a call that waits."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from typing import Any
from uuid import UUID

from dramatiq.encoder import Encoder, JSONEncoder
from dramatiq.message import Message
from dramatiq.results import Missing, ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT
from dramatiq.results.result import wrap_exception

from miniq.client._sync.client import Client
from miniq.client.keeping import Keeping
from miniq.dramatiq.connection import URL, Connection, connection_errors
from miniq.errors import InvalidRequest

SECONDS = 600.0
"""For how long results are kept that do not say it; Dramatiq's always do."""
WAIT = 30.0
"""The longest that one call waits."""


class MiniQResultBackend(ResultBackend):
    """A result backend for Dramatiq.

    Parameters:
      url: The address of a MiniQ server, or a store for a single process, as in `miniq.connect`.
      queue: The queue whose results they are. It is created, and holds no messages.
      namespace, encoder: As everywhere in Dramatiq.
      client: A client to use instead of `url`.
      **options: Those of `miniq.connect`, such as `api_key`.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        queue: str = "dramatiq.results",
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        super().__init__(namespace=namespace, encoder=encoder)
        connection = Connection(url, client, options)
        self._kept = Keeping(lambda: connection.client, queue, SECONDS)
        self._is_json = type(self.encoder) is JSONEncoder

    def get_result(self, message: Message[Any], *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message. With `block`, the call waits for it up to `timeout` milliseconds, by default 10
        seconds, and raises `ResultTimeout`; without, it raises `ResultMissing` if there is none yet."""
        deadline = time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
        key = self.build_message_key(message)
        while True:
            left = max(0.0, deadline - time.monotonic()) if block else 0.0
            result = self._look(key, min(left, WAIT))
            if result is not Missing:
                return self.unwrap_result(result)  # type: ignore[no-untyped-call]
            if not block:
                raise ResultMissing(message)
            if time.monotonic() >= deadline:
                raise ResultTimeout(message)

    def _get(self, message_key: str) -> Any:
        return self._look(message_key, 0)

    def _look(self, key: str, wait: float) -> Any:
        with connection_errors():
            found = self._kept.get(_id(key), wait)
        if found is None or found.result is None:
            return Missing
        return self.encoder.decode(found.result if self._is_json else b64decode(found.result[1:-1]))

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        with connection_errors():
            try:
                self._kept.put(_id(message_key), self._value(result), seconds(ttl))
            except InvalidRequest as error:  # too large, or NaN: the caller is told, instead of waiting in vain
                self._kept.put(_id(message_key), self._value(wrap_exception(error)), seconds(ttl))

    def _value(self, result: Any) -> bytes:
        """A result as a JSON value: as it is, or in base64 if another encoder wrote it."""
        encoded = self.encoder.encode(result)
        return encoded if self._is_json else b'"%b"' % b64encode(encoded)


def seconds(ttl: int) -> float:
    """A time of Dramatiq's, which is in milliseconds; none is 0."""
    return max(0.001, ttl / 1000)


def _id(key: str) -> str:
    """The id of a key, which is an MD5 sum."""
    return str(UUID(hex=key))
