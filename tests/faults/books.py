"""The books of a soak: what the clients were told, what history says, what the metrics say, and the sheet that compares
them with what is left.

The clients number their messages; the number is in the body. So their book needs a byte per message, and knows each
message also where no id was told, as after a call without an answer.
"""

from __future__ import annotations

import re
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from miniq.message import HistoryRecord, Stored

SENT, ASKED, MORTAL, ACKED, DOUBT, REMOVED, SEEN, LEFT = (1 << bit for bit in range(8))
"""Confirmed; sent without an answer; has a ttl; its ack was confirmed; its end was asked for without an answer; it was
removed, purged, or its queue deleted; it was received or browsed; it is there at the end."""
PASSING = "churn"
"""Queues with this prefix come and go; the metrics forget them."""
SHOWN = 5


class Book:
    """What the clients asked for and were told."""

    def __init__(self) -> None:
        self.marks = bytearray()
        self._acked_at = array("d")
        self.counts: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        """What calls without an answer may have done at most."""
        self.wrong: list[str] = []

    def number(self, count: int) -> range:
        """Numbers for new messages."""
        first = len(self.marks)
        self.marks.extend(bytes(count))
        self._acked_at.extend([0.0] * count)
        return range(first, first + count)

    def mark(self, numbers: Iterable[int], what: int) -> None:
        for number in numbers:
            self.marks[number] |= what

    def sent(self, numbers: Sequence[int]) -> None:
        """Sends were confirmed."""
        self.counts["sent"] += len(numbers)
        self.mark(numbers, SENT)

    def acked(self, numbers: Iterable[int]) -> None:
        now = time.monotonic()
        for number in numbers:
            if not self.marks[number] & ACKED:
                self.marks[number] |= ACKED
                self._acked_at[number] = now
                self.counts["acked"] += 1

    def received(self, numbers: Sequence[int], asked: float) -> None:
        """Messages arrived at a consumer that had asked at this moment."""
        self.counts["received"] += len(numbers)
        for number in numbers:
            if self.marks[number] & ACKED and self._acked_at[number] < asked:
                self.wrong.append(f"message {number} was acked, and then received again")
            self.marks[number] |= SEEN

    def tally(self, wanted: int, unwanted: int = 0) -> int:
        """How many messages have all of these marks and none of those."""
        relevant = wanted | unwanted
        return sum(count for marks, count in Counter(self.marks).items() if marks & relevant == wanted)

    def examples(self, wanted: int, unwanted: int) -> str:
        found = (str(number) for number, marks in enumerate(self.marks) if marks & (wanted | unwanted) == wanted)
        return ", ".join(number for number, _ in zip(found, range(SHOWN), strict=False))


def number_of(stored: Stored) -> int:
    body = stored.message.body
    return int(body[1 : body.index(b",")])


