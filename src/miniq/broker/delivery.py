"""Delivery: take messages from the store, apply the rules to each, hand out those that are fit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from miniq.broker import rules
from miniq.broker.waiters import Permit
from miniq.errors import Denied, MiniQError, QueueNotFound, StoreUnavailable
from miniq.message import Lease, Message, Mode, Outcome, QueueSettings, Stored
from miniq.store.arguments import FREE, Change, Fence, NewTime, Take

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

T = TypeVar("T")
GIVE_BACK_TRIES = 20
GIVE_BACK_PAUSE = 0.5
"""How often, and at which interval in seconds, a release is retried while the store is unreachable."""


class Deliveries:
    """How a broker's messages reach consumers, and what happens to those that must not."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Wait until all messages are given back."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(
        self, queue: str, limit: int, visibility_timeout: float | None, consumer: str | None, mode: Mode
    ) -> list[Stored]:
        """Lease up to `limit` messages that may be handed out now; none if the queue does not exist."""
        broker = self._broker
        while True:
            settings = broker.catalog.find(queue)
            if settings is None:
                return []
            now = broker.clock.now()
            seconds = settings.visibility_timeout if visibility_timeout is None else visibility_timeout
            token = secrets.token_hex(12)  # no leading dash: people paste it into shells
            take = Take(
                limit=limit,
                max_bytes=broker.options.limits.response_bytes,
                now=now,
                until=now + rules.micros(seconds),
                token=token,
                consumer=consumer,
                keep=settings.history,
            )
            try:
                taken = await broker.store.messages.take(queue, take)
            except (asyncio.CancelledError, StoreUnavailable):
                self._spawn(self._release_token(queue, token))
                raise
            except QueueNotFound:
                if not broker.store.shared:
                    raise
                broker.catalog.forget(queue)  # another broker deleted it
                return []
            if not taken:
                return taken
            broker.waiters.expect(queue, taken[0].visible_at)
            fit = await self._select(queue, settings, taken, now)
            if not fit:
                continue
            if mode == "at-most-once":
                fit = await self._remove(queue, settings, fit, now)
            broker.metrics.messages[queue, "received"] += len(fit)
            return fit

    async def bury(
        self, queue: str, settings: QueueSettings, worn: list[tuple[Fence, Stored]], reason: str, extra: int
    ) -> list[Outcome]:
        """Move messages to the dead-letter queue. `extra` receives were counted but not handed out."""
        broker = self._broker
        to = rules.dead_letter_queue(queue, settings)
        assert to is not None  # noqa: S101  the caller found max_receives set
        now = broker.clock.now()
        moves: list[tuple[Fence, Message]] = [
            (fence, rules.bury(stored.message, to, reason, stored.receives - extra, now)) for fence, stored in worn
        ]
        done = await broker.move(queue, to, moves, event="dead", reason=reason)
        broker.metrics.messages[queue, "dead"] += done.count("done")
        return done

    async def release(
        self, queue: str, settings: QueueSettings, fences: list[Fence], delay: float
    ) -> dict[Fence, Outcome]:
        """Make messages ready after `delay`; bury those that have reached max_receives."""
        broker = self._broker
        outcomes: dict[Fence, Outcome] = {}
        if settings.max_receives is not None:
            messages = await broker.store.messages.find(queue, [id for id, _ in fences])
            worn: list[tuple[Fence, Stored]] = []
            for id, receipt in fences:
                stored = messages.get(id)
                if stored is not None and stored.receipt == receipt and stored.receives >= settings.max_receives:
                    worn.append(((id, receipt), stored))
            if worn:
                dead = await self.bury(queue, settings, worn, "max_receives", extra=0)
                outcomes = {fence: outcome for (fence, _), outcome in zip(worn, dead, strict=True)}
        rest = [fence for fence in fences if fence not in outcomes]
        if rest:
            now = broker.clock.now()
            to = NewTime(now + rules.micros(delay), release=True)
            change = Change(now, settings.history, "released")
            done = await broker.store.messages.reschedule(queue, rest, to, change)
            outcomes.update(zip(rest, done, strict=True))
            broker.metrics.messages[queue, "released"] += done.count("done")
        return outcomes

    async def long_poll(
        self,
        queue: str,
        consumer: str | None,
        wait: float,
        attempt: Callable[[], Awaitable[T]],
        done: Callable[[T], Any],
        permit: Permit | None = None,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Repeat `attempt` whenever messages may be ready, until it is `done`, `wait` seconds have passed or the broker
        shuts down; return the last result. Raises as soon as `permit` does; a result of which the caller lost the right
        meanwhile is undone."""
        broker = self._broker
        deadline = broker.clock.now() + rules.micros(wait)
        with broker.waiters.join(queue, consumer) as waiter:
            while True:
                if permit is not None:
                    permit()
                before = broker.clock.now()
                result = await attempt()
                if done(result):
                    broker.waiters.wake_each(queue)
                    if permit is not None and undo is not None:
                        try:
                            permit()
                        except Denied:
                            undo(result)
                            raise
                    return result
                if broker.clock.now() >= deadline:
                    return result
                if broker.catalog.find(queue) is not None:
                    # As of before the attempt, which may have missed what became visible during it.
                    broker.waiters.expect(queue, await broker.store.messages.next_visible(queue, before))
                if not broker.is_closing:
                    await waiter.until(deadline)
                if broker.is_closing:  # another attempt would be refused
                    return result

    async def _select(self, queue: str, settings: QueueSettings, taken: list[Stored], now: int) -> list[Stored]:
        """The taken messages that may be handed out; drop expired ones and bury those over max_receives."""
        if rules.fit(settings, now).allows_taken(taken):
            return taken
        return await self._discard(queue, settings, taken, now, extra=1)

    async def discard(self, queue: str, settings: QueueSettings, unfit: list[Stored], now: int) -> None:
        """Drop or bury messages that were not taken."""
        await self._discard(queue, settings, unfit, now, extra=0)

    async def _discard(
        self, queue: str, settings: QueueSettings, messages: list[Stored], now: int, extra: int
    ) -> list[Stored]:
        """Drop or bury the messages that must not be handed out, and return the others. `extra` receives were counted
        but not handed out; with 0, the messages are not leased."""
        broker = self._broker
        rule = rules.fit(settings, now)
        fit: list[Stored] = []
        unfit: dict[str, list[tuple[Fence, Stored]]] = {}
        for stored in messages:
            reason = rule.refusal(stored.message, stored.receives - extra, now)
            if reason is None:
                fit.append(stored)
            else:
                fence = (stored.message.id, (stored.receipt or FREE) if extra else FREE)
                unfit.setdefault(reason, []).append((fence, stored))
        for why, fenced in unfit.items():
            if why == "max_receives":
                await self.bury(queue, settings, fenced, why, extra)
            else:
                change = Change(now, settings.history, "expired", why)
                await broker.store.messages.drop(queue, [fence for fence, _ in fenced], change)
                broker.metrics.messages[queue, "expired"] += len(fenced)
        return fit

    async def _remove(self, queue: str, settings: QueueSettings, fit: list[Stored], now: int) -> list[Stored]:
        """At most once: delete messages before they are handed out, and return those that were deleted."""
        change = Change(now, settings.history, "acked", "at-most-once")
        fences = [(stored.message.id, stored.receipt or FREE) for stored in fit]
        outcomes = await self._broker.store.messages.drop(queue, fences, change)
        return [stored for stored, outcome in zip(fit, outcomes, strict=True) if outcome == "done"]

    # Messages that reached nobody

    def give_back(self, queue: str, leases: list[Lease]) -> None:
        """Release messages whose consumer disconnected before it got them."""
        self._spawn(self._broker.release(queue, leases))

    def give_back_taken(self, queue: str, taken: list[Stored]) -> None:
        """Release messages whose consumer lost its right to them meanwhile."""
        self.give_back(queue, [Lease(stored.message.id, stored.receipt or FREE) for stored in taken])

    async def _release_token(self, queue: str, token: str) -> None:
        """Release what was leased under a token by a call that was cancelled, or that lost its result because the store
        became unreachable."""
        broker = self._broker
        for _ in range(GIVE_BACK_TRIES):
            try:
                held = await broker.store.messages.held(token)
                if held and broker.catalog.find(queue) is not None:
                    await broker.release(queue, [Lease(stored.message.id, token) for stored in held])
                return
            except StoreUnavailable:
                await asyncio.sleep(GIVE_BACK_PAUSE)
                if broker.catalog.find(queue) is None:
                    return

    def _spawn(self, release: Coroutine[Any, Any, Any]) -> None:
        async def run() -> None:
            with suppress(MiniQError):
                await release

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
