"""What the embedded store keeps in memory of a queue: blocks, the state of their messages, and lanes.

A **block** is up to 128 messages in one record. A **run** is a lease or delay shared by neighbouring messages of a
block; a message without a run is fresh. A **lane** is the line of one priority for one recipient (or for all
consumers): fresh blocks in order, messages that were given back, and a cursor into the backlog on disk, which is read
only on demand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct, field

from miniq.batch import Claim, StageName
from miniq.ids import run_of
from miniq.message import Message, QueueSettings, Stored
from miniq.store.decisions import StagePart
from miniq.store.embedded import keys

if TYPE_CHECKING:
    from miniq.store.embedded.states import Run

_TAILS = tuple(f"{place:02x}" for place in range(256))


class Block(Struct, eq=False):
    """Messages of one record. `runs[place]` is None for a fresh or removed message; `gone` is a bitmap."""

    name: str
    key: bytes
    owner: str
    priority: int
    count: int
    alone: bool = False
    """Whether its record holds one message that is found by an index, not by its run of ids."""
    runs: list[Run | None] = []
    gone: int = 0
    alive: int = 0
    next: int = 0
    """No fresh message has a lower place."""
    messages: Sequence[Message] | None = None
    charged: int = 0
    """The size of `messages` in the memory accounting of the window."""
    sizes: list[int] | None = None
    size: int = 0
    """The sum of `sizes`, if that is known without reading the messages."""
    sent_at: int = 0
    """When its messages were sent, if that is known without reading them; none of them has a ttl then."""
    group: str | None = None
    waiting: bool = False
    """Behind the front of its group."""
    front: Front | None = None
    """Of a message that shares the front of its group with others."""
    windowed: bool = False
    """Its fresh messages are in a lane."""
    source: bytes | None = b""
    """The key of its messages if they were committed from a stage or are shared; None if unknown."""
    arrives: object = None
    """The unwritten batch that adds it; until that is written it is invisible."""

    def __post_init__(self) -> None:
        self.alone = len(self.name) == 37
        self.runs = [None] * self.count
        self.alive = self.count

    def id_at(self, place: int) -> str:
        if self.alone:
            return self.name[:36]
        return self.name[:34] + _TAILS[place + (128 if self.name[34] == "8" else 0)]

    def ids_at(self, places: range) -> list[str]:
        name = self.name
        if self.alone:
            return [name[:36]]
        head, first = name[:34], 128 if name[34] == "8" else 0
        return [head + tail for tail in _TAILS[first + places.start : first + places.stop]]

    def is_gone(self, place: int) -> bool:
        return bool(self.gone >> place & 1)

    def is_fresh(self, place: int) -> bool:
        return self.runs[place] is None and not self.gone >> place & 1

    def fresh_from(self, place: int) -> int:
        """The first fresh place from here on, `count` if there is none."""
        runs, gone, count = self.runs, self.gone, self.count
        while place < count and (runs[place] is not None or gone >> place & 1):
            place += 1
        return place

    def fresh_until(self, place: int, most: int) -> int:
        """The end of the stretch of fresh places that starts at a fresh place, at most `most` long."""
        end = min(self.count, place + most)
        if self.gone == 0 and self.alive == self.count and self.runs[end - 1] is None and place == self.next:
            runs = self.runs
            if not any(runs[place:end]):
                return end
        stop = place + 1
        while stop < end and self.is_fresh(stop):
            stop += 1
        return stop

    def stored(self, place: int, message: Message) -> Stored:
        run = self.runs[place]
        if run is None:
            return Stored(message, message.due_at)
        return Stored(message, run.visible_at, run.receives, run.receipt, run.consumer)


class Front(Struct, eq=False):
    """The messages of a group that were taken and have not left, if they are several: see `fronts.py`."""

    members: list[Block]
    """In order of their names."""
    leased: int = 0
    """How many of them are leased, as of the last `States.wake`."""

    def offers(self, block: Block) -> bool:
        """Whether a message of it is the one that can be taken."""
        return not self.leased and self.members[0] is block


Back = tuple[str, int, Block, int, "Run | None"]
"""A message that is ready out of turn: id, a tie breaker, block, place, its run."""


NO_BLOCKS: deque[Block] = deque()
"""Of all lanes that never had any: each queue has ten lanes, and an empty deque takes 760 bytes."""


class Lane(Struct, eq=False, gc=False):
    """The line of one priority and owner. It is in no reference cycle, and there are many: ten per queue."""

    prefix: bytes
    more: bool
    """Whether there may be blocks on disk after `seen` that are not in memory."""
    fresh: deque[Block] = field(default_factory=lambda: NO_BLOCKS)
    back: list[Back] = []
    """A heap."""
    seen: str = ""
    """Blocks on disk up to this name are in memory or finished."""
    size: int = 0


def new_lanes(number: int, owner: str, more: bool) -> list[Lane]:
    """The lanes of one owner by priority; `more` if there may be blocks on disk."""
    return [Lane(prefix, more) for prefix in keys.lane_prefixes(number, owner)]


class HeldClaim(Struct, eq=False):
    """A claim that is not acked, with its runs in order. It has no `ends` while it is being made."""

    claim: Claim
    runs: list[Run]
    ends: list[int] = []
    """For each run, the number of messages up to its end."""

    def freeze(self) -> None:
        """Sort the complete claim by priority, then id."""
        self.runs.sort(key=lambda run: (-run.block.priority, run.block.id_at(run.places.start)))
        self.ends = list(accumulate(len(run.places) for run in self.runs))


class Readers(Struct, eq=False):
    """The claims of one group."""

    name: str
    epoch: int = 0
    acked: int = 0
    last: int = 0
    id: str = ""
    held: dict[int, HeldClaim] = {}
    kept: dict[int, keys.ClaimRecord] = {}
    """Acked claims that may still be readable."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while claims are acked, made or released, which takes several steps."""


