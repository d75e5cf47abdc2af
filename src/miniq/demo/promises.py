"""The broker's guarantees, checked against the notes of producer and workers and against Spark's lake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise

from msgspec import Struct

from miniq.demo.crew import BAD, LEASE, MESSAGES, RECEIVES, Note

SLACK = 1e-4
"""Tolerance in seconds for timestamps that were converted to float."""


class Lake(Struct, frozen=True):
    """Figures of the archived history."""

    records: int
    first: int
    last: int
    different: int
    acked: int


class Promise(Struct, frozen=True):
    """One promise, and whether it was kept."""

    kept: bool
    text: str


def delivery(
    sent: Sequence[Note], worked: Sequence[Note], left: int, dead: Collection[str] = frozenset()
) -> list[Promise]:
    """The guarantees to producers and workers. `dead` are the messages that were dead letters and sent back: their
    receives begin anew, and the reply to the last one before that may be among what the crash took."""
    acked = {note.id: note.at for note in worked if note.event == "acked"}
    leases: dict[str, list[Note]] = defaultdict(list)
    received = [note for note in worked if note.event == "received"]
    for note in sorted(received, key=lambda note: (note.until, note.receives)):  # `until` has whole milliseconds
        leases[note.id].append(note)
    redelivered = sum(len(notes) - 1 for notes in leases.values())
    lost = [note.id for note in sent if note.id not in acked]
    pairs = [pair for notes in leases.values() for pair in pairwise(notes)]
    reappeared = [id for id, notes in leases.items() if id in acked and notes[-1].until - LEASE > acked[id] + SLACK]
    duplicated = (leases.keys() | acked.keys()) - {note.id for note in sent}
    complete = len(sent) == MESSAGES
    processed = len(sent) - len(lost)
    failed: dict[str, list[float]] = defaultdict(list)
    for note in worked:
        if note.event == "failing":
            failed[note.id].append(note.at)
    overlapping = [after.id for before, after in pairs if after.until - LEASE < _end(before, failed[before.id]) - SLACK]
    decreased = [
        after.id
        for before, after in pairs
        if after.receives <= before.receives and (after.receives > 1 or after.id not in dead)
    ]
    total = len(leases) + redelivered
    return [
        Promise(complete and not lost, f"nothing lost: {processed} of {len(sent)} confirmed messages were processed"),
        Promise(not duplicated, "nothing duplicated: a send retried across the crash added no second message"),
        Promise(not overlapping, f"one worker at a time: {total} leases, {redelivered} after an earlier one had ended"),
        Promise(not reappeared, f"an ack is final: none of {len(acked)} acked messages was delivered again"),
        Promise(not decreased, "the receive count of a message never decreased"),
        Promise(left == 0, "nothing left over: the queues are empty"),
    ]


def _end(lease: Note, failed: Sequence[float]) -> float:
    """When a lease ended: when it expired, or when its worker ended it before that."""
    return min([lease.until, *(at for at in failed if at >= lease.until - LEASE - SLACK)])


def dead_letters(dead: int, sent_back: int, repeated: int, bad_processed: int) -> list[Promise]:
    """What became of the orders that could not be processed."""
    bad = MESSAGES // BAD
    return [
        Promise(
            dead >= bad,
            f"messages that fail {RECEIVES} times are set aside: {dead} dead letters, including all {bad} bad orders",
        ),
        Promise(
            sent_back == dead and repeated == 0,
            f"fixed and sent back once: {sent_back} of {dead} by the first reprocess run, {repeated} by the second",
        ),
        Promise(bad_processed == bad, f"then processed: {bad_processed} of {bad} bad orders"),
    ]


def archive(lake: Lake, acked: int) -> list[Promise]:
    """Whether the lake contains every history record exactly once."""
    gapless = lake.different == lake.records == lake.last - lake.first + 1
    return [
        Promise(
            gapless,
            f"every history record once in the lake: {lake.records} records, offsets {lake.first} to {lake.last}",
        ),
        Promise(
            lake.acked == acked,
            f"the lake agrees with the workers: {lake.acked} acked in the lake, {acked} in the workers' notes",
        ),
    ]
