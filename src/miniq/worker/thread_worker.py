"""The worker loop of the blocking client: one thread fetches, one extends leases, the others run handlers.

The caller's thread only waits, so that Ctrl-C does not interrupt an operation midway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD
from miniq.errors import InvalidRequest, StoreUnavailable
from miniq.worker import plan as rules
from miniq.worker.plan import LOOK, Backoff, Plan, Shift

if TYPE_CHECKING:
    from miniq.client._sync.message import Message
    from miniq.client._sync.queue import Queue


class ThreadWorker:
    """One run of `Queue.consume`."""

    def __init__(self, queue: Queue, plan: Plan) -> None:
        if plan.is_coroutine:
            raise InvalidRequest(
                f"handler: {plan.handler!r} is a coroutine function; use miniq.connect_async for it", field="handler"
            )
        self._queue = queue
        self._plan = plan
        self._shift: Shift[Message] = Shift(plan)
        self._changed = threading.Condition()
        """Guards `_shift`; notified when messages are added or finished, and at the end."""
        self._over = threading.Event()
        """Set when leases need no more extending."""
        self._keeper: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work until stopped; raise the error that ended it, if any."""
        handlers = [_thread(self._handle, str(number)) for number in range(self._plan.concurrency)]
        fetcher = _thread(self._fetch, "fetch")
        try:
            try:
                for thread in (*handlers, fetcher):
                    thread.start()
                _join(fetcher)
            except KeyboardInterrupt:
                self._end(None)
                _join(fetcher)
            for thread in handlers:
                _join(thread)
        finally:
            # Also after a second Ctrl-C: the leases of handlers that still run expire.
            self._end(None)
            self._over.set()
        if self._keeper is not None:
            _join(self._keeper)
        if self._error is not None:
            raise self._error

    def _fetch(self) -> None:
        """Receive whenever a handler is free; release what was not started at the end."""
        try:
            self._fetch_until_stopped()
        except BaseException as error:
            self._end(error)
        with self._changed:
            batchs = self._shift.end()
            self._changed.notify_all()
        for batch in batchs:
            try:
                self._queue.release(batch)
            except Exception as problem:
                rules.note_unsettled(batch[0], "release", problem)

    def _fetch_until_stopped(self) -> None:
        plan, timeout, backoff, fetched = self._plan, self._plan.visibility_timeout, Backoff(), False
        while not (plan.stopped() or self._shift.ending):
            with self._changed:
                wanted = self._shift.wanted()
            try:
                if fetched and self._keeper is None:
                    # Only now, because the queue may not exist before its first message.
                    timeout = timeout or self._queue.info().settings.visibility_timeout
                    self._keeper = _thread(partial(self._keep, rules.check_lease(timeout) / 3), "keep")
                    self._keeper.start()
                messages = self._queue.receive(wanted, plan.wait, timeout, plan.consumer) if wanted else []
            except StoreUnavailable as error:
                self._over.wait(backoff.failed(error))
                continue
            backoff.worked()
            with self._changed:
                if messages:
                    fetched = True
                    self._shift.add(messages)
                    self._changed.notify_all()
                elif not wanted and not self._shift.ending:
                    self._changed.wait(LOOK)

    def _keep(self, every: float) -> None:
        """Extend all leases at regular intervals."""
        while not self._over.wait(every):
            with self._changed:
                batchs = self._shift.held()
            for batch in batchs:
                try:
                    rules.note_lost(batch, self._queue.extend(batch, 3 * every))
                except Exception as problem:
                    rules.note_unextended(len(batch), problem)

    def _handle(self) -> None:
        """Handle one message after the other."""
        while True:
            with self._changed:
                while (message := self._shift.start()) is None:
                    if self._shift.ending:
                        return
                    self._changed.wait()
            try:
                self._work(message)
            finally:
                with self._changed:
                    self._shift.finish(message)
                    self._changed.notify_all()

    def _work(self, message: Message) -> None:
        verb = "ack"
        try:
            self._plan.handler(self._plan.argument(message))
        except Exception as error:
            rules.note_failure(message, error)
            verb = "release"
        except BaseException as error:
            self._end(None if isinstance(error, KeyboardInterrupt) else error)
            verb = "release"
        if message._state is not HELD:
            return
        try:
            if verb == "ack":
                message.ack()
            else:
                message.release(self._plan.retry_delay)
        except Exception as problem:
            rules.note_unsettled(message, verb, problem)

    def _end(self, error: BaseException | None) -> None:
        """Begin to end; the first error is raised by `run`."""
        with self._changed:
            self._error = self._error or error
            self._shift.ending = True
            self._changed.notify_all()


def _thread(target: Callable[[], None], name: str) -> threading.Thread:
    return threading.Thread(target=target, name=f"miniq-worker-{name}", daemon=True)


def _join(thread: threading.Thread) -> None:
    """Wait for a thread in steps, so that Ctrl-C is seen on every platform."""
    while thread.is_alive():
        thread.join(0.5)
