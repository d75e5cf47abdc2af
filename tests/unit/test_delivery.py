"""A message as its reader has it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from miniq.client.delivery import Delivery, check_held, moment, renew
from miniq.errors import MessageNotFound, StaleReceipt
from miniq.message import NEVER, Extended, Message, Stored


def delivery(body: bytes = b'{"a": 1}') -> Delivery[None]:
    return Delivery(None, Stored(Message("id", "jobs", 0, 0, body), 1_500_000, 1, "receipt"))


def test_a_moment_is_exact_to_the_microsecond() -> None:
    assert moment(1_700_000_000_123_457) == datetime(2023, 11, 14, 22, 13, 20, 123457, UTC)


def test_a_moment_that_does_not_come_is_the_last_there_is() -> None:
    assert moment(NEVER) == datetime.max.replace(tzinfo=UTC)


def test_the_body_is_decoded_once() -> None:
    m = delivery()
    assert m.body is m.body


@pytest.mark.parametrize("name", ["id", "body", "headers", "receipt", "lease_until", "colour"])
def test_a_message_cannot_be_written_to(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(delivery(), name, "x")


def test_an_extension_moves_the_end_of_the_lease_only_if_it_was_made() -> None:
    m = delivery()
    renew([m], Extended(["done"], 9_000_000))
    assert m.lease_until == moment(9_000_000)
    renew([m], Extended(["stale"], 99_000_000))
    assert m.lease_until == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=9)


def test_outcomes_are_raised_as_what_they_mean_to_the_holder() -> None:
    check_held("done", "jobs", "id")
    with pytest.raises(StaleReceipt):
        check_held("stale", "jobs", "id")
    with pytest.raises(MessageNotFound):
        check_held("missing", "jobs", "id")
