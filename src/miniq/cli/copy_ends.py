"""The two processes of `miniq copy`: one sends the lines of a file, the other writes them to the copy.

A message is a line, or a piece of a long one; its `key` is its number. The last message is JSON with the size and
checksum of the file. The reader writes by number: it drops duplicates and holds back what comes too early, so the copy
is correct whatever happens to the broker or the network.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from typing import BinaryIO

import click
from msgspec import Struct, json

from miniq.api.codec import OCTETS
from miniq.cli.copy import PATIENCE
from miniq.cli.flags import Target, target
from miniq.cli.processes import parent
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.errors import MiniQError, QueueFull, TooLarge
from miniq.message import JSON, Draft

BATCH = 1000
BATCH_BYTES = 4 * 1024 * 1024
PIECE = 512 * 1024
"""Longest body; less if the broker allows less."""
SMALLEST = 1024
WAIT = 5.0
PAUSE = 0.02
"""Seconds before the writer retries while it is too far ahead of the reader."""


class Whole(Struct):
    """The end marker: size and checksum of the file."""

    bytes: int
    sha256: str


def check_parent(parent_id: int) -> None:
    """End with the parent process, which cleans up after the copy."""
    if os.getppid() != parent_id:
        raise MiniQError("the process that started the copy is gone")


@click.command(hidden=True)
@click.argument("queue")
@click.argument("source")
@target
def copy_write(at: Target, queue: str, source: str) -> None:
    """Send the lines of a file."""
    with open(source, "rb") as file, at.open(PATIENCE) as client:
        Writer(client.queue(queue)).send(file)


class Writer:
    """Sends pieces in order; in smaller ones if the broker's limits are lower than expected."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._piece = PIECE
        self._batch = BATCH
        self._batch_bytes = BATCH_BYTES
        self._number = 0
        self._parent = parent()

    def send(self, file: BinaryIO) -> None:
        """Send a whole file, then the end marker."""
        digest = hashlib.sha256()
        count = 0
        for pieces in self._batches(file):
            for piece in pieces:
                digest.update(piece)
                count += len(piece)
            self._send_pieces(pieces)
        self._deliver([Draft(json.encode(Whole(count, digest.hexdigest())), JSON, key="end")])

    def _batches(self, file: BinaryIO) -> Iterator[list[bytes]]:
        """The lines of a file, long ones in pieces, in batches for one call."""
        pieces: list[bytes] = []
        size = 0
        while piece := file.readline(self._piece):
            pieces.append(piece)
            size += len(piece)
            if len(pieces) >= self._batch or size >= self._batch_bytes:
                yield pieces
                pieces, size = [], 0
        if pieces:
            yield pieces

    def _send_pieces(self, pieces: list[bytes]) -> None:
        try:
            self._deliver([Draft(piece, OCTETS, key=str(self._number + at)) for at, piece in enumerate(pieces)])
        except TooLarge:
            if self._piece <= SMALLEST and self._batch == 1:
                raise
            self._piece = max(self._piece // 2, SMALLEST)
            self._batch = max(self._batch // 2, 1)
            self._batch_bytes = max(self._batch_bytes // 2, SMALLEST)
            half = len(pieces) // 2
            if half:
                self._send_pieces(pieces[:half])
                self._send_pieces(pieces[half:])
            else:
                self._send_pieces([pieces[0][at : at + self._piece] for at in range(0, len(pieces[0]), self._piece)])
            return
        self._number += len(pieces)

    def _deliver(self, drafts: list[Draft]) -> None:
        """Send; wait while the reader is too far behind."""
        while True:
            check_parent(self._parent)
            try:
                self._queue.send_many(drafts)
                return
            except QueueFull:
                time.sleep(PAUSE)


@click.command(hidden=True)
@click.argument("queue")
@click.argument("part")
@target
def copy_read(at: Target, queue: str, part: str) -> None:
    """Receive the lines of a file and write them; prints the number of lines and bytes."""
    parent_id = parent()
    with open(part, "wb") as file, at.open(PATIENCE) as client:
        source = client.queue(queue)
        assembly = Assembly(file)
        while not assembly.whole:
            check_parent(parent_id)
            done = assembly.add(source.receive(BATCH, wait=WAIT))
            for start in range(0, len(done), BATCH):
                source.ack(done[start : start + BATCH])
            click.echo(f"{assembly.lines} {assembly.size}")
        file.flush()
        if os.path.isfile(part):
            os.fsync(file.fileno())


class Assembly:
    """Writes pieces in the order of their numbers."""

    def __init__(self, file: BinaryIO) -> None:
        self.whole = False
        self.size = 0
        self._breaks = 0
        self._partial = False
        self._file = file
        self._digest = hashlib.sha256()
        self._next = 0
        self._early: dict[int, Message] = {}
        self._end: Message | None = None

    @property
    def lines(self) -> int:
        """The number of lines so far; a last one without a line break counts."""
        return self._breaks + self._partial

    def add(self, messages: list[Message]) -> list[Message]:
        """Write the pieces that are next, and return the messages that can be acked."""
        done: list[Message] = []
        for message in messages:
            if message.key == "end":
                self._end = message
                continue
            number = int(message.key or "")
            if number < self._next:
                done.append(message)  # a duplicate
            else:
                self._early[number] = message  # with the newer receipt, if it is a duplicate
        while (piece := self._early.pop(self._next, None)) is not None:
            self._write(piece.data)
            self._next += 1
            done.append(piece)
        if self._end is not None and self._is_whole(json.decode(self._end.data, type=Whole)):
            self.whole = True
            done.append(self._end)
        return done

    def _write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)
        self._partial = not piece.endswith(b"\n")
        self._breaks += not self._partial

    def _is_whole(self, wanted: Whole) -> bool:
        if self.size < wanted.bytes:
            return False
        if self.size != wanted.bytes or self._digest.hexdigest() != wanted.sha256:
            raise MiniQError(f"the copy has {self.size} bytes that are not the {wanted.bytes} bytes sent")
        return True
