"""The claims of the oracle."""

from __future__ import annotations

from msgspec.structs import replace

from miniq.batch import Claim, ClaimGroup, Portion
from miniq.message import NEVER, Stored
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import UNFIT, Claimed, ClaimStore
from miniq.store.decisions import Budget, check_reader, claim_name, marks, no_claim, plan_claim
from tests.oracle.shelves import Readers, Shelves


class Claims(ClaimStore):
    """See `ClaimStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    async def open(self, queue: str, group: str, id: str = "") -> ClaimGroup:
        readers = self._shelves[queue].readers.setdefault(group, Readers(ClaimGroup(group)))
        readers.epoch += 1
        readers.id = readers.id or id
        return ClaimGroup(group, readers.epoch, readers.acked, readers.last, id=readers.id)

    async def next(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        shelf = self._shelves[queue]
        readers = self._readers(queue, group)
        plan = plan_claim(readers.state(asked.now), readers.readable(asked.number, asked.now), asked)
        shelf.readers[group] = readers
        change = Change(asked.now, asked.keep, "acked")
        acked = 0
        for number in plan.ack:
            for stored in readers.content[number]:
                self._shelves.leave(shelf, shelf.rows[stored.message.id], change, stored.receipt or "")
            readers.claims[number] = replace(readers.claims[number], acked_at=asked.now)
            readers.kept[number] = asked.keep_until
            readers.acked = number
            acked += len(readers.content[number])
        if not plan.make:
            return Claimed(plan.give, readers.epoch, acked=acked)
        taken, unfit, size = self._make(queue, group, asked)
        if not taken:
            return Claimed(None, readers.epoch, acked=acked, unfit=unfit)
        readers.last = asked.number
        readers.content[asked.number] = taken
        claim = readers.claims[asked.number] = Claim(asked.number, len(taken), size, asked.now)
        return Claimed(claim, readers.epoch, True, acked, unfit)

    def _make(self, queue: str, group: str, asked: NextClaim) -> tuple[list[Stored], list[Stored], int]:
        """Lease messages for a new claim: the messages, the unfit ones that were skipped, and the claim's size."""
        taken: list[Stored] = []
        unfit: list[Stored] = []
        budget = Budget(asked.limit, asked.max_bytes)
        change = Change(asked.now, asked.keep)
        for row in self._shelves[queue].line(asked.consumer, asked.now):
            if len(taken) == asked.limit or len(unfit) == UNFIT:
                break
            if asked.fit.refusal(row.message, row.receives, asked.now) is not None:
                unfit.append(row.stored())
            elif budget.admits(row.message.size):
                taken.append(self._shelves.lease(row, NEVER, claim_name(group, asked.number), group, change))
            else:
                break
        return taken, unfit, budget.bytes

    async def find(self, queue: str, group: str, number: int, now: int) -> Claim:
        readers = self._readers(queue, group)
        claim = readers.readable(number, now)
        if claim is None:
            raise no_claim(readers.state(now), number)
        return claim

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        await self.find(queue, group, number, places.now)
        portions: list[Portion] = []
        budget = Budget(places.stop, places.max_bytes)
        for stored in self._readers(queue, group).content[number][places.start : places.stop]:
            if not budget.admits(stored.message.size):
                break
            portions.append(Portion([stored.message], stored.receives))
        return portions

    async def mark(self, queue: str, group: str, number: int, reader: str) -> None:
        claims = self._readers(queue, group).claims
        if number in claims and marks(claims[number], reader):
            claims[number] = replace(claims[number], reader=reader)

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        shelf = self._shelves[queue]
        readers = self._readers(queue, group)
        check_reader(readers.state(change.now), epoch, 0)
        released = 0
        for number in range(readers.acked + 1, readers.last + 1):
            for stored in readers.content[number]:
                row = shelf.rows[stored.message.id]
                self._shelves.record(change.keep, row.left("released", change.now))
                self._shelves.come_back(row, change.now)
            released += len(readers.content[number])
            readers.forget(number)
        readers.acked = readers.last
        return released

    async def groups(self, queue: str, now: int) -> list[ClaimGroup]:
        groups = sorted(self._shelves[queue].readers.items())
        return [readers.state(now) for _, readers in groups if readers.epoch or readers.last]

    async def all_groups(self, now: int, held: bool = False) -> dict[str, list[ClaimGroup]]:
        found: dict[str, list[ClaimGroup]] = {}
        for queue in sorted(self._shelves):
            for group in await self.groups(queue, now):
                open_claims = [claim for claim in group.claims if claim.acked_at is None]
                if not held:
                    found.setdefault(queue, []).append(group)
                elif open_claims:
                    found.setdefault(queue, []).append(replace(group, claims=open_claims))
        return found

    def _readers(self, queue: str, group: str) -> Readers:
        return self._shelves[queue].readers.get(group) or Readers(ClaimGroup(group))
