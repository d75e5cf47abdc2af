# Generated from ../_async/worker.py by `make generate`: change that file.
"""The worker loop: one task or thread fetches, one extends leases, the others run handlers.

They catch every exception of an ack, release or extend: the message is delivered again anyway, and a thread that died
would go unnoticed.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD
from miniq.client.pauses import pause, wait
from miniq.errors import StoreUnavailable
from miniq.worker import plan as rules
from miniq.worker.crews import Crew
from miniq.worker.plan import LOOK, Backoff, Plan, Shift

if TYPE_CHECKING:
    from miniq.client._sync.message import Message
    from miniq.client._sync.queue import Queue


class Worker:
    """One run of `Queue.consume`."""

    def __init__(self, queue: Queue, plan: Plan) -> None:
        self._queue = queue
        self._plan = plan
        self._crew = Crew(plan)
        self._shift: Shift[Message] = Shift(plan)
        self._lock = threading.Lock()
        """Guards `_shift`."""
        self._added = threading.Condition(self._lock)
        """Notified when there are messages to handle, and at the end."""
        self._finished = threading.Condition(self._lock)
        """Notified when a handler is free."""
        self._over = threading.Event()
        """Set when leases need no more extending."""
        self._is_keeping = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work until stopped or interrupted; raise the error that ended it, if any."""
        try:
            self._crew.run([*[self._handle] * self._plan.concurrency, self._fetch], self._end)
        finally:
            # Also after a second interruption: the leases of handlers that still run expire.
            self._end()
            self._over.set()
            self._crew.finish()
        if self._error is not None:
            raise self._error

    def _end(self, error: BaseException | None = None) -> None:
        """Begin to end; the first error is raised by `run`."""
        self._error = self._error or error
        self._shift.ending = True

    def _fetch(self) -> None:
        """Receive whenever a handler is free; release what was not started at the end."""
        try:
            self._fetch_until_stopped()
        except BaseException as error:
            self._end(error)
        with self._lock:
            batches = self._shift.end()
            self._added.notify_all()
        for batch in batches:
            try:
                self._queue.release(batch)
            except Exception as problem:
                rules.note_unsettled(batch[0], "release", problem)

    def _fetch_until_stopped(self) -> None:
        plan, timeout, backoff, fetched = self._plan, self._plan.visibility_timeout, Backoff(), False
        while not (plan.stopped() or self._shift.ending):
            with self._lock:
                wanted = self._shift.wanted()
            try:
                if fetched and not self._is_keeping:
                    # Only now, because the queue may not exist before its first message.
                    timeout = timeout or (self._queue.info()).settings.visibility_timeout
                    self._crew.start(partial(self._keep, rules.check_lease(timeout) / 3))
                    self._is_keeping = True
                messages = self._queue.receive(wanted, plan.wait, timeout, plan.consumer) if wanted else []
            except StoreUnavailable as error:
                pause(self._over, backoff.failed(error))
                continue
            backoff.worked()
            with self._lock:
                if messages:
                    fetched = True
                    self._shift.add(messages)
                    self._added.notify(len(messages))
                elif not wanted and not self._shift.ending:
                    wait(self._finished, LOOK)

    def _keep(self, every: float) -> None:
        """Extend all leases at regular intervals."""
        pause(self._over, every)
        while not self._over.is_set():
            with self._lock:
                batches = self._shift.held()
            for batch in batches:
                try:
                    rules.note_lost(batch, self._queue.extend(batch, 3 * every))
                except Exception as problem:
                    rules.note_unextended(len(batch), problem)
            pause(self._over, every)

    def _handle(self) -> None:
        """Handle one message after the other."""
        while (message := self._next()) is not None:
            try:
                self._work(message)
            finally:
                with self._lock:
                    self._shift.finish(message)
                    self._finished.notify()

    def _next(self) -> Message | None:
        """The next message to handle; None at the end."""
        with self._lock:
            while (message := self._shift.start()) is None and not self._shift.ending:
                self._added.wait()
            return message

    def _work(self, message: Message) -> None:
        verb = "ack"
        try:
            self._crew.call(message)
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
