"""The event loop does not go to sleep between the requests of one who sends them one after the other.

To wake a thread whose processor has gone idle takes longer than much of what a call does, above all on a virtual
machine. So after the answer to one who asked again at once the last time, the loop goes on to look for a while: it
turns, and lets others have the processor if they want it. With several at work there is nothing to be gained: while
one is being answered the next one's request comes anyway, and they need the processor.
"""

from __future__ import annotations

import asyncio
import os
from time import perf_counter


class BusyPoll:
    """Told of requests and answers, with the connection that each belongs to. `longest` is in seconds; 0 is never."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._loop = asyncio.get_running_loop()
        self.last: object = None
        """Who was answered last, None if another one has asked since: then `asked` changes nothing."""
        self._answered = 0.0
        self._is_brisk = False
        """Whether the request that is being answered came from the same one, soon after that."""
        self._until = 0.0
        self._turning = False

    def asked(self, who: object) -> None:
        """A request of `who` has come."""
        if who is not self.last:
            self.last = None  # from here on somebody is in between
        self._is_brisk = self.last is not None and perf_counter() - self._answered < self._longest
        self._until = 0.0

    def answered(self, who: object) -> None:
        """It was answered."""
        now = self._answered = perf_counter()
        self.last = who
        if self._is_brisk:
            self._until = now + self._longest
            if not self._turning:
                self._turning = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """One more turn of the loop, which looks for requests without waiting for one."""
        if perf_counter() < self._until:
            os.sched_yield()
            self._loop.call_soon(self._turn)
        else:
            self._turning = False