class UploadedPart(StagePart, frozen=True, gc=False):
    """A part of a stage."""

    upload: int


class Shelf(Struct, eq=False):
    """A queue in memory."""

    name: str
    number: int
    serial: int
    settings: QueueSettings
    count_key: bytes = b""
    state_prefix: bytes = b""
    count: int = 0
    size: int = 0
    leased: int = 0
    delayed: int = 0
    """How many of `count` are leased or delayed, as of the last `States.wake`."""
    starts: dict[int, str] | None = None
    """Where reading of each priority of the common lane starts; None if no messages were there when it was opened."""
    _tracks: dict[str, list[Lane]] | None = None
    blocks: dict[str, Block] = {}
    """Every block in memory, by name."""
    arriving: dict[str, Block] = {}
    """Blocks whose record is not written yet."""
    leaving: set[str] = set()
    """Names of blocks whose removal is not written yet."""
    timers: list[tuple[int, int, Run]] = []
    """A heap of runs that are not due yet."""
    tokens: dict[str, list[Run]] = {}
    """Runs by receipt; some may have expired."""
    groups: dict[str, keys.GroupRecord] = {}
    """Groups as they will be once everything staged is written."""
    errors: dict[str, str] = {}
    """By message id, errors that are not written yet."""
    followers: dict[str, dict[str, Block]] = {}
    """By group, waiting messages whose record is not written yet."""
    settled: list[Front] = []
    """Fronts that changed since the last `States.wake`."""
    dedup: dict[str, keys.DedupRecord] = {}
    """Dedup records that are not written yet."""
    readers: dict[str, Readers] = {}
    stages: dict[StageName, dict[int, UploadedPart]] = {}
    """The parts of each stage that is not committed."""

    def __post_init__(self) -> None:
        self.count_key = keys.count_key(self.number)
        self.state_prefix = keys.of_queue(b"s", self.number)

    @property
    def tracks(self) -> dict[str, list[Lane]]:
        """The lanes of each owner by priority; no owners at all once the queue was purged or deleted. Those of all
        consumers are made when they are first needed: of many queues most are not used."""
        if self._tracks is None:
            lanes = new_lanes(self.number, "", more=self.starts is not None)
            for priority, seen in (self.starts or {}).items():
                lanes[priority].seen = seen
            self._tracks, self.starts = {"": lanes}, None
        return self._tracks

    def lanes(self, owner: str) -> list[Lane]:
        lanes = self.tracks.get(owner)
        if lanes is None:
            lanes = self.tracks[owner] = new_lanes(self.number, owner, more=True)
        return lanes

    def lane(self, block: Block) -> Lane:
        return self.lanes(block.owner)[block.priority]

    def lows(self) -> dict[int, str]:
        """For each priority, where reading of the common lane has to start after a restart: no block below this name
        is only on disk."""
        lows = {}
        for priority, lane in enumerate(self.tracks[""]):
            low = lane.fresh[0].name if lane.fresh else lane.seen
            if low:
                # What was given back may be part of a block, whose name is the lowest id of its run.
                lows[priority] = min(low, run_of(lane.back[0][0])[0]) if lane.back else low
        for block in self.arriving.values():
            if block.priority in lows and not block.owner and not block.waiting:
                lows[block.priority] = min(lows[block.priority], block.name)
        return lows

    def runs(self) -> Iterator[Run]:
        """Every run that still has messages."""
        for block in list(self.blocks.values()):
            yield from {id(run): run for run in block.runs if run is not None}.values()


class Emptied(Exception):
    """The queue was purged or deleted during a call, which has to start again."""


def check_there(shelf: Shelf) -> None:
    """Raise `Emptied` if the queue was purged or deleted."""
    if not shelf.tracks:
        raise Emptied
