"""Stores on MongoDB for the tests that are theirs alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from miniq.message import QueueSettings
from miniq.store.mongodb import MongoStore


@asynccontextmanager
async def opened(url: str, *queues: str) -> AsyncIterator[MongoStore]:
    """A store, with some queues."""
    store = MongoStore(url)
    await store.open()
    try:
        for queue in queues:
            await store.save_queue(queue, QueueSettings())
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def two(url: str, *queues: str) -> AsyncIterator[tuple[MongoStore, MongoStore]]:
    """Two stores on one database, as two brokers have."""
    async with opened(url, *queues) as one, opened(url) as other:
        yield one, other
