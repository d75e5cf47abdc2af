"""The options of `format("miniq")`: what there is, for what, and what each may be. All are checked before any work."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from msgspec import Struct, structs

from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.errors import InvalidRequest
from miniq.message import Status

DEFAULT_URL = "http://127.0.0.1:5000"
RETRY = 300.0
"""Seconds that the broker may be away before a task or query fails."""
FIRST = 5.0
"""Seconds to wait for a broker that has not been heard of yet."""
MAX_MESSAGES = 100_000
MAX_BYTES = 64 * 1024 * 1024
POLL = 1.0
MOST_MESSAGES = 1_000_000
MOST_PARTITIONS = 10_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

View = Literal["messages", "history"]
Use = Literal["read", "readStream", "write", "writeStream"]


class Options(Struct, frozen=True, kw_only=True):
    """What a user may say, as Python values. Plain data: it travels to the executors."""

    url: str = DEFAULT_URL
    queue: str | None = None
    """The queue; with `view=history` a filter, without it all queues."""
    api_key: str | None = None
    """Without it the driver's MINIQ_API_KEY."""
    retry: float = RETRY
    timeout: float = 60.0
    ca: str | None = None
    verify: bool = True
    view: View = "messages"
    partitions: int | None = None
    """In how many parts to read; by default so that each has work for about a second."""
    failOnDataLoss: bool = True
    # To read a snapshot
    status: Status | None = None
    # To read history
    startingOffset: int | Literal["earliest", "latest"] = "earliest"
    """The first record to read."""
    endingOffset: int | None = None
    """The last record to read."""
    startingTime: datetime | None = None
    endingTime: datetime | None = None
    """The first moment not to read any more."""
    # To read a stream
    group: str | None = None
    maxMessagesPerBatch: int = MAX_MESSAGES
    maxBytesPerBatch: int = MAX_BYTES
    pollTimeout: float = POLL
    # To write
    contentType: str | None = None
    """What the bodies are, if there is no column `content_type`."""
    job: str | None = None
    """A name for a batch write: a second one with the same name adds nothing."""

    def connect(self, probe: bool = False) -> Client:
        """A client of the broker, whose calls are repeated while it is away. With `probe` a broker that was never
        there is told of soon."""
        if probe:
            with structs.replace(self, retry=min(self.retry, FIRST)).connect() as client:
                client.queues()
        more: dict[str, Any] = {"ca": self.ca, "verify": self.verify} if self.url.lower().startswith("https:") else {}
        return connect(self.url, api_key=self.api_key, retry=self.retry, timeout=self.timeout, **more)


USES: dict[str, tuple[Use, ...]] = {
    "status": ("read",),
    "endingOffset": ("read",),
    "startingTime": ("read",),
    "endingTime": ("read",),
    "startingOffset": ("read", "readStream"),
    "partitions": ("read", "readStream"),
    "view": ("read", "readStream"),
    "failOnDataLoss": ("read", "readStream"),
    "group": ("readStream",),
    "maxMessagesPerBatch": ("readStream",),
    "maxBytesPerBatch": ("readStream",),
    "pollTimeout": ("readStream",),
    "contentType": ("write", "writeStream"),
    "job": ("write",),
}
"""The options that are not for everything. One that has no effect is refused: its user expects one."""

HISTORY_ONLY = ("startingOffset", "endingOffset", "startingTime", "endingTime")
MESSAGES_ONLY = ("status", "group", "maxBytesPerBatch")
SPARKS = ("path", "checkpointlocation", "mergeschema", "queryname", "__streaming_source_evolution_enabled")
"""What Spark adds to the options of a source by itself."""


def read_options(given: Mapping[str, str]) -> Options:
    """The options that a user gave, as values; `InvalidRequest` names the first that is wrong."""
    known = {name.lower(): name for name in Options.__struct_fields__}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = known.get(key.lower())
        if name is None:
            if key.lower() in SPARKS or key.lower().startswith("spark."):
                continue
            raise InvalidRequest(f"{key}: no such option; there are {', '.join(known.values())}", field=key)
        values[name] = _READERS.get(name, _text)(name, str(text))
    if "api_key" not in values and os.environ.get("MINIQ_API_KEY"):
        values["api_key"] = os.environ["MINIQ_API_KEY"]
    if "url" not in values and os.environ.get("MINIQ_URL"):
        values["url"] = os.environ["MINIQ_URL"]
    options = Options(**values)
    if re.match(r"https?://", options.url, re.IGNORECASE) is None:
        raise _wrong("url", options.url, "use http://HOST:PORT, which the executors can reach")
    options.connect().close()  # says what is wrong with the rest of the address
    _check_view(options, values)
    return options


