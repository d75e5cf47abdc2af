"""Intake: lone plain messages that arrive at the same time from many connections go to the store in one batch.

This is the only batching above the store's group commit. A message takes this way if it is sent by itself, says
nothing but its body, and cannot be refused because of another: its queue exists and has no limit. Everything else
goes straight to `Broker.send`.

What arrives in one turn of the event loop, or while a put of the same queue is under way, forms the next put: one
change of the store and one run of ids serve many senders. Each sender is answered for itself and may have named its
call. Senders that were answered together usually send again together, so a put waits briefly for the senders of the
previous batch; otherwise the late ones need an fsync of their own, now and every time after.

`begin` runs a coroutine up to its first wait without a task; both protocols start their calls with it too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from miniq.broker import rules
from miniq.errors import Closed, QueueNotFound
from miniq.message import PlainDrafts, QueueSettings
from miniq.store.arguments import Change, Put

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

Reply = Callable[[list[Any], list[list[str]], Exception | None], None]
"""Called with the senders of one put and the ids that each gets once all are on disk, or with the senders and the
error. Each gets one id, except for a call that repeats an earlier one: it gets the answer of that one."""
Done = Callable[[Any, Exception | None], None]
"""Called with what a coroutine returned, or with the error that it raised."""

log = logging.getLogger("miniq.broker")

MESSAGES = 500
BYTES = 4 * 1024 * 1024
"""How much one put may carry, so that a crowd of senders is served in turns."""
CROWD = 8
"""How many messages a put must have carried for the next one to wait for as many."""
PATIENCE, LONGEST = 0.5, 0.002
"""How long it waits at most: as a share of the time that a put takes, and in seconds."""
CROWDS = 1024
"""For how many queues the size of the last batch is remembered."""

_Key = tuple[str, str, Reply]
"""Queue, content type and reply function: what the messages of one put have in common."""
_Send = tuple[bytes, str | None, Any]
"""Body, name of the call (Idempotency-Key) and sender."""


class Intake:
    """The lone plain sends of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits = broker.options.limits
        self._waiting: dict[_Key, list[_Send]] = {}
        """What the next put will carry; there is an entry while a put is under way or about to begin."""
        self._crowds: dict[_Key, int] = {}
        """How many messages the last put carried, if it was a crowd."""
        self._put_seconds = 0.0
        """How long a put takes, on average."""
        self._all_done: asyncio.Future[None] | None = None

    def add(self, queue: str, content_type: str, body: bytes, call: str | None, sender: Any, reply: Reply) -> bool:
        """Send one message with the next put of its queue. False if it cannot go this way: use `Broker.send` then,
        which also says what is wrong with it."""
        broker = self._broker
        if len(body) > self._limits.body_bytes or (
            call is not None and (broker.store.shared or not rules.is_simple(call, self._limits))
        ):
            return False
        key = (queue, content_type, reply)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append((body, call, sender))
            return True
        settings = broker.catalog.find(queue)
        if settings is None or settings.max_length or settings.max_bytes or broker.tracer is not None:
            return False  # with a tracer, each message has a trace of its own
        self._waiting[key] = [(body, call, sender)]
        loop = asyncio.get_running_loop()
        if broker.store.shared:
            begin(loop, self._run(key), eager=False)
        else:
            loop.call_soon(begin, loop, self._run(key))  # after what this turn of the loop reads
        return True

    async def stop(self) -> None:
        """Wait until every sender has an answer."""
        if self._waiting:
            self._all_done = asyncio.get_running_loop().create_future()
            await self._all_done

    async def _run(self, key: _Key) -> None:
        """Make puts until nothing waits."""
        queue, content_type, reply = key
        waiting = self._waiting[key]
        try:
            while waiting:
                crowd = self._crowds.pop(key, 0)
                in_vain = len(waiting) < crowd and not await self._wait_for(crowd, waiting)
                settings = self._broker.catalog.find(queue)
                limited = settings is None or settings.max_length or settings.max_bytes
                bodies, calls, senders = _cut(waiting, 1 if limited else min(MESSAGES, self._limits.batch))
                if len(bodies) >= CROWD and not in_vain:
                    self._remember(key, len(bodies))
                answers: list[list[str]] = []
                problem: Exception | None = None
                began = perf_counter()
                try:
                    if settings is None or limited:  # since it was added
                        answers = [await self._broker.send(queue, PlainDrafts(bodies, content_type), calls[0])]
                    else:
                        answers = await self._put(queue, settings, content_type, bodies, calls)
                except Exception as error:
                    problem = error
                self._put_seconds += (perf_counter() - began - self._put_seconds) / 4
                try:
                    reply(senders, answers, problem)
                except Exception:
                    log.exception("not all senders to queue %s could be answered", queue)
        finally:
            del self._waiting[key]
            if not self._waiting and self._all_done is not None and not self._all_done.done():
                self._all_done.set_result(None)

    async def _put(
        self, queue: str, settings: QueueSettings, content_type: str, bodies: list[bytes], calls: list[str | None]
    ) -> list[list[str]]:
        """Put messages of which each is a call of its own, and return the ids for each."""
        broker = self._broker
        now = broker.clock.now()
        batch = rules.admit_plain(queue, settings, bodies, content_type, broker.ids, now, self._limits)
        try:
            if any(calls):
                change = Change(now, settings.history)
                answers = await broker.store.messages.put_each(batch, calls, now + rules.CALL_WINDOW, change)
            else:
                ids = await broker.store.messages.put(batch, Put(now=now, keep=settings.history))
                answers = [[id] for id in ids]
        except QueueNotFound:
            broker.catalog.forget(queue)  # it was deleted meanwhile
            settings = await broker.catalog.first_use(queue)
            return await self._put(queue, settings, content_type, bodies, calls)
        broker.metrics.messages[queue, "sent"] += len(answers)
        return answers

    async def _wait_for(self, crowd: int, waiting: list[_Send]) -> bool:
        """Wait briefly for the senders of the previous batch, and say whether as many have come. If not, they may have
        nothing to do with each other, and the next put does not wait."""
        end = perf_counter() + min(self._put_seconds * PATIENCE, LONGEST)
        # In turns of the loop, each of which reads what has come: its timers are no finer than a millisecond.
        while len(waiting) < crowd and perf_counter() < end:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return len(waiting) >= crowd

    def _remember(self, key: _Key, crowd: int) -> None:
        if len(self._crowds) >= CROWDS:
            self._crowds.clear()
        self._crowds[key] = crowd


