"""The entry point of the command `miniq`.

It is outside the package because importing that takes long enough for a person to press Ctrl-C, and code inside the
package runs only once it has been imported.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command and exit. Until the package is imported, Ctrl-C and SIGTERM end the process at once, and SIGHUP,
    which asks a server to reload its certificate, does not."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from miniq.cli import main

    main()


def end(*signal: object) -> None:
    """End a command that has not begun, as one that has begun would."""
    try:
        os.write(2, b"miniq: interrupted\n")
    finally:
        os._exit(1)
