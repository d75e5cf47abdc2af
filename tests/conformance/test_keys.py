"""API keys in a store: what lies there opens nothing."""

from __future__ import annotations

import pytest

from miniq.broker import Broker, keyring
from miniq.errors import Forbidden, Unauthorized


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


async def test_names_that_are_no_queue_s_are_not_remembered(broker: Broker) -> None:
    """Else anybody with a key could fill the memory with them."""
    _, secret = await broker.keys.create("one", ["send:*"], broker.clock.now())
    for number in range(3):
        with pytest.raises(Forbidden) as refused:
            broker.keys.check(secret, "read", f"{number}" * 1_000_000)
        assert len(refused.value.text) < 300
    assert sum(len(queue) for _, _, queue in broker.keys._allowed) < 1000
