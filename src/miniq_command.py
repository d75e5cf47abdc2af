"""The entry point of the command `miniq`.

It is outside the package because importing that takes long enough for a person to press Ctrl-C, and code inside the
package runs only once it has been imported.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command and exit. Until the package is imported, Ctrl-C ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from miniq.cli import main

    main()
