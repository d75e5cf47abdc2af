"""MiniQ on a machine whose wall clock is wrong: `python -m tests.faults.shifted FILE serve …`.

The file says by how many seconds; it may change at any time.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from miniq.broker.clock import SystemClock
from miniq.cli import main
from miniq.message import SECOND


def shift(path: Path) -> None:
    now = SystemClock.now

    def wrong(self: SystemClock) -> int:
        seconds = 0.0
        with contextlib.suppress(OSError, ValueError):
            seconds = float(path.read_text())
        return now(self) + round(seconds * SECOND)

    SystemClock.now = wrong  # type: ignore[method-assign]


if __name__ == "__main__":
    shift(Path(sys.argv.pop(1)))
    main()
