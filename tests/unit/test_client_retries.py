"""When the HTTP client tries again, without a network and without waiting."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from miniq.api import operations as ops
from miniq.api.operation import Call
from miniq.client.exchange import Retryable
from miniq.client.http.requests import HttpExchange
from miniq.client.http.target import read_target
from miniq.client.retries import FIRST, REMEMBERED, SLOWEST, Retries
from miniq.errors import StoreUnavailable
from miniq.message import Draft

TARGET = read_target("http://127.0.0.1:5000", {})
SEND = ops.Send("jobs", [Draft(b"1")])


def trouble(**why: bool) -> Retryable:
    return Retryable(StoreUnavailable("away"), **why)


def test_pauses_double_up_to_a_limit_and_end_with_the_time() -> None:
    retries = Retries(HttpExchange(TARGET, SEND), 30, began=0)
    now, pauses = 100.0, []
    while now < 130:
        pauses.append(retries.pause(trouble(), now))
        now += pauses[-1]
    with pytest.raises(StoreUnavailable):
        retries.pause(trouble(), now)
    for number, pause in enumerate(pauses[:-1]):
        expected = min(FIRST * 2**number, SLOWEST)
        assert expected / 2 <= pause <= expected
    assert now == pytest.approx(130)


def test_no_time_is_no_retry() -> None:
    with pytest.raises(StoreUnavailable):
        Retries(HttpExchange(TARGET, SEND), 0, began=0).pause(trouble(), 0)


def test_a_stale_connection_costs_no_time() -> None:
    retries = Retries(HttpExchange(TARGET, SEND), 0, began=0)
    assert [retries.pause(trouble(stale=True, heard=True), now) for now in range(5)] == [0] * 5


def test_what_is_final_or_must_not_be_heard_twice_is_not_repeated() -> None:
    with pytest.raises(StoreUnavailable):
        Retries(HttpExchange(TARGET, SEND), 10, began=0).pause(trouble(final=True), 0)
    backup = HttpExchange(TARGET, ops.Backup("x"))
    assert Retries(backup, 10, began=0).pause(trouble(), 0) > 0
    with pytest.raises(StoreUnavailable):
        Retries(backup, 10, began=0).pause(trouble(heard=True), 0)


@pytest.mark.parametrize("call", [SEND, ops.Send("jobs", pa.table({"body": ["1"]}))], ids=["send", "table"])
def test_what_the_broker_remembers_is_counted_from_the_attempt_that_may_have_been_made(
    call: Call[object],
) -> None:
    """Its answer may have been long in coming."""
    retries = Retries(HttpExchange(TARGET, call), 3600, began=0)
    assert retries.pause(trouble(), 10) > 0
    retries.again(50)
    assert retries.pause(trouble(heard=True), 280) <= 50 + REMEMBERED - 280
    retries.again(285)
    with pytest.raises(StoreUnavailable):
        retries.pause(trouble(heard=True), 50 + REMEMBERED)


def test_a_send_is_not_repeated_for_longer_than_the_broker_remembers_it() -> None:
    retries = Retries(HttpExchange(TARGET, SEND), 3600, began=0)
    retries.pause(trouble(), 0)
    assert retries.pause(trouble(), REMEMBERED + 1) > 0
    with pytest.raises(StoreUnavailable):
        retries.pause(trouble(heard=True), REMEMBERED + 2)
    acks = Retries(HttpExchange(TARGET, ops.Purge("jobs")), 3600, began=0)
    acks.pause(trouble(heard=True), 0)
    assert acks.pause(trouble(heard=True), REMEMBERED + 1) > 0


def test_a_repeated_send_is_the_same_to_the_byte_and_another_is_not() -> None:
    exchange = HttpExchange(TARGET, SEND)
    before = exchange.head
    Retries(exchange, 10, began=0).again(5)
    assert exchange.head == before
    assert HttpExchange(TARGET, SEND).head != before


def test_a_receive_waits_for_the_rest_of_its_time() -> None:
    exchange = HttpExchange(TARGET, ops.Receive("jobs", wait=20))
    assert exchange.patience == 50
    retries = Retries(exchange, 10, began=100)
    retries.again(105)
    assert (json.loads(exchange.body)["wait"], exchange.patience) == (15, 45)
    retries.again(130)
    assert (json.loads(exchange.body).get("wait", 0), exchange.patience) == (0, 30)
