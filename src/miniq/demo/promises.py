"""What is promised, compared with what producers and workers were told and with what Spark has in its lake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from miniq.demo.crew import BAD, LEASE, MESSAGES, RECEIVES, Note

SLACK = 1e-4
"""Seconds by which moments that went through a float may differ."""


class Lake(Struct, frozen=True):
    """What the archived history says."""

    records: int
    first: int
    last: int
    different: int
    sent: int
    acked: int
    dead: int


class Promise(Struct, frozen=True):
    """One promise, and whether it was kept."""

    kept: bool
    text: str


def delivery(sent: Sequence[Note], seen: Sequence[Note], left: int) -> list[Promise]:
    """What the broker promises to producers and workers."""
    acked = {note.id: note.at for note in seen if note.event == "acked"}
    handed: dict[str, list[Note]] = defaultdict(list)
    for note in sorted((note for note in seen if note.event == "received"), key=lambda note: note.until):
        handed[note.id].append(note)
    again = sum(len(notes) - 1 for notes in handed.values())
    lost = [note.id for note in sent if note.id not in acked]
    pairs = [pair for notes in handed.values() for pair in pairwise(notes)]
    undone = [id for id, notes in handed.items() if id in acked and notes[-1].until - LEASE > acked[id] + SLACK]
    added = (handed.keys() | acked.keys()) - {note.id for note in sent}
    whole = len(sent) == MESSAGES
    done = len(sent) - len(lost)
    back: dict[str, list[float]] = defaultdict(list)
    for note in seen:
        if note.event == "releasing":
            back[note.id].append(note.at)
    twice = [after.id for before, after in pairs if after.until - LEASE < _end(before, back[before.id]) - SLACK]
    fell = [after.id for before, after in pairs if after.receives <= before.receives < RECEIVES]
    return [
        Promise(whole and not lost, f"nothing lost: {done} of {len(sent)} confirmed messages were processed"),
        Promise(not added, "nothing added: no message was there twice, though a send was repeated over the crash"),
        Promise(not twice, f"one worker at a time: {len(handed) + again} leases, {again} after another had ended"),
        Promise(not undone, f"an ack stays: none of {len(acked)} acked messages came again"),
        Promise(not fell, "the count of a message's receives never went back"),
        Promise(left == 0, "nothing left over: the queues are empty"),
    ]


def _end(lease: Note, back: Sequence[float]) -> float:
    """When a lease ended: when it ran out, or when its worker gave it back before that."""
    return min([lease.until, *(at for at in back if at >= lease.until - LEASE - SLACK)])


def dead_letters(found: int, sent_back: int, again: int, bad_done: int) -> list[Promise]:
    """What became of the orders that could not be processed."""
    bad = MESSAGES // BAD
    return [
        Promise(
            found >= bad,
            f"what fails {RECEIVES} times is set aside: {found} dead letters, all {bad} bad orders among them",
        ),
        Promise(
            sent_back == found and again == 0,
            f"fixed and sent back once: {sent_back} of {found} by the first run of reprocess, {again} by a second",
        ),
        Promise(bad_done == bad, f"then processed: {bad_done} of {bad} bad orders"),
    ]


def archive(lake: Lake, sent: int, acked: int) -> list[Promise]:
    """Whether the lake has every record of the history once."""
    gapless = lake.different == lake.records == lake.last - lake.first + 1
    return [
        Promise(
            gapless,
            f"every history record once in the lake: {lake.records} records, offsets {lake.first} to {lake.last}",
        ),
        Promise(
            lake.acked == acked,
            f"the report counts what happened: {lake.acked} acked in the lake, {acked} in the workers' notes",
        ),
    ]
