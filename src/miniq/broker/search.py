"""Search in messages and history: bounded scans, so that a search never blocks the broker.

One call examines a limited number of records and returns a cursor; the caller continues from there. The scan yields to
the event loop between pages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from miniq.broker import rules
from miniq.errors import InvalidRequest
from miniq.message import SECOND, EventName, HistoryPage, HistoryRecord, Page, Status, Stored

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

MAX_MESSAGES = 2000
"""Messages that one call examines."""
MAX_BYTES = 32 * 1024 * 1024
"""Bytes of messages that one call examines."""
MAX_EVENTS = 20_000
"""Events that one call examines."""
SKEW = 5 * SECOND
"""How far events of brokers on one database may be out of order by time: their clocks differ, and events may wait for
their offsets."""
_PAGE = 200


class Search:
    """Search in the queues and the history of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def messages(
        self, queue: str, text: str, *, status: Status | None = None, after: str | None = None, limit: int = 100
    ) -> Page:
        """Messages whose id, key, headers, error or body contain `text`, ignoring case."""
        if not text or len(text) > 1000:
            raise InvalidRequest(f"find: {len(text)} characters; use 1 to 1000", field="find")
        rules.check_count(limit, "limit", 1, self._broker.options.limits.batch)
        matches = matcher(text)
        matching: list[Stored] = []
        examined = size = 0
        while True:
            page = await self._broker.peek(queue, status=status, after=after, limit=_PAGE)
            hits = [index for index, stored in enumerate(page.messages) if matches(stored)]
            if len(hits) > limit - len(matching):
                # Read the page again up to the last match that fits, so that its cursor points right behind that.
                shorter = hits[limit - len(matching) - 1] + 1
                page = await self._broker.peek(queue, status=status, after=after, limit=shorter)
            examined += len(page.messages)
            size += sum(stored.message.size for stored in page.messages)
            matching += [stored for stored in page.messages if matches(stored)]
            after = page.next
            if after is None or len(matching) == limit or examined >= MAX_MESSAGES or size >= MAX_BYTES:
                return Page(matching, after, examined)
            await asyncio.sleep(0)

    async def events(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        queue: str | None = None,
        id: str | None = None,
        event: str | None = None,
        consumer: str | None = None,
        since: int | None = None,
        before: int | None = None,
        visible: Callable[[str], bool] | None = None,
        many: bool = False,
    ) -> HistoryPage:
        """Events filtered by queue, message, kind, consumer, start time and end offset, in order of offset, of queues
        that are `visible` to the caller. `next` is where the scan ended, whether or not it found anything. `many`
        allows long pages."""
        if event is not None and event not in get_args(EventName):
            raise InvalidRequest(f"event: {event[:80]!r}; use one of {', '.join(get_args(EventName))}", field="event")
        rules.check_count(limit, "limit", 1, rules.MANY if many else self._broker.options.limits.batch)
        if before is not None:
            rules.check_count(before, "before", 1, 2**63 - 1)
        broker = self._broker
        start = sent_about(id) if id is not None and since is None and not after else since
        if start is not None:
            skew = SKEW if broker.store.shared else 0
            after = max(after, await self._last_offset_before(start - skew))
        matching: list[HistoryRecord] = []
        examined = 0
        is_filtered = bool(id or event or consumer or visible or (since is not None and broker.store.shared))
        size = min(1000, broker.options.limits.batch) if is_filtered else limit
        while True:
            page = await broker.history(after=after, limit=size, queue=queue, many=many)
            if not is_filtered and (before is None or page.next < before):
                return page
            for record in page.records:
                candidate = record.event
                if before is not None and record.offset >= before:
                    return replace(page, records=matching, next=before - 1)
                if (
                    (since is None or candidate.at >= since)
                    and (id is None or candidate.id == id)
                    and (event is None or candidate.event == event)
                    and (consumer is None or candidate.consumer == consumer)
                    and (visible is None or visible(candidate.queue))
                ):
                    matching.append(record)
                    if len(matching) == limit:
                        return replace(page, records=matching, next=record.offset)
            examined += max(1, page.next - after)
            if page.next == after or examined >= MAX_EVENTS or not is_filtered:
                return replace(page, records=matching)
            after = page.next
            await asyncio.sleep(0)

    async def _last_offset_before(self, moment: int) -> int:
        """The offset of the last event before a moment."""
        span = await self._broker.history_span()
        low, high = span.first - 1, span.last
        while low < high:
            middle = (low + high) // 2
            page = await self._broker.store.history.read(middle, 1)
            if page.records and page.records[0].event.at < moment:
                low = page.records[0].offset
            else:
                high = middle
        return low


def matcher(text: str) -> Callable[[Stored], bool]:
    """A predicate: does a message contain the text in its id, key, headers, error or body? In JSON it may be
    escaped."""
    wanted = text.lower()
    needles = {
        wanted.encode(),
        json.dumps(wanted)[1:-1].encode(),
        json.dumps(wanted, ensure_ascii=False)[1:-1].encode(),
    }

    def matches(stored: Stored) -> bool:
        message = stored.message
        errors = (stored.error, None if message.dead is None else message.dead.error)
        if any(error is not None and wanted in error.lower() for error in errors):
            return True
        if wanted in message.id or (message.key is not None and wanted in message.key.lower()):
            return True
        if message.headers is not None and any(
            wanted in name.lower() or wanted in value.lower() for name, value in message.headers.items()
        ):
            return True
        body = message.body
        body = body.decode(errors="replace").lower().encode() if not body.isascii() else body.lower()
        return any(needle in body for needle in needles)

    return matches


def sent_about(id: str) -> int | None:
    """A moment shortly before the message with this id was sent, None if the id is not a UUIDv7."""
    try:
        return (int(id[:8] + id[9:13], 16) * 1000 - SECOND) if len(id) == 36 and id[14] == "7" else None
    except ValueError:
        return None
