"""Blocks: up to 128 messages in one document, and the state of each, in memory.

Messages of one run of ids (`miniq.ids`) that were sent together share a block if they have the same priority and due
time and no recipient or group; any other message has a block of its own. A block is read, changed here, and written
back on condition that it has not changed since (`writes.py`). Everything that a query needs is written beside the
states: see `documents.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import msgspec
from bson import ObjectId
from msgspec import Struct
from msgspec.structs import replace

from miniq.ids import from_spans, run_of, spans
from miniq.message import LEASE_EXPIRED, NEVER, Event, EventName, Message, Outcome, PlainBatch, Stored, is_plain
from miniq.store import events
from miniq.store.arguments import ANYTHING, FREE, Fit
from miniq.store.decisions import fence
from miniq.store.mongodb.documents import Document, group_key

BLOCK_BYTES = 2 * 1024 * 1024
"""Messages that are larger together get a block each. The limit of a document is 16 MiB."""
ID_LENGTH = 36


class State(Struct, frozen=True, array_like=True, gc=False):
    """The state of a message that is no longer as it was sent. New fields go to the end, with a default."""

    visible_at: int
    receives: int = 0
    receipt: str | None = None
    consumer: str | None = None
    taken_at: int | None = None
    claim: str | None = None
    """The `_id` of its claim. It stays after the ack, while the claim can be read."""
    gone: bool = False
    error: str | None = None
    """Why it failed last."""
    returned: bool = False
    """Whether it was taken, though it has no receives: all were taken back."""


class _Run(Struct, array_like=True, gc=False):
    """Neighbours with the same state."""

    start: int
    stop: int
    state: State


class _Content(Struct, array_like=True, gc=False):
    """The messages of a block. With `bodies`, the one message has their common fields."""

    messages: list[Message]
    bodies: list[bytes] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_runs = msgspec.msgpack.Decoder(list[_Run]).decode
_decode_sizes = msgspec.msgpack.Decoder(list[int]).decode
_decode_content = msgspec.msgpack.Decoder(_Content).decode


class Block:
    """Messages of one document, with their states."""

    __slots__ = (
        "_content", "_places", "called_until", "due_at", "group", "id", "ids", "lane", "mixed", "number", "past",
        "priority", "sent_at", "sizes", "states", "told", "version", "waits",
    )  # fmt: skip

    def __init__(self, id: str, number: ObjectId, ids: list[str], sizes: list[int]) -> None:
        self.id = id
        self.number = number
        self.version: ObjectId | None = None
        self.past: Sequence[ObjectId] = ()
        self.ids = ids
        self.sizes = sizes
        self.states: list[State | None] = [None] * len(ids)
        """None: as it was sent."""
        self.priority = 0
        self.lane = ""
        self.sent_at = self.due_at = 0
        self.group: str | None = None
        self.waits = False
        self.mixed = False
        self.told = False
        self.called_until = 0
        """When the record of the call expires that added it, 0 if there is none."""
        self._content: Sequence[Message] | bytes | None = None
        self._places: dict[str, int] | None = None

    # What it holds

    @property
    def messages(self) -> Sequence[Message]:
        if isinstance(self._content, bytes):
            content = _decode_content(self._content)
            if content.bodies is None:
                self._content = content.messages
            else:
                [like] = content.messages
                self._content = PlainBatch(
                    self.ids, like.queue, like.sent_at, like.due_at, content.bodies, like.content_type, like.priority,
                    like.topic,
                )  # fmt: skip
        assert self._content is not None, "read without its content"  # noqa: S101
        return self._content

    def place(self, id: str) -> int | None:
        """Where a message is, None if it has left."""
        if self._places is None:
            self._places = {id: place for place, id in enumerate(self.ids)}
        place = self._places.get(id)
        return None if place is None or self.gone(place) else place

    def gone(self, place: int) -> bool:
        state = self.states[place]
        return state is not None and state.gone

    def present(self) -> Iterator[int]:
        """The places of messages that have not left the queue."""
        return (place for place, state in enumerate(self.states) if state is None or not state.gone)

    def state(self, place: int) -> State:
        return self.states[place] or State(self.due_at)

    def stored(self, place: int) -> Stored:
        state = self.state(place)
        lease = (state.visible_at, state.receives, state.receipt, state.consumer)
        return Stored(self.messages[place], *lease, state.error)

    @property
    def in_front(self) -> bool:
        """Whether its message was taken together with others of its group, and may have to wait for them."""
        state = self.states[0] if self.waits and self.states else None
        return state is not None and (state.receives > 0 or state.returned) and not state.gone

    def inside(self, claim: str) -> list[int]:
        """The places of the messages of a claim."""
        return [place for place, state in enumerate(self.states) if state is not None and state.claim == claim]

    # Changes

    def check(self, place: int | None, receipt: str, now: int) -> Outcome:
        """The outcome of a fence."""
        if place is None:
            return "missing"
        state = self.state(place)
        return fence(state.visible_at, state.receipt, receipt, now)

    def lease(
        self, place: int, now: int, until: int, token: str, consumer: str | None, claim: str | None = None
    ) -> None:
        state = self.state(place)
        error = state.error if state.taken_at is None else LEASE_EXPIRED
        self.states[place] = State(until, state.receives + 1, token, consumer, now, claim, error=error)

    def reschedule(
        self, place: int, visible_at: int, release: bool, error: str | None = None, unused: bool = False
    ) -> None:
        state = self.state(place)
        error = state.error if error is None else error
        if release:
            receives, returned = state.receives, state.returned
            if unused and state.receipt is not None:
                receives -= 1
                returned = self.group is not None and not receives
            self.states[place] = State(visible_at, receives, error=error, returned=returned)
        else:
            self.states[place] = replace(state, visible_at=visible_at, error=error)

    def leave(self, place: int, claim: str | None = None) -> None:
        """A message leaves the queue; with `claim` it can still be read in that."""
        receives = self.state(place).receives if claim is not None else 0
        self.states[place] = State(0, receives, claim=claim, gone=True)

    def forget_claim(self, claim: str) -> None:
        """An acked claim is over."""
        for place in self.inside(claim):
            self.states[place] = State(0, gone=True)

    def hold(self, messages: Sequence[Message]) -> None:
        """Replace the messages."""
        self._content = messages
        self.sizes = [message.size for message in messages]

    # History

    def expired(self, place: int, queue: str, now: int, receipt: str = FREE) -> list[Event]:
        """The event of an earlier lease that has expired, if a change that names `receipt` ends one."""
        state = self.states[place]
        if receipt != FREE or state is None or state.receipt is None or state.taken_at is None:
            return []
        return [self.left("expired", place, queue, now, "lease", state.visible_at - state.taken_at)]

    def handed_out(self, place: int, queue: str, now: int, consumer: str | None, fit: Fit = ANYTHING) -> list[Event]:
        """The events of a lease: `expired` for an earlier lease, then `received` if the message is fit."""
        recorded = self.expired(place, queue, now)
        state = self.state(place)
        if fit.refusal(self.messages[place], state.receives, now) is not None:
            return recorded
        id, size, receives = self.ids[place], self.sizes[place], state.receives + 1
        recorded.append(events.received(queue, id, size, now, receives, state.visible_at, consumer))
        return recorded

    def left(
        self,
        event: EventName,
        place: int,
        queue: str,
        now: int,
        reason: str | None,
        held: int | None = None,
        extra: int = 0,
        error: str | None = None,
    ) -> Event:
        """The event of a lease that ended or a message that left. Without `held` the consumer had it until now; `extra`
        of its receives do not count."""
        state = self.state(place)
        if held is None and state.receipt is not None and state.taken_at is not None:
            held = now - state.taken_at
        id, size, receives = self.ids[place], self.sizes[place], state.receives - extra
        return events.left(event, queue, id, size, now, receives, state.consumer, held, reason, error)

    # Documents

    def summary(self, now: int) -> dict[str, Any]:
        """What queries use, as of `now`; None for fields that are to be absent."""
        count = size = leased = delayed = 0
        wake, until, ready = 2 * NEVER, 0, False
        tokens: set[str] = set()
        kept = False
        for place, state in enumerate(self.states):
            if state is not None:
                if state.claim is not None:
                    tokens.add(state.claim)
                    kept = kept or state.gone
                elif state.receipt is not None:
                    tokens.add(state.receipt)
                if state.gone:
                    continue
            count += 1
            size += self.sizes[place]
            visible_at = self.due_at if state is None else state.visible_at
            if visible_at <= now:
                ready = True
            else:
                wake, until = min(wake, visible_at), max(until, visible_at)
                if state is None or state.receipt is None:
                    delayed += 1
                else:
                    leased += 1
        later = bool(leased or delayed)
        over = not count and not kept
        key = None if self.group is None or not count else group_key(self.number, self.group)
        front = key if self.in_front else None
        return {
            "number": self.number,
            "count": count,
            "bytes": size,
            "line": self.number if ready and not self.waits else None,
            "timed": self.number if later else None,
            "wake": wake if later else None,
            "until": until if later else None,
            "open": (later and not self.lane and not self.waits) or None,
            "leased": leased if later else None,
            "delayed": delayed if later else None,
            "tokens": sorted(tokens) or None,
            "group_key": key,
            "front": front,
            "waits": self.waits or None,
            "mixed": self.mixed or None,
            "over": over or None,
            # Its group may need a new head: see `groups.py` and `fronts.py`.
            "todo": now if self.group is not None and (not count or (front is not None and not leased)) else None,
            "states": _encode(_runs(self.states)) if any(self.states) else None,
        }

    def document(self, now: int) -> dict[str, Any]:
        """The document of a new block."""
        messages = self.messages
        if isinstance(messages, PlainBatch):
            common = (messages.queue, self.sent_at, self.due_at, b"", messages.content_type, self.priority)
            like = Message("", *common, topic=messages.topic)
            content = _encode(_Content([like], list(messages.bodies)))
        else:
            content = _encode(_Content(list(messages)))
        fields = {
            "_id": self.id,
            "first": self.ids[0],
            "priority": self.priority,
            "lane": self.lane,
            "group": self.group,
            "sent_at": self.sent_at,
            "due_at": self.due_at,
            "ids": spans(self.ids),
            "sizes": _encode(self.sizes),
            "content": content,
        } | self.summary(now)
        return {name: value for name, value in fields.items() if value is not None}

    def update(self, now: int) -> dict[str, Any]:
        """The update that writes the states of a block."""
        fields = self.summary(now)
        if fields["over"]:
            if fields["todo"] is None:
                fields["number"] = None  # counts do not walk over it
            fields |= {"content": None, "ids": None, "sizes": None, "first": None, "states": None, "priority": None}
        gone = {name: "" for name, value in fields.items() if value is None}
        return {"$set": {name: value for name, value in fields.items() if value is not None}, "$unset": gone}


def block_of(found: Document) -> Block:
    """The block that a document holds."""
    ids = from_spans(found["ids"]) if "ids" in found else []
    number = found.get("number") or ObjectId(found["_id"][:24])
    block = Block(found["_id"], number, ids, _decode_sizes(found["sizes"]) if "sizes" in found else [])
    block.version = found["v"]
    block.past = found.get("past", ())
    block.priority = found.get("priority", 0)
    block.lane = found["lane"]
    block.sent_at, block.due_at = int(found["sent_at"]), int(found["due_at"])
    block.group = found.get("group")
    block.waits = found.get("waits", False)
    block.mixed = found.get("mixed", False)
    block.told = "told" in found
    block.called_until = int(found["call"]["until"]) if "call" in found else 0
    if "states" in found:
        for run in _decode_runs(found["states"]):
            block.states[run.start : run.stop] = [run.state] * (run.stop - run.start)
    block._content = found.get("content")
    return block


def _runs(states: Iterable[State | None]) -> list[_Run]:
    found: list[_Run] = []
    for place, state in enumerate(states):
        if state is None:
            continue
        if found and found[-1].stop == place and (found[-1].state is state or found[-1].state == state):
            found[-1].stop = place + 1
        else:
            found.append(_Run(place, place + 1, state))
    return found


# New blocks

_alike = attrgetter("priority", "due_at", "sent_at")


def is_id(id: str) -> bool:
    """Whether a text can be the id of a message."""
    return len(id) == ID_LENGTH and id[34:].isalnum() and id[34:].isascii() and id[34:] in _TAILS


_TAILS = frozenset(f"{place:02x}" for place in range(256))


def shared_name(number: ObjectId, id: str) -> str:
    """The `_id` of the block that a message shares with others of its run."""
    return f"{number}:{run_of(id)[0]}"


def own_name(number: ObjectId, id: str) -> str:
    """The `_id` of the block of a message that shares none. That of a shared block ends with an id as well."""
    return f"{number}:{id}."


def blocks_for(
    messages: Sequence[Message],
    number: ObjectId,
    *,
    moved: bool = False,
    taken: Iterable[str] = (),
    cut: bool = False,
) -> list[Block]:
    """New blocks for messages. If others of their run may have arrived before (`moved`), the names that are `taken`
    are not used. If the messages are a part of more (`cut`), the first and the last run may be as well."""
    if isinstance(messages, PlainBatch) and not moved and not cut and len(messages.ids) <= 128:
        names = {run_of(messages.ids[0])[0], run_of(messages.ids[-1])[0]}
        if len(names) == 1 and messages.size <= BLOCK_BYTES:
            return [_block(shared_name(number, messages.ids[0]), number, messages)]
    taken = set(taken)
    found: list[Block] = []
    ordered = messages if not moved else sorted(messages, key=attrgetter("id"))
    start = 0
    for _, some in groupby([message.id for message in ordered], key=lambda id: run_of(id)[0]):
        stop = start + len(list(some))
        run = ordered[start:stop]
        start = stop
        name = shared_name(number, run[0].id)
        continues = cut and run_of(run[0].id)[1] > 0
        if name not in taken and not continues and _share(run):
            taken.add(name)
            block = _block(name, number, run)
            block.mixed = moved or (cut and stop == len(ordered))
            found.append(block)
        else:
            alone = (run[place : place + 1] for place in range(len(run)))
            found += [_block(own_name(number, one[0].id), number, one) for one in alone]
    if moved:
        # In order of arrival: the first of a group becomes its head.
        places = {message.id: place for place, message in enumerate(messages)}
        found.sort(key=lambda block: places[block.ids[0]])
    return found


def _share(run: Sequence[Message]) -> bool:
    """Whether messages of a run can share a block."""
    if len(run) == 1:
        return run[0].group is None
    if isinstance(run, PlainBatch):
        return run.size <= BLOCK_BYTES
    like = _alike(run[0])
    return (
        all(one.recipient is None and one.group is None and _alike(one) == like for one in run)
        and sum(one.size for one in run) <= BLOCK_BYTES
        and all(one.id < other.id for one, other in pairwise(run))
    )


def _block(name: str, number: ObjectId, messages: Sequence[Message]) -> Block:
    if isinstance(messages, PlainBatch):
        block = Block(name, number, list(messages.ids), [len(body) for body in messages.bodies])
        block.priority, block.sent_at, block.due_at = messages.priority, messages.sent_at, messages.due_at
    else:
        first = messages[0]
        block = Block(name, number, [one.id for one in messages], [one.size for one in messages])
        block.priority, block.sent_at, block.due_at = first.priority, first.sent_at, first.due_at
        block.lane, block.group = first.recipient or "", first.group
        kinds = {(one.content_type, one.topic) for one in messages}
        if len(messages) > 1 and all(map(is_plain, messages)) and len(kinds) == 1:
            messages = PlainBatch(
                block.ids, first.queue, first.sent_at, first.due_at, [one.body for one in messages],
                first.content_type, first.priority, first.topic,
            )  # fmt: skip
    block._content = messages
    return block
