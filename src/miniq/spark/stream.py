"""Stream readers: a queue by claims, the history by offsets.

Spark logs the end offset of a batch before reading it, and reads the same range again after a crash. So the offset of a
queue is a claim number: the broker freezes the claim, it can be read any number of times, and it is acked by the call
that makes the next claim, which Spark triggers only once the previous batch is in its commit log. If the driver dies
between a claim and Spark's log, the restarted query finds the claim after `start` already made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from miniq.errors import ClaimGone, ClaimUnknown, Fenced, InvalidRequest, MiniQError
from miniq.spark.options import Options
from miniq.spark.schema import fit
from miniq.spark.snapshot import Range, read_range, span_of, split

if TYPE_CHECKING:
    from miniq.client._sync.claims import Claims
    from miniq.message import Claim

PART = 25_000
"""Messages that justify a task of their own."""
MAX_PARTS = 16


@dataclass
class Part(InputPartition):
    """One part of a claim."""

    claim: int
    part: int
    parts: int


class ClaimStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of a queue; each batch is one claim of the group."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._open_claims: Claims | None = None
        self._acked = 0
        self._sizes: dict[int, int] = {}
        """Number of messages by claim."""
        self._remaining: int | None = None
        """With AvailableNow: how many messages are still to be claimed."""

    # On the driver

    def initialOffset(self) -> dict[str, int]:
        """The last acked claim; it does not change before Spark's log has a batch."""
        self._claims()
        return {"claim": self._acked}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerBatch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the claims from now on to the number of messages that are there now."""
        options = self._options
        with options.connect() as client:
            ready = client.queue(options.queue or "").info().counts.ready
        self._remaining = ready + sum(claim.messages for claim in self._readable() if claim.acked_at is None)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Make the claim after `start`. The same call acks the claim `start`, whose batch is done."""
        max_messages = self._options.maxMessagesPerBatch
        if isinstance(limit, ReadMaxRows):
            max_messages = min(max_messages, max(1, limit.max_rows))
        wait = self._options.pollTimeout
        after = start["claim"]
        if self._remaining is not None:
            if self._remaining <= 0:
                self._claims().ack(after)
                return start
            max_messages, wait = min(max_messages, self._remaining), 0.0
        claim = self._next(after, max_messages, wait)
        if claim is None:
            return start
        self._sizes = {claim.number: claim.messages}
        if self._remaining is not None:
            self._remaining -= claim.messages
        return {"claim": claim.number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Part]:
        """Every claim of a batch, split by the option `partitions` or by size."""
        return [
            Part(claim, part, parts)
            for claim in range(start["claim"] + 1, end["claim"] + 1)
            for parts in [self._parts(claim)]
            for part in range(parts)
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Ack a batch that is done; the next one is in Spark's log."""
        self._claims().ack(end["claim"])

    # On an executor

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Fetch one part of a claim; repeatable."""
        options = self._options
        with options.connect() as client:
            claims = client.queue(options.queue or "").claims(options.group or "")
            try:
                for batch in claims.table(partition.claim, partition.part, partition.parts).to_batches():
                    yield fit(batch, self._schema)
            except (ClaimGone, ClaimUnknown) as error:
                if options.failOnDataLoss:
                    raise self._lost(partition.claim, error) from None

    # Inside

    def _claims(self) -> Claims:
        """The group's claims. The first call opens them for this reader, which fences off older readers."""
        if self._open_claims is None:
            options = self._options
            claims = options.connect(probe=True).queue(options.queue or "").claims(options.group or "")
            self._acked = claims.open().acked
            self._open_claims = claims
        return self._open_claims

    def _next(self, after: int, max_messages: int, wait: float) -> Claim | None:
        claims = self._claims()
        make = partial(claims.next, max_messages=max_messages, max_bytes=self._options.maxBytesPerBatch, wait=wait)
        try:
            return make(after)
        except ClaimGone as error:
            if self._options.failOnDataLoss:
                raise self._lost(after + 1, error) from None
            return make(claims.open().last)
        except ClaimUnknown as error:
            raise self._lost(after, error) from None
        except Fenced as error:
            raise Fenced(
                f"group: {self._options.group!r} of queue {self._options.queue!r} is now read by a newer query; "
                "this one stops. Use different groups for queries that run at the same time",
                field="group",
            ) from error

    def _readable(self) -> list[Claim]:
        """The group's readable claims."""
        groups = self._claims().queue.claim_groups()
        return [claim for group in groups if group.group == self._options.group for claim in group.claims]

    def _parts(self, claim: int) -> int:
        if self._options.partitions is not None:
            return self._options.partitions
        if claim not in self._sizes:
            self._sizes |= {readable.number: readable.messages for readable in self._readable()}
        size = self._sizes.get(claim, 0)
        return max(1, min(MAX_PARTS, -(-size // PART)))

    def _lost(self, claim: int, error: MiniQError) -> MiniQError:
        """Explain an error for a claim that is in Spark's checkpoint but no longer in the broker."""
        group = self._options.group
        return type(error)(
            f"group: claim {claim} of group {group!r} can no longer be read ({error.text}). Since the checkpoint was "
            "written, the claim was released, or the queue was purged or deleted. Start with a new checkpoint, or "
            "skip the lost messages with .option('failOnDataLoss', 'false')",
            field="group",
        )


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history; each batch is a range of offsets. The broker keeps no state for it."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._until: int | None = None
        """With AvailableNow: the last record to read."""

    def initialOffset(self) -> dict[str, int]:
        """The record before the first one to read."""
        start = self._options.startingOffset
        if isinstance(start, int):
            return {"offset": max(0, start - 1)}
        first, last = self._span()
        return {"offset": last if start == "latest" else max(0, first - 1)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerBatch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._span()[1]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the history, or as far as the limit allows."""
        max_records = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.maxMessagesPerBatch
        first, last = self._span()
        if self._until is not None:
            last = min(last, self._until)
        begin = start["offset"]
        if begin + 1 < first:
            if self._options.failOnDataLoss:
                raise InvalidRequest(
                    f"startingOffset: the history begins with record {first}; the records from {begin + 1} on were "
                    "deleted. Skip them with .option('failOnDataLoss', 'false')",
                    field="startingOffset",
                )
            begin = first - 1
        if last < begin:
            if last < start["offset"] and self._until is None:
                raise InvalidRequest(
                    f"startingOffset: the history ends with record {last}, but the checkpoint is at record {begin}: "
                    "does it belong to another broker? Start with a new checkpoint",
                    field="startingOffset",
                )
            return start
        return {"offset": min(last, begin + max(1, max_records))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        return split(start["offset"], end["offset"], self._options.partitions)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)

    def _span(self) -> tuple[int, int]:
        with self._options.connect(probe=self._until is None) as client:
            return span_of(client)
