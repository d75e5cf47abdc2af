"""What the command line does to a store that no broker has open: the first API key must come from somewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from miniq.broker import Broker
from miniq.errors import InvalidRequest
from miniq.store import open_store
from miniq.wire.codec import moment
from miniq.wire.shapes import KeyBody, KeyReply

T = TypeVar("T")


def create_key(store: str, body: KeyBody) -> KeyReply:
    """A new key: an API key with its secret, or a CURVE key that is listed."""

    async def create(broker: Broker) -> KeyReply:
        keys, now = broker.keys, broker.clock.now()
        if body.public is not None:
            key, secret = await keys.admit(body.name, body.allow, body.public, now), None
            server = (await keys.own_pair()).public
        else:
            key, secret = await keys.create(body.name, body.allow, now)
            server = None
        return KeyReply(key.id, key.name, key.allow, moment(key.created_at), secret, key.public, server)

    return _with(store, create)


def list_keys(store: str) -> list[KeyReply]:
    """All keys, without their secrets."""

    async def listed(broker: Broker) -> list[KeyReply]:
        return [
            KeyReply(key.id, key.name, key.allow, moment(key.created_at), None, key.public)
            for key in broker.keys.list()
        ]

    return _with(store, listed)


def revoke_key(store: str, id: str) -> None:
    """Make a key useless."""

    async def revoke(broker: Broker) -> None:
        await broker.keys.revoke(id)

    _with(store, revoke)


def _with(store: str, work: Callable[[Broker], Awaitable[T]]) -> T:
    url = store if ":" in store else f"rocksdb:{store}"
    if url.startswith("memory"):
        raise InvalidRequest("store: a key in memory: would be gone at once; name a folder", field="store")

    async def run() -> T:
        async with Broker(open_store(url)) as broker:
            return await work(broker)

    return asyncio.run(run())
