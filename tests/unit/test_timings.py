"""Histograms of waits and processing times: bounded, and right within their buckets."""

from __future__ import annotations

from itertools import pairwise

import pytest

from miniq.broker import receipts, timings
from miniq.broker.timings import BOUNDS, MINUTE, Timings, percentiles
from miniq.consumer import Percentiles
from miniq.message import SECOND, Message, Stored


def taken(waits: list[int], receives: int = 1) -> list[Stored]:
    """Messages that were ready so many microseconds before 1000 s."""
    now = 1000 * SECOND
    return [Stored(Message("i", "q", 0, now - wait, b""), now, receives) for wait in waits]


def test_percentiles_are_upper_bounds() -> None:
    assert percentiles([]) is None
    assert percentiles([{0: 1}]) == Percentiles(0.0001, 0.0001)
    many = Timings()
    for seconds in range(1, 101):
        many.processed("q", 0, seconds * SECOND, 1)
    assert percentiles(times.processing for times in many.recent("q", 0).values()) == Percentiles(50.0, 100.0)
    assert max(upper / lower for lower, upper in pairwise(BOUNDS)) < 1.18
    assert list(BOUNDS) == sorted(set(BOUNDS))


def test_the_messages_of_a_large_receive_stand_for_their_neighbours() -> None:
    some = Timings()
    some.received("q", taken([2 * SECOND] * 500 + [3 * SECOND] * 500), 1000 * SECOND)
    [times] = some.recent("q", 1000 * SECOND).values()
    assert percentiles([times.wait]) == Percentiles(2.0, 3.0)
    assert 950 <= sum(times.wait.values()) <= 1050
    assert some.queues["q"].wait_sum // SECOND in range(2400, 2600)


def test_only_the_first_receive_counts_as_wait_and_a_clock_that_is_behind_as_none() -> None:
    some = Timings()
    some.received("q", [], 1000 * SECOND)
    assert some.queues == {}, "all that was taken had expired"
    some.received("q", [*taken([SECOND], receives=2), *taken([-SECOND])], 1000 * SECOND)
    [times] = some.recent("q", 1000 * SECOND).values()
    assert times.wait == {0: 1}
    assert some.queues["q"].wait_sum == 0


def test_old_minutes_are_dropped_and_totals_stay() -> None:
    some = Timings()
    for minute in range(20):
        some.processed("q", minute * MINUTE, SECOND, 1)
    assert set(some.queues["q"].minutes) == {15, 16, 17, 18, 19}
    assert sum(some.queues["q"].total.processing.values()) == 20
    assert some.recent("q", 22 * MINUTE).keys() == {18, 19}


def test_no_more_queues_have_timings_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "MAX_QUEUES", 3)
    some = Timings()
    for number in range(6):
        some.processed(f"q{number}", 0, SECOND, 1)
    assert set(some.queues) == {"q0", "q1", "q2"}
    some.processed("q0", 5 * MINUTE, SECOND, 1)
    some.processed("q9", 5 * MINUTE, SECOND, 1)
    assert set(some.queues) == {"q0", "q9"}, "nothing happened in the others"


def test_a_receipt_tells_when_and_to_whom() -> None:
    now = (1 << 41) - 5
    receipt = receipts.new_receipt("ann", now)
    assert len(receipt) == 28
    assert receipts.origin(receipt, now + 7) == (receipts.tag_of("ann"), 7)
    assert receipts.origin(receipt, now - 3) == (receipts.tag_of("ann"), 0), "another broker's clock"
    assert receipts.origin(receipts.new_receipt(None, now), now) == (receipts.UNNAMED, 0)
    assert receipts.origin("975f59f51284ee780318aa7d", now) is None, "of an earlier version"
