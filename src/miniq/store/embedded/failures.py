"""The last errors of messages in the embedded store.

The state of a message only tells that it has an error; the text is a record of its own, which is read on demand: a
queue may hold many failed messages, and each text may have some thousand characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.errors import StoreCorrupt
from miniq.message import LEASE_EXPIRED, Message, Stored
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.kv import KV

if TYPE_CHECKING:
    from miniq.store.embedded.states import Run

KEPT = 1
"""There is a record with the text of an error."""
LAPSED = 2
"""The message failed last because its lease ran out."""


def after_lease(run: Run) -> int:
    """The error of messages whose lease or delay, if they have one, is over."""
    return run.error if run.receipt is None else run.error | LAPSED


class Failures:
    """Stages, reads and removes the texts of errors."""

    def __init__(self, kv: KV, commit: GroupCommit) -> None:
        self._kv = kv
        self._commit = commit

    def keep(self, shelf: Shelf, ids: Sequence[str], error: str) -> int:
        """Keep the error of some messages; returns what their state says of it."""
        batch = self._commit.batch
        value = keys.encode(error)
        for id in ids:
            shelf.errors[id] = error
            batch.ops.append((keys.error_key(shelf.number, id), value))
        batch.done.append(partial(_written, shelf, ids, error))
        return KEPT

    def remove(self, shelf: Shelf, run: Run, ids: Sequence[str]) -> None:
        """Remove the errors of messages that leave the queue in this state."""
        if run.error & KEPT:
            for id in ids:
                shelf.errors.pop(id, None)
                self._commit.batch.ops.append((keys.error_key(shelf.number, id), None))

    def find(self, shelf: Shelf, run: Run, id: str) -> str | None:
        """The last error of a message in this state, None if it has none."""
        if run.error & LAPSED:
            return LEASE_EXPIRED
        if not run.error:
            return None
        error = shelf.errors.get(id)
        if error is None:
            value = self._kv.get(keys.error_key(shelf.number, id))
            if value is None:
                raise StoreCorrupt(f"store: the error of message {id} is missing", field="store")
            error = keys.decode_error(value)
        return error

    def stored(self, shelf: Shelf, block: Block, place: int, message: Message) -> Stored:
        """A message with its state and its last error."""
        stored, run = block.stored(place, message), block.runs[place]
        if run is None or not run.error:
            return stored
        return replace(stored, error=self.find(shelf, run, message.id))


def _written(shelf: Shelf, ids: Sequence[str], error: str) -> None:
    for id in ids:
        if shelf.errors.get(id) is error:
            del shelf.errors[id]
