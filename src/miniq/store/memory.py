"""The shortest correct store, and the oracle of the tests. Nothing survives the process."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Iterator, Sequence

from msgspec.structs import replace

from miniq.errors import InvalidRequest
from miniq.ids import RUN, from_spans, id_in_range, spans
from miniq.message import (
    NEVER,
    Claim,
    ClaimGroup,
    Committed,
    Counts,
    Event,
    EventName,
    History,
    HistoryPage,
    HistoryRecord,
    HistorySpan,
    Message,
    Outcome,
    Page,
    PlainBatch,
    Portion,
    QueueSettings,
    Stage,
    StageName,
    Status,
    Stored,
)
from miniq.store import events, transfer
from miniq.store.contract import (
    UNFIT,
    ByName,
    Claimed,
    Edit,
    Fence,
    Fit,
    Once,
    Reserve,
    Room,
    SingleProcessStore,
    check_reader,
    check_room,
    claim_name,
    committed,
    fence_outcome,
    no_claim,
    no_stage,
    stands_alone,
    stretches,
)
from miniq.store.names import call_record, commit_name, is_call
from miniq.store.transfer import Item, one_by_one, portions


class _Row:
    """A message and its state."""

    __slots__ = ("consumer", "message", "receipt", "receives", "taken_at", "visible_at")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.visible_at = message.due_at
        self.receives = 0
        self.receipt: str | None = None
        self.consumer: str | None = None
        self.taken_at: int | None = None

    def stored(self) -> Stored:
        return Stored(self.message, self.visible_at, self.receives, self.receipt, self.consumer)

    def held(self, now: int) -> int | None:
        return None if self.receipt is None or self.taken_at is None else now - self.taken_at


class _Claims:
    """The claims of a group. What is in one is kept as it was when it was made."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.epoch = self.acked = self.last = 0
        self.content: dict[int, list[Stored]] = {}
        self.claims: dict[int, Claim] = {}
        self.kept: dict[int, int] = {}
        """Until when an acked claim can be read."""

    def readable(self, number: int, now: int) -> bool:
        return number in self.claims and self.kept.get(number, NEVER) > now

    def state(self, now: int) -> ClaimGroup:
        claims = [claim for number, claim in sorted(self.claims.items()) if self.readable(number, now)]
        return ClaimGroup(self.group, self.epoch, self.acked, self.last, claims)

    def forget(self, number: int) -> None:
        del self.claims[number], self.content[number]
        self.kept.pop(number, None)


class _Stage:
    """The parts of a stage by number, and until when each is kept."""

    def __init__(self, now: int) -> None:
        self.made_at = now
        self.until = 0
        self.parts: dict[int, list[Message]] = {}

    def messages(self) -> list[Message]:
        return [message for _, part in sorted(self.parts.items()) for message in part]

    def state(self, name: StageName) -> Stage:
        messages = self.messages()
        alone = sum(map(stands_alone, messages))
        size = sum(message.size for message in messages)
        return Stage(name, len(self.parts), len(messages), size, self.made_at, self.until, alone)


class _Queue:
    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.rows: dict[str, _Row] = {}
        self.order: list[tuple[int, str]] = []
        """(-priority, id) of every message."""
        self.heads: dict[str, str] = {}
        """The head of each group."""
        self.dedup: dict[str, tuple[str, int]] = {}
        self.claims: dict[str, _Claims] = {}
        self.stages: dict[StageName, _Stage] = {}
        self.bytes = 0

    def add(self, message: Message) -> _Row:
        row = self.rows[message.id] = _Row(message)
        insort(self.order, (-message.priority, message.id))
        self.bytes += message.size
        if message.group is not None:
            self.heads.setdefault(message.group, message.id)
        return row

    def remove(self, id: str) -> _Row:
        row = self.rows.pop(id)
        key = (-row.message.priority, id)
        del self.order[bisect_left(self.order, key)]
        self.bytes -= row.message.size
        return row

    def line(self, consumer: str | None, now: int) -> Iterator[_Row]:
        """What a consumer may take, in queue order."""
        for _, id in self.order:
            row = self.rows[id]
            message = row.message
            if row.visible_at > now or (message.recipient is not None and message.recipient != consumer):
                continue
            if message.group is None or self.heads[message.group] == id:
                yield row

    def advance(self, group: str | None) -> bool:
        """Choose the next head of a group whose head has left; True if there is one."""
        if group is None or self.heads.get(group) in self.rows:
            return False
        rest = [id for id, row in self.rows.items() if row.message.group == group]
        if rest:
            self.heads[group] = min(rest)
        else:
            self.heads.pop(group, None)
        return bool(rest)

    def check(self, fence: Fence, now: int) -> Outcome:
        id, receipt = fence
        row = self.rows.get(id)
        return fence_outcome(None if row is None else row.stored(), receipt, now)


