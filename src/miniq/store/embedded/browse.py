"""Looking through a queue of the embedded store without changing anything.

The cursor is where the walk stands: the part of a key that follows the queue's number and the place in its
block, or the last id where only memory is walked.
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
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.kv import KV
from miniq.store.embedded.states import Run
from miniq.store.embedded.window import Window


def browse(kv: KV, shelf: Shelf, scan: Scan) -> Page:
    """Messages in the order of their keys: in line first, then those that wait in groups."""
    at, skip = (b"b", -1) if scan.after is None else _open_cursor(scan.after)
    found: list[Stored] = []
    budget = Budget(scan.limit, scan.max_bytes)
    cursor = (at, skip)
    for kind in (b"b", b"w"):
        if kind < at[:1]:
            continue
        prefix = keys.of_queue(kind, shelf.number)
        start = prefix + at[1:] if kind == at[:1] else prefix
        for key, value in kv.scan(start, keys.after(prefix)):
            name = key[-37:] if key[-1:] == b"m" else key[-36:]
            block = shelf.blocks.get(name.decode())
            if block is None and (name.decode() in shelf.arriving or name.decode() in shelf.leaving):
                continue
            here = kind + key[len(prefix) :]
            for place, message in enumerate(keys.decode_block(value, kv.get)):
                if here == at and place <= skip:
                    continue
                if block is None:
                    stored = Stored(message, message.due_at)
                elif block.is_gone(place) or block.key != key:
                    continue
                else:
                    stored = block.stored(place, message)
                if scan.status is not None and stored.status(scan.now) != scan.status:
                    continue
                if not budget.admits(message.size):
                    return Page(found, _cursor(*cursor))
                found.append(stored)
                cursor = (here, place)
    return Page(found, None)


def browse_held(window: Window, shelf: Shelf, scan: Scan) -> Page:
    """Leased or delayed messages by id; all of them are known in memory. Those that are not written yet
    are not shown yet."""
    after = scan.after
    runs = [
        _places(run, after)
        for run in shelf.runs()
        if run.block.arrives is None
        and run.visible_at > scan.now
        and (run.receipt is None) == (scan.status == "delayed")
        and (after is None or run.block.id_at(run.places.stop - 1) > after)
    ]
    found: list[Stored] = []
    budget = Budget(scan.limit, scan.max_bytes)
    last: Block | None = None
    messages: Sequence[Message] = ()
    for _, block, place in merge(*runs, key=itemgetter(0)):
        if block is not last:
            last, messages = block, window.look(block)
        message = messages[place]
        if not budget.admits(message.size):
            return Page(found, found[-1].message.id)
        found.append(block.stored(place, message))
    return Page(found, None)


def _places(run: Run, after: str | None) -> Iterator[tuple[str, Block, int]]:
    """The messages of a run by id, from the one that follows `after`."""
    block = run.block
    for place in run.held_places():
        id = block.id_at(place)
        if after is None or id > after:
            yield id, block, place


def _cursor(key: bytes, place: int) -> str:
    return base64.urlsafe_b64encode(bytes([place]) + key).decode().rstrip("=")


def _open_cursor(text: str) -> tuple[bytes, int]:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) < 2 or raw[1:2] not in (b"b", b"w"):
        raise InvalidRequest(f"after: {text[:80]!r} is not a cursor given as `next`", field="after")
    return raw[1:], raw[0]
