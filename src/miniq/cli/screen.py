"""The live view of `miniq top`, on curses.

A thread fetches the statistics, so that a slow or unreachable broker never delays the keys. The terminal is restored at
the end, also after an error.
"""

from __future__ import annotations

import contextlib
import curses
import os
import sys
import threading
import time
from datetime import datetime

import click

from miniq.api import shapes
from miniq.cli.consumers import HEADS, NO_CONSUMER, rows
from miniq.cli.output import plural
from miniq.cli.problems import troubles, words
from miniq.cli.top import COLUMNS, View, cells, layout, summary, totals
from miniq.consumer import Consumer
from miniq.errors import MiniQError

ROWS_ABOVE = 4
FRAME = (b"\x1b[?2026h", b"\x1b[?2026l")
"""Around what a terminal shows as a whole, never half drawn, if it knows synchronized output; others ignore it."""
HELP = ("q quit", "/ filter", "< > sort", "r reverse", "p pause", "arrows scroll")


class Fetcher(threading.Thread):
    """Fetches the statistics at every interval, until it is stopped."""

    def __init__(self, view: View, interval: float) -> None:
        super().__init__(daemon=True)
        self._view = view
        self._interval = interval
        self.stopped = threading.Event()
        self.stats: shapes.Stats | None = None
        self.consumers: list[Consumer] = []
        self.problem = ""
        self.paused = False
        self.changed = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            if not self.paused:
                try:
                    self.stats, self.consumers = self._view.fetch()
                    self.problem = ""
                except MiniQError as error:
                    self.problem = error.text
                self.changed.set()
            self.stopped.wait(self._interval)


def run(view: View, interval: float) -> None:
    """Show the view until the user quits. A broker that is unreachable at the start is an error."""
    _require_cursor()
    view.fetch()
    fetcher = Fetcher(view, interval)
    fetcher.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            curses.wrapper(lambda window: _Screen(window, view, fetcher).loop())
    except curses.error as error:
        raise click.ClickException(f"this terminal cannot show a live view ({error}); use --once") from None
    finally:
        fetcher.stopped.set()


def _require_cursor() -> None:
    """Refuse a terminal that cannot move its cursor, such as TERM=dumb."""
    term = os.environ.get("TERM") or "unset"
    try:
        curses.setupterm()
        able = curses.tigetstr("cup") is not None and curses.tigetstr("clear") is not None
    except curses.error:
        able = False
    if not able:
        raise click.UsageError(
            f"The live view needs a terminal that can move its cursor, and TERM is {term}. Use --once for one table, "
            "or --json."
        )


