"""Claims as the Python clients offer them: blocking and async, in process and over the wires."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import miniq
from tests.acceptance.faces import Opener
from tests.kit import case


@pytest.fixture
def q(opener: Opener, url: str) -> Any:
    return opener(url).queue("jobs")


def bodies(messages: list[Any]) -> list[Any]:
    return [message.body for message in messages]


def test_a_reader_works_through_the_claims_of_its_group(q: Any) -> None:
    q.send_many(range(10))
    claims = q.claims("etl")
    state = claims.open()
    assert (state.group, state.epoch, state.acked, state.last, claims.epoch) == ("etl", 1, 0, 0, 1)
    first = claims.next(0, max_messages=6)
    assert (first.number, first.messages, first.bytes, first.acked_at) == (1, 6, 6, None)
    assert claims.next(0) == first
    assert bodies(claims.fetch(1)) == [0, 1, 2, 3, 4, 5]
    assert [bodies(claims.fetch(1, part, 4)) for part in range(4)] == [[0], [1, 2], [3], [4, 5]]
    assert claims.next(1).messages == 4
    with pytest.raises(
        miniq.ClaimUnread, match="claim 2 of group 'etl' cannot be acked: none of its 4 messages was fetched"
    ):
        claims.ack(2)
    claims.fetch(2, 9, 10)
    claims.ack(2)
    claims.ack(2)
    assert claims.next(2) is None
    assert q.info().counts.total == 0
    (group,) = q.claim_groups()
    assert [(claim.number, claim.acked_at is not None) for claim in group.claims] == [(1, True), (2, True)]


def test_claimed_messages_are_looked_at_not_held(q: Any) -> None:
    q.send("x", headers={"a": "b"}, key="k")
    claims = q.claims("etl")
    claims.next(0)
    (message,) = claims.fetch(1)
    assert (message.body, message.headers, message.key, message.receives) == ("x", {"a": "b"}, "k", 1)
    assert (message.consumer, message.status, message.receipt) == ("etl", "leased", None)
    with pytest.raises(miniq.InvalidRequest):
        message.ack()
    (seen,) = q.peek(status="leased")
    assert (seen.id, seen.status, seen.consumer, seen.visible_at.year) == (message.id, "leased", "etl", 9999)


def test_an_overtaken_reader_is_fenced_and_released_claims_are_gone(q: Any) -> None:
    q.send_many([1, 2])
    old, new = q.claims("etl"), q.claims("etl")
    old.open()
    old.next(0)
    new.open()
    for call in (lambda: old.next(1), lambda: old.ack(1), lambda: old.release()):
        with pytest.raises(miniq.Fenced):
            call()
    assert new.release() == 2
    with pytest.raises(miniq.ClaimGone):
        new.fetch(1)
    with pytest.raises(miniq.ClaimUnknown):
        new.fetch(2)
    with pytest.raises(miniq.ClaimUnknown):
        new.ack(2)
    assert bodies(q.receive(max=5)) == [1, 2]


def test_a_wrong_name_of_a_group_is_refused(q: Any) -> None:
    def calls(claims: Any) -> list[Callable[[], Any]]:
        return [claims.open, lambda: claims.next(0), lambda: claims.fetch(1), lambda: claims.ack(0), claims.release]

    for group in ("", "a/b", "a b", 7, None):
        for call in calls(q.claims(group)):
            with case(group), pytest.raises(miniq.InvalidRequest) as error:
                call()
            assert error.value.field == "group"


def test_a_claim_waits_until_something_is_sent(opener: Opener, place: str) -> None:
    q = opener(place).queue("jobs")
    q.send("soon", delay=0.3)
    assert q.claims("etl").next(0) is None
    assert q.claims("etl").next(0, wait=20).messages == 1


def test_closing_the_client_ends_a_claim_that_waits(place: str) -> None:
    with miniq.connect(place) as mq:
        found: list[Any] = []

        def poll() -> None:
            found.append(mq.queue("jobs").claims("etl").next(0, wait=50))

        thread = threading.Thread(target=poll)
        thread.start()
        time.sleep(0.3)
    thread.join(10)
    assert found == [None]
