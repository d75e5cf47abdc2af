"""The live view of `miniq top`, on curses: what was fetched last, drawn at once when a key is pressed.

A thread fetches, so that a broker that is slow or away never holds up the keys. The terminal is as it was when this
ends, whatever ends it.
"""

from __future__ import annotations

import contextlib
import curses
import signal
import threading
import time

import click

from miniq.api import shapes
from miniq.cli.top import COLUMNS, View, cells
from miniq.errors import MiniQError

ROWS_ABOVE = 4
HELP = "< > sort   r reverse   / filter   arrows scroll   p pause   q quit"


class Fetcher(threading.Thread):
    """Asks the broker every so often, until it is told to stop."""

    def __init__(self, view: View, interval: float) -> None:
        super().__init__(daemon=True)
        self._view = view
        self._interval = interval
        self._stop = threading.Event()
        self.found: shapes.Stats | None = None
        self.problem = ""
        self.paused = False
        self.changed = threading.Event()

    def run(self) -> None:
        while not self._stop.is_set():
            if not self.paused:
                try:
                    self.found = self._view.fetch()
                    self.problem = ""
                except MiniQError as error:
                    self.problem = error.text
                self.changed.set()
            self._stop.wait(self._interval)

    def stop(self) -> None:
        self._stop.set()


def run(view: View, interval: float) -> None:
    """Show the view until the person ends it. A broker that is not there at the start is told as an error."""
    view.fetch()
    signal.signal(signal.SIGTERM, _terminate)
    fetcher = Fetcher(view, interval)
    fetcher.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            curses.wrapper(lambda window: _Screen(window, view, fetcher).loop())
    except curses.error as error:
        raise click.ClickException(f"this terminal cannot show a live view ({error}); use --once") from None
    finally:
        fetcher.stop()


def _terminate(number: int, frame: object) -> None:
    raise KeyboardInterrupt


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
                self._window.clear()  # a terminal may wrap its lines anew: nothing on it is as it was drawn
            if key != -1 and not self._press(key):
                return
            if key != -1 or self._fetcher.changed.is_set():
                self._fetcher.changed.clear()
                self._draw()

    def _press(self, key: int) -> bool:
        """Do what a key says; False ends it."""
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
        self._window.erase()
        height, width = self._window.getmaxyx()
        found = self._fetcher.found
        view = self._view
        if found is None:
            self._line(0, f"miniq {view.url}: {self._fetcher.problem or 'asking ...'}", width)
            self._window.refresh()
            return
        queues = found.queues
        state = "paused" if self._fetcher.paused else time.strftime("%H:%M:%S")
        self._line(0, f"miniq {view.url}   {len(queues)} queues   {state}", width, curses.A_BOLD)
        ready, leased = sum(one.ready for one in queues), sum(one.leased for one in queues)
        sent, acked = sum(one.rates.sent for one in queues), sum(one.rates.acked for one in queues)
        dead = sum(one.dead for one in queues)
        about = f"{ready} ready, {leased} leased, {dead} dead   in {sent:.1f}/s   out {acked:.1f}/s"
        self._line(1, about if not self._fetcher.problem else f"AWAY: {self._fetcher.problem}", width)
        self._line(
            2, f"filter: {view.wanted}{'_' if self._typing else ''}" if view.wanted or self._typing else "", width
        )
        shown = view.chosen(found)
        self._shown = len(shown)
        self._top = max(0, min(self._top, self._shown - 1))
        rows = [cells(entry, found) for entry in shown[self._top : self._top + max(0, height - ROWS_ABOVE - 1)]]
        marks = [f"{name.upper()}{('v' if view.down else '^') if name == view.sort else ''}" for name in COLUMNS]
        widths = [max([len(marks[place]), *(len(row[place]) for row in rows)]) for place in range(len(COLUMNS))]
        spare = width - 1 - sum(widths[1:]) - 2 * len(widths[1:])
        widths[0] = max(8, min(max(widths[0], 20), spare))
        self._line(3, _row(marks, widths), width, curses.A_REVERSE)
        for place, row in enumerate(rows):
            self._line(ROWS_ABOVE + place, _row(row, widths), width)
        if not shown:
            self._line(ROWS_ABOVE, "no queue has that in its name" if view.wanted else "no queue to be seen", width)
        self._line(height - 1, HELP, width, curses.A_DIM)
        self._window.refresh()

    def _line(self, row: int, text: str, width: int, style: int = 0) -> None:
        # The last cell of a terminal cannot be written without an error, and a window may be smaller than it was.
        with contextlib.suppress(curses.error):
            self._window.addnstr(row, 0, text.ljust(width - 1), width - 1, style)


def _row(texts: list[str] | tuple[str, ...], widths: list[int]) -> str:
    first = texts[0] if len(texts[0]) <= widths[0] else f"{texts[0][: widths[0] - 1]}~"
    rest = [text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *rest])