class _Screen:
    def __init__(self, window: curses.window, view: View, fetcher: Fetcher) -> None:
        self._window = window
        self._view = view
        self._fetcher = fetcher
        self._top = 0
        self._typing = False
        self._shown = 0
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        with contextlib.suppress(curses.error):
            curses.use_default_colors()
        window.timeout(100)
        window.keypad(True)

    def loop(self) -> None:
        self._draw()
        while True:
            key = self._window.getch()
            if key == curses.KEY_RESIZE:
                self._window.clear()  # the terminal may have rewrapped its lines
            if key != -1 and not self._press(key):
                return
            if key != -1 or self._fetcher.changed.is_set():
                self._fetcher.changed.clear()
                self._draw()

    def _press(self, key: int) -> bool:
        """Handle a key; False quits."""
        view = self._view
        if self._typing:
            if key in (10, 13, 27):
                self._typing = False
                if key == 27:
                    view.wanted = ""
            elif key in (8, 127, curses.KEY_BACKSPACE):
                view.wanted = view.wanted[:-1]
            elif 32 < key < 127:
                view.wanted += chr(key)
            self._top = 0
            return True
        page = max(1, self._window.getmaxyx()[0] - ROWS_ABOVE - 1)
        steps = {curses.KEY_DOWN: 1, ord("j"): 1, curses.KEY_UP: -1, ord("k"): -1}
        steps |= {curses.KEY_NPAGE: page, curses.KEY_PPAGE: -page}
        if key == ord("q"):
            return False
        if key in steps:
            self._top = max(0, min(self._top + steps[key], self._shown - 1))
        elif key in (ord("<"), ord(","), curses.KEY_LEFT):
            view.turn(-1)
        elif key in (ord(">"), ord("."), curses.KEY_RIGHT):
            view.turn(1)
        elif key == ord("r"):
            view.down = not view.down
        elif key == ord("p"):
            self._fetcher.paused = not self._fetcher.paused
        elif key == ord("/"):
            self._typing = True
        elif key == 27:
            view.wanted = ""
        return True

    def _draw(self) -> None:
        begin, end = FRAME
        os.write(sys.stdout.fileno(), begin)
        try:
            self._paint()
            self._window.refresh()
        finally:
            os.write(sys.stdout.fileno(), end)

    def _paint(self) -> None:
        self._window.erase()
        height, width = self._window.getmaxyx()
        view, stats, problem = self._view, self._fetcher.stats, self._fetcher.problem
        if stats is None:
            self._line(0, f"miniq {view.url}: {problem or 'connecting ...'}", width)
            return
        if view.queue is not None:
            self._draw_consumers(view.queue, stats.queues[0], stats.at, height, width)
            return
        queues = stats.queues
        state = "paused" if self._fetcher.paused else time.strftime("%H:%M:%S")
        self._line(0, f"miniq {view.url}   {plural(len(queues), 'queue')}   {state}", width, curses.A_BOLD)
        self._line(1, f"NOT UPDATED: {problem}" if problem else totals(queues), width)
        wanted = view.wanted + "_" * self._typing
        self._line(2, f"filter: {wanted}" if wanted else "   ".join(troubles(queues, stats.at)), width, curses.A_BOLD)
        shown = view.chosen(stats)
        self._shown = len(shown)
        self._top = max(0, min(self._top, self._shown - 1))
        page = [cells(entry, stats) for entry in shown[self._top : self._top + max(0, height - ROWS_ABOVE - 1)]]
        heads = [f"{name.upper()}{('v' if view.down else '^') if name == view.sort else ''}" for name in COLUMNS]
        ellipsis = "…" if self._window.encoding.lower().replace("-", "") == "utf8" else "~"
        lines = layout(heads, page, view.sort, max(width - 1, 1), ellipsis)
        self._line(3, lines[0], width, curses.A_REVERSE)
        for row, line in enumerate(lines[1:], ROWS_ABOVE):
            self._line(row, line, width)
        if not shown:
            self._line(ROWS_ABOVE, "no queue has that in its name" if view.wanted else "no queues", width)
        self._line(height - 1, _help(width), width, curses.A_DIM)

    def _draw_consumers(self, name: str, queue: shapes.QueueStats, at: datetime, height: int, width: int) -> None:
        """One queue and its consumers."""
        view, problem, consumers = self._view, self._fetcher.problem, self._fetcher.consumers
        state = "paused" if self._fetcher.paused else time.strftime("%H:%M:%S")
        self._line(0, f"miniq {view.url}   {name}   {state}", width, curses.A_BOLD)
        counts, times = summary(queue)
        wrong = "; ".join(words(queue, at))
        self._line(1, f"NOT UPDATED: {problem}" if problem else "   ".join(filter(None, (counts, wrong))), width)
        self._line(2, times, width)
        self._shown = len(consumers)
        self._top = max(0, min(self._top, self._shown - 1))
        page = rows(consumers)[self._top : self._top + max(0, height - ROWS_ABOVE - 1)]
        widths = [max(len(row[column]) for row in (HEADS, *page)) for column in range(len(HEADS))]
        longest = max(width - 1 - sum(widths[1:]) - 2 * len(widths[1:]), 1)
        for number, row in enumerate([HEADS, *page], ROWS_ABOVE - 1):
            line = [row[0][:longest].ljust(min(widths[0], longest))]
            line += [text.rjust(wide) for text, wide in zip(row[1:], widths[1:], strict=True)]
            self._line(number, "  ".join(line), width, curses.A_REVERSE if number < ROWS_ABOVE else 0)
        if not consumers:
            self._line(ROWS_ABOVE, NO_CONSUMER, width)
        self._line(height - 1, "q quit   p pause   arrows scroll", width, curses.A_DIM)

    def _line(self, row: int, text: str, width: int, style: int = 0) -> None:
        # Writing the last cell of a terminal is an error, and the window may have shrunk.
        with contextlib.suppress(curses.error):
            self._window.addnstr(row, 0, text.ljust(width - 1), width - 1, style)


def _help(width: int) -> str:
    """As many keys as fit."""
    line = HELP[0]
    for key in HELP[1:]:
        if len(line) + 3 + len(key) < width:
            line += f"   {key}"
    return line
