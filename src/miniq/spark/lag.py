"""How far a stream is behind: what its broker reports to Spark as the latest offset, and what Spark's progress shows.

Spark shows the latest offset of a source in its progress, and does nothing else with it. So beside the offset it has
`waiting`, how many messages or records are still to be read, and `oldest_seconds`, for how long the oldest of them has
been waiting.
"""

from __future__ import annotations

import json
import time
from typing import Any

from msgspec import Struct, structs

from miniq.client._sync.client import Client
from miniq.errors import MiniQError
from miniq.message import SECOND
from miniq.spark.options import Options


class Lag(Struct, frozen=True):
    """What a stream has yet to read."""

    waiting: int
    oldest_seconds: int | None = None
    """None if nothing is waiting."""


class LagReport:
    """Asks the broker how far a stream is behind. A report must never end a query, so it gives up at the first error,
    for good if the key must not ask."""

    def __init__(self, options: Options) -> None:
        self._options = structs.replace(options, retry=0.0)
        self._client: Client | None = None
        self._forbidden = False

    def queue(self) -> dict[str, Any] | None:
        """The lag of a queue: its ready messages."""
        try:
            client = self._connected()
            if client is None:
                return None
            counts = client.queue(self._options.queue or "").info().counts
        except MiniQError as error:
            self._give_up(error)
            return None
        return _shown({}, counts.ready, counts.oldest if counts.ready else None)

    def history(self, end: int | None) -> dict[str, Any] | None:
        """The lag of a reader of the history whose last record is `end`."""
        try:
            client = self._connected()
            if client is None:
                return None
            page = client.history(limit=1, after=end or 0)
        except MiniQError as error:
            self._give_up(error)
            return None
        next_at = page.records[0].event.at if page.records else None
        return _shown({"offset": page.last}, max(0, page.last - (end or 0)), next_at)

    def _connected(self) -> Client | None:
        if self._client is None and not self._forbidden:
            self._client = self._options.connect()
        return self._client

    def _give_up(self, error: MiniQError) -> None:
        self._forbidden = error.code == "forbidden"
        if self._client is not None:
            self._client.close()
            self._client = None


def _shown(offset: dict[str, Any], waiting: int, oldest: int | None) -> dict[str, Any]:
    if oldest is None:
        return offset | {"waiting": waiting}
    return offset | {"waiting": waiting, "oldest_seconds": max(0, (time.time_ns() // 1000 - oldest) // SECOND)}


def lag_of(report: Any) -> Lag | None:
    """The lag in a progress report of Spark, None if its source does not tell."""
    for source in report.sources:
        try:
            latest = json.loads(source.latestOffset)
        except (TypeError, ValueError):
            continue
        if isinstance(latest, dict) and "waiting" in latest:
            return Lag(latest["waiting"], latest.get("oldest_seconds"))
    return None