def _cut(waiting: list[_Send], most: int) -> tuple[list[bytes], list[str | None], list[Any]]:
    """Take out what the next put carries, in order: bodies, names of calls and senders."""
    bodies, calls, senders = map(list, zip(*waiting[:most], strict=True))
    size = sum(map(len, bodies))
    while size > BYTES and len(bodies) > 1:
        size -= len(bodies.pop())
    count = len(bodies)
    del waiting[:count]
    return bodies, calls[:count], senders[:count]


# Coroutines that start without a task


def begin(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    done: Done | None = None,
    *,
    eager: bool = True,
) -> asyncio.Task[Any] | None:
    """Run a coroutine up to its first wait; if it waits it goes on as the task that is returned, else it is over.

    What runs before the first wait runs in no task, so it must not ask for the current one, as timeouts do; a
    coroutine that does so is not `eager`. Without `done` an error is raised here, or logged by the loop.
    """
    if eager:
        try:
            waits_for = coroutine.send(None)
        except StopIteration as end:
            if done is not None:
                done(end.value, None)
            return None
        except Exception as error:
            if done is None:
                raise
            done(None, error)
            return None
        coroutine = _Begun(coroutine, waits_for)
    task = loop.create_task(coroutine)
    if done is not None:
        task.add_done_callback(lambda task: _end(task, done))
    return task


def _end(task: asyncio.Task[Any], done: Done) -> None:
    error = Closed("the broker is closing") if task.cancelled() else task.exception()
    if error is None:
        done(task.result(), None)
    else:
        done(None, error if isinstance(error, Exception) else Closed("the broker is closing"))


class _Begun(Coroutine[Any, Any, Any]):
    """The rest of a coroutine that was started: it begins with what the coroutine waits for."""

    __slots__ = ("_coroutine", "_first")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._first: list[Any] = [waits_for]

    def send(self, value: Any) -> Any:
        if self._first:
            return self._first.pop()
        return self._coroutine.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        at: TracebackType | None = None,
    ) -> Any:
        self._first.clear()
        return self._coroutine.throw(error if isinstance(error, BaseException) else kind)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
