"""Ctrl-C in the middle of a call of a blocking client: signals are handled at moments at which nothing gets lost.

Python runs a signal handler between any two instructions of the main thread, and KeyboardInterrupt then discards what
the thread has in hand: a reply that it has just read, whose messages would stay leased. Within `with shield:`, handlers
of SIGINT and SIGTERM run only while the thread waits in `interruptible`, and otherwise at the end; within
`uninterrupted` it does not count as waiting. A second signal is handled at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # faster than `signal`, which converts results to enums
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Shield:
    """Postpones signal handlers; may be nested, and does nothing outside the main thread.

    An exception of a handler may interrupt the methods below as well. Therefore a handler of ours that was left
    installed passes signals on, and the next use puts it right.
    """

    def __init__(self) -> None:
        self._levels: list[bool] = []
        """For each `with shield` that is active: whether the thread was waiting when it began."""
        self._is_waiting = False
        self._is_finishing = False
        self._pending: list[int] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._own = self._handle

    def __enter__(self) -> None:
        if not _is_main():
            return
        if not self._levels:
            for number in SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler) and handler is not self._own:
                    self._handlers[number] = handler
                    _signal.signal(number, self._own)
        self._levels, self._is_waiting = [*self._levels, self._is_waiting], False

    def __exit__(self, *error: object) -> None:
        if not _is_main():
            return
        self._levels, self._is_waiting = self._levels[:-1], self._levels[-1]
        if not self._levels:
            for number, handler in self._handlers.items():
                if _signal.getsignal(number) is self._own:  # it was not replaced meanwhile
                    _signal.signal(number, handler)
        if not self._levels or self._is_waiting:
            self._run_pending()

    def wait(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that waits, and that a signal handler may interrupt by an exception without a loss."""
        if not self._levels or self._is_waiting or self._is_finishing or not _is_main():
            return function(*args, **kwargs)
        self._is_waiting = True
        try:
            self._run_pending()
            return function(*args, **kwargs)
        finally:
            self._is_waiting = False

    def finish(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function within `with shield` that only a second signal interrupts, even while it waits."""
        before, self._is_finishing = self._is_finishing, _is_main()
        try:
            return function(*args, **kwargs)
        finally:
            self._is_finishing = before

    def _run_pending(self) -> None:
        while self._pending:
            signal.raise_signal(self._pending.pop(0))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._levels and not self._is_waiting and not self._pending:
            self._pending.append(number)
        else:
            self._pending.clear()
            self._handlers[number](number, frame)


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


shield = Shield()
interruptible = shield.wait
uninterrupted = shield.finish
async_shield = nullcontext()
"""A task is cancelled only where it waits."""
