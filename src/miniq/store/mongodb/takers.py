"""Lets concurrent takes of one process choose different messages.

All brokers take from the same end of a queue, and the database decides which of them gets a message. The takes of one
process know of each other and avoid such conflicts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from miniq.store.decisions import Budget

Candidate = tuple[str, int]
"""An id, and the bytes it counts for."""


class Takers:
    """The takes in flight in one queue."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._looks: dict[object, set[str]] = {}

    @property
    def idle(self) -> bool:
        return not self._wanted and not self._looks

    def beyond(self) -> int:
        """How many of the first messages other takes have chosen."""
        return len(self._wanted)

    @contextmanager
    def looking(self) -> Iterator[set[str]]:
        """During a search: the messages that other takes have chosen meanwhile."""
        me = object()
        gone = self._looks[me] = set()
        try:
            yield gone
        finally:
            del self._looks[me]

    @contextmanager
    def going_for(self, ids: Sequence[str]) -> Iterator[None]:
        """While messages are being leased, other takes of this process skip them."""
        self._wanted.update(ids)
        try:
            yield
        finally:
            self._wanted.difference_update(ids)
            for gone in self._looks.values():
                gone.update(ids)

    def choose(
        self, candidates: Sequence[Candidate], gone: set[str], limit: int, max_bytes: int, spread: bool
    ) -> list[str]:
        """The first messages within the limits that no other take has chosen. With `spread` from a random position, to
        avoid another broker at the front."""
        free = [one for one in candidates if one[0] not in self._wanted and one[0] not in gone]
        if spread and len(free) > limit:
            free = free[random.randrange(len(free) - limit + 1) :]  # noqa: S311
        budget = Budget(limit, max_bytes)
        return [id for id, _ in takewhile(lambda one: budget.admits(one[1]), free)]
