"""Copies one store to another, neither of which a broker has open."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from miniq.cli.flags import require_store
from miniq.cli.root import say
from miniq.client.url import store_of
from miniq.errors import InvalidRequest
from miniq.store import Store, open_store, shown
from miniq.store.transfer import Copied, check_at_rest, copy


def migrate(source: str, target: str, progress: Callable[[int, int], None]) -> dict[str, int]:
    """Copy a store and verify the copy; return how many items of each kind were copied. `progress` is called with the
    number of messages copied so far and of all messages. A store that cannot be used is left unchanged."""
    source_url, target_url = _url(source, "from"), _url(target, "to")
    if source_url == target_url:
        raise InvalidRequest(f"to: {shown(target)} is the source; name another store", field="to")
    require_store(source_url, "from")
    try:
        counts = asyncio.run(_migrate(source_url, target_url, progress)).counts
    except asyncio.CancelledError:  # by SIGTERM
        raise KeyboardInterrupt from None
    return {
        "queues": counts["Queue"],
        "messages": counts["Saved"],
        "events": counts["Events"],
        "records": counts["Record"] + counts["Dedup"],
    }


async def _migrate(source_url: str, target_url: str, progress: Callable[[int, int], None]) -> Copied:
    if (task := asyncio.current_task()) is not None:  # as asyncio handles Ctrl-C
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        source = await _open(source_url, stack)
        await check_at_rest(source, shown(source_url))
        target = await _open(target_url, stack)
        now = time.time_ns() // 1000
        total = sum([(await source.messages.counts(name, now)).total for name in await source.queues()])
        try:
            return await copy(source, target, now=now, told=lambda copied: progress(copied.messages, total))
        except asyncio.CancelledError:
            say("the target is incomplete: remove it before another attempt")
            raise


async def _open(url: str, stack: AsyncExitStack) -> Store:
    store = open_store(url)
    await store.open()
    stack.push_async_callback(store.close)
    return store


def _url(store: str, field: str) -> str:
    url = store_of(store, field)
    if url == "memory:":
        raise InvalidRequest(
            f"{field}: the contents of memory: end with their process; name a durable store", field=field
        )
    return url
