"""A queue without messages whose results are what other frameworks keep: results of their tasks, groups, counters.

It is set up when it is first used. The ids are UUIDs: those of tasks, or made of other keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from msgspec import Raw

from miniq.api import operations as ops
from miniq.client._sync.client import Client
from miniq.errors import Forbidden, QueueNotFound, ResultsOff
from miniq.message import moment
from miniq.result import Progress

T = TypeVar("T")
FOREVER = 100 * 365 * 86400.0
"""Seconds for which something is kept that does not expire."""
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Keeping:
    """Keeps JSON values under ids, for as long as each says."""

    def __init__(self, client: Callable[[], Client], queue: str, seconds: float) -> None:
        self._client = client
        self.queue = queue
        self._seconds = seconds
        """For how long the queue keeps results that do not say it."""

    def get(self, id: str, wait: float = 0) -> Progress | None:
        """What is kept under an id; with `wait`, once it is final, or what there is after that many seconds."""
        found = self._perform(lambda client: client.perform(ops.Result(self.queue, id, wait, "wait")))
        return None if found.status == "unknown" else found

    def put(
        self,
        id: str,
        value: bytes,
        seconds: float | None,
        *,
        final: bool = True,
        was: Progress | None = None,
        new: bool = False,
    ) -> bool:
        """Keep a value for so many seconds, for ever if None: instead of what `was` kept, if that is given, or only as
        a `new` one; whether it was kept."""
        at = None if was is None or was.finished_at is None else moment(was.finished_at)
        ttl = min(seconds or FOREVER, FOREVER)
        call = ops.PutResult(self.queue, id, Raw(value), final, ttl, at, new)
        return self._perform(lambda client: client.perform(call))

    def forget(self, id: str) -> None:
        """Keep nothing more under an id."""
        self._perform(lambda client: client.perform(ops.PutResult(self.queue, id, ttl=0)))

    def _perform(self, call: Callable[[Client], T]) -> T:
        client = self._client()
        try:
            return call(client)
        except (QueueNotFound, ResultsOff) as missing:
            try:
                client.queue(self.queue).configure(results=self._seconds)
            except Forbidden:
                raise missing from None  # which says what someone with more rights has to set up
            return call(client)


def id_of(key: str) -> str:
    """The id of a key: the key itself, if it is a UUID."""
    if _ID.fullmatch(key) is not None:
        return key
    return str(UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]))
