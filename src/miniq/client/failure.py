"""What a broker is told about work that failed."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

LONGEST = 4096
"""The longest error that a broker keeps, in bytes of UTF-8."""
TRACE_LINES = 12
"""How many of the last lines of a traceback are kept."""


PACKAGE = str(Path(__file__).parents[1])


class Reject(Exception):
    """Raised while a message is processed that can never be processed: it goes to the dead-letter queue at once."""

    __module__ = "miniq"


class TaskFailed(Exception):
    """Raised by `job.result` if the task has failed for good: its message is in the dead-letter queue."""

    __module__ = "miniq"

    def __init__(self, text: str, error: str | None) -> None:
        super().__init__(text)
        self.error = error
        """The error of its last attempt."""


class ResultTimeout(TimeoutError):
    """Raised by `job.result` if the task is not finished in time."""

    __module__ = "miniq"


def error_text(error: str | BaseException) -> str:
    """An error as a broker keeps it: of an exception, its type, its text and the last lines of its traceback."""
    if not isinstance(error, BaseException):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    lines = "".join(traceback.format_tb(error.__traceback__)).splitlines()[-TRACE_LINES:]
    return beginning("\n".join([text, "", *lines]) if lines else text)


def beginning(text: str) -> str:
    """As much of a text as a broker keeps."""
    return text.encode("utf-8", "replace")[:LONGEST].decode("utf-8", "ignore")


def without_own_frames(at: TracebackType | None) -> TracebackType | None:
    """A traceback from the first line of the user's program on."""
    frame = at
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.tb_next
    return frame or at