def check_use(options: Options, given: Mapping[str, str], use: Use) -> None:
    """Raise unless the options are enough for a use, and none is for another one."""
    names = {key.lower() for key in given}
    for name, uses in USES.items():
        if name.lower() in names and use not in uses:
            raise InvalidRequest(f"{name}: has no effect on {use}; it is for {' and '.join(uses)}", field=name)
    if options.queue is None and (options.view == "messages" or use in ("write", "writeStream")):
        raise InvalidRequest("queue: is missing; name the queue with .option('queue', NAME)", field="queue")
    if use == "readStream" and options.view == "messages" and options.group is None:
        raise InvalidRequest(
            "group: is missing; name the reader with .option('group', NAME), the same after every restart: "
            "the broker keeps for it what it has not finished",
            field="group",
        )
    if use == "read" and options.startingOffset == "latest":
        raise _wrong("startingOffset", "latest", "there is nothing to read after it; use a number or 'earliest'")


def _check_view(options: Options, values: Mapping[str, Any]) -> None:
    others = MESSAGES_ONLY if options.view == "history" else HISTORY_ONLY
    for name in others:
        if name in values:
            right = "messages" if options.view == "history" else "history"
            raise InvalidRequest(f"{name}: is for view={right}, and the view is {options.view}", field=name)
    first = options.startingOffset if isinstance(options.startingOffset, int) else 1
    if options.endingOffset is not None and options.endingOffset < first - 1:
        raise _wrong("endingOffset", options.endingOffset, f"it is before startingOffset {first}")
    begin, end = options.startingTime, options.endingTime
    if begin is not None and end is not None and end < begin:
        raise _wrong("endingTime", end.isoformat(), "it is before startingTime")


# Reading one value


def _wrong(name: str, value: object, right: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {str(value)!r}; {right}", field=name)


def _text(name: str, text: str) -> str:
    if not text:
        raise _wrong(name, text, "it is empty")
    return text


def _name(name: str, text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise _wrong(name, text, "use 1 to 128 of A-Z a-z 0-9 . _ -")
    return text


def _choice(*choices: str) -> Any:
    def read(name: str, text: str) -> str:
        if text not in choices:
            raise _wrong(name, text, f"use {' or '.join(choices)}")
        return text

    return read


def _whole(low: int, high: int) -> Any:
    def read(name: str, text: str) -> int:
        if re.fullmatch(r"\d{1,18}", text.strip()) is None or not low <= int(text) <= high:
            raise _wrong(name, text, f"use a whole number from {low:,} to {high:,}")
        return int(text)

    return read


def _seconds(low: float, high: float) -> Any:
    def read(name: str, text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not low <= seconds <= high:
            raise _wrong(name, text, f"use seconds from {low:g} to {high:g}")
        return seconds

    return read


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _wrong(name, text, "use true or false")
    return text.lower() == "true"


def _start(name: str, text: str) -> int | str:
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"\d{1,18}", text) is None:
        raise _wrong(name, text, "use a history offset, 'earliest' or 'latest'")
    return int(text)


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(name, text, "use a moment such as 2026-11-15T08:00:00Z") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


_READERS: dict[str, Any] = {
    "queue": _name,
    "group": _name,
    "job": _name,
    "view": _choice(*get_args(View)),
    "status": _choice(*get_args(Status)),
    "retry": _seconds(0, 86400),
    "timeout": _seconds(0.1, 86400),
    "verify": _flag,
    "partitions": _whole(1, MOST_PARTITIONS),
    "failOnDataLoss": _flag,
    "startingOffset": _start,
    "endingOffset": _whole(0, 10**18),
    "startingTime": _moment,
    "endingTime": _moment,
    "maxMessagesPerBatch": _whole(1, MOST_MESSAGES),
    "maxBytesPerBatch": _whole(1, 2**40),
    "pollTimeout": _seconds(0, 60),
}
