"""The short form of `make soak`, and that its books notice what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from miniq.message import Event, HistoryRecord
from tests.faults.books import (
    ACKED,
    ASKED,
    DOUBT,
    LEFT,
    MORTAL,
    REMOVED,
    SENT,
    Book,
    HistoryBook,
    Row,
    balance,
    counters,
    losses,
)
from tests.faults.rig import ROOT
from tests.faults.soak import soak


async def test_after_mixed_load_with_two_restarts_the_books_balance(tmp_path: Path) -> None:
    sheet, interrupted = await soak("rocksdb", tmp_path, 9)
    assert not interrupted
    assert not sheet.wrong + sheet.differ, f"{sheet}"
    history = {row.name: row.history for row in sheet.rows}
    assert all(history[name] for name in ("sent", "received", "acked", "released", "expired", "left")), f"{sheet}"


def test_ctrl_c_ends_a_soak_with_the_sheet_so_far() -> None:
    command = [sys.executable, "-m", "tests.faults", "soak", "--minutes", "5"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "0 sent" in process.stderr.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 1), errors
    assert "| sent |" in said
    assert "| left |" in said
    assert "Traceback" not in errors


def _books(marks: dict[int, int], *events: Event) -> tuple[Book, HistoryBook]:
    book, history = Book(), HistoryBook()
    for mark, count in marks.items():
        book.mark(book.number(count), mark)
    for offset, event in enumerate(events, 1):
        history.add(HistoryRecord(offset, event))
    return book, history


@pytest.mark.parametrize(
    ("marks", "lost"),
    [
        ({SENT | ACKED: 3, SENT | LEFT: 2, SENT | MORTAL: 1, SENT | REMOVED: 1, SENT | DOUBT: 4, ASKED: 5}, ""),
        ({SENT | ACKED: 3, SENT: 2}, "2 confirmed messages are lost, among 3, 4"),
        ({SENT | ACKED | LEFT: 1}, "1 messages were acked, and are there, among 0"),
        ({SENT | REMOVED | LEFT: 1}, "1 messages were removed, and are there, among 0"),
        ({SENT | MORTAL | LEFT: 1}, "1 messages are past their ttl, and are there, among 0"),
        ({ACKED: 2, LEFT: 1}, "1 messages are there, and were never sent, among 2"),
    ],
)
def test_the_clients_book_notices_what_is_lost_and_what_comes_back(marks: dict[int, int], lost: str) -> None:
    assert losses(*_books(marks)) == ([lost] if lost else [])


def test_a_message_that_is_received_after_its_ack_is_noticed() -> None:
    book, history = _books({SENT: 1})
    book.received([0], time.monotonic())
    asked_before = time.monotonic()
    book.acked([0])
    book.received([0], asked_before)
    assert not losses(book, history)
    book.received([0], time.monotonic() + 1)
    assert losses(book, history) == ["message 0 was acked, and then received again"]


def test_a_message_that_was_received_at_most_once_without_an_answer_is_excused_by_history() -> None:
    book, history = _books(
        {SENT: 1}, Event(1, "sent", "once", "a"), Event(2, "acked", "once", "a", reason="at-most-once")
    )
    assert losses(book, history) == ["1 confirmed messages are lost, among 0"]
    book.open["once"] = 10
    assert not losses(book, history)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([Event(1, "sent", "q", "a"), Event(1, "sent", "q", "a")], "history: a was sent twice to q"),
        ([Event(1, "acked", "q", "a")], "history: a was acked in q, where it was not"),
        ([Event(1, "purged", "q", "", count=2)], "history: 2 were purged in q, where 0 were"),
    ],
)
def test_a_history_that_cannot_be_is_noticed(events: list[Event], found: str) -> None:
    _, history = _books({}, *events)
    assert history.wrong == [found]


def test_a_gap_in_history_is_noticed() -> None:
    history = HistoryBook()
    history.add(HistoryRecord(2, Event(1, "sent", "q", "a")))
    assert history.wrong == ["history goes from offset 0 to 2"]


def test_books_that_agree_and_those_that_do_not() -> None:
    marks = {SENT | ACKED: 1, SENT | LEFT: 1, SENT | MORTAL: 1}
    events = [
        *(Event(1, "sent", "q", id) for id in "abc"),
        Event(2, "acked", "q", "a"),
        Event(3, "expired", "q", "c", reason="ttl"),
    ]
    book, history = _books(marks, *events)
    scraped = Counter(sent=3, acked=1, expired=1)
    rows = {row.name: row for row in balance(book, history, scraped, left=1, dead=0)}
    assert [row.wrong() or row.disagrees() for row in rows.values()] == [""] * len(rows)
    rows = {row.name: row for row in balance(book, history, Counter(sent=4), left=2, dead=0)}
    assert [text for row in rows.values() if (text := row.wrong() or row.disagrees())] == [
        "sent or moved to a queue: 4 by metrics instead of 3",
        "acked: not counted by metrics instead of 1",
        "expired: not counted by metrics instead of 1",
        "left: 1 by history, 2 by counts",
    ]


def test_a_history_that_has_more_or_less_than_the_clients_were_told_is_wrong() -> None:
    assert not Row("acked", (3, 5), 5).wrong()
    assert Row("acked", (3, 5), 6).wrong() == "acked: 3 to 5 by the clients' books, 6 by history"
    assert Row("acked", (3, 3), 2).wrong() == "acked: 3 by the clients' books, 2 by history"


def test_metrics_are_compared_up_to_the_last_scrape_of_each_server_in_queues_that_last() -> None:
    history = HistoryBook()
    history.add(HistoryRecord(1, Event(1, "sent", "q", "a")))
    history.scraped = True
    history.add(HistoryRecord(2, Event(5, "sent", "q", "b")))
    history.scraped, history.died_at = False, 10
    history.add(HistoryRecord(3, Event(9, "sent", "q", "c")))
    history.add(HistoryRecord(4, Event(11, "sent", "q", "d")))
    history.add(HistoryRecord(5, Event(12, "sent", "churn-1", "e")))
    assert (history.total("sent"), history.total("sent", counted=True)) == (5, 2)
    text = 'miniq_messages_total{event="sent",queue="q"} 2.0\nminiq_messages_total{event="sent",queue="churn-1"} 1.0\n'
    assert counters(text) == {"sent": 2}
