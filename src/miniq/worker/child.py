"""`python -m miniq.worker.child PIPE NUMBER SETTINGS`: a process of `miniq worker --processes`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

import msgspec

from miniq.errors import InvalidRequest, MiniQError
from miniq.logs import log_to_stderr
from miniq.worker.metrics import Numbers
from miniq.worker.process import Process, Settings, load, run
from miniq.worker.supervisor import REPORT, SILENT, USAGE

log = logging.getLogger("miniq.worker")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing has begun
    pipe, number = int(sys.argv[1]), int(sys.argv[2])
    settings = msgspec.json.decode(sys.argv[3], type=Settings)
    log_to_stderr(settings.log_level, settings.log_format)  # type: ignore[arg-type]
    threading.Thread(target=end_with_supervisor, name="miniq-parent", daemon=True).start()
    reporter = Reporter(pipe, Numbers(concurrency=settings.concurrency))
    threading.Thread(target=reporter.run, name="miniq-report", daemon=True).start()
    try:
        process = Process(load(settings.app), settings, number)
    except MiniQError as error:
        print(f"miniq: {error.text}", file=sys.stderr)
        return USAGE if isinstance(error, InvalidRequest) or settings.reload else 1
    reporter.process = process
    try:
        code = run(process)
    except MiniQError as error:
        print(f"miniq: {error.text}", file=sys.stderr)
        return 1
    reporter.report()
    return code


class Reporter:
    """Writes the numbers of this process to its supervisor, unless its event loop is blocked. It begins before the app
    is imported, which may take long."""

    def __init__(self, pipe: int, numbers: Numbers) -> None:
        self._pipe = pipe
        self._numbers = numbers
        """Reported until there is a process."""
        self.process: Process | None = None

    def run(self) -> None:
        is_blocked = False
        while True:
            was_blocked, is_blocked = is_blocked, self.process is not None and self.process.is_blocked()
            if is_blocked and not was_blocked:
                log.error("the event loop is blocked, by a coroutine that does not await; killed after %g s", SILENT)
            elif not is_blocked and not self.report():
                return
            time.sleep(REPORT)

    def report(self) -> bool:
        """Whether there is still a supervisor."""
        numbers = self._numbers if self.process is None else self.process.numbers()
        try:
            os.write(self._pipe, msgspec.json.encode(numbers) + b"\n")
        except OSError:
            return False
        return True


def end_with_supervisor() -> None:
    """Send this process SIGTERM when its supervisor is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
