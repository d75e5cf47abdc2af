"""Streams out of the broker: a queue by claims, the history by offsets.

Spark writes the end of a batch to its log before it reads it, and reads the same range again after a crash. So an
offset of a queue is the number of a claim: frozen by the broker, read as often as need be, and acked by the call
that makes the next one, which Spark makes only when the batch before is in its commit log. What was claimed and did
not get into Spark's log before the driver died is found again: the claim after `start` is there already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from miniq.errors import ClaimGone, ClaimUnknown, Fenced, InvalidRequest, MiniQError
from miniq.spark.options import Options
from miniq.spark.schema import arrow_schema, fit
from miniq.spark.snapshot import Range, read_range, span_of, split

if TYPE_CHECKING:
    from miniq.client._sync.claims import Claims
    from miniq.message import Claim

PART = 25_000
"""Messages that are worth a task of their own."""
MOST_PARTS = 16


class Part(InputPartition):
    """One part of a claim."""

    def __init__(self, claim: int, part: int, parts: int) -> None:
        super().__init__((claim, part, parts))
        self.claim = claim
        self.part = part
        self.parts = parts


class ClaimStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of a queue, each batch one claim of the group."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._at: Claims | None = None
        self._acked = 0
        self._sizes: dict[int, int] = {}
        """Messages in the claims that this reader was given."""
        self._left: int | None = None
        """With AvailableNow: how many messages are still to be claimed."""

    # On the driver

    def initialOffset(self) -> dict[str, int]:
        """The last claim that was acked; that stays so until Spark's log has a batch."""
        self._claims()
        return {"claim": self._acked}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerBatch)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on no more messages are claimed than are there now."""
        options = self._options
        with options.connect() as client:
            ready = client.queue(options.queue or "").info().counts.ready
        self._left = ready + sum(claim.messages for claim in self._listed() if claim.acked_at is None)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Claim what comes after `start`. The batch that ended there is done, and acked by the same call."""
        most = self._options.maxMessagesPerBatch
        if isinstance(limit, ReadMaxRows):
            most = min(most, max(1, limit.max_rows))
        wait = self._options.pollTimeout
        after = start["claim"]
        if self._left is not None:
            if self._left <= 0:
                self._claims().ack(after)
                return start
            most, wait = min(most, self._left), 0.0
        made = self._next(after, most, wait)
        if made is None:
            return start
        self._sizes = {made.number: made.messages}
        if self._left is not None:
            self._left -= made.messages
        return {"claim": made.number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Part]:
        """Every claim of a batch, in as many parts as asked for, or as are worth it."""
        return [
            Part(claim, part, parts)
            for claim in range(start["claim"] + 1, end["claim"] + 1)
            for parts in [self._parts(claim)]
            for part in range(parts)
        ]

    def commit(self, end: dict[str, int]) -> None:
        """The batch is done, and the next one stands in Spark's log."""
        self._claims().ack(end["claim"])

    # On an executor

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch one part; the same one as often as Spark asks."""
        if not isinstance(partition, Part):
            raise InvalidRequest(f"partition: {partition!r} is not a part of a claim", field="partition")
        options, schema = self._options, arrow_schema(self._schema)
        with options.connect() as client:
            claims = client.queue(options.queue or "").claims(options.group or "")
            try:
                for batch in claims.table(partition.claim, partition.part, partition.parts).to_batches():
                    yield fit(batch, schema)
            except (ClaimGone, ClaimUnknown) as error:
                if options.failOnDataLoss:
                    raise self._lost(partition.claim, error) from None

    # Inside

    def _claims(self) -> Claims:
        """The group's claims, opened by this reader: older readers of the group are told that they are too late."""
        if self._at is None:
            options = self._options
            claims = options.connect(probe=True).queue(options.queue or "").claims(options.group or "")
            self._acked = claims.open().acked
            self._at = claims
        return self._at

    def _next(self, after: int, most: int, wait: float) -> Claim | None:
        claims = self._claims()
        try:
            return claims.next(after, max_messages=most, max_bytes=self._options.maxBytesPerBatch, wait=wait)
        except ClaimGone as error:
            if self._options.failOnDataLoss:
                raise self._lost(after + 1, error) from None
            return claims.next(
                claims.open().last, max_messages=most, max_bytes=self._options.maxBytesPerBatch, wait=wait
            )
        except ClaimUnknown as error:
            raise self._lost(after, error) from None
        except Fenced as error:
            raise Fenced(
                f"group: {self._options.group!r} of queue {self._options.queue!r} is read by a newer query; this one "
                "ends: give queries that run at the same time groups of their own",
                field="group",
            ) from error

    def _listed(self) -> list[Claim]:
        """The group's claims that can be read."""
        groups = self._claims().queue.claim_groups()
        return [claim for group in groups if group.group == self._options.group for claim in group.claims]

    def _parts(self, claim: int) -> int:
        if self._options.partitions is not None:
            return self._options.partitions
        if claim not in self._sizes:
            self._sizes |= {one.number: one.messages for one in self._listed()}
        size = self._sizes.get(claim, 0)
        return max(1, min(MOST_PARTS, -(-size // PART)))

    def _lost(self, claim: int, error: MiniQError) -> MiniQError:
        """What it means that Spark's checkpoint names a claim that the broker does not have any more."""
        group = self._options.group
        return type(error)(
            f"group: claim {claim} of group {group!r} is not there to be read again ({error.text}). Its checkpoint is "
            "from before the claim was released, or the queue was purged or deleted since. Begin with a new "
            "checkpoint, or go on with what is there by .option('failOnDataLoss', 'false')",
            field="group",
        )


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history, each batch a range of offsets. Nothing is kept for it in the broker."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._until: int | None = None
        """With AvailableNow: the last record to read."""

    def initialOffset(self) -> dict[str, int]:
        """The record before the first one to read."""
        given = self._options.startingOffset
        if isinstance(given, int):
            return {"offset": max(0, given - 1)}
        first, last = self._span()
        return {"offset": last if given == "latest" else max(0, first - 1)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerBatch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._span()[1]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """As far as the history goes, and the limit allows."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.maxMessagesPerBatch
        first, last = self._span()
        if self._until is not None:
            last = min(last, self._until)
        begin = start["offset"]
        if begin + 1 < first:
            if self._options.failOnDataLoss:
                raise InvalidRequest(
                    f"startingOffset: the history begins with record {first}, not {begin + 1}; what is between them "
                    "is gone. Go on with what is there by .option('failOnDataLoss', 'false')",
                    field="startingOffset",
                )
            begin = first - 1
        if last < begin:
            if last < start["offset"] and self._until is None:
                raise InvalidRequest(
                    f"startingOffset: the history ends with record {last}, before {begin}, where the checkpoint is: "
                    "is it of another broker? Begin with a new checkpoint",
                    field="startingOffset",
                )
            return start
        return {"offset": min(last, begin + max(1, most))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        return split(start["offset"], end["offset"], self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, arrow_schema(self._schema), partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept for this stream."""

    def _span(self) -> tuple[int, int]:
        with self._options.connect(probe=self._until is None) as client:
            return span_of(client)
