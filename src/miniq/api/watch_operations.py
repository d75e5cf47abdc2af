"""The operations that watch queues: rows of the table in `operations.py`."""

from __future__ import annotations

from miniq.api import replies, shapes
from miniq.api.operation import Call
from miniq.api.replies import same, single
from miniq.api.table import operation
from miniq.batch import ClaimGroup
from miniq.consumer import Consumer
from miniq.failure import FailureGroup


@operation(
    "list_consumers", "GET", "/v1/queues/{queue}/consumers", "read",
    "Who received in the last five minutes, and who holds messages", replies.CONSUMERS,
)  # fmt: skip
class ListConsumers(Call[list[Consumer]], frozen=True):
    queue: str


@operation(
    "list_failures", "GET", "/v1/queues/{queue}/failures", "read",
    "Why messages failed in the last hour, in groups", single("FailuresReply", failures=list[FailureGroup]),
)  # fmt: skip
class ListFailures(Call[list[FailureGroup]], frozen=True):
    queue: str


@operation(
    "list_all_claims", "GET", "/v1/claims", "read", "List the groups of all queues with their claims",
    replies.ALL_CLAIMS, own=True,
)  # fmt: skip
class ListAllClaims(Call[list[tuple[str, ClaimGroup]]], frozen=True):
    pass


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
