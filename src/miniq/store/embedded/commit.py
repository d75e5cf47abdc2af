"""Group commit: changes that arrive during a write go into the next one; one fsync serves all.

Changes are staged in the event loop's thread, in order. A batch is written by one commit thread, since the write
releases the interpreter lock. A batch without fsync is written in the event loop's thread, and so is that of a single
caller, which saves two thread switches; a single caller does not even wait for the end of the loop's turn. A failed
write is final: nothing is confirmed or tried again after it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from miniq.errors import Closed, MiniQError, StoreError, StoreFailed
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import Op

Write = Callable[[Sequence[Op], bool], None]


class Batch(Struct, eq=False):
    """Changes that will be written together, and the calls that wait for them."""

    ops: list[Op] = []
    events: list[EventRun] = []
    done: list[Callable[[], None]] = []
    """Called in order once the batch is written, before the waiting calls go on."""
    waiting: list[asyncio.Future[None]] = []
    sync: bool = False
    large: bool = False
    """Whether it takes too long to write in the event loop's thread."""


class GroupCommit:
    """Writes batches one after the other."""

    def __init__(
        self,
        write: Write,
        durable: bool,
        catch_up: Callable[[], None] = lambda: None,
        cause: Callable[[], StoreFailed | None] = lambda: None,
    ) -> None:
        """`catch_up` is called after each batch was confirmed, and `cause` when one could not be written."""
        self.batch = Batch()
        self.complete: Callable[[Batch], None] = lambda batch: None
        """Adds records that are written once per batch, such as counters."""
        self.failed: MiniQError | None = None
        """The error that ended all writing."""
        self.refusal: MiniQError | None = None
        """The error for new calls after a failure or while closing."""
        self.writes = 0
        self.syncs = 0
        self._write = write
        self._durable = durable
        self._catch_up = catch_up
        self._cause = cause
        self._busy: Batch | None = None
        self._scheduled = False
        self._alone = True
        """Whether the last batch had a single caller."""
        self._wrote = False
        """Whether a batch was already written in this turn of the loop."""
        self._followed = False
        """Whether the next batch was started in the same turn: then its first caller is not alone."""
        self._beside: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ended = False
        """Whether the thread was asked to stop."""
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
        """Wait until everything staged is written."""
        if self._busy is not None or self.batch.ops:
            await self.commit(True)

    async def beside(self, job: Callable[[], None]) -> None:
        """Run a long job in another thread while batches go on; `close` waits for it."""
        if self.failed is not None:
            raise self.failed
        future = self._loop.run_in_executor(None, job)
        self._beside.add(future)
        future.add_done_callback(self._beside.discard)
        # Shielded: if the caller is cancelled the thread goes on, and `close` has to wait for it.
        await asyncio.shield(future)

    def check(self) -> None:
        """Raise if new calls are refused."""
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        """Write what is staged, end the thread, refuse everything after."""
        closed = Closed("the store is closed")
        self.refusal = self.refusal or closed
        try:
            # Calls that return after one batch may have staged another.
            while self.failed is None and (self._busy is not None or self.batch.ops or self.batch.waiting):
                await self.commit(True)
        finally:
            if self.failed is None:
                self.failed = closed
            while self._beside:
                await asyncio.wait(self._beside)
            if not self._ended:
                self._ended = True
                ended = self._loop.create_future()

                def end() -> None:
                    self._loop.call_soon_threadsafe(_settle_future, ended)

                self._jobs.put(end)
                self._jobs.put(None)
                await ended

    def fail(self, error: StoreFailed) -> None:
        """End all writing: refuse the calls that wait, and all that follow."""
        self.failed = self.refusal = error
        running = [] if self._busy is None else self._busy.waiting
        for future in running + self.batch.waiting:
            if not future.done():
                future.set_exception(error)

    def abandon(self, refusal: MiniQError) -> None:
        """In a forked child, which has no commit thread: write nothing any more, and refuse everything."""
        self.failed = self.refusal = refusal
        self._beside.clear()
        self._ended = True

    def _begin_turn(self) -> None:
        self._wrote = False

    def _flush(self) -> None:
        self._scheduled = False
        batch = self.batch
        if self._busy is not None or self.failed is not None or not batch.waiting:
            return
        self.batch = Batch()
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
            self._loop.call_soon(self._follow)
        else:
            self._jobs.put(partial(self._write_in_thread, batch, sync))

    def _write_in_thread(self, batch: Batch, sync: bool) -> None:
        self._loop.call_soon_threadsafe(self._finish, batch, self._attempt(batch, sync))
        try:
            self._catch_up()
        except StoreError as error:
            self._loop.call_soon_threadsafe(self._fail_late, error)

    def _follow(self) -> None:
        """Let the engine follow the log, once the answers of a batch are on their way."""
        try:
            if self.failed is None:
                self._catch_up()
        except StoreError as error:
            self._fail_late(error)

    def _fail_late(self, error: StoreError) -> None:
        if self.failed is None:
            self.fail(self._cause() or _final(error))

    def _attempt(self, batch: Batch, sync: bool) -> StoreError | None:
        try:
            self._write(batch.ops, sync)
        except StoreError as error:
            return error
        except Exception as error:
            return StoreFailed(f"store: {error}")
        return None

    def _finish(self, batch: Batch, error: StoreError | None) -> None:
        if error is not None and self.failed is None:
            self.fail(self._cause() or _final(error))
        self._busy = None
        if self.failed is not None:
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


def _final(error: StoreError) -> StoreFailed:
    text = f"{error.text}. Nothing after the last confirmation is certain: stop and start again"
    return StoreFailed(text, field="store")


def _settle_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
