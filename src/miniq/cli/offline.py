"""What the command line does to stores that no broker has open: one is copied to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from miniq.cli.flags import require_store
from miniq.errors import InvalidRequest
from miniq.store import Store, open_store, shown
from miniq.store.transfer import Copied, copy


class Migration:
    """Two open stores, of which one is copied to the other."""

    def __init__(self, loop: asyncio.Runner, source: Store, target: Store) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        self.messages = 0

    def count(self) -> None:
        """Learn how many messages there are to copy."""

        async def counted() -> int:
            names = await self._source.queues()
            return sum([(await self._source.messages.counts(name, _now())).total for name in names])

        self.messages = self._loop.run(counted())

    def run(self, progress: Callable[[int], None]) -> dict[str, int]:
        """Copy and verify; how much there was of each kind. `progress` is told of more messages."""
        before = 0

        def told(copied: Copied) -> None:
            nonlocal before
            progress(copied.messages - before)
            before = copied.messages

        counts = self._loop.run(copy(self._source, self._target, now=_now(), told=told)).counts
        return {
            "queues": counts["Queue"],
            "messages": counts["Saved"],
            "events": counts["Events"],
            "records": counts["Record"] + counts["Dedup"],
        }


@contextmanager
def migration(source: str, target: str) -> Iterator[Migration]:
    """Open both stores of a migration. A store that cannot be used is left unchanged."""
    urls = [_url(source, "from"), _url(target, "to")]
    if urls[0] == urls[1]:
        raise InvalidRequest(f"to: {shown(target)} is the source; name another store", field="to")
    require_store(urls[0], "from")
    with asyncio.Runner() as loop, ExitStack() as opened:
        stores = []
        for url in urls:
            store = open_store(url)
            loop.run(store.open())
            opened.callback(lambda store=store: loop.run(store.close()))  # type: ignore[misc]
            stores.append(store)
        found = Migration(loop, stores[0], stores[1])
        found.count()
        yield found


def _url(store: str, field: str) -> str:
    url = store if ":" in store else f"rocksdb:{store}"
    if url.startswith("memory"):
        raise InvalidRequest(
            f"{field}: the contents of memory: end with their process; name a durable store", field=field
        )
    return url


def _now() -> int:
    return time.time_ns() // 1000
