"""Results: what became of messages, kept for a while where the queue's setting `results` says so.

An ack, and the move to the dead-letter queue, record how a message was finished in the same change that removes it. A
call that waits for a result is woken by this broker's own changes, which name the messages. Other brokers on the same
database announce only the queue; then one look finds the results of all calls that wait for it.

Programs may also keep results under ids of their own (`put`): those of Celery's tasks and Dramatiq's actors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, UnsetType

from miniq.broker import rules
from miniq.broker.waiters import Permit, Sleeper
from miniq.errors import InvalidRequest, MiniQError, ResultsOff, TooLarge, require_moment, show
from miniq.json_values import check_depth
from miniq.message import EPOCH, Lease, Message, QueueSettings
from miniq.result import Finished, Progress, Unknown
from miniq.store.arguments import PutResult, Remember

if TYPE_CHECKING:
    from miniq.broker.broker import Broker


_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Results:
    """The results of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[str, dict[str, dict[Sleeper, None]]] = {}
        """By queue and message, the calls that wait."""
        self._looks: dict[str, asyncio.Task[None]] = {}
        """By queue, the look for results of other brokers that runs."""
        self._again: set[str] = set()
        """Queues to look for again."""

    # Writing

    def of_acks(self, leases: Sequence[Lease], settings: QueueSettings, now: int) -> Remember | None:
        """What an ack of leases is to keep; raises if a result is too large. Where none is kept, none is looked at."""
        if not settings.results:
            return None
        most = self._broker.options.limits.result_bytes
        each: list[Finished] = []
        for number, lease in enumerate(leases):
            result = None if lease.result is UNSET else bytes(lease.result)
            if result is not None and len(result) > most:
                field = f"leases[{number}].result"
                unit = "" if most % 1024 else f" ({most // 1024} KiB)"
                raise TooLarge(f"{field}: {len(result)} bytes; at most {most}{unit}", field=field)
            if result is not None:
                check_depth(result, f"leases[{number}].result")
            each.append(Finished("done", now, result))
        return Remember(each, now + rules.micros(settings.results))

    def of_removed(self, count: int, settings: QueueSettings, now: int) -> Remember | None:
        """What an ack of messages without results is to keep."""
        if not settings.results:
            return None
        return Remember([Finished("done", now)] * count, now + rules.micros(settings.results))

    def of_dead(self, letters: Iterable[Message], settings: QueueSettings, now: int) -> Remember | None:
        """What the move of messages to the dead-letter queue is to keep."""
        if not settings.results:
            return None
        each = [Finished("dead", now, error=None if letter.dead is None else letter.dead.error) for letter in letters]
        return Remember(each, now + rules.micros(settings.results))

    async def put(
        self,
        queue: str,
        id: str,
        result: Raw | UnsetType = UNSET,
        final: bool = True,
        ttl: float | None = None,
        replaces: datetime | None = None,
        new: bool = False,
    ) -> bool:
        """Keep a result under an id that the caller chose, for `ttl` seconds or as long as the queue keeps results; 0
        forgets it. One that is not `final` ends no wait. With `replaces`, the `finished_at` of a result, it is kept
        only instead of that, and as `new` only instead of none; False if it was not kept."""
        broker = self._broker
        if _ID.fullmatch(id) is None:
            text = f"id: {show(id)} is not a UUID in small letters, such as 0b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"
            raise InvalidRequest(text, field="id")
        if ttl is not None:
            rules.check_seconds(ttl, "ttl", 0, rules.YEARS_100)
        if new and replaces is not None:
            raise InvalidRequest("new: given together with replaces; use one of them", field="new")
        data = None if result is UNSET else bytes(result)
        most = broker.options.limits.body_bytes
        if data is not None and len(data) > most:
            raise TooLarge(f"result: {len(data)} bytes; at most {most}", field="result")
        if data is not None:
            check_depth(data, "result")
        settings = await broker.catalog.require(queue)
        self._check_on(queue, settings)
        now = broker.clock.now()
        expected = 0 if new else None
        if replaces is not None:
            expected = max(1, (require_moment(replaces, "replaces") - EPOCH) // timedelta(microseconds=1))
        at = now if not expected else max(now, expected + 1)  # which tells it from the one that it replaces
        seconds = settings.results if ttl is None else ttl
        finished = None
        if seconds:
            broker.store.check_space(len(data or b""), 1)
            finished = Finished("done" if final else "running", at, data)
        put = PutResult(now, finished, now + rules.micros(seconds), expected)
        done = await broker.store.results.put(queue, id, put)
        if done and final:
            self.finished(queue, [id])
        return done

    # Waiting

    def finished(self, queue: str, ids: Iterable[str]) -> None:
        """Messages have left a queue: wake the calls that wait for them."""
        waiting = self._waiting.get(queue)
        if waiting is not None:
            for id in ids:
                for sleeper in waiting.get(id, ()):
                    sleeper.wake()

    def wake(self, queue: str) -> None:
        """A queue was purged or deleted, a claim acked, or settings changed: the calls that wait for it look again."""
        self.finished(queue, list(self._waiting.get(queue, ())))

    def wake_all(self) -> None:
        """The broker is closing, or keys were revoked."""
        for queue in self._waiting:
            self.wake(queue)

    def look(self, queue: str) -> None:
        """Another broker has finished messages of a queue, or may have."""
        if queue not in self._waiting:
            return
        if queue in self._looks:
            self._again.add(queue)
            return
        task = self._looks[queue] = asyncio.create_task(self._look(queue))
        task.add_done_callback(lambda _: self._looks.pop(queue, None))

    def look_everywhere(self) -> None:
        """A hint of another broker may have been lost."""
        for queue in list(self._waiting):
            self.look(queue)

    async def _look(self, queue: str) -> None:
        broker = self._broker
        while (waiting := self._waiting.get(queue)) is not None:
            self._again.discard(queue)
            with suppress(MiniQError):
                self.finished(queue, await broker.store.results.find(queue, list(waiting), broker.clock.now()))
            if queue not in self._again:
                return

    async def stop(self) -> None:
        """End looks that run."""
        tasks = list(self._looks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Reading

    async def get(
        self, queue: str, id: str, wait: float = 0, permit: Permit | None = None, unknown: Unknown = "return"
    ) -> Progress:
        """What became of a message; with `wait`, once it is finished or that time is over, while there is a `permit`.
        An `unknown` one is waited for as well, if that says so."""
        broker = self._broker
        if unknown not in ("return", "wait"):
            raise InvalidRequest(f"unknown: {show(unknown)}; use return or wait", field="unknown")
        if wait:
            rules.check_seconds(wait, "wait", 0, broker.options.limits.wait)

        def goes_on(progress: Progress) -> bool:
            return not progress.is_final or (progress.status == "unknown" and unknown == "wait")

        progress = await self._find(queue, id)
        if not (wait and goes_on(progress)):
            return progress
        deadline = broker.clock.now() + rules.micros(wait)
        sleeper = Sleeper(broker.clock)
        waiting = self._waiting.setdefault(queue, {}).setdefault(id, {})
        waiting[sleeper] = None
        try:
            while True:
                if permit is not None:
                    permit()
                progress = await self._find(queue, id)
                if not goes_on(progress) or broker.clock.now() >= deadline or broker.is_closing:
                    break
                await sleeper.until(deadline)
                if broker.is_closing:
                    break
            if permit is not None:
                permit()
            return progress
        finally:
            del waiting[sleeper]
            if not waiting:
                del self._waiting[queue][id]
                if not self._waiting[queue]:
                    del self._waiting[queue]

    async def _find(self, queue: str, id: str) -> Progress:
        """What is known of a message now. One that is in the queue is not finished, whatever is kept of it: it was
        redriven."""
        broker = self._broker
        settings = await broker.catalog.require(queue)
        self._check_on(queue, settings)
        now = broker.clock.now()
        stored = (await broker.store.messages.find(queue, [id])).get(id)
        if stored is not None:
            if rules.expired(stored, settings, now):
                return Progress(id, "unknown")
            is_leased = stored.status(now) == "leased"
            return Progress(id, "running" if is_leased else "waiting", error=stored.last_error(now))
        finished = (await broker.store.results.find(queue, [id], now)).get(id)
        if finished is None:
            return Progress(id, "unknown")
        return Progress(id, finished.status, finished.result, finished.error, finished.finished_at)

    @staticmethod
    def _check_on(queue: str, settings: QueueSettings) -> None:
        if not settings.results:
            raise ResultsOff(
                f"queue: {queue!r} keeps no results; set `results` to the number of seconds to keep them",
                field="queue",
            )