class HistoryBook:
    """What the history says, read to its end as it grows."""

    def __init__(self) -> None:
        self.offset = 0
        self.events: Counter[tuple[str, str, str]] = Counter()
        """(queue, event, reason) → messages."""
        self.uncounted: Counter[tuple[str, str, str]] = Counter()
        """Those among them that no scrape of the metrics can have seen: between the last one and a kill."""
        self.live: defaultdict[str, set[str]] = defaultdict(set)
        """The ids of all messages that arrived in a queue and did not leave it."""
        self.wrong: list[str] = []
        self.scraped = False
        """The server that runs was scraped for the last time."""
        self.died_at = 0
        """When the last server that was killed had ended."""

    def add(self, record: HistoryRecord) -> None:
        event = record.event
        if record.offset != self.offset + 1:
            self.wrong.append(f"history goes from offset {self.offset} to {record.offset}")
        self.offset = record.offset
        key = (event.queue.partition("-")[0], event.event, event.reason or "")
        self.events[key] += event.count
        if self.scraped or event.at <= self.died_at:
            self.uncounted[key] += event.count
        live = self.live[event.queue]
        if event.event == "purged" and not event.id:
            if len(live) != event.count:
                self.wrong.append(f"history: {event.count} were purged in {event.queue}, where {len(live)} were")
            live.clear()
        elif event.event == "sent":
            if event.id in live:
                self.wrong.append(f"history: {event.id} was sent twice to {event.queue}")
            live.add(event.id)
        elif event.event in ("acked", "dead", "purged", "redriven") or event.reason in ("ttl", "retention"):
            if event.id not in live:
                self.wrong.append(f"history: {event.id} was {event.event} in {event.queue}, where it was not")
            live.discard(event.id)

    def left(self, passing: bool = False) -> int:
        """How many arrived and did not leave: in the queues that last, or in those that came and went."""
        return sum(len(ids) for queue, ids in self.live.items() if queue.startswith(PASSING) == passing)

    def unended(self) -> list[str]:
        """What is wrong if queues were deleted, and history does not say that their messages have left."""
        left = self.left(passing=True)
        return [f"history: {left:,} messages of deleted queues did not leave them"] if left else []

    def total(self, event: str, reasons: Sequence[str] | None = None, counted: bool = False) -> int:
        """Messages with an event; with `counted`, in queues that last, without what no scrape can have seen."""
        return sum(
            count - (self.uncounted[key] if counted else 0)
            for key, count in self.events.items()
            if key[1] == event and (reasons is None or key[2] in reasons) and not (counted and key[0] == PASSING)
        )


_COUNTER = re.compile(r'^miniq_messages_total\{event="(\w+)",queue="([^"]+)"\} (\S+)$', re.MULTILINE)


def counters(text: str) -> Counter[str]:
    """The messages by event in a scrape, of all queues that last."""
    found: Counter[str] = Counter()
    for event, queue, count in _COUNTER.findall(text):
        if not queue.startswith(PASSING):
            found[event] += round(float(count))
    return found


