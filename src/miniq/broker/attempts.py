"""Receives that can be repeated: a consumer that lost the answer asks again under the same attempt id, and gets the
same messages under the same receipts, leased anew.

Only this broker knows the attempts, for `WINDOW` and the last `ATTEMPTS` of them. What it knows is compared with the
store first: once a message is deleted, or its lease has changed or is over, a call under the id is a new receive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from miniq.broker.waiters import Permit
from miniq.message import SECOND, Lease, Leased, Stored

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

WINDOW = 300 * SECOND
ATTEMPTS = 10_000


class _Attempt(Struct):
    """What a receive has leased, when these leases end, and until when it can be repeated."""

    leases: list[Lease]
    visible_at: int
    until: int
    lock: asyncio.Lock
    """Held while it is repeated."""


class Attempts:
    """The receives of a broker that were made under an attempt id."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._attempts: dict[tuple[str, str], _Attempt] = {}
        """By queue and id, oldest first."""

    async def receive(
        self,
        attempt: str,
        queue: str,
        *,
        max: int = 1,
        visibility_timeout: float | None = None,
        wait: float = 0,
        permit: Permit | None = None,
    ) -> Leased:
        """Repeat the receive that was made under this attempt id, if that is possible; else receive as
        `Broker.receive` does."""
        broker, key = self._broker, (queue, attempt)
        known = self._attempts.get(key)
        if known is not None:
            async with known.lock:
                repeated = await self._repeat(queue, known, visibility_timeout)
            if repeated:
                return Leased(repeated)
            if self._attempts.get(key) is known:
                del self._attempts[key]
        taken = await broker.receive(queue, max=max, visibility_timeout=visibility_timeout, wait=wait, permit=permit)
        if taken:
            self._remember(key, taken)
        return taken

    async def _repeat(self, queue: str, attempt: _Attempt, visibility_timeout: float | None) -> list[Stored]:
        """The messages of an attempt, leased anew; none unless all are as it left them."""
        broker = self._broker
        if broker.clock.now() >= attempt.until:
            return []
        found = await broker.store.messages.find(queue, [lease.id for lease in attempt.leases])
        for lease in attempt.leases:
            stored = found.get(lease.id)
            if stored is None or (stored.receipt, stored.visible_at) != (lease.receipt, attempt.visible_at):
                return []
        if attempt.visible_at <= broker.clock.now():
            return []
        leases = attempt.leases
        until, outcomes = await broker.extend(queue, leases, visibility_timeout, late=False)
        attempt.leases = [lease for lease, outcome in zip(leases, outcomes, strict=True) if outcome == "done"]
        attempt.visible_at = until
        return [replace(found[lease.id], visible_at=until) for lease in attempt.leases]

    def _remember(self, key: tuple[str, str], taken: Leased) -> None:
        now, attempts = self._broker.clock.now(), self._attempts
        while attempts and (len(attempts) >= ATTEMPTS or next(iter(attempts.values())).until <= now):
            del attempts[next(iter(attempts))]
        leases = [Lease(stored.message.id, stored.receipt or "") for stored in taken]
        attempts.pop(key, None)  # the latest is the last
        attempts[key] = _Attempt(leases, taken[0].visible_at, now + WINDOW, asyncio.Lock())
