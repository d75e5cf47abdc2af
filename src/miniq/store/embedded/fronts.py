"""Fronts of groups: the messages of a group that were taken and have not left the queue.

A front of one message needs no record: that message is in its lane while it can be taken. Of a longer front only the
first message is in its lane, and only while none of the front is leased; `States.wake` puts it there.

On disk a front is not recorded either: it is the messages of the group whose state has receives, or had some that
were taken back. Those that were taken behind the head keep their key among the messages that wait (`w`).
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from miniq.store.embedded.blocks import Block, Front, Shelf
from miniq.store.embedded.window import Window

_by_name = attrgetter("name")


def join(head: Block, block: Block) -> None:
    """Add a message that is about to be leased to the front of its group, of which `head` is a member."""
    front = head.front
    if front is None:
        front = head.front = Front([head], int(_is_leased(head)))
    insort(front.members, block, key=_by_name)
    block.front = front
    block.waiting = False


def leave(shelf: Shelf, block: Block) -> Block | None:
    """Remove a message from a front that has others: the first of them if none is leased, which may be taken next."""
    front = block.front
    assert front is not None  # noqa: S101
    block.front = None
    front.members.remove(block)
    shelf.settled.append(front)
    if len(front.members) == 1:
        # From now on its own state alone decides.
        front.members[0].front = None
    return None if front.leased else front.members[0]


def substitute(old: Block, new: Block) -> None:
    """Replace a message of a front by its edited version."""
    new.front = front = old.front
    if front is not None:
        front.members[front.members.index(old)] = new
        old.front = None


def line_up(shelf: Shelf, window: Window) -> None:
    """Put the first messages of fronts that changed in their lanes, if they can be taken."""
    for front in dict.fromkeys(shelf.settled):
        head = front.members[0]
        run = head.runs[0]
        if not front.leased and run is not None and run.due:
            window.push_back(shelf.lane(head), head, 0, run)
    shelf.settled.clear()


def restore(shelf: Shelf) -> None:
    """Find the fronts of a queue whose states were read from disk."""
    heads: dict[str, Block] = {}
    for block in shelf.blocks.values():
        run = block.runs[0]
        if block.group is not None and run is not None and (run.receives or run.returned):
            head = heads.setdefault(block.group, block)
            if head is not block:
                join(head, block)
                if block.front is not None and _is_leased(block):
                    block.front.leased += 1
            block.waiting = False


def _is_leased(block: Block) -> bool:
    """Whether a message is leased, as of the last `States.wake`."""
    run = block.runs[0]
    return run is not None and run.receipt is not None and not run.due
