"""Stream readers: a queue by claims, the history by offsets.

Spark logs the end offset of a batch before reading it, and reads the same range again after a crash. So the offset of a
queue is a claim number: the broker freezes the claim, it can be read any number of times, and it is acked by the call
that makes the next claim, which Spark triggers only once the previous batch is in its commit log. If the driver dies
between a claim and Spark's log, the restarted query finds the claim after `start` already made.

A number alone does not tell whose claim it is. So an offset also names the store, the queue, the group with its id, and
the reader: a random name that a new checkpoint gets with its first offset, and that its copies share. The broker
records which reader has fetched a claim, and gives it to no other. Offsets of earlier versions have the number only.

Spark logs where a batch ends, and the next one starts there. It asks where the first batch starts at each start of the
query; in an older copy of a checkpoint that batch may be the next, while the group or the history has moved on. So the
offset of a batch that is not empty also says after what it begins.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from miniq.errors import ClaimGone, ClaimTaken, ClaimUnknown, ClaimUnread, Fenced, InvalidRequest, QueueNotFound
from miniq.spark.ahead import ahead
from miniq.spark.conditions import asked
from miniq.spark.lag import LagReport
from miniq.spark.options import Options
from miniq.spark.schema import Layout
from miniq.spark.snapshot import Range, read_range, span_of, split

if TYPE_CHECKING:
    from miniq.batch import Claim, OpenedGroup
    from miniq.client._sync.claims import Claims
    from miniq.client._sync.client import Client

PART = 25_000
"""Messages that justify a task of their own."""
PART_BYTES = 8 * 1024 * 1024
"""Bytes that do."""
PIECE_BYTES = 4 * 1024 * 1024
"""Bytes that justify a call of their own."""
MAX_PARTS = 1000
BURIED = 1000
"""Dead letters per call."""
ERROR = 1000
"""Characters of what is wrong with a dead letter; the broker's limit is 4 KiB."""

Offset = dict[str, Any]


@dataclass
class Part(InputPartition):
    """One part of a claim."""

    claim: int
    part: int
    parts: int
    reader: str | None
    pieces: int = 1
    """How many calls it is fetched with."""


