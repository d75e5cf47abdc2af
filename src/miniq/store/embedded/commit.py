"""Group commit: what arrives while one write runs goes into the next; one fsync serves all.

Changes are staged in the event loop's thread, in order. A batch is handed to one commit thread, because
the write releases the interpreter lock. A batch that waits for no fsync is written in the thread of the event loop,
and so is that of a caller who is alone, which saves two thread switches; such a caller does not even wait for the
others of its turn of the loop. A failed write is final: nothing is confirmed after it, and nothing is tried again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from miniq.errors import Closed, MiniQError, StoreError, StoreFailed
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import Op

Write = Callable[[Sequence[Op], bool], None]


class Batch:
    """Changes that will be written together, and who waits for them."""

    __slots__ = ("done", "events", "large", "ops", "sync", "waiting")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.events: list[EventRun] = []
        self.done: list[Callable[[], None]] = []
        """Called in order once the batch is written, before anybody who waits goes on."""
        self.waiting: list[asyncio.Future[None]] = []
        self.sync = False
        self.large = False
        """Whether writing it takes so long that it must not hold up the event loop."""


class GroupCommit:
    """Writes batches one after the other."""

    def __init__(self, write: Write, durable: bool) -> None:
        self.batch = Batch()
        self.complete: Callable[[Batch], None] | None = None
        """Adds what is due once per batch, such as counters."""
        self.failed: MiniQError | None = None
        """Why nothing can be written any more."""
        self.refusal: MiniQError | None = None
        """Why new calls are refused: it has failed, or is closing."""
        self.writes = 0
        self.syncs = 0
        self._write = write
        self._durable = durable
        self._busy: Batch | None = None
        self._scheduled = False
        self._alone = True
        """Whether the last batch had a single caller."""
        self._wrote = False
        """Whether a batch was written at once in this turn of the loop."""
        self._followed = False
        """Whether the first caller of the next batch came after that in the same turn: then it is not alone."""
        self._beside: set[asyncio.Future[BaseException | None]] = set()
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ended = False
        """Whether the thread was told to end."""
        threading.Thread(target=self._run, name="miniq-commit", daemon=True).start()

    async def commit(self, sync: bool) -> None:
        """Wait until everything staged so far is written, and on disk if `sync`."""
        if self.failed is not None:
            raise self.failed
        batch = self.batch
        if sync:
            batch.sync = True
        future = self._loop.create_future()
        batch.waiting.append(future)
        if self._busy is None and not self._scheduled:
            if self._alone and not self._wrote:
                self._wrote = True
                self._loop.call_soon(self._begin_turn)
                self._flush()
            else:
                self._followed = self._wrote
                self._scheduled = True
                self._loop.call_soon(self._flush)
        await future

    async def settle(self) -> None:
        """Wait until nothing that was staged is unwritten."""
        if self._busy is not None or self.batch.ops:
            await self.commit(True)

    async def beside(self, job: Callable[[], None]) -> None:
        """Run something long in a thread of its own while batches go on; `close` waits for it."""
        if self.failed is not None:
            raise self.failed
        ended: asyncio.Future[BaseException | None] = self._loop.create_future()

        def end(error: BaseException | None) -> None:
            self._beside.discard(ended)
            ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                job()
            except BaseException as raised:
                error = raised
            self._loop.call_soon_threadsafe(end, error)

        self._beside.add(ended)
        threading.Thread(target=work, name="miniq-beside", daemon=True).start()
        # Shielded: the thread goes on though its caller was cancelled, and closing has to wait for it.
        error = await asyncio.shield(ended)
        if error is not None:
            raise error

    def check(self) -> None:
        """Raise if new calls are refused."""
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        """Write what is staged, end the thread, refuse everything after."""
        closed = Closed("the store is closed")
        self.refusal = self.refusal or closed
        try:
            # Those who are woken by one batch may have gone on to stage another.
            while self.failed is None and (self._busy is not None or self.batch.ops or self.batch.waiting):
                await self.commit(True)
        finally:
            if self.failed is None:
                self.failed = closed
            while self._beside:
                await asyncio.wait(self._beside)
            if not self._ended:
                self._ended = True  # a thread that is about to end still counts as alive
                ended = self._loop.create_future()

                def end() -> None:
                    self._loop.call_soon_threadsafe(_settle_future, ended)

                self._jobs.put(end)
                self._jobs.put(None)
                await ended

    def _begin_turn(self) -> None:
        self._wrote = False

    def _flush(self) -> None:
        self._scheduled = False
        batch = self.batch
        if self._busy is not None or self.failed is not None or not batch.waiting:
            return
        self.batch = Batch()
        if self.complete is not None:
            self.complete(batch)
        sync = batch.sync and self._durable
        self.writes += 1
        self.syncs += sync
        self._busy = batch
        alone = len(batch.waiting) == 1 and not self._followed
        self._followed = False
        inline = not batch.large and (not sync or (alone and self._alone))
        self._alone = alone
        if inline:
            self._finish(batch, self._attempt(batch, sync))
        else:
            self._jobs.put(partial(self._write_in_thread, batch, sync))

    def _write_in_thread(self, batch: Batch, sync: bool) -> None:
        self._loop.call_soon_threadsafe(self._finish, batch, self._attempt(batch, sync))

    def _attempt(self, batch: Batch, sync: bool) -> StoreError | None:
        try:
            self._write(batch.ops, sync)
        except StoreError as error:
            return error
        except Exception as error:
            return StoreFailed(f"store: {error}")
        return None

    def _finish(self, batch: Batch, error: StoreError | None) -> None:
        self._busy = None
        if error is not None:
            self.failed = self.refusal = StoreFailed(
                f"{error.text}. Nothing after the last confirmation is certain: stop and start again",
                field="store",
            )
            for future in batch.waiting + self.batch.waiting:
                if not future.done():
                    future.set_exception(self.failed)
            return
        for call in batch.done:
            call()
        for future in batch.waiting:
            if not future.done():
                future.set_result(None)
        if self.batch.waiting:
            self._flush()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _settle_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
