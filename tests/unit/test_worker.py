"""What a worker loop decides without I/O: when to fetch, what to start, what it holds."""

from __future__ import annotations

from typing import Any

import pytest

from miniq.client.delivery import Delivery, settle
from miniq.errors import StoreUnavailable
from miniq.message import Message, Stored
from miniq.worker.plan import BULK, LOOK, SLOWEST_RETRY, Backoff, Plan, Shift


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "handler": print,
        "concurrency": 2,
        "batch": None,
        "wait": 1,
        "visibility_timeout": None,
        "consumer": None,
        "retry_delay": 0,
        "pass_message": False,
        "stop": None,
    }
    return Plan(**fields | changes)


def messages(count: int) -> list[Delivery[None]]:
    return [Delivery(None, Stored(Message(str(n), "jobs", 0, 0, b"1"), 1, 1, "receipt")) for n in range(count)]


def test_it_fetches_as_many_as_are_free_unless_told_otherwise() -> None:
    shift: Shift[Delivery[None]] = Shift(plan(concurrency=3))
    assert shift.wanted() == 3
    shift.add(messages(1))
    assert shift.wanted() == 0
    first = shift.start()
    assert first is not None
    assert shift.wanted() == 2
    shift.finish(first)
    assert shift.wanted() == 3
    assert Shift(plan(batch=50)).wanted() == 50


def test_it_starts_no_more_than_may_run_at_once_in_order() -> None:
    shift: Shift[Delivery[None]] = Shift(plan())
    shift.add(some := messages(3))
    assert [shift.start(), shift.start(), shift.start()] == [*some[:2], None]
    shift.finish(some[0])
    assert shift.start() is some[2]


def test_a_message_whose_lease_was_lost_is_neither_started_nor_held() -> None:
    shift: Shift[Delivery[None]] = Shift(plan(concurrency=1))
    shift.add(some := messages(3))
    shift.start()
    settle([some[1]])
    assert shift.held() == [[some[0], some[2]]]
    shift.finish(some[0])
    assert shift.start() is some[2]


def test_at_the_end_nothing_is_fetched_or_started_and_the_rest_is_told_in_portions() -> None:
    shift: Shift[Delivery[None]] = Shift(plan(concurrency=1))
    shift.add(some := messages(BULK + 2))
    running = shift.start()
    assert shift.end() == [some[1 : BULK + 1], some[BULK + 1 :]]
    assert (shift.start(), shift.wanted(), shift.end()) == (None, 0, [])
    assert shift.held() == [[running]]


def test_each_failure_in_a_row_waits_longer_up_to_a_limit() -> None:
    backoff, error = Backoff(), StoreUnavailable("away")
    waits = [backoff.failed(error) for _ in range(10)]
    assert waits[:3] == pytest.approx([LOOK, 2 * LOOK, 4 * LOOK])
    assert waits[-1] == SLOWEST_RETRY
    backoff.worked()
    assert backoff.failed(error) == LOOK
