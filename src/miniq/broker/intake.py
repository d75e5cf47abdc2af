"""Intake: single plain messages that arrive at the same time from many connections go to the store in one batch.

This is the only batching above the store's group commit. A message qualifies if it is sent by itself, has nothing but
a body, and cannot be refused because of another message: its queue exists and has no limit. Everything else goes
straight to `Broker.send`.

What arrives in one turn of the event loop, or during a put of the same queue, forms the next put: one store change and
one run of ids for many senders. Each sender gets its own answer and may have its own idempotency key. Senders that were
answered together usually send again together, so a put waits briefly for the senders of the previous batch; otherwise
the late ones would need an fsync of their own, now and every time after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from miniq.broker import rules
from miniq.broker.keyring import Secret
from miniq.errors import IdempotencyMismatch, QueueNotFound
from miniq.json_values import SHORT, is_deep
from miniq.message import PlainDrafts, QueueSettings
from miniq.store.arguments import Change, Put

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

Reply = Callable[[list[Any], list[list[str]], Exception | None], None]
"""Called with senders of one put and the ids for each once all are on disk, or with senders and their error. Each gets
one id, except that a repeated call gets the answer to the first one."""

log = logging.getLogger("miniq.broker")

MESSAGES = 500
BYTES = 4 * 1024 * 1024
"""Limits of one put, so that many senders are served in turns."""
CROWD = 8
"""Size from which on a batch makes the next put wait for as many messages."""
PATIENCE, LONGEST = 0.5, 0.002
"""The longest wait: as a share of the duration of a put, and in seconds."""
CROWDS = 1024
"""Maximum number of queues for which the size of the last batch is remembered."""

_Key = tuple[str, str, Reply]
"""Queue, content type and reply function, which the messages of one put have in common."""
_Call = tuple[str, str]
"""Scope and idempotency key."""
_Send = tuple[bytes, _Call | None, Any]
"""Body, name and sender."""


class Intake:
    """The single plain sends of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits = broker.options.limits
        self._waiting: dict[_Key, list[_Send]] = {}
        """The messages of the next put; there is an entry while a put is in progress or scheduled."""
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._crowds: dict[_Key, int] = {}
        """Sizes of the last batches, where the next put waits for as many."""
        self._put_seconds = 0.0
        """Moving average of the duration of a put."""

    def add(
        self,
        queue: str,
        content_type: str,
        body: bytes,
        call: str | None,
        secret: Secret | None,
        sender: Any,
        reply: Reply,
    ) -> bool:
        """Send a message with the next put of its queue. False if it does not qualify: use `Broker.send`, which also
        reports what is invalid."""
        broker = self._broker
        if len(body) > self._limits.body_bytes or (len(body) > SHORT and is_deep(body)):
            return False
        name = None
        if call is not None:
            if broker.store.shared or not rules.is_simple(call, self._limits):
                return False
            name = (broker.keys.scope(secret), call)
        key = (queue, content_type, reply)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append((body, name, sender))
            return True
        settings = broker.catalog.find(queue)
        if settings is None or settings.max_length or settings.max_bytes or broker.tracer is not None:
            return False  # with a tracer, each message has its own trace
        self._waiting[key] = [(body, name, sender)]
        # It starts after this turn of the loop, which may read more messages.
        self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key))
        return True

    async def stop(self) -> None:
        """Wait until every sender has its answer."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _run(self, key: _Key) -> None:
        """Make puts until no messages are waiting."""
        queue, content_type, reply = key
        waiting = self._waiting[key]
        try:
            while waiting:
                crowd = self._crowds.pop(key, 0)
                incomplete = len(waiting) < crowd and not await self._wait_for(crowd, waiting)
                settings = self._broker.catalog.find(queue)
                limited = settings is None or settings.max_length or settings.max_bytes
                bodies, calls, senders = _cut(waiting, 1 if limited else min(MESSAGES, self._limits.batch))
                if len(bodies) >= CROWD and not incomplete:
                    self._remember(key, len(bodies))
                answers: list[list[str] | IdempotencyMismatch] = []
                problem: Exception | None = None
                began = perf_counter()
                try:
                    if settings is None or limited:  # since it was added
                        scope, call = calls[0] or ("", None)
                        answers = [await self._broker.send(queue, PlainDrafts(bodies, content_type), call, scope)]
                    else:
                        answers = await self._put(queue, settings, content_type, bodies, calls)
                except Exception as error:
                    problem = error
                self._put_seconds += (perf_counter() - began - self._put_seconds) / 4
                try:
                    _answer(reply, senders, answers, problem)
                except Exception:
                    log.exception("not all senders to queue %s could be answered", queue)
        finally:
            del self._waiting[key], self._tasks[key]

    async def _put(
        self, queue: str, settings: QueueSettings, content_type: str, bodies: list[bytes], calls: list[_Call | None]
    ) -> list[list[str] | IdempotencyMismatch]:
        """Put messages that are one call each, and return the ids for each call."""
        broker = self._broker
        now = broker.clock.now()
        batch = rules.plain_batch(queue, settings, bodies, content_type, broker.ids, now)
        try:
            if any(calls):
                change = Change(now, settings.history)
                named = [
                    None if call is None else rules.once(call[1], call[0], PlainDrafts([body], content_type), now)
                    for call, body in zip(calls, bodies, strict=True)
                ]
                answers = await broker.store.messages.put_each(batch, named, change)
                ids = [id for answer in answers if isinstance(answer, list) for id in answer]
            else:
                ids = await broker.store.messages.put(batch, Put(now=now, keep=settings.history))
                answers = [[id] for id in ids]
        except QueueNotFound:
            broker.catalog.forget(queue)  # it was deleted meanwhile
            settings = await broker.catalog.get_or_create(queue)
            return await self._put(queue, settings, content_type, bodies, calls)
        broker.metrics.sent(queue, batch.ids, ids)
        return answers

    async def _wait_for(self, crowd: int, waiting: list[_Send]) -> bool:
        """Wait briefly for the senders of the previous batch, and return whether as many messages have arrived. If not,
        the senders may be unrelated, and the next put does not wait."""
        end = perf_counter() + min(self._put_seconds * PATIENCE, LONGEST)
        # Turns of the loop read what arrives; its timers are no finer than a millisecond.
        while len(waiting) < crowd and perf_counter() < end:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return len(waiting) >= crowd

    def _remember(self, key: _Key, crowd: int) -> None:
        if len(self._crowds) >= CROWDS:
            self._crowds.clear()
        self._crowds[key] = crowd


def _answer(
    reply: Reply, senders: list[Any], answers: list[list[str] | IdempotencyMismatch], problem: Exception | None
) -> None:
    """Answer the senders of a put, and those whose call was refused separately."""
    ids = [answer for answer in answers if isinstance(answer, list)]
    if len(ids) < len(answers):
        for sender, answer in zip(senders, answers, strict=True):
            if isinstance(answer, Exception):
                reply([sender], [], answer)
        senders = [sender for sender, answer in zip(senders, answers, strict=True) if isinstance(answer, list)]
        if not senders:
            return
    reply(senders, ids, problem)


def _cut(waiting: list[_Send], most: int) -> tuple[list[bytes], list[_Call | None], list[Any]]:
    """Remove the messages of the next put from `waiting`: bodies, names and senders."""
    if len(waiting) == 1:  # the common case, in fewer steps
        ((body, call, sender),) = waiting
        waiting.clear()
        return [body], [call], [sender]
    bodies, calls, senders = map(list, zip(*waiting[:most], strict=True))
    size = sum(map(len, bodies))
    while size > BYTES and len(bodies) > 1:
        size -= len(bodies.pop())
    count = len(bodies)
    del waiting[:count]
    return bodies, calls[:count], senders[:count]
