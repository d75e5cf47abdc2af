"""Claims of the embedded store: batches that readers take, read repeatedly, and ack as a whole.

A claim costs per block, not per message: neighbours in a block share one state, as with any lease. The claim's own
record has its size. A long claim is made and copied in several steps, so that other calls can go on; it is consistent
after every step. When it is acked, its messages leave the queue, and the records of their blocks are copied beside the
claim for as long as it is readable. A whole block that was committed from a stage is not copied: its record refers to
the staged block, which then belongs to the claim and is removed with it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from miniq.batch import Claim, ClaimGroup, Portion
from miniq.errors import StoreCorrupt
from miniq.message import NEVER, Message, PlainBatch, Stored
from miniq.store import transfer
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import UNFIT, Claimed, ClaimStore
from miniq.store.decisions import check_reader, claim_name, ended, marks, no_claim, plan_claim, size_of
from miniq.store.embedded import block_records, keys
from miniq.store.embedded.blocks import Block, HeldClaim, Readers, Shelf, check_there
from miniq.store.embedded.core import Core, Part
from miniq.store.embedded.failures import after_lease
from miniq.store.embedded.history import record_left, record_taken
from miniq.store.embedded.states import Run
from miniq.store.embedded.window import sizes_of

STEP_MESSAGES = 10_000
STEP_BYTES = 4 * 1024 * 1024


class Claims(Part, ClaimStore):
    """See `ClaimStore`."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._keeping: set[str] = set()
        """Queues that may have acked claims."""

    def load(self, shelf: Shelf) -> None:
        """Read the claims of a queue at start, after its states."""
        prefix = keys.of_queue(b"p", shelf.serial)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            name = key[len(prefix) :].decode()
            state = keys.decode_readers(value)
            shelf.readers[name] = Readers(name, state.epoch, state.acked, state.last, state.id)
        prefix = keys.of_queue(b"n", shelf.number)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            name, number = keys.read_claim_key(key)
            record = keys.decode_claim(value)
            if not record.tells_reader:
                record = replace(record, claim=replace(record.claim, reader=""))
            readers = shelf.readers[name]
            if record.claim.acked_at is not None:
                readers.kept[number] = record
                self._keeping.add(shelf.name)
                continue
            held = readers.held[number] = HeldClaim(record.claim, list(shelf.tokens.get(claim_name(name, number), ())))
            held.freeze()
            if not held.ends or held.ends[-1] != record.claim.messages:
                raise StoreCorrupt(
                    f"store: claim {number} of group {name!r} in queue {shelf.name!r} is not whole", field="store"
                )

    # The calls

    async def open(self, queue: str, group: str, id: str = "") -> ClaimGroup:
        shelf = self._core.shelf(queue)
        readers = shelf.readers.setdefault(group, Readers(group))
        readers.epoch += 1
        readers.id = readers.id or id
        self._save(shelf, readers)
        state = _state(readers)
        await self._commit.commit(sync=True)
        return state

    async def next(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        return await self._core.unless_emptied(queue, lambda shelf: self._next(shelf, group, asked))

    async def _next(self, shelf: Shelf, group: str, asked: NextClaim) -> Claimed:
        readers = shelf.readers.setdefault(group, Readers(group))
        async with readers.lock:
            check_there(shelf)
            held = [held.claim for held in readers.held.values()]
            plan = plan_claim(_state(readers, held), _readable(readers, asked.number, asked.now), asked)
            acked = await self._ack(shelf, readers, plan.ack, asked)
            if plan.give is not None:
                await self._commit.settle()
            if not plan.make:
                return Claimed(plan.give, readers.epoch, acked=acked)
            made, unfit = await self._make(shelf, readers, asked)
            return Claimed(made, readers.epoch, made is not None, acked, unfit)

    async def find(self, queue: str, group: str, number: int, now: int) -> Claim:
        readers = self._core.shelf(queue).readers.get(group) or Readers(group)
        claim = _readable(readers, number, now)
        if claim is None:
            raise no_claim(_state(readers), number)
        return claim

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        await self.find(queue, group, number, places.now)
        shelf, start, stop = self._core.shelf(queue), places.start, places.stop
        held = shelf.readers[group].held.get(number)
        portions: list[Portion] = []
        left = places.max_bytes
        for messages, receives in (
            self._kept_messages(shelf, group, number, start, stop)
            if held is None
            else self._held_messages(held, start, stop)
        ):
            size = size_of(messages)
            if size > left:
                count = _fitting(sizes_of(messages), left) or (0 if portions else 1)
                return [*portions, Portion(messages[:count], receives)] if count else portions
            left -= size
            portions.append(Portion(messages, receives))
        return portions

    async def mark(self, queue: str, group: str, number: int, reader: str) -> None:
        shelf = self._core.shelf(queue)
        readers = shelf.readers.get(group)
        held = None if readers is None else readers.held.get(number)
        if held is None or not held.ends:
            return
        if marks(held.claim, reader):
            held.claim = replace(held.claim, reader=reader)
            self._save_claim(shelf, group, held.claim)
            await self._commit.commit(sync=True)

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        return await self._core.unless_emptied(queue, lambda shelf: self._release(shelf, group, epoch, change))

    async def _release(self, shelf: Shelf, group: str, epoch: int | None, change: Change) -> int:
        readers = shelf.readers.get(group) or Readers(group)
        async with readers.lock:
            # Copies left by an interrupted ack must be on disk to be found and removed.
            await self._commit.settle()
            check_there(shelf)
            check_reader(_state(readers), epoch, 0)
            released = 0
            ops = self._commit.batch.ops
            for number, held in list(readers.held.items()):
                for run in held.runs:
                    if change.keep != "off":
                        sizes = self._window.sizes(run.block)
                        record_left(self._commit.batch, "released", shelf, run.block, run.places, sizes, change)
                    self._states.give(shelf, run.block, run.places, change.now, run.receives, error=run.error)
                    self._core.hint(shelf.name, run.block.owner or None, len(run.places))
                released += held.claim.messages
                ops.append((keys.claim_key(shelf.number, group, number), None))
                # The stages that copies refer to still belong to the queue.
                copies = keys.kept_prefix(shelf.number, group, number)
                ops += [(key, None) for key, _ in self._kv.scan(copies, keys.after(copies))]
            if readers.held:
                readers.held.clear()
                readers.acked = ended(_state(readers)).acked
                self._save(shelf, readers)
                await self._commit.commit(sync=True)
            return released

    async def groups(self, queue: str, now: int) -> list[ClaimGroup]:
        return _groups(self._core.shelf(queue), now)

    async def all_groups(self, now: int, held: bool = False) -> dict[str, list[ClaimGroup]]:
        self._commit.check()
        shelves = [(queue, shelf) for queue, shelf in self._core.shelves.items() if shelf.readers]
        groups = {queue: _groups(shelf, now, held) for queue, shelf in sorted(shelves, key=itemgetter(0))}
        return {queue: some for queue, some in groups.items() if some}

    def restore(self, shelf: Shelf, group: transfer.Readers) -> None:
        """Add a group from another store, where it held no claims."""
        readers = shelf.readers[group.group] = Readers(group.group, group.epoch, group.last, group.last, group.id)
        self._save(shelf, readers)

    def carry_over(self, old: Shelf, fresh: Shelf) -> None:
        """Carry the groups over when a queue is purged: their claims end, and numbers are not used again."""
        for name, readers in old.readers.items():
            if _is_real(readers):
                state = ended(_state(readers))
                kept = fresh.readers[name] = Readers(name, state.epoch, state.acked, state.last, state.id)
                self._save(fresh, kept)

    def tidy(self, now: int, limit: int) -> None:
        """Stage the removal of up to about `limit` records of expired acked claims."""
        for queue in list(self._keeping):
            shelf = self._core.shelves.get(queue)
            if shelf is None or not any(readers.kept for readers in shelf.readers.values()):
                self._keeping.discard(queue)
                continue
            for name, readers in shelf.readers.items():
                for number in [number for number, record in readers.kept.items() if record.until <= now]:
                    limit -= self._remove_kept(shelf, name, number, limit)
                    if limit <= 0:
                        return
                    self._commit.batch.ops.append((keys.claim_key(shelf.number, name, number), None))
                    del readers.kept[number]

    # Making

    async def _make(self, shelf: Shelf, readers: Readers, asked: NextClaim) -> tuple[Claim | None, list[Stored]]:
        number, now = asked.number, asked.now
        making = _Making(HeldClaim(Claim(number, 0, 0, now), []), claim_name(readers.name, number), asked)
        held = making.held
        self._states.wake(shelf, now)
        try:
            while True:
                more = self._gather(shelf, readers.name, making)
                if held.claim.messages:
                    # In the same batch as the states of its messages, so the claim is consistent after a crash.
                    self._save_claim(shelf, readers.name, held.claim)
                    if readers.last < number:
                        readers.last = number
                        readers.held[number] = held
                        self._save(shelf, readers)
                if not more:
                    break
                await asyncio.sleep(0)
                check_there(shelf)
        finally:
            held.freeze()
        if making.unfit:
            self._states.wake(shelf, now)
        if not held.claim.messages:
            return None, list(making.unfit.values())
        await self._commit.commit(sync=True)
        return held.claim, list(making.unfit.values())

    def _gather(self, shelf: Shelf, name: str, making: _Making) -> bool:
        """Put the next messages in line into a claim; whether there may be more for it."""
        claim, limit = making.held.claim, making.asked.limit
        before, count, size = claim.messages, claim.messages, claim.bytes
        full = False
        for lanes in self._window.lanes(shelf, making.asked.consumer):
            while not full and count - before < STEP_MESSAGES:
                picked = self._window.pick(shelf, lanes, limit - count, NEVER, True)
                if picked is None:
                    break
                block, places, old = picked
                for part in self._fit(shelf, making, block, places, old):
                    taken, bytes = self._freeze(shelf, name, making, block, part, old, size)
                    count += taken
                    size += bytes
                    if taken < len(part):
                        block.next = min(block.next, part.start + taken)
                        full = True
                        break
                self._release_memory(block)
                full = full or count == limit or len(making.unfit) >= UNFIT or making.met_again
            if full or count - before >= STEP_MESSAGES:
                break
        making.held.claim = replace(claim, messages=count, bytes=size)
        return not full and count - before >= STEP_MESSAGES

    def _fit(self, shelf: Shelf, making: _Making, block: Block, places: range, old: Run | None) -> list[range]:
        """The stretches of fit messages. The others keep their state and go back in line after the claim is made."""
        receives = 0 if old is None else old.receives
        fit, now = making.asked.fit, making.asked.now
        if block.sent_at and fit.allows_plain(block.sent_at, receives):
            return [places]
        messages = self._window.load(block)
        if isinstance(messages, PlainBatch) and fit.allows_plain(messages.sent_at, receives):
            return [places]
        parts: list[range] = []
        start = places.start
        for place in places:
            message = messages[place]
            if fit.refusal(message, receives, now) is None:
                continue
            if place > start:
                parts.append(range(start, place))
            start = place + 1
            making.met_again = making.met_again or message.id in making.unfit
            making.unfit[message.id] = self._states.failures.stored(shelf, block, place, message)
            if old is None:
                self._states.give(shelf, block, range(place, place + 1), message.due_at)
            else:
                self._states.give_again(shelf, block, place, old)
        if start < places.stop:
            parts.append(range(start, places.stop))
        return parts

    def _freeze(
        self, shelf: Shelf, name: str, making: _Making, block: Block, places: range, old: Run | None, size: int
    ) -> tuple[int, int]:
        """Put as many neighbours as fit into a claim that has `size` bytes: their number and bytes."""
        asked, total = making.asked, block.size
        if not total or len(places) < block.count or size + total > asked.max_bytes:
            sizes = self._window.sizes(block)[places.start : places.stop]
            total = sum(sizes)
            if size + total > asked.max_bytes:
                count = _fitting(sizes, asked.max_bytes - size) or (0 if making.held.runs else 1)
                if not count:
                    return 0, 0
                total = sum(sizes[:count])
                places = range(places.start, places.start + count)
        receives = 1 if old is None else old.receives + 1
        error = 0 if old is None else after_lease(old)
        run = self._states.give(shelf, block, places, NEVER, receives, making.receipt, name, asked.now, error)
        making.held.runs.append(run)
        if old is not None and old.receipt is not None:
            first = self._window.sizes(block)[places.start]
            self._lease_expired(shelf, block.id_at(places.start), first, old, Change(asked.now, asked.keep))
        if asked.keep != "off":
            messages = self._window.load(block)[places.start : places.stop]
            sizes = self._window.sizes(block)[places.start : places.stop]
            record_taken(self._commit.batch, messages, sizes, old, name, asked.now)
        return len(places), total

    def _release_memory(self, block: Block) -> None:
        """Release the messages of a block of which none is in line any more."""
        if block.fresh_from(block.next) == block.count and not any(run is not None and run.due for run in block.runs):
            self._window.forget(block)
            if block.arrives is None:
                block.sizes = None

    # Reading

    def _held_messages(self, held: HeldClaim, start: int, stop: int) -> Iterable[tuple[Sequence[Message], int]]:
        """The messages at some positions of a held claim, block by block, and how often they were received."""
        for index in range(bisect_right(held.ends, start), len(held.runs)):
            run = held.runs[index]
            begin = held.ends[index] - len(run.places)
            if begin >= stop:
                return
            places = run.places[max(0, start - begin) : stop - begin]
            yield self._window.peek(run.block)[places.start : places.stop], run.receives

    def _kept_messages(
        self, shelf: Shelf, name: str, number: int, start: int, stop: int
    ) -> Iterable[tuple[Sequence[Message], int]]:
        """The same for an acked claim."""
        prefix = keys.kept_prefix(shelf.number, name, number)
        first = self._kv.last(prefix, keys.kept_key(shelf.number, name, number, start + 1))
        for key, value in self._kv.scan(first or prefix, keys.kept_key(shelf.number, name, number, stop)):
            begin = int.from_bytes(key[-4:], "big")
            kept = keys.decode_kept(value)
            places = range(kept.start, kept.stop)[max(0, start - begin) : stop - begin]
            if places:
                yield block_records.decode_block(kept.block, self._kv.get)[places.start : places.stop], kept.receives

    # Ending

    async def _ack(self, shelf: Shelf, readers: Readers, numbers: range, asked: NextClaim) -> int:
        acked, now, keep_until = 0, asked.now, asked.keep_until
        change = Change(now, asked.keep)
        for number in numbers:
            held = readers.held[number]
            whole = await self._copy(shelf, readers, number, held) if keep_until > now else ()
            for block in whole:
                block.source = b""  # it belongs to the claim from now on
            touched: dict[Block, None] = {}
            for place, run in enumerate(held.runs):
                if asked.keep != "off":
                    sizes = self._window.sizes(run.block)
                    record_left(self._commit.batch, "acked", shelf, run.block, run.places, sizes, change)
                self._ledger.remove_run(shelf, run, 0 if place else held.claim.bytes)
                touched[run.block] = None
            self._ledger.mend(shelf, touched)
            del readers.held[number]
            readers.acked = number
            key = keys.claim_key(shelf.number, readers.name, number)
            if keep_until > now:
                record = keys.ClaimRecord(replace(held.claim, acked_at=now), keep_until, True)
                readers.kept[number] = record
                self._keeping.add(shelf.name)
                self._commit.batch.ops.append((key, keys.encode(record)))
            else:
                self._commit.batch.ops.append((key, None))
            self._save(shelf, readers)
            acked += held.claim.messages
        if acked:
            await self._commit.commit(sync=True)
            check_there(shelf)
        return acked

    async def _copy(self, shelf: Shelf, readers: Readers, number: int, held: HeldClaim) -> list[Block]:
        """Copy the messages of a claim beside it. The copies have no effect until the claim is acked, and are
        overwritten if the ack has to start again. Returns the blocks of which only the reference to a stage was
        copied."""
        batch = self._commit.batch
        size = 0
        whole: list[Block] = []
        for run, end in zip(held.runs, held.ends, strict=True):
            if size > STEP_BYTES:
                batch.large = True
                await self._commit.commit(sync=False)
                check_there(shelf)
                batch, size = self._commit.batch, 0
            value = self._window.record(run.block)
            if block_records.staged_in(value) is not None and len(run.places) == run.block.count:
                whole.append(run.block)
            elif block_records.source_of(value) is not None:
                value = block_records.encode_block(block_records.decode_block(value, self._kv.get))
            kept = keys.KeptRecord(run.places.start, run.places.stop, run.receives, value)
            key = keys.kept_key(shelf.number, readers.name, number, end - len(run.places))
            batch.ops.append((key, keys.encode(kept)))
            size += len(value)
        return whole

    def _remove_kept(self, shelf: Shelf, name: str, number: int, limit: int) -> int:
        """Stage the removal of up to `limit` copied records of an acked claim; returns how many."""
        removed = 0
        prefix = keys.kept_prefix(shelf.number, name, number)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            if removed == limit:
                break
            self._commit.batch.ops.append((key, None))
            if (staged := block_records.staged_in(keys.decode_kept(value).block)) is not None:
                self._commit.batch.ops.append((staged.at, None))
            removed += 1
        return removed

    def _save(self, shelf: Shelf, readers: Readers) -> None:
        record = keys.ReadersRecord(readers.epoch, readers.acked, readers.last, readers.id)
        self._commit.batch.ops.append((keys.readers_key(shelf.serial, readers.name), keys.encode(record)))

    def _save_claim(self, shelf: Shelf, group: str, claim: Claim) -> None:
        record = keys.ClaimRecord(claim, tells_reader=True)
        self._commit.batch.ops.append((keys.claim_key(shelf.number, group, claim.number), keys.encode(record)))


class _Making(Struct):
    """A claim that is being made."""

    held: HeldClaim
    receipt: str
    asked: NextClaim
    unfit: dict[str, Stored] = {}
    met_again: bool = False
    """Whether a skipped message came back in line before the claim was complete."""


def _state(readers: Readers, claims: Sequence[Claim] = ()) -> ClaimGroup:
    return ClaimGroup(readers.name, readers.epoch, readers.acked, readers.last, list(claims), readers.id)


def _readable(readers: Readers, number: int, now: int) -> Claim | None:
    """The claim with this number if it is readable."""
    held, kept = readers.held.get(number), readers.kept.get(number)
    if held is not None and held.ends:
        return held.claim
    return kept.claim if kept is not None and kept.until > now else None


def _is_real(readers: Readers) -> bool:
    """Whether the group has a record; a rejected call creates none."""
    return bool(readers.epoch or readers.last)


def _fitting(sizes: Sequence[int], left: int) -> int:
    """How many of the first messages fit into `left` bytes."""
    return bisect_right(list(accumulate(sizes)), left)


def _groups(shelf: Shelf, now: int, held: bool = False) -> list[ClaimGroup]:
    """See `ClaimStore.all_groups`."""
    groups = []
    for _, readers in sorted(shelf.readers.items()):
        claims = [open_claim.claim for open_claim in readers.held.values() if open_claim.ends]
        if not held:
            claims += [record.claim for record in readers.kept.values() if record.until > now]
        if _is_real(readers) and (claims or not held):
            claims.sort(key=lambda claim: claim.number)
            groups.append(_state(readers, claims))
    return groups