class MemoryStore(SingleProcessStore):
    """Everything in dicts; see `Store` for what each method promises."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: ByName[_Queue] = ByName()
        self._history: list[Event] = []
        self._first = 1
        self._last_id = ""
        self._records: dict[str, dict[str, bytes]] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def failure(self) -> Exception | None:
        return None

    async def queues(self) -> dict[str, QueueSettings]:
        return {name: queue.settings for name, queue in self._queues.items()}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        if name in self._queues:
            self._queues[name].settings = settings
        else:
            self._queues[name] = _Queue(settings)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        shelf = self._queues.get(name)
        if (None if shelf is None else shelf.settings) != was:
            return False
        await self.save_queue(name, settings)
        return True

    async def delete_queue(self, name: str) -> bool:
        return self._queues.pop(name, None) is not None

    async def records(self, kind: str) -> dict[str, bytes]:
        return dict(self._records.get(kind, {}))

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        records = self._records.setdefault(kind, {})
        if value is None:
            records.pop(name, None)
        else:
            records[name] = value

    async def last_id(self) -> str:
        return self._last_id

    async def put(
        self,
        messages: Sequence[Message],
        *,
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None = None,
    ) -> list[str]:
        queue = self._queues[messages[0].queue]
        if call is not None:
            given, until = queue.dedup.get(call_record(call.name), ("", 0))
            if until > now:
                return given.split(",")
        fresh: list[Message] = []
        known: dict[str, str] = {}
        ids: list[str] = []
        for message in messages:
            dedup_id = message.dedup_id
            if dedup_id is not None:
                id, until = queue.dedup.get(dedup_id, ("", 0))
                first = known.get(dedup_id) or (id if until > now else None)
                if first is not None:
                    ids.append(first)
                    continue
                known[dedup_id] = message.id
            ids.append(message.id)
            fresh.append(message)
        if room is not None:
            check_room(room, len(queue.rows), queue.bytes, fresh)
        for message in fresh:
            queue.add(message)
            self._log(keep, events.sent(message, now, None, keep))
            self._last_id = max(self._last_id, message.id)
        for dedup_id, id in known.items():
            queue.dedup[dedup_id] = (id, dedup_until)
        if call is not None:
            queue.dedup[call_record(call.name)] = (",".join(ids), call.until)
        for message in fresh:
            self.on_ready(message.queue, message.recipient, 1)
        return ids

    async def put_each(
        self, parcel: PlainBatch, calls: Sequence[str | None], *, now: int, until: int, keep: History
    ) -> list[list[str]]:
        answers: list[list[str]] = []
        for message, name in zip(parcel, calls, strict=True):
            call = None if name is None else Once(name, until)
            answers.append(await self.put([message], now=now, dedup_until=0, room=None, keep=keep, call=call))
        return answers

    async def take(
        self,
        queue: str,
        *,
        limit: int,
        max_bytes: int,
        now: int,
        until: int,
        token: str,
        consumer: str | None,
        keep: History,
    ) -> list[Stored]:
        taken: list[Stored] = []
        size = 0
        shelf = self._queues[queue]
        for row in shelf.line(consumer, now):
            size += row.message.size
            if (taken and size > max_bytes) or len(taken) == limit:
                break
            taken.append(self._lease(row, now, until, token, consumer, keep))
        return taken

    async def drop(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
    ) -> list[Outcome]:
        shelf = self._queues[queue]
        outcomes: list[Outcome] = []
        for fence in fences:
            outcome = shelf.check(fence, now)
            if outcome == "done":
                row = shelf.remove(fence[0])
                self._log(keep, self._left(event, row, now, reason, row.held(now)))
                self._advance(queue, shelf, row.message.group)
            outcomes.append(outcome)
        return outcomes

    async def reschedule(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        visible_at: int,
        release: bool,
        event: EventName | None,
        keep: History,
    ) -> list[Outcome]:
        shelf = self._queues[queue]
        outcomes: list[Outcome] = []
        for fence in fences:
            outcome = shelf.check(fence, now)
            if outcome == "done":
                row = shelf.rows[fence[0]]
                if event is not None:
                    self._log(keep, self._left(event, row, now, None, row.held(now)))
                row.visible_at = visible_at
                if release:
                    row.receipt = row.consumer = row.taken_at = None
                self.on_ready(queue, row.message.recipient, 1)
            outcomes.append(outcome)
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        shelf = self._queues[queue]
        outcome = shelf.check(fence, now)
        if outcome == "done":
            old = shelf.remove(fence[0])
            row = shelf.add(edit.apply(old.message))
            row.visible_at, row.receives = old.visible_at, old.receives
            row.receipt, row.consumer, row.taken_at = old.receipt, old.consumer, old.taken_at
            if edit.visible_at is not None:
                row.visible_at = edit.visible_at
                row.receipt = row.consumer = row.taken_at = None
                self.on_ready(queue, row.message.recipient, 1)
            self._log(keep, events.edited(row.message, now, row.receives, keep))
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
        keep_to: History,
    ) -> list[Outcome]:
        shelf = self._queues[queue]
        targets = [self._queues[message.queue] for _, message in moves]  # all there, or nothing is changed
        outcomes: list[Outcome] = []
        for (fence, message), target in zip(moves, targets, strict=True):
            outcome = shelf.check(fence, now)
            if outcome == "done":
                row = shelf.remove(fence[0])
                self._log(keep, self._left(event, row, now, reason, row.held(now)))
                self._advance(queue, shelf, row.message.group)
                target.add(message)
                self._log(keep_to, events.sent(message, now, event, keep_to))
                self.on_ready(message.queue, message.recipient, 1)
            outcomes.append(outcome)
        return outcomes

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        old = self._queues[queue]
        fresh = self._queues[queue] = _Queue(old.settings)
        fresh.dedup = old.dedup
        fresh.stages = old.stages
        for group, claims in old.claims.items():
            kept = fresh.claims[group] = _Claims(group)
            kept.epoch, kept.acked, kept.last = claims.epoch, claims.last, claims.last
        if old.rows:
            self._log(keep, events.purged(queue, len(old.rows), old.bytes, now))
        return len(old.rows)

    async def find(self, queue: str, id: str) -> Stored | None:
        row = self._queues[queue].rows.get(id)
        return None if row is None else row.stored()

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        shelf = self._queues[queue]
        start = 0
        if after is not None:
            priority, dot, id = after.partition(".")
            if not dot or not priority.isdigit():
                raise InvalidRequest(f"after: {after!r} is not a cursor given as `next`", field="after")
            start = bisect_left(shelf.order, (-int(priority), id + "\0"))
        found: list[Stored] = []
        size = 0
        for key in shelf.order[start:]:
            stored = shelf.rows[key[1]].stored()
            if status is not None and stored.status(now) != status:
                continue
            size += stored.message.size
            if len(found) == limit or (found and size > max_bytes):
                last = found[-1].message
                return Page(found, f"{last.priority}.{last.id}")
            found.append(stored)
        return Page(found, None)

    async def held(self, token: str) -> list[Stored]:
        rows = [row for queue in self._queues.values() for row in queue.rows.values() if row.receipt == token]
        return sorted((row.stored() for row in rows), key=lambda stored: stored.message.id)

    async def counts(self, queue: str, *, now: int) -> Counts:
        shelf = self._queues[queue]
        tally: dict[Status, int] = {"ready": 0, "delayed": 0, "leased": 0}
        for row in shelf.rows.values():
            tally[row.stored().status(now)] += 1
        # Of a group only the head can be taken next.
        ready = (row.message for row in shelf.rows.values() if row.visible_at <= now and row.message.recipient is None)
        heads = (m for m in ready if m.group is None or shelf.heads[m.group] == m.id)
        oldest = min((message.sent_at // 1000 * 1000 for message in heads), default=None)
        return Counts(tally["ready"], tally["delayed"], tally["leased"], shelf.bytes, oldest)

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        rows = self._queues[queue].rows.values()
        return min((row.visible_at for row in rows if now < row.visible_at < NEVER), default=None)

    async def open_claims(self, queue: str, group: str) -> ClaimGroup:
        claims = self._queues[queue].claims.setdefault(group, _Claims(group))
        claims.epoch += 1
        return ClaimGroup(group, claims.epoch, claims.acked, claims.last)

    async def claim(
        self,
        queue: str,
        group: str,
        *,
        after: int,
        epoch: int | None,
        limit: int,
        max_bytes: int,
        fit: Fit,
        consumer: str | None,
        now: int,
        keep_until: int,
        keep: History,
    ) -> Claimed:
        shelf = self._queues[queue]
        claims = shelf.claims.get(group) or _Claims(group)
        check_reader(claims.state(now), epoch, after)
        number = after + 1
        if limit and number <= claims.last and not claims.readable(number, now):
            raise no_claim(claims.state(now), number)
        shelf.claims[group] = claims
        acked = 0
        for old in range(claims.acked + 1, after + 1):
            for stored in claims.content[old]:
                row = shelf.remove(stored.message.id)
                self._log(keep, self._left("acked", row, now, None, row.held(now)))
                self._advance(queue, shelf, row.message.group)
            claims.claims[old] = replace(claims.claims[old], acked_at=now)
            claims.kept[old] = keep_until
            claims.acked = old
            acked += len(claims.content[old])
        if not limit:
            return Claimed(None, claims.epoch, acked=acked)
        if number in claims.claims:
            return Claimed(claims.claims[number], claims.epoch, acked=acked)
        taken: list[Stored] = []
        unfit: list[Stored] = []
        size = 0
        for row in shelf.line(consumer, now):
            if not fit.takes(row.message, row.receives, now):
                unfit.append(row.stored())
                if len(unfit) == UNFIT:
                    break
                continue
            if taken and size + row.message.size > max_bytes:
                break
            size += row.message.size
            taken.append(self._lease(row, now, NEVER, claim_name(group, number), group, keep))
            if len(taken) == limit:
                break
        if not taken:
            return Claimed(None, claims.epoch, acked=acked, unfit=unfit)
        claims.last = number
        claims.content[number] = taken
        claims.claims[number] = Claim(number, len(taken), size, now)
        return Claimed(claims.claims[number], claims.epoch, True, acked, unfit)

    async def find_claim(self, queue: str, group: str, number: int, *, now: int) -> Claim:
        claims = self._queues[queue].claims.get(group) or _Claims(group)
        if not claims.readable(number, now):
            raise no_claim(claims.state(now), number)
        return claims.claims[number]

    async def claimed(
        self, queue: str, group: str, number: int, *, start: int, stop: int, max_bytes: int, now: int
    ) -> list[Portion]:
        await self.find_claim(queue, group, number, now=now)
        found: list[Portion] = []
        size = 0
        for stored in self._queues[queue].claims[group].content[number][start:stop]:
            size += stored.message.size
            if found and size > max_bytes:
                break
            found.append(Portion([stored.message], stored.receives))
        return found

    async def release_claims(self, queue: str, group: str, *, epoch: int | None, now: int, keep: History) -> int:
        shelf = self._queues[queue]
        claims = shelf.claims.get(group) or _Claims(group)
        check_reader(claims.state(now), epoch, 0)
        released = 0
        for number in range(claims.acked + 1, claims.last + 1):
            for stored in claims.content[number]:
                row = shelf.rows[stored.message.id]
                self._log(keep, self._left("released", row, now, None, row.held(now)))
                row.visible_at = now
                row.receipt = row.consumer = row.taken_at = None
                self.on_ready(queue, row.message.recipient, 1)
            released += len(claims.content[number])
            claims.forget(number)
        claims.acked = claims.last
        return released

    async def claim_groups(self, queue: str, *, now: int) -> list[ClaimGroup]:
        groups = sorted(self._queues[queue].claims.items())
        return [claims.state(now) for _, claims in groups if claims.epoch or claims.last]

    async def stage(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], *, now: int, until: int
    ) -> tuple[int, int]:
        stages = self._queues[queue].stages
        if name in stages and stages[name].until <= now:
            del stages[name]
        stage = stages.setdefault(name, _Stage(now))
        if part not in stage.parts:
            stage.parts[part] = list(messages)
            stage.until = max(stage.until, until)
        kept = stage.parts[part]
        return len(kept), sum(message.size for message in kept)

    async def commit_stages(
        self,
        queue: str,
        job: str,
        batch: str,
        stages: Sequence[tuple[str, str]],
        *,
        now: int,
        until: int,
        reserve: Reserve,
        dedup_until: int,
        room: Room | None,
        keep: History,
    ) -> Committed:
        shelf = self._queues[queue]
        call = call_record(commit_name(job, batch))
        given, standing = shelf.dedup.get(call, ("", 0))
        if standing > now:
            return Committed(int(given), repeated=True)
        fresh: list[tuple[int, Message]] = []
        known: set[str] = set()
        width = 0
        for partition, attempt in stages:
            stage = shelf.stages.get(StageName(job, batch, partition, attempt))
            if stage is None or stage.until <= now:
                raise no_stage(job, batch, (partition, attempt))
            for _, part in sorted(stage.parts.items()):
                for stretch in stretches(part):
                    for place, message in enumerate(part[stretch.start : stretch.stop]):
                        dedup_id = message.dedup_id
                        if dedup_id is not None:
                            if dedup_id in known or shelf.dedup.get(dedup_id, ("", 0))[1] > now:
                                continue
                            known.add(dedup_id)
                        fresh.append((width + place, message))
                    width += RUN
        if room is not None:
            check_room(room, len(shelf.rows), shelf.bytes, [message for _, message in fresh])
        first = reserve(width) if fresh else ""
        for place, message in fresh:
            made = committed(message, id_in_range(first, place), now)
            shelf.add(made)
            self._log(keep, events.sent(made, now, None, keep))
            self._last_id = max(self._last_id, made.id)
            if made.dedup_id is not None:
                shelf.dedup[made.dedup_id] = (made.id, dedup_until)
        shelf.dedup[call] = (str(len(fresh)), until)
        await self.discard_stages(queue, job, batch)
        for _, message in fresh:
            self.on_ready(queue, message.recipient, 1)
        return Committed(len(fresh))

    async def discard_stages(self, queue: str, job: str, batch: str) -> int:
        stages = self._queues[queue].stages
        gone = [name for name in stages if (name.job, name.batch) == (job, batch)]
        for name in gone:
            del stages[name]
        return len(gone)

    async def stages(self, queue: str, *, now: int) -> list[Stage]:
        stages = self._queues[queue].stages
        names = sorted(stages, key=lambda name: (name.job, name.batch, name.partition, name.attempt))
        return [stages[name].state(name) for name in names if stages[name].until > now]

    async def history(self, *, after: int, limit: int, queue: str | None) -> HistoryPage:
        found: list[HistoryRecord] = []
        start = max(0, after + 1 - self._first)
        for offset, event in enumerate(self._history[start:], self._first + start):
            if len(found) == limit:
                break
            after = offset
            if queue is None or event.queue == queue:
                found.append(HistoryRecord(offset, event))
        return HistoryPage(found, after)

    async def history_span(self) -> HistorySpan:
        size = sum(64 + len(event.body or b"") for event in self._history)
        oldest = self._history[0].at if self._history else None
        return HistorySpan(self._first, self._first + len(self._history) - 1, size, oldest)

    async def trim_history(self, upto: int) -> None:
        count = min(len(self._history), max(0, upto + 1 - self._first))
        del self._history[:count]
        self._first += count

    async def tidy(self, *, now: int, limit: int) -> int:
        removed = 0
        for queue in self._queues.values():
            gone = [dedup_id for dedup_id, (_, until) in queue.dedup.items() if until <= now][: limit - removed]
            for dedup_id in gone:
                del queue.dedup[dedup_id]
            removed += len(gone)
            for name in [name for name, stage in queue.stages.items() if stage.until <= now]:
                del queue.stages[name]
                removed += 1
            for claims in queue.claims.values():
                for number in [number for number, until in claims.kept.items() if until <= now]:
                    claims.forget(number)
                    removed += 1
        return removed

    async def backup(self, path: str) -> None:
        raise InvalidRequest("store: a memory store has nothing on disk to back up", field="store")

    def _lease(self, row: _Row, now: int, until: int, token: str, consumer: str | None, keep: History) -> Stored:
        if row.receipt is not None and row.taken_at is not None:
            lasted = row.visible_at - row.taken_at
            self._log(keep, self._left("expired", row, now, "lease", lasted))
        since = row.visible_at
        row.visible_at, row.receipt, row.consumer, row.taken_at = until, token, consumer, now
        row.receives += 1
        self._log(keep, events.received(row.message, now, row.receives, since, consumer))
        return row.stored()

    async def dump(self) -> AsyncIterator[list[Item]]:
        async for portion in portions(one_by_one(self._items())):
            yield portion

    def _items(self) -> Iterator[Item]:
        for name, queue in self._queues.items():
            yield transfer.Queue(name, queue.settings)
            if queue.stages:
                raise transfer.no_stages(name)
            for group, claims in queue.claims.items():
                if held := [number for number in claims.claims if number not in claims.kept]:
                    raise transfer.no_held_claims(name, group, len(held))
                yield transfer.Readers(name, group, claims.epoch, claims.last)
        for kind, records in self._records.items():
            if kind != transfer.MARK:
                for name, value in records.items():
                    yield transfer.Record(kind, name, value)
        yield transfer.LastId(self._last_id)
        for name, queue in self._queues.items():
            heads = set(queue.heads.values())
            for row in sorted(queue.rows.values(), key=lambda row: row.message.id not in heads):
                yield transfer.Saved(row.stored(), row.taken_at)
            for dedup_id, (said, until) in queue.dedup.items():
                said = spans(said.split(",")) if is_call(dedup_id) else said
                yield transfer.Dedup(name, dedup_id, said, until)
        yield transfer.HistoryStart(self._first)
        for start in range(0, len(self._history), 1000):
            yield transfer.Events(self._first + start, self._history[start : start + 1000])

    async def load(self, items: Sequence[Item], *, now: int) -> None:
        for item in items:
            if isinstance(item, transfer.Queue):
                await self.save_queue(item.name, item.settings)
            elif isinstance(item, transfer.Record):
                await self.save_record(item.kind, item.name, item.value)
            elif isinstance(item, transfer.Readers):
                claims = self._queues[item.queue].claims.setdefault(item.group, _Claims(item.group))
                claims.epoch, claims.acked, claims.last = item.epoch, item.last, item.last
            elif isinstance(item, transfer.Saved):
                stored = item.stored
                row = self._queues[stored.message.queue].add(stored.message)
                row.visible_at, row.receives, row.receipt = stored.visible_at, stored.receives, stored.receipt
                row.consumer, row.taken_at = stored.consumer, item.taken_at
            elif isinstance(item, transfer.Dedup):
                said = ",".join(from_spans(item.said)) if is_call(item.name) else item.said
                self._queues[item.queue].dedup[item.name] = (said, item.until)
            elif isinstance(item, transfer.LastId):
                self._last_id = max(self._last_id, item.id)
            elif isinstance(item, transfer.HistoryStart):
                self._first = item.offset
            else:
                self._history += item.events

    def _log(self, keep: History, event: Event) -> None:
        if keep != "off":
            self._history.append(event)

    def _advance(self, name: str, queue: _Queue, group: str | None) -> None:
        if queue.advance(group) and group is not None:
            self.on_ready(name, queue.rows[queue.heads[group]].message.recipient, 1)

    @staticmethod
    def _left(event: EventName, row: _Row, now: int, reason: str | None, held: int | None) -> Event:
        message = row.message
        return events.left(
            event,
            message.queue,
            message.id,
            message.size,
            now,
            receives=row.receives,
            consumer=row.consumer,
            held=held,
            reason=reason,
        )
