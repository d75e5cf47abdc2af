"""Reading through a queue of the embedded store without changing anything.

The cursor is the position of the last message: the part of its key after the queue's number, and its place in the
block; or its id where only memory is read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter

from miniq.errors import InvalidRequest
from miniq.message import Message, Page, Stored
from miniq.store.arguments import Scan
from miniq.store.decisions import Budget
from miniq.store.embedded import block_records, keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.core import Core
from miniq.store.embedded.states import Run


def written(core: Core, shelf: Shelf, at: bytes = b"b") -> Iterator[tuple[bytes, int, Stored, Run | None]]:
    """The written messages of a queue in order of their keys, from a position on: messages in line first, then those
    that wait in groups. Each with its position (kind and rest of its key), place in its block, and run."""
    kv, failures = core.kv, core.states.failures
    for kind in (b"b", b"w"):
        if kind < at[:1]:
            continue
        prefix = keys.of_queue(kind, shelf.number)
        start = prefix + at[1:] if kind == at[:1] else prefix
        for key, value in kv.scan(start, keys.after(prefix)):
            name = (key[-37:] if key[-1:] == b"m" else key[-36:]).decode()
            block = shelf.blocks.get(name)
            if block is None and (name in shelf.arriving or name in shelf.leaving):
                continue
            position = kind + key[len(prefix) :]
            for place, message in enumerate(block_records.decode_block(value, kv.get)):
                if block is None:
                    yield position, place, Stored(message, message.due_at), None
                elif not block.is_gone(place) and block.key == key:
                    yield position, place, failures.stored(shelf, block, place, message), block.runs[place]


def browse(core: Core, shelf: Shelf, scan: Scan) -> Page:
    """A page of messages in order of their keys."""
    after = (b"b", -1) if scan.after is None else _parse_cursor(scan.after)
    page: list[Stored] = []
    budget = Budget(scan.limit, scan.max_bytes)
    last = after
    for position, place, stored, _ in written(core, shelf, after[0]):
        if position == after[0] and place <= after[1]:
            continue
        if scan.status is not None and stored.status(scan.now) != scan.status:
            continue
        if not budget.admits(stored.message.size):
            return Page(page, _cursor(*last))
        page.append(stored)
        last = (position, place)
    return Page(page, None)


def browse_held(core: Core, shelf: Shelf, scan: Scan) -> Page:
    """A page of leased or delayed messages by id, from memory. Messages that are not written yet are left out."""
    after = scan.after
    runs = [
        _held_after(run, after)
        for run in shelf.runs()
        if run.block.arrives is None
        and run.visible_at > scan.now
        and (run.receipt is None) == (scan.status == "delayed")
        and (after is None or run.block.id_at(run.places.stop - 1) > after)
    ]
    page: list[Stored] = []
    budget = Budget(scan.limit, scan.max_bytes)
    last: Block | None = None
    messages: Sequence[Message] = ()
    for _, block, place in merge(*runs, key=itemgetter(0)):
        if block is not last:
            last, messages = block, core.window.peek(block)
        message = messages[place]
        if not budget.admits(message.size):
            return Page(page, page[-1].message.id)
        page.append(core.states.failures.stored(shelf, block, place, message))
    return Page(page, None)


def _held_after(run: Run, after: str | None) -> Iterator[tuple[str, Block, int]]:
    """The messages of a run by id, from the one that follows `after`."""
    block = run.block
    for place in run.held_places():
        id = block.id_at(place)
        if after is None or id > after:
            yield id, block, place


def _cursor(key: bytes, place: int) -> str:
    return base64.urlsafe_b64encode(bytes([place]) + key).decode().rstrip("=")


def _parse_cursor(text: str) -> tuple[bytes, int]:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) < 2 or raw[1:2] not in (b"b", b"w"):
        raise InvalidRequest(f"after: {text[:80]!r} is not a cursor given as `next`", field="after")
    return raw[1:], raw[0]
