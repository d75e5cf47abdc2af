"""The options of `format("miniq")`: their types, their allowed values and the operations they apply to. All are checked
before any work starts."""

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
"""Seconds that the broker may be unreachable before a task or query fails."""
FIRST_RETRY = 5.0
"""The same for the first connection: a wrong address should fail soon."""
MAX_MESSAGES = 100_000
MAX_BYTES = 64 * 1024 * 1024
POLL = 1.0
MAX_BATCH_MESSAGES = 1_000_000
MAX_PARTITIONS = 10_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

View = Literal["messages", "history"]
Use = Literal["read", "readStream", "write", "writeStream"]


class Options(Struct, frozen=True, kw_only=True):
    """All options as Python values; pickled to the executors. Names are those that users write."""

    url: str = DEFAULT_URL
    queue: str | None = None
    """The queue. With `view=history` it is a filter; without it, all queues are read."""
    api_key: str | None = None
    """Defaults to MINIQ_API_KEY of the driver."""
    retry: float = RETRY
    timeout: float = 60.0
    ca: str | None = None
    verify: bool = True
    view: View = "messages"
    partitions: int | None = None
    """Number of partitions to read in; by default, each gets work for about a second."""
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
    """Exclusive."""
    # To read a stream
    group: str | None = None
    maxMessagesPerBatch: int = MAX_MESSAGES
    maxBytesPerBatch: int = MAX_BYTES
    pollTimeout: float = POLL
    # To write
    contentType: str | None = None
    """The content type of all bodies, if there is no column `content_type`."""
    job: str | None = None
    """A name that makes a batch write idempotent: a second write with the same name adds nothing."""

    def connect(self, probe: bool = False) -> Client:
        """A client that retries calls while the broker is unreachable. With `probe`, first make a call that gives up
        soon, so that a wrong address does not take `retry` seconds to fail."""
        if probe:
            with structs.replace(self, retry=min(self.retry, FIRST_RETRY)).connect() as client:
                client.queues()
        tls: dict[str, Any] = {"ca": self.ca, "verify": self.verify} if self.url.lower().startswith("https:") else {}
        return connect(self.url, api_key=self.api_key, retry=self.retry, timeout=self.timeout, **tls)


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
"""Options that apply to some uses only. Elsewhere they are an error, because the user expects an effect."""

HISTORY_ONLY = ("startingOffset", "endingOffset", "startingTime", "endingTime")
MESSAGES_ONLY = ("status", "group", "maxBytesPerBatch")
ADDED_BY_SPARK = ("path", "checkpointlocation", "mergeschema", "queryname", "__streaming_source_evolution_enabled")
"""Options that Spark itself passes to every source, in lower case."""


def read_options(given: Mapping[str, str]) -> Options:
    """Parse the options that a user gave; `InvalidRequest` names the first invalid one."""
    known = {name.lower(): name for name in Options.__struct_fields__}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = known.get(key.lower())
        if name is None:
            if key.lower() in ADDED_BY_SPARK or key.lower().startswith("spark."):
                continue
            raise InvalidRequest(f"{key}: no such option; use one of {', '.join(known.values())}", field=key)
        values[name] = _PARSERS.get(name, _text)(name, str(text))
    if "api_key" not in values and os.environ.get("MINIQ_API_KEY"):
        values["api_key"] = os.environ["MINIQ_API_KEY"]
    if "url" not in values and os.environ.get("MINIQ_URL"):
        values["url"] = os.environ["MINIQ_URL"]
    options = Options(**values)
    if re.match(r"https?://", options.url, re.IGNORECASE) is None:
        raise _invalid("url", options.url, "use http://HOST:PORT that the executors can reach")
    options.connect().close()  # raises if the rest of the URL is invalid; makes no request
    _check_view(options, values)
    return options


def check_use(options: Options, given: Mapping[str, str], use: Use) -> None:
    """Raise if an option that this use needs is missing, or one is given that only applies to other uses."""
    names = {key.lower() for key in given}
    for name, uses in USES.items():
        if name.lower() in names and use not in uses:
            raise InvalidRequest(f"{name}: has no effect on {use}; it is for {' and '.join(uses)}", field=name)
    if options.queue is None and (options.view == "messages" or use in ("write", "writeStream")):
        raise InvalidRequest("queue: is missing; set it with .option('queue', NAME)", field="queue")
    if use == "readStream" and options.view == "messages" and options.group is None:
        raise InvalidRequest(
            "group: is missing; set it with .option('group', NAME), and keep the name across restarts: the broker "
            "holds the group's unfinished messages under it",
            field="group",
        )
    if use == "read" and options.startingOffset == "latest":
        raise _invalid("startingOffset", "latest", "a batch read would be empty; use a number or 'earliest'")


def _check_view(options: Options, values: Mapping[str, Any]) -> None:
    other_view = "messages" if options.view == "history" else "history"
    for name in MESSAGES_ONLY if options.view == "history" else HISTORY_ONLY:
        if name in values:
            raise InvalidRequest(f"{name}: is for view={other_view}, but the view is {options.view}", field=name)
    first = options.startingOffset if isinstance(options.startingOffset, int) else 1
    if options.endingOffset is not None and options.endingOffset < first - 1:
        raise _invalid("endingOffset", options.endingOffset, f"it is before startingOffset {first}")
    begin, end = options.startingTime, options.endingTime
    if begin is not None and end is not None and end < begin:
        raise _invalid("endingTime", end.isoformat(), "it is before startingTime")


# Parsers of single values


def _invalid(name: str, value: object, hint: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {str(value)!r} is invalid; {hint}", field=name)


def _text(name: str, text: str) -> str:
    if not text:
        raise _invalid(name, text, "it must not be empty")
    return text


def _name(name: str, text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise _invalid(name, text, "use 1 to 128 of A-Z a-z 0-9 . _ -")
    return text


def _choice(*choices: str) -> Any:
    def parse(name: str, text: str) -> str:
        if text not in choices:
            raise _invalid(name, text, f"use {' or '.join(choices)}")
        return text

    return parse


def _whole(low: int, high: int) -> Any:
    def parse(name: str, text: str) -> int:
        if re.fullmatch(r"\d{1,18}", text.strip()) is None or not low <= int(text) <= high:
            raise _invalid(name, text, f"use a whole number from {low:,} to {high:,}")
        return int(text)

    return parse


def _seconds(low: float, high: float) -> Any:
    def parse(name: str, text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not low <= seconds <= high:
            raise _invalid(name, text, f"use {low:g} to {high:g} seconds")
        return seconds

    return parse


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _invalid(name, text, "use true or false")
    return text.lower() == "true"


def _start(name: str, text: str) -> int | str:
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"\d{1,18}", text) is None:
        raise _invalid(name, text, "use a history offset, 'earliest' or 'latest'")
    return int(text)


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid(name, text, "use a time such as 2026-11-15T08:00:00Z") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


_PARSERS: dict[str, Any] = {
    "queue": _name,
    "group": _name,
    "job": _name,
    "view": _choice(*get_args(View)),
    "status": _choice(*get_args(Status)),
    "retry": _seconds(0, 86400),
    "timeout": _seconds(0.1, 86400),
    "verify": _flag,
    "partitions": _whole(1, MAX_PARTITIONS),
    "failOnDataLoss": _flag,
    "startingOffset": _start,
    "endingOffset": _whole(0, 10**18),
    "startingTime": _moment,
    "endingTime": _moment,
    "maxMessagesPerBatch": _whole(1, MAX_BATCH_MESSAGES),
    "maxBytesPerBatch": _whole(1, 2**40),
    "pollTimeout": _seconds(0, 60),
}
