"""Delivery: take messages from the store, apply the rules to each, hand out those that are fit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from miniq.broker import rules
from miniq.broker.receipts import new_receipt
from miniq.broker.waiters import Permit
from miniq.errors import Denied, InvalidRequest, MiniQError, QueueNotFound, StoreUnavailable
from miniq.message import LEASE_EXPIRED, Failed, Lease, Leased, Message, Mode, Outcome, QueueSettings, Stored
from miniq.store.arguments import FREE, Change, Fence, NewTime, Take

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

T = TypeVar("T")
NOTHING = rules.receipt_of(FREE)
"""A receipt that matches no message."""
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
    ) -> Leased:
        """Lease up to `limit` messages that may be handed out now; none if the queue does not exist."""
        broker = self._broker
        while True:
            settings = broker.catalog.find(queue)
            if settings is None or settings.paused:
                return Leased()
            if settings.rate:
                limit = await broker.rates.reserve(queue, settings.rate, limit)
                if not limit:
                    return Leased()
            now = broker.clock.now()
            seconds = settings.visibility_timeout if visibility_timeout is None else visibility_timeout
            token = new_receipt(consumer, now)
            take = Take(
                limit=limit,
                max_bytes=broker.options.limits.response_bytes,
                now=now,
                until=now + rules.micros(seconds),
                token=token,
                consumer=consumer,
                keep=settings.history,
                fit=rules.fit(settings, now),
                in_flight=settings.max_in_flight,
                group_batch=settings.group_batch,
            )
            try:
                taken = await broker.store.messages.take(queue, take)
            except (asyncio.CancelledError, StoreUnavailable):
                self._spawn(self._release_token(queue, token, take.until))
                raise
            except QueueNotFound:
                if not broker.store.shared:
                    raise
                broker.catalog.forget(queue)  # another broker deleted it
                return Leased()
            if settings.rate and len(taken) < limit:
                broker.rates.give_back(queue, limit - len(taken))
            if not taken:
                broker.consumers.received(queue, consumer, now, 0)
                return Leased()
            broker.waiters.expect(queue, taken[0].visible_at)
            try:
                fit = await self._select(queue, settings, taken, take)
                broker.consumers.received(queue, consumer, now, len(fit))
                broker.timings.received(queue, fit, now)
                if fit and mode == "at-most-once":
                    removed = Leased(await self._remove(queue, settings, fit, now))
                    broker.consumers.acked(queue, consumer, now, len(removed))
                    return removed
                if fit:
                    most = broker.options.limits.result_bytes if settings.results else None
                    return Leased(fit, seconds, most)
            except (asyncio.CancelledError, StoreUnavailable):
                self._spawn(self._release_token(queue, token, take.until, counted=True))
                raise

    async def unexpired(self, queue: str, leases: Sequence[Lease]) -> list[Fence]:
        """Leases as fences, of which those match nothing whose lease has expired."""
        found = await self._broker.store.messages.find(queue, [lease.id for lease in leases])
        now = self._broker.clock.now()
        expired = {id for id, stored in found.items() if stored.visible_at <= now}
        return [(id, NOTHING if id in expired else receipt) for id, receipt in rules.fences(leases)]

    async def bury(
        self,
        queue: str,
        settings: QueueSettings,
        worn: list[tuple[Fence, Stored]],
        reason: str,
        extra: int,
        error: str | None = None,
    ) -> list[Outcome]:
        """Move messages to the dead-letter queue, with `error` or the last one of each; a consumer's report without a
        text leaves the last one, or else the reason. `extra` receives were counted but not handed out."""
        broker = self._broker
        to = rules.dead_letter_queue(queue, settings)
        now = broker.clock.now()
        moves: list[tuple[Fence, Message]] = []
        for fence, stored in worn:
            why = stored.last_error(now) if error is None else error or stored.error or reason
            moves.append((fence, rules.bury(stored.message, to, reason, stored.receives - extra, now, why)))
        outcomes = await broker.move(queue, to, moves, event="dead", reason=reason, extra=extra)
        if "done" in outcomes:
            died = moves[outcomes.index("done")][1].dead
            broker.failures.died(queue, (died and died.error) or reason, now)
        self.left(queue, settings, [fence for fence, _ in moves])
        return outcomes

    def lease_expired(self, queue: str, count: int) -> None:
        """A change of the store found some leases expired."""
        self._broker.metrics.lease_expired(queue, count)
        self._broker.failures.failed(queue, LEASE_EXPIRED, count, self._broker.clock.now())

    def left(self, queue: str, settings: QueueSettings, fences: Sequence[Fence]) -> None:
        """Messages have left a queue, as far as their fences matched."""
        self.freed(queue, settings, len(fences))
        if settings.results:
            self._broker.results.finished(queue, [id for id, _ in fences])

    def freed(self, queue: str, settings: QueueSettings, count: int) -> None:
        """Some messages that may have been leased are not any more: others may be handed out in their place, by other
        brokers as well."""
        if settings.max_in_flight and count:
            self._broker.waiters.wake_each(queue)
            self._broker.store.hint(queue, count)

    async def fail(
        self, queue: str, leases: Sequence[Lease], error: str, delay: float | None = None, dead: bool = False
    ) -> list[Failed]:
        """Messages could not be processed: each is ready again after `delay`, or when the queue's `retry` says so. With
        `dead`, or once it has reached max_receives, it goes to the dead-letter queue. `error` stays with it."""
        broker = self._broker
        settings = await broker.catalog.require(queue)
        began = broker.clock.now()
        rules.check_batch(leases, "leases", broker.options.limits)
        rules.check_error(error)
        if delay is not None:
            rules.check_seconds(delay, "delay", 0, broker.options.limits.delay)
            if dead:
                text = "delay: given together with dead, and a rejected message is not delivered again; use one of them"
                raise InvalidRequest(text, field="delay")
        fences = rules.fences(leases)
        messages = await broker.store.messages.find(queue, [id for id, _ in fences])
        failed: dict[Fence, Failed] = {}
        final: dict[str, list[tuple[Fence, Stored]]] = {}
        again: dict[Fence, int] = {}
        for fence in dict.fromkeys(fences):
            stored = messages.get(fence[0])
            if stored is None or stored.receipt != fence[1]:
                failed[fence] = Failed("missing" if stored is None else "stale")
            elif (reason := rules.final_reason(stored.receives, settings, dead)) is not None:
                final.setdefault(reason, []).append((fence, stored))
            else:
                again[fence] = stored.receives
        for reason, worn in final.items():
            rules.check_name(rules.dead_letter_queue(queue, settings), "dead_letter_queue")
            buried = await self.bury(queue, settings, worn, reason, 0, error)
            for (fence, _), outcome in zip(worn, buried, strict=True):
                failed[fence] = _failed(outcome, Failed("dead"))
        if again:
            now = broker.clock.now()
            moments = dict.fromkeys(again.values(), now)
            for receives in moments:
                seconds = rules.retry_delay(settings.retry, receives, random.random()) if delay is None else delay  # noqa: S311
                moments[receives] += rules.micros(seconds)
            to = NewTime(now, release=True, error=error, by_receives=moments)
            change = Change(now, settings.history, "failed")
            outcomes = await broker.store.messages.reschedule(queue, list(again), to, change)
            broker.metrics.messages[queue, "failed"] += outcomes.count("done")
            self.freed(queue, settings, outcomes.count("done"))
            failed |= {
                fence: _failed(outcome, Failed("retried", moments[again[fence]]))
                for fence, outcome in zip(again, outcomes, strict=True)
            }
        found = list(failed)
        outcomes = ["done" if failed[fence].outcome in ("retried", "dead") else "stale" for fence in found]
        broker.consumers.settled(queue, found, outcomes, began, "failed")
        broker.failures.failed(queue, error, outcomes.count("done"), began)
        return [failed[fence] for fence in fences]

    async def release(
        self, queue: str, settings: QueueSettings, fences: list[Fence], delay: float, unused: bool = False
    ) -> dict[Fence, Outcome]:
        """Make messages ready after `delay`; bury those that have reached max_receives. The receives of `unused` ones
        are taken back instead."""
        broker = self._broker
        outcomes: dict[Fence, Outcome] = {}
        if settings.max_receives is not None and not unused:
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
            to = NewTime(now + rules.micros(delay), release=True, unused=unused)
            change = Change(now, settings.history, "released", extra=int(unused))
            done = await broker.store.messages.reschedule(queue, rest, to, change)
            outcomes.update(zip(rest, done, strict=True))
            broker.metrics.messages[queue, "released"] += done.count("done")
            self.freed(queue, settings, done.count("done"))
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
        group: str | None = None,
    ) -> T:
        """Repeat `attempt` whenever messages may be ready, until it is `done`, `wait` seconds have passed or the broker
        shuts down; return the last result. Raises as soon as `permit` does; a result of which the caller lost the right
        meanwhile is undone. `group` is that of a reader of claims."""
        broker = self._broker
        deadline = broker.clock.now() + rules.micros(wait)
        with broker.waiters.join(queue, consumer, group) as waiter:
            while True:
                if permit is not None:
                    permit()
                before = broker.clock.now()
                result = await attempt()
                if done(result):
                    broker.waiters.wake_next(queue, consumer)
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

    async def _select(self, queue: str, settings: QueueSettings, taken: list[Stored], take: Take) -> list[Stored]:
        """The taken messages that may be handed out; drop expired ones and bury those over max_receives."""
        if take.fit.allows_taken(taken):
            self._broker.metrics.messages[queue, "received"] += len(taken)
            return taken
        return (await self._discard(queue, settings, taken, take.now, extra=1))[0]

    async def discard(self, queue: str, settings: QueueSettings, unfit: list[Stored], now: int) -> list[Outcome]:
        """Drop or bury messages that were not taken; a leased one stays."""
        return (await self._discard(queue, settings, unfit, now, extra=0))[1]

    async def _discard(
        self, queue: str, settings: QueueSettings, messages: list[Stored], now: int, extra: int
    ) -> tuple[list[Stored], list[Outcome]]:
        """Drop or bury the messages that must not be handed out; return the others, and the outcomes for these. `extra`
        receives were counted but not handed out; with 0, the messages are not leased."""
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
        if extra:
            broker.metrics.messages[queue, "received"] += len(fit)
        outcomes: list[Outcome] = []
        for why, fenced in unfit.items():
            if why == "max_receives":
                outcomes += await self.bury(queue, settings, fenced, why, extra)
            else:
                change = Change(now, settings.history, "expired", why, extra)
                fences = [fence for fence, _ in fenced]
                dropped = await broker.store.messages.drop(queue, fences, change)
                broker.metrics.messages[queue, "expired"] += dropped.count("done")
                self.left(queue, settings, fences)
                outcomes += dropped
        return fit, outcomes

    async def _remove(self, queue: str, settings: QueueSettings, fit: list[Stored], now: int) -> list[Stored]:
        """At most once: delete messages before they are handed out, and return those that were deleted."""
        broker = self._broker
        remember = broker.results.of_removed(len(fit), settings, now)
        change = Change(now, settings.history, "acked", "at-most-once", remember=remember)
        fences = [(stored.message.id, stored.receipt or FREE) for stored in fit]
        outcomes = await broker.store.messages.drop(queue, fences, change)
        broker.metrics.messages[queue, "acked"] += outcomes.count("done")
        self.left(queue, settings, fences)
        return [stored for stored, outcome in zip(fit, outcomes, strict=True) if outcome == "done"]

    # Messages that reached no consumer

    def give_back(self, queue: str, leases: list[Lease]) -> None:
        """Release messages whose consumer disconnected before it got them."""
        self._spawn(self._broker.release(queue, leases))

    def give_back_taken(self, queue: str, taken: list[Stored]) -> None:
        """Release messages whose consumer lost its right to them meanwhile."""
        self.give_back(queue, [Lease(stored.message.id, stored.receipt or FREE) for stored in taken])

    async def _release_token(self, queue: str, token: str, until: int, counted: bool = False) -> None:
        """Release what was leased under a token by a call that was cancelled, or that lost its result because the store
        became unreachable."""
        broker = self._broker
        for _ in range(GIVE_BACK_TRIES):
            try:
                held = await broker.store.messages.held(queue, token, until)
                if held and broker.catalog.find(queue) is not None:
                    await broker.release(queue, [Lease(stored.message.id, token) for stored in held])
                    if not counted:  # the history has them
                        broker.metrics.messages[queue, "received"] += len(held)
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


def _failed(outcome: Outcome, done: Failed) -> Failed:
    """What became of a message that failed, by the outcome of the change: a message in a claim is not the caller's."""
    return done if outcome == "done" else Failed("missing" if outcome == "missing" else "stale")