class Row(Struct):
    """One line of the balance: the least and the most by the clients' books, and what the others say."""

    name: str
    clients: tuple[int, int] | None
    history: int | None
    scraped: int | None = None
    """By the metrics, up to the last scrape of each server."""
    counted: int | None = None
    """What it should be, up to the same moments and in the same queues: by history, and where that has no such event by
    the clients' books."""
    left: int | None = None
    """By the queues' counts."""

    def wrong(self) -> str:
        """How the clients' books, history and counts disagree."""
        said = {value for value in (self.history, self.left) if value is not None}
        if len(said) > 1:
            return f"{self.name}: {self.history:,} by history, {self.left:,} by counts"
        if self.clients is not None and said and not self.clients[0] <= min(said) <= self.clients[1]:
            return f"{self.name}: {_span(*self.clients)} by the clients' books, {min(said):,} by history"
        return ""

    def disagrees(self) -> str:
        """How the metrics disagree with history."""
        if self.scraped == self.counted:
            return ""
        said = "not counted" if self.scraped is None else f"{self.scraped:,}"
        return f"{self.name}: {said} by metrics instead of {self.counted or 0:,}"

    def __str__(self) -> str:
        numbers = (self.history, self.counted, self.scraped, self.left)
        cells = ["" if self.clients is None else _span(*self.clients)]
        cells += ["" if number is None else f"{number:,}" for number in numbers]
        verdict = " and ".join(filter(None, [self.wrong() and "wrong", self.disagrees() and "metrics differ"]))
        return f"| {self.name} | {' | '.join(cells)} | {verdict or 'agree'} |"


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def balance(book: Book, history: HistoryBook, scraped: Counter[str], left: int, dead: int) -> list[Row]:
    """The sheet. `left` and `dead` are the messages in all queues and in dead-letter queues, by counts."""
    # An unanswered send that was never seen may have added its messages; they may have ended in any way.
    slack = book.tally(ASKED, SEEN | LEFT)
    gone = ACKED | REMOVED | LEFT
    once = excused(book, history)

    def row(
        name: str,
        clients: tuple[int, int] | None,
        event: str,
        reasons: Sequence[str] | None = None,
        metric: str | None = None,
    ) -> Row:
        counted = history.total(event, reasons, counted=True) if metric else None
        return Row(name, clients, history.total(event, reasons), scraped.get(metric or "", counted and None), counted)

    sent = book.tally(SENT) + book.tally(ASKED | SEEN, SENT) + book.tally(ASKED | LEFT, SENT | SEEN)
    acked = book.tally(ACKED)
    doubtful = book.tally(DOUBT, gone)
    expired = book.tally(SENT | MORTAL, gone | DOUBT)
    told = book.counts
    removed, again, deleted = book.tally(REMOVED) - told["deleted"], told["deduplicated"], told["deleted"]
    most = again + book.open["deduplicated"]
    repeated = max(again, min(scraped["deduplicated"], most))
    rows = [
        row("sent", (sent, sent + slack), "sent", [""]),
        row("sent or moved to a queue", None, "sent", None, "sent"),
        Row("sent again", (again, most), None, scraped.get("deduplicated", again and None), repeated),
        row("received", (told["received"], told["received"] + book.open["received"]), "received", None, "received"),
        row("acked", (acked, acked + doubtful + once + slack), "acked", None, "acked"),
        row("released", None, "released", None, "released"),
        row("lease ran out", None, "expired", ["lease"], "lease_expired"),
        row("expired", (expired, expired + doubtful + slack), "expired", ["ttl", "retention"], "expired"),
        row("dead", (told["redriven"] + dead, told["redriven"] + dead + book.open["redriven"]), "dead", None, "dead"),
        row("redriven", (told["redriven"], told["redriven"] + book.open["redriven"]), "redriven", None, "redriven"),
        row("removed or purged", (removed, removed + doubtful + slack), "purged", ["", "removed"], "purged"),
        row("deleted with their queue", (deleted, deleted + slack), "purged", ["deleted"]),
    ]
    rows[-1].history = (rows[-1].history or 0) + history.left(passing=True)
    # A message without an end that anybody was told of must be there; one with a ttl has ended.
    ended = ACKED | REMOVED | MORTAL | DOUBT
    should = book.tally(SENT, ended) + book.tally(ASKED | SEEN, SENT | ended)
    maybe = book.tally(SENT | DOUBT, ACKED | REMOVED) + book.tally(ASKED, SENT | SEEN)
    rows.append(Row("left", (max(0, should - once), should + maybe), history.left(), left=left))
    return rows


def excused(book: Book, history: HistoryBook) -> int:
    """Messages that were received at most once by calls without an answer: they are in history alone."""
    return min(max(history.total("acked", ["at-most-once"]) - book.counts["once"], 0), book.open["once"])


def losses(book: Book, history: HistoryBook) -> list[str]:
    """What must never be, message by message."""
    found = [*book.wrong[:SHOWN], *history.wrong[:SHOWN]]
    ended = ACKED | REMOVED | LEFT | MORTAL | DOUBT
    lost = book.tally(SENT, ended) - excused(book, history)
    if lost > 0:
        found.append(f"{lost:,} confirmed messages are lost, among {book.examples(SENT, ended)}")
    for text, wanted, unwanted in (
        ("were acked, and are there", LEFT | ACKED, 0),
        ("were removed, and are there", LEFT | REMOVED, 0),
        ("are past their ttl, and are there", LEFT | MORTAL, 0),
        ("are there, and were never sent", LEFT, SENT | ASKED),
        ("were received, and were never sent", SEEN, SENT | ASKED),
    ):
        if count := book.tally(wanted, unwanted):
            found.append(f"{count:,} messages {text}, among {book.examples(wanted, unwanted)}")
    return found
