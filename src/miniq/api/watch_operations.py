"""The operations that watch queues: rows of the table in `operations.py`."""

from __future__ import annotations

from miniq.api import replies, shapes
from miniq.api.operation import Call
from miniq.api.replies import same
from miniq.api.table import operation
from miniq.consumer import Consumer


@operation(
    "list_consumers", "GET", "/v1/queues/{queue}/consumers", "read",
    "Who received in the last five minutes, and who holds messages", replies.CONSUMERS,
)  # fmt: skip
class ListConsumers(Call[list[Consumer]], frozen=True):
    queue: str


@operation(
    "stats", "GET", "/v1/stats", "read", "All queues, or one: counts, rates, dead letters",
    same(shapes.Stats), own=True,
)  # fmt: skip
class Stats(Call[shapes.Stats], frozen=True):
    queue: str | None = None


@operation(
    "trends", "GET", "/v1/trends", "read", "Time series of the last hour", same(shapes.Trends), own=True
)  # fmt: skip
class Trends(Call[shapes.Trends], frozen=True):
    """`series` are names separated by commas."""

    queue: str | None = None
    series: str = "total,sent,acked"
    points: int = 60