def parts_of(messages: int, size: int) -> int:
    """The number of tasks that a claim is split into: by its messages, or by their bytes if these are more. Never more
    than its messages."""
    return max(1, min(MAX_PARTS, messages, max(-(-messages // PART), -(-size // PART_BYTES))))


def pieces_of(claim: Claim | None, parts: int) -> int:
    """The number of calls that one of the parts of a claim is fetched with."""
    return 1 if claim is None else max(1, min(claim.messages // parts, -(-claim.bytes // (parts * PIECE_BYTES))))


class ClaimStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of a queue; each batch is one claim of the group."""

    def __init__(self, options: Options, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._lag = LagReport(options)
        self._open_claims: Claims | None = None
        self._opened: OpenedGroup | None = None
        self._reader = secrets.token_hex(8)
        """The name of this reader, until an offset of the checkpoint tells the one that it had before."""
        self._made = 0
        """The last claim that this run of the query got."""
        self._sizes: dict[int, Claim] = {}
        """Claims that were made or found, by number."""
        self._remaining: int | None = None
        """With AvailableNow: how many messages are still to be claimed."""

    # On the driver

    def initialOffset(self) -> Offset:
        """The last acked claim; it does not change before Spark's log has a batch."""
        return self._offset(self._group().acked)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerBatch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the claims from now on to the number of messages that are there now."""
        group = self._group()
        self._remaining = group.ready + sum(claim.messages for claim in group.claims if claim.acked_at is None)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Make the claim after `start`. The same call acks the claim `start`, whose batch is done."""
        max_messages = self._options.maxMessagesPerBatch
        if isinstance(limit, ReadMaxRows):
            max_messages = min(max_messages, max(1, limit.max_rows))
        wait = self._options.pollTimeout
        after = self._claim_at(start)
        if after is None:
            after = self._skip(start)
        if self._remaining is not None:
            if self._remaining <= 0:
                self._ack(after)
                return start
            max_messages, wait = min(max_messages, self._remaining), 0.0
        claim = self._next(after, max_messages, wait)
        if claim is None:
            return start
        self._made = claim.number
        self._sizes = {claim.number: claim}
        if self._remaining is not None and not self._was_acked(claim.number):
            self._remaining -= claim.messages
        return self._offset(claim.number) | {"after": claim.number - 1}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Part]:
        """Every claim of a batch, split by the option `partitions` or by size. None of a batch that is lost."""
        after, last = self._claim_at(start), self._claim_at(end)
        if last is None:
            return []
        if after is None:
            after = last - 1
        elif after >= last:
            after = end.get("after", after)
        return [
            Part(claim, part, parts, end.get("reader"), pieces_of(self._sizes.get(claim), parts))
            for claim in range(after + 1, last + 1)
            for parts in [self._parts(claim)]
            for part in range(parts)
        ]

    def commit(self, end: Offset) -> None:
        """Ack a batch that is done; the next one is in Spark's log."""
        claim = self._claim_at(end)
        if claim is not None:
            self._ack(claim)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._lag.queue()

    # On an executor

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Fetch one part of a claim; repeatable."""
        options = self._options
        with options.connect(turn=partition.part) as client:
            claims = client.queue(options.queue or "").claims(options.group or "", partition.reader)
            try:
                for table in ahead(_pieces(claims, partition)):
                    for batch in table.to_batches():
                        yield self._layout.fit(batch, partial(_bury, claims, partition.claim))
            except (ClaimGone, ClaimUnknown, QueueNotFound) as error:
                if options.failOnDataLoss:
                    raise self._lost(partition.claim, error.text) from None
            except ClaimTaken as error:
                # Without failOnDataLoss: the other has acked it, or the driver is refused the next claim.
                if options.failOnDataLoss:
                    raise self._refused(error) from None

    # Inside

    def _claims(self) -> Claims:
        """The group's claims. The first call opens them for this reader, which fences off older readers."""
        if self._open_claims is None:
            options = self._options
            queue = options.connect(probe=True).queue(options.queue or "")
            self._open_claims = queue.claims(options.group or "", self._reader)
        return self._open_claims

    def _group(self, anew: bool = False) -> OpenedGroup:
        """The group as it was when it was opened, which is now with `anew`."""
        if self._opened is None or anew:
            self._opened = self._claims().open()
            self._sizes = {claim.number: claim for claim in self._opened.claims}
        return self._opened

    def _offset(self, claim: int) -> Offset:
        group = self._group()
        named = {"store": group.store, "queue": self._options.queue, "group": self._options.group, "id": group.id}
        return named | {"reader": self._reader, "claim": claim}

    def _was_acked(self, number: int) -> bool:
        """Whether a claim was acked before this run, whose checkpoint is then an older copy."""
        return any(claim.number == number and claim.acked_at is not None for claim in self._group().claims)

    def _claim_at(self, offset: Offset) -> int | None:
        """The claim of an offset that belongs to this group; None if it is lost, and that is allowed."""
        options, group = self._options, self._group()
        for name, given in (("queue", options.queue), ("group", options.group)):
            if offset.get(name, given) != given:
                raise InvalidRequest(
                    f"{name}: the checkpoint is of {name} {offset[name]!r}, and this query reads {given!r}; start with "
                    "a new checkpoint, or with the one that belongs to it",
                    field=name,
                )
        claim = int(offset["claim"])
        why = None
        if _made_with(offset.get("store", group.store)) != _made_with(group.store):
            why = f"the checkpoint is of another store, {offset['store']}; this one is {group.store}"
        elif offset.get("id", group.id) != group.id:
            why = "the queue was deleted and made again since the checkpoint was written"
        elif claim > group.last and not (claim <= self._made and offset.get("reader") == self._reader):
            why = f"its last claim is {group.last}: was the broker restored from a backup?"
        if why is None:
            self._claims().reader = self._reader = offset.get("reader", self._reader)
            return claim
        if options.failOnDataLoss:
            raise self._lost(claim, why)
        return None

    def _skip(self, lost: Offset) -> int:
        """The claim after which to go on, though the checkpoint is at one that is lost. If the group is the same, the
        checkpoint has done with all claims before it, whatever a restored broker remembers of them: they are acked, in
        the name of the reader that read them."""
        group, claims = self._group(), self._claims()
        if lost.get("id", group.id) != group.id:
            return group.acked
        claims.reader = lost.get("reader")
        for claim in group.claims:
            if claim.reader is None:
                claims.table(claim.number, 0, claim.messages + 1)
        self._ack(group.last)
        claims.reader = self._reader
        return group.last

    def _next(self, after: int, max_messages: int, wait: float) -> Claim | None:
        options = self._options
        make = partial(self._claims().next, max_messages=max_messages, max_bytes=options.maxBytesPerBatch, wait=wait)
        try:
            try:
                return make(after)
            except (ClaimGone, ClaimUnknown, QueueNotFound) as error:
                if options.failOnDataLoss:
                    raise self._lost(after + isinstance(error, ClaimGone), error.text) from None
                return make(self._group(anew=True).acked)
            except ClaimTaken:
                acked = self._group(anew=True).acked
                if options.failOnDataLoss or acked <= after:
                    raise
                return make(acked)
        except (ClaimUnread, ClaimTaken, Fenced) as error:
            raise self._refused(error) from error

    def _ack(self, upto: int) -> None:
        try:
            self._claims().ack(upto)
        except (ClaimUnread, ClaimTaken, Fenced) as error:
            raise self._refused(error) from error

    def _parts(self, claim: int) -> int:
        if self._options.partitions is not None:
            return self._options.partitions
        found = self._sizes.get(claim)
        return 1 if found is None else parts_of(found.messages, found.bytes)

    def _lost(self, claim: int, why: str) -> ClaimUnknown:
        """The error for a claim that is in Spark's checkpoint but not, or no longer, in the broker."""
        return ClaimUnknown(
            f"group: claim {claim} of group {self._options.group!r} can no longer be read ({why}). Since the "
            "checkpoint was written, the claim was released or has expired, or the queue or the store is not the same "
            "any more. Start with a new checkpoint, or skip the lost messages with "
            ".option('failOnDataLoss', 'false')",
            field="group",
        )

    def _refused(self, error: ClaimUnread | ClaimTaken | Fenced) -> ClaimUnread | ClaimTaken | Fenced:
        """An error of the broker in the words of a user of Spark."""
        group = f"{self._options.group!r} of queue {self._options.queue!r}"
        ways_out = (
            f"Without that checkpoint: mq.queue({self._options.queue!r}).claims({self._options.group!r}).release() in "
            "Python gives all messages of unacked claims back to the queue"
        )
        if isinstance(error, Fenced):
            text = (
                f"{group} is now read by a newer query; this one stops. Use different groups for queries that run at "
            )
            text += "the same time"
        elif isinstance(error, ClaimUnread):
            text = f"the sink has not read a batch, so its messages are not acked ({error.text}). A sink skips batches "
            text += "whose numbers it has seen: it belongs to another checkpoint. Use that one, or a new sink with a "
            text += f"new checkpoint. {ways_out}"
        else:
            text = f"{group} holds messages that another checkpoint has read ({error.text}). Use that one, or another "
            text += f"group. {ways_out}, also if they have arrived in a sink before; those that it has acked are gone, "
            text += "skip them with .option('failOnDataLoss', 'false')"
        return type(error)(f"group: {text}", field="group")


def _pieces(claims: Claims, part: Part) -> Iterator[Callable[[], pa.Table]]:
    """The calls that fetch a part of a claim. Smaller parts of the claim make it up exactly."""
    for piece in range(part.part * part.pieces, (part.part + 1) * part.pieces):
        yield partial(claims.table, part.claim, piece, part.parts * part.pieces)


def _made_with(store: str) -> str:
    """The id that a store was made with: a restore adds to it, and may have kept all claims."""
    return store.partition(".")[0]


def _bury(claims: Claims, claim: int, corrupt: Sequence[tuple[str, str]]) -> None:
    """Make messages with corrupt bodies dead letters; a batch that is read again adds none."""
    for start in range(0, len(corrupt), BURIED):
        ids, errors = zip(*corrupt[start : start + BURIED], strict=True)
        claims.bury(claim, ids, "corrupt body", [error[:ERROR] for error in errors])


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history; each batch is a range of offsets. The broker keeps no state for it."""

    def __init__(self, options: Options, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._lag = LagReport(options)
        self._end: int | None = None
        """The last record of the newest batch."""
        self._until: int | None = None
        """With AvailableNow: the last record to read."""
        self._known_store: str | None = None
        self._reached = False
        """Whether the broker has answered: from then on it may be unreachable for `retry` seconds."""

    def initialOffset(self) -> Offset:
        """The record before the first one to read."""
        start = self._options.startingOffset
        if isinstance(start, int):
            return self._offset(max(0, start - 1))
        first, last = self._span()
        return self._offset(last if start == "latest" else max(0, first - 1))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerBatch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._span()[1]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the history, or as far as the limit allows."""
        self._end = start["offset"]
        max_records = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.maxMessagesPerBatch
        first, last = self._span()
        if self._until is not None:
            last = min(last, self._until)
        begin = self._record_at(start)
        if begin is None:
            begin = first - 1
        if begin + 1 < first:
            if self._options.failOnDataLoss:
                raise InvalidRequest(
                    f"startingOffset: the history begins with record {first}; the records from {begin + 1} on were "
                    "deleted. Skip them with .option('failOnDataLoss', 'false')",
                    field="startingOffset",
                )
            begin = first - 1
        if last < begin and self._until is None:
            raise InvalidRequest(
                f"startingOffset: the history ends with record {last}, but the checkpoint is at record {begin}: "
                "does it belong to another broker? Start with a new checkpoint",
                field="startingOffset",
            )
        if last <= begin:
            return start
        self._end = min(last, begin + max(1, max_records))
        return self._offset(self._end) | {"after": begin}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._lag.history(self._end)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        begin, last = self._record_at(start), self._record_at(end)
        if last is None:
            return []
        if begin is None:
            begin = self._span()[0] - 1
        elif begin >= last:
            begin = end.get("after", begin)
        return split(begin, last, self._options.partitions)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._layout, partition, asked(self._options))

    def _offset(self, record: int) -> Offset:
        return {"store": self._store(), "offset": record}

    def _record_at(self, offset: Offset) -> int | None:
        """The record of an offset that belongs to this store; None if it does not, and lost records are allowed.
        After a restore, other events may have the offsets that the checkpoint has seen."""
        store = self._store()
        if offset.get("store", store) == store:
            return int(offset["offset"])
        if self._options.failOnDataLoss:
            raise InvalidRequest(
                f"startingOffset: the checkpoint is of the history of another store, {offset['store']}; this one is "
                f"{store}, or was restored from a backup. Start with a new checkpoint and a new sink, or read the "
                "whole history of this store into this one with .option('failOnDataLoss', 'false')",
                field="startingOffset",
            )
        return None

    def _store(self) -> str:
        """The id of the store."""
        if self._known_store is None:
            with self._connect() as client:
                self._known_store = client.whoami().store
        return self._known_store

    def _span(self) -> tuple[int, int]:
        with self._connect() as client:
            return span_of(client)

    def _connect(self) -> Client:
        client = self._options.connect(probe=not self._reached)
        self._reached = True
        return client
