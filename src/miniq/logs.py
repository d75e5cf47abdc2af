"""Log output as text or JSON, with the id of the request that each line belongs to.

No line contains a message body, a receipt or a key: callers pass the fields to log by name, and no code logs a raw
request.
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
"""The id of the current request, "" outside of requests."""

FIELDS = ("request", "method", "path", "status", "ms", "code", "queue", "task", "id", "attempt", "messages")
"""The `extra` attributes of a log record that are printed after its message."""


def log_to_stderr(level: str, format: LogFormat) -> None:
    """Send all log lines to stderr. The HTTP library's start and stop messages appear only at level debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    handler.addFilter(with_request)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        logging.getLogger("uvicorn").setLevel("WARNING")
    for library in ("asyncio", "urllib3", "opentelemetry"):
        logging.getLogger(library).setLevel("WARNING")


def with_request(record: logging.LogRecord) -> bool:
    """Logging filter that adds the current request id to a record without one."""
    if not hasattr(record, "request"):
        record.request = REQUEST.get()
    return True


class TextLines(logging.Formatter):
    """Time, level, logger and message, then fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        return super().formatMessage(record) + fields


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    values = {name: getattr(record, name, "") for name in FIELDS}
    return {name: value for name, value in values.items() if value != ""}
