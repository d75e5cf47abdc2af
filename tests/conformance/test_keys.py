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
