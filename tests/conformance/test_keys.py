"""API keys in a store: what lies there opens nothing."""

from __future__ import annotations

import pytest

from miniq.api.operations import CommitStages, Configure, DeleteQueue, Send, Upload
from miniq.broker import Broker, keyring
from miniq.dispatch import Caller, perform
from miniq.errors import Forbidden, TooManyQueues, Unauthorized
from tests.kit import draft


async def test_the_store_holds_no_secret_that_opens_anything(broker: Broker) -> None:
    key, secret = await broker.keys.create("reports", ["read:*"], broker.clock.now())
    broker.keys.check(secret, "read", "jobs")
    with pytest.raises(Forbidden):
        broker.keys.check(secret, "send", "jobs")
    kept = b"".join((await broker.store.records(keyring.KIND)).values())
    assert b"reports" in kept
    assert secret.split("_", 2)[2].encode() not in kept
    with pytest.raises(Unauthorized):
        broker.keys.check(key.id, "read", "jobs")


async def test_a_key_with_max_queues_creates_no_queue_beyond_it(broker: Broker) -> None:
    now = broker.clock.now()
    _, secret = await broker.keys.create("shop", ["send:x*", "manage:x*"], now, max_queues=2)
    _, other = await broker.keys.create("ops", ["*"], now)
    shop, ops = Caller(secret), Caller(other)
    await perform(broker, Send("x1", [draft()]), shop)
    await perform(broker, Configure("x2", {"dead_letter_queue": None}), shop)
    calls = (Send("x3", [draft()]), Configure("x3", {}), Upload("x3", "j", "b", "p", "a", 0, [draft()]))
    for call in (*calls, CommitStages("x3", "j", "b", [])):
        with pytest.raises(TooManyQueues, match="2 queues match key 'shop', whose max_queues is 2"):
            await perform(broker, call, shop)
    await perform(broker, Send("x2", [draft()]), shop)
    await perform(broker, Send("y", [draft()]), ops)
    await perform(broker, DeleteQueue("x1"), ops)
    await perform(broker, Send("x3", [draft()]), shop)
    await broker.keys.load()
    with pytest.raises(TooManyQueues):
        await perform(broker, Send("x4", [draft()]), shop)


async def test_names_that_are_no_queue_s_are_not_remembered(broker: Broker) -> None:
    """Else anybody with a key could fill the memory with them."""
    _, secret = await broker.keys.create("one", ["send:*"], broker.clock.now())
    for number in range(3):
        with pytest.raises(Forbidden) as refused:
            broker.keys.check(secret, "read", f"{number}" * 1_000_000)
        assert len(refused.value.text) < 300
    assert sum(len(queue) for _, _, queue in broker.keys._allowed) < 1000
