"""Log lines, as text or as JSON, and the id of the request that each belongs to.

No line has a message's body, a receipt or a key in it: those who log name what they log, and nobody logs a request as
it came.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

LogFormat = Literal["text", "json"]

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The id of the request that is being answered, "" outside of requests."""

ABOUT = ("request", "method", "path", "status", "ms", "code", "queue")
"""What a line may tell beside its message: the `extra` of those who log."""


def log_to_stderr(level: str, format: LogFormat) -> None:
    """Send all log lines to stderr; what the HTTP library says of its own start and end is for debugging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    handler.addFilter(with_request)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        logging.getLogger("uvicorn").setLevel("WARNING")
    for chatty in ("asyncio", "urllib3", "opentelemetry"):
        logging.getLogger(chatty).setLevel("WARNING")


def with_request(record: logging.LogRecord) -> bool:
    """Give a line the id of the request that it belongs to, if it does not name one."""
    if not hasattr(record, "request"):
        record.request = REQUEST.get()
    return True


class TextLines(logging.Formatter):
    """Time, level, who says it, what; then what it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = "".join(f" {name}={value}" for name, value in _about(record).items())
        return super().formatMessage(record) + about


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _about(record: logging.LogRecord) -> dict[str, Any]:
    found = {name: getattr(record, name, "") for name in ABOUT}
    return {name: value for name, value in found.items() if value != ""}
