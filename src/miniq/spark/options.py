"""The options of `format("miniq")`: their types, their allowed values and the operations they apply to. All are checked
before any work starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_type_hints

from msgspec import Struct, structs

from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.client.failover import Failover
from miniq.client.http.target import FILES
from miniq.errors import InvalidRequest
from miniq.message import EventName, Status

DEFAULT_URL = "http://127.0.0.1:5000"
FIRST_RETRY = 5.0
"""Seconds that the broker may be unreachable for the first connection: a wrong address should fail soon."""

View = Literal["messages", "history"]
Mode = Literal["permissive", "drop", "fail", "dead"]
"""What becomes of a message whose body does not fit its type."""
Use = Literal["read", "readStream", "write", "writeStream"]
Uses = tuple[Use, ...]
Parser = Callable[[str], Any]
ALL: Uses = get_args(Use)
READS: Uses = ("read", "readStream")
WRITES: Uses = ("write", "writeStream")


class Rule(Struct, frozen=True):
    """How the text of an option is parsed, and where the option applies. Elsewhere it is an error, because the user
    expects an effect."""

    parse: Parser
    """Returns None or raises ValueError if the text is invalid."""
    hint: str
    """What to write instead of an invalid text."""
    uses: Uses = ALL
    view: View | None = None


def _name(uses: Uses = ALL, view: View | None = None) -> Rule:
    name = re.compile(r"[A-Za-z0-9._-]{1,128}")
    return Rule(lambda text: text if name.fullmatch(text) else None, "use 1 to 128 of A-Z a-z 0-9 . _ -", uses, view)


def _choice(choices: tuple[str, ...], uses: Uses, view: View | None = None) -> Rule:
    return Rule(lambda text: text if text in choices else None, f"use {' or '.join(choices)}", uses, view)


def _flag(uses: Uses = ALL) -> Rule:
    return Rule(lambda text: {"true": True, "false": False}.get(text.lower()), "use true or false", uses)


def _whole(low: int, high: int, uses: Uses = ALL, view: View | None = None) -> Rule:
    return Rule(_between(low, high, int), f"use a whole number from {low:,} to {high:,}", uses, view)


def _seconds(low: float, high: float, uses: Uses = ALL) -> Rule:
    return Rule(_between(low, high, float), f"use {low:g} to {high:g} seconds", uses)


def _between(low: float, high: float, kind: Callable[[str], float]) -> Parser:
    return lambda text: number if low <= (number := kind(text)) <= high else None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _offset(text: str) -> Any:
    return text if text in ("earliest", "latest") else _between(0, 10**18, int)(text)


_TEXT = Rule(lambda text: text or None, "it must not be empty")
_OFFSET = Rule(_offset, "use a history offset, 'earliest' or 'latest'", READS, "history")
_TIME = Rule(_moment, "use a time such as 2026-11-15T08:00:00Z", ("read",), "history")


class Options(Struct, frozen=True, kw_only=True):
    """All options as Python values; pickled to the executors. Names are those that users write."""

    url: Annotated[str, _TEXT] = DEFAULT_URL
    """One broker, or several on one database, separated by commas."""
    queue: Annotated[str | None, _name()] = None
    """The queue. With `view=history` it is a filter; without it, all queues are read."""
    topic: Annotated[str | None, _name(WRITES)] = None
    """The topic to publish to, instead of a queue."""
    api_key: Annotated[str | None, _TEXT] = None
    """Defaults to MINIQ_API_KEY of the driver."""
    retry: Annotated[float, _seconds(0, 86400)] = 300.0
    """Seconds that the broker may be unreachable before a task or query fails."""
    timeout: Annotated[float, _seconds(0.1, 86400)] = 60.0
    ca: Annotated[str | None, _TEXT] = None
    """A file on every executor, like the next two. By default the environment of the driver names them."""
    client_cert: Annotated[str | None, _TEXT] = None
    client_key: Annotated[str | None, _TEXT] = None
    verify: Annotated[bool, _flag()] = True
    view: Annotated[View, _choice(get_args(View), READS)] = "messages"
    bodySchema: Annotated[str | None, structs.replace(_TEXT, uses=READS)] = None
    """The type of the bodies: columns or a type in DDL, or the JSON of a StructType."""
    mode: Annotated[Mode | None, _choice(get_args(Mode), READS)] = None
    """By default `permissive`: null, with the text in the column `_corrupt`."""
    partitions: Annotated[int | None, _whole(1, 10_000, READS)] = None
    """Number of partitions to read in; by default, each gets work for about a second."""
    failOnDataLoss: Annotated[bool, _flag(READS)] = True
    status: Annotated[Status | None, _choice(get_args(Status), ("read",), "messages")] = None
    priority: Annotated[int | None, _whole(0, 9, ("read",), "messages")] = None
    event: Annotated[EventName | None, _choice(get_args(EventName), READS, "history")] = None
    limit: Annotated[int | None, _whole(1, 10**12, ("read",))] = None
    """At most so many rows."""
    startingOffset: Annotated[int | Literal["earliest", "latest"], _OFFSET] = "earliest"
    """The first record of the history to read."""
    endingOffset: Annotated[int | None, _whole(0, 10**18, ("read",), "history")] = None
    """The last record to read."""
    startingTime: Annotated[datetime | None, _TIME] = None
    endingTime: Annotated[datetime | None, _TIME] = None
    """Exclusive."""
    group: Annotated[str | None, _name(("readStream",), "messages")] = None
    maxMessagesPerBatch: Annotated[int, _whole(1, 1_000_000, ("readStream",))] = 100_000
    maxBytesPerBatch: Annotated[int, _whole(1, 2**40, ("readStream",), "messages")] = 64 * 1024 * 1024
    pollTimeout: Annotated[float, _seconds(0, 60, ("readStream",))] = 1.0
    contentType: Annotated[str | None, structs.replace(_TEXT, uses=WRITES)] = None
    """The content type of all bodies, if there is no column `content_type`."""
    failOnMismatch: Annotated[bool, _flag(WRITES)] = True
    """Whether to fail if a batch that is written again has other rows than before."""
    job: Annotated[str | None, _name(("write",))] = None
    """A name that makes a batch write idempotent: a second write with the same name adds nothing."""

    @property
    def urls(self) -> list[str]:
        return [url.strip() for url in self.url.split(",")]

    @property
    def is_https(self) -> bool:
        return any(url.lower().startswith("https:") for url in self.urls)

    def connect(self, probe: bool = False, turn: int = 0) -> Client:
        """A client that retries calls while the broker is unreachable. With `probe`, first make a call that gives up
        soon, so that a wrong address does not take `retry` seconds to fail. Of several brokers, `turn` is the number
        of the one to begin with; tasks differ in it."""
        if probe:
            with structs.replace(self, retry=min(self.retry, FIRST_RETRY)).connect() as client:
                client.queues()
        urls = self.urls
        if len(urls) == 1:
            return self._connect(urls[0], self.retry)
        return Client(Failover(urls, turn, self.retry, lambda url: self._connect(url, 0)))

    def _connect(self, url: str, retry: float) -> Client:
        tls: dict[str, Any] = {}
        if url.lower().startswith("https:"):
            tls = {name: getattr(self, name) for name in (*FILES, "verify")}
        return connect(url, api_key=self.api_key, retry=retry, timeout=self.timeout, **tls)


RULES: dict[str, Rule] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()
}
ADDED_BY_SPARK = ("path", "checkpointlocation", "mergeschema", "queryname", "__streaming_source_evolution_enabled")
"""Options that Spark itself passes to every source, in lower case."""


def read_options(given: Mapping[str, str]) -> Options:
    """Parse the options that a user gave; `InvalidRequest` names the first invalid one."""
    known = {name.lower(): name for name in RULES}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = known.get(key.lower())
        if name is not None:
            values[name] = _parse(name, text)
        elif key.lower() not in ADDED_BY_SPARK and not key.lower().startswith("spark."):
            raise no_option(key, RULES)
    options = Options(**(_environment("url", "api_key") | values))
    if options.is_https:
        options = Options(**(_environment("url", "api_key", *FILES) | values))
    for url in options.urls:
        if re.match(r"https?://", url, re.IGNORECASE) is None:
            raise _invalid("url", url, "use http://HOST:PORT that the executors can reach, or several with commas")
        options._connect(url, 0).close()  # raises if the rest of the URL is invalid; makes no request
    _check_view(options, values)
    return options


def no_option(key: str, names: Iterable[str]) -> InvalidRequest:
    """The error for an option that is none of `names`."""
    known = {name.lower(): name for name in names}
    close = get_close_matches(key.lower(), known, n=1)
    hint = f"did you mean {known[close[0]]!r}?" if close else f"use one of {', '.join(known.values())}"
    return InvalidRequest(f"{key}: no such option; {hint}", field=key)


def _environment(*names: str) -> dict[str, str]:
    found = {name: os.environ.get(f"MINIQ_{name.upper()}") for name in names}
    return {name: value for name, value in found.items() if value}


def _parse(name: str, text: str) -> Any:
    with suppress(ValueError):
        value = RULES[name].parse(text)
        if value is not None:
            return value
    raise _invalid(name, text, RULES[name].hint)


def _check_view(options: Options, values: Mapping[str, Any]) -> None:
    for name in values:
        view = RULES[name].view
        if view not in (None, options.view):
            raise InvalidRequest(f"{name}: is for view={view}, but the view is {options.view}", field=name)
    first = options.startingOffset if isinstance(options.startingOffset, int) else 1
    if options.endingOffset is not None and options.endingOffset < first - 1:
        raise _invalid("endingOffset", options.endingOffset, f"it is before startingOffset {first}")
    begin, end = options.startingTime, options.endingTime
    if begin is not None and end is not None and end < begin:
        raise _invalid("endingTime", end.isoformat(), "it is before startingTime")


def _invalid(name: str, value: object, hint: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {str(value)!r} is invalid; {hint}", field=name)


def check_use(options: Options, given: Mapping[str, str], use: Use) -> None:
    """Raise if an option that this use needs is missing, or one is given that only applies to other uses."""
    names = {key.lower() for key in given}
    for name, rule in RULES.items():
        if name.lower() in names and use not in rule.uses:
            raise InvalidRequest(f"{name}: has no effect on {use}; it is for {' and '.join(rule.uses)}", field=name)
    if use in WRITES and options.queue is not None and options.topic is not None:
        text = f"topic: given together with queue; write to the queue {options.queue!r} or the topic {options.topic!r}"
        raise InvalidRequest(text, field="topic")
    if use in WRITES and options.queue is None and options.topic is None:
        text = "queue: is missing; set it with .option('queue', NAME), or a topic with .option('topic', NAME)"
        raise InvalidRequest(text, field="queue")
    if options.queue is None and use in READS and options.view == "messages":
        raise InvalidRequest("queue: is missing; set it with .option('queue', NAME)", field="queue")
    if use == "readStream" and options.view == "messages" and options.group is None:
        raise InvalidRequest(
            "group: is missing; set it with .option('group', NAME), and keep the name across restarts: the broker "
            "holds the group's unfinished messages under it",
            field="group",
        )
    if options.mode == "dead" and (use != "readStream" or options.view != "messages"):
        raise _invalid("mode", "dead", "only a stream of messages can have dead letters; use permissive, drop or fail")
    if use == "read" and options.startingOffset == "latest":
        raise _invalid("startingOffset", "latest", "a batch read would be empty; use a number or 'earliest'")
