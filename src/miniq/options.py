"""All settings of a broker, with their defaults and ranges, in one record.

Only `config.py` and the embedded client fill it in, with values that `checked` has converted; all other code receives
the finished record. An unknown option or a value of the wrong type is an error that shows the name, the value and what
is allowed: a misspelt option must not silently fall back to its default.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from miniq.errors import InvalidRequest
from miniq.files import check_regular
from miniq.logs import LogFormat
from miniq.result import RESULT_BYTES

PREFIX = "MINIQ_"
"""Of the environment variables that are options: `MINIQ_PORT`, `MINIQ_LIMITS__BATCH`."""
MIB = 1024 * 1024
SERVER_ONLY = (
    "host", "port", "zmq", "command_port", "producer_port", "consumer_port", "curve", "busy_poll", "allowed_hosts",
    "log_format", "report", "tracing", "tls_", "max_streams", "metrics_queues",
)  # fmt: skip
"""How the names of options begin that have no effect on a broker in a program."""
_SECRET = re.compile(r"api.?key|secret|passw|token|credential|mq_|//[^/@]*:.*@", re.IGNORECASE)
"""Found in the name or the text of a value that must not be shown: a key, a URL with a password."""

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(gt=0)]
CountOrZero = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Upper limits on a single call. Durations are in seconds."""

    body_bytes: Count = MIB
    request_bytes: Count = 16 * MIB
    batch: Count = 1000
    headers: Count = 64
    header_bytes: Count = 4096
    name_bytes: Count = 256
    """Maximum length of `key`, `recipient`, `group`, `dedup_id`, `content_type` and consumer name, in UTF-8 bytes."""
    wait: SecondsOrZero = 60.0
    visibility_timeout: Seconds = 43200.0
    delay: Seconds = 14 * 86400.0
    claim: Count = 1_000_000
    """Maximum number of messages in one claim."""
    claim_bytes: Count = 1024 * MIB
    upload: Count = 100_000
    """Maximum number of messages in one upload to a stage, and in one page of Arrow."""
    upload_bytes: Count = 64 * MIB
    """Maximum size of an Arrow request."""
    commit_alone: Count = 100_000
    """Maximum number of messages in one commit that have a recipient, group or dedup id: these are written one by
    one."""
    subscriptions: Count = 1000
    """Maximum number of subscriptions of a topic."""
    copies: Count = 100_000
    """Maximum number of messages that one publication adds to all queues together."""
    copy_bytes: Count = 256 * MIB
    """Maximum size of these messages, each counted as often as it is added."""
    response_bytes: Count = 16 * MIB
    """A receive or peek stops adding messages past this size, but always returns at least one."""
    result_bytes: Count = RESULT_BYTES
    """Maximum size of a result, as JSON."""
    schedule_bytes: Count = 64 * 1024
    """Maximum size of a schedule: the body, headers and other texts of its message."""
    head_bytes: Count = 64 * 1024
    """Maximum size of an HTTP request's line and headers, and of its trailers."""
    head_lines: Count = 100
    """Maximum number of headers of an HTTP request."""
    url_bytes: Count = 8 * 1024
    pipeline: Count = 64
    """HTTP requests of one connection that may wait for their turn; then no more are read."""
    write_timeout: Seconds = 30.0
    """Time within which an HTTP client must read its replies, or 1 MiB of them."""


class Options(Struct, frozen=True, kw_only=True):
    """How one broker runs. Durations are in seconds."""

    store: str = "rocksdb:./miniq-data"
    host: str = "127.0.0.1"
    """Any address but loopback requires that an API key exists."""
    port: Port = 5000
    zmq: bool = True
    """Whether the server also listens for ZeroMQ, on the three ports below."""
    command_port: Port = 5557
    producer_port: Port = 5555
    consumer_port: Port = 5556
    curve: bool = False
    """Whether ZeroMQ connections must use CURVE encryption with an allow-listed key."""
    busy_poll: SecondsOrZero = 0.001
    """Seconds the server polls for the next request of a sequential client before it sleeps; 0 disables polling."""
    allowed_hosts: str = ""
    """Comma-separated host names under which browsers may reach a broker that has no keys or is behind a proxy."""
    log_format: LogFormat = "text"
    report: str | None = None
    """Path of the page written by `miniq pipeline report`, for the console to show."""
    tracing: bool = False
    """Whether spans are exported over OTLP; the OTEL_* variables configure the exporter."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """A file of certificate authorities; clients must have a certificate of one of them."""
    durability: Literal["fsync", "relaxed"] = "fsync"
    """`fsync`: confirmed means on disk. `relaxed`: confirmed means handed to the operating system."""
    auto_create: bool = True
    max_queues: CountOrZero = 10_000
    """Beyond it, callers can create no further queue, by a first message or otherwise. Dead-letter queues that the
    broker needs itself are still created."""
    max_schedules: CountOrZero = 1000
    """Beyond it, callers can create no further schedule."""
    max_topics: CountOrZero = 10_000
    """Beyond it, callers can create no further topic."""
    max_streams: CountOrZero = 100
    """Event streams (`GET /v1/events`, the console, `miniq top`) at the same time; beyond it they get 503."""
    max_connections: Count = 20_000
    """HTTP connections at the same time; beyond it they get 503 and are closed."""
    max_buffered_bytes: Count = 256 * MIB
    """Bytes of all bodies that are being received over HTTP; beyond it, a request over 64 KiB gets 503."""
    metrics_queues: CountOrZero = 1000
    """Queues with labels of their own in `/metrics`; all others are summed up as `queue="*"`."""
    min_free_bytes: CountOrZero = 64 * MIB
    """Sends fail with `no_space` while less than this is free on the disk."""
    history_retention: SecondsOrZero = 7 * 86400.0
    history_max_bytes: CountOrZero = 1024 * MIB
    stage_ttl: Seconds = 86400.0
    """Seconds until an uploaded stage that was not committed is deleted."""
    upkeep_interval: SecondsOrZero = 1.0
    """Seconds between background passes (ttl, retention, dedup records, history)."""
    upkeep_batch: Count = 500
    """Messages examined per background pass, across all queues."""
    refresh_interval: Seconds = 1.0
    """Seconds between checks for changes by other brokers on a shared store; notifications usually come sooner."""
    database_connections: Count = 8
    """Connections to PostgreSQL or MongoDB; each serves one call at a time."""
    database_timeout: Seconds = 10.0
    """Seconds after which a database that does not respond counts as unreachable."""
    limits: Limits = Limits()


@cache
def _types() -> dict[str, Any]:
    """The type of every option, by dotted name."""
    options = get_type_hints(Options, include_extras=True)
    del options["limits"]
    return options | {f"limits.{name}": kind for name, kind in get_type_hints(Limits, include_extras=True).items()}


def dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted name: `limits` may be given as a table."""
    limits = options.get("limits")
    if not isinstance(limits, Mapping):
        return dict(options)
    others = {name: value for name, value in options.items() if name != "limits"}
    return others | {f"limits.{name}": value for name, value in limits.items()}


def checked(name: str, value: Any, origin: str | None = None, *, text: bool = False) -> Any:
    """The value of an option, converted to its type. `origin` is how the user of a server spelt the option, None for a
    broker in a program; with `text` the value is a string to parse."""
    if origin is None and name in _types() and name.startswith(SERVER_ONLY):
        raise InvalidRequest(f"{name}: is an option of `miniq serve`, not of a broker in a program", field=name)
    kind = _types().get(name)
    if name == "limits" and origin is None:
        problem = f"limits: {_show(name, value)} is not a dict; use names and values, such as {{'body_bytes': 1048576}}"
        raise InvalidRequest(problem, field=name)
    if kind is None:
        problem = f"{origin or name}: no such option ({_show(name, value)})"
        raise InvalidRequest(f"{problem}; {_nearest(name, origin)}", field=name)
    try:
        return msgspec.convert(value.lower() if text and kind is bool else value, kind, strict=not text)
    except msgspec.ValidationError as error:
        problem = "invalid" if ", got " in str(error) or get_origin(kind) is Literal else "out of range"
        raise InvalidRequest(
            f"{origin or name}: {_show(name, value)} is {problem}; use {_allowed(kind)}", field=name
        ) from None


def assembled(given: Mapping[str, Any]) -> Options:
    """The record of options by dotted name; checks options that depend on each other."""
    limits = {name.removeprefix("limits."): value for name, value in given.items() if name.startswith("limits.")}
    values = {name: value for name, value in given.items() if not name.startswith("limits.")}
    if values.get("port") == 0:
        # A broker on any free port is meant to run beside others, so its unset ports must not be the fixed defaults.
        values = dict.fromkeys((name for name, kind in _types().items() if kind is Port), 0) | values
    options = Options(**values, limits=Limits(**limits))
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        path = getattr(options, name)
        if path is None:
            continue
        check_regular(path, name)
        if not os.access(path, os.R_OK):
            raise InvalidRequest(f"{name}: cannot read {path!r}; use the path of a PEM file", field=name)
        if options.tls_cert is None:
            raise InvalidRequest(f"{name}: given without tls_cert; set both, or tls_cert alone", field=name)
    return options


def _nearest(name: str, origin: str | None) -> str:
    """The most similar option, in the notation of the user; if there is none, all options."""
    known = [known for known in _types() if origin is not None or not known.startswith(SERVER_ONLY)]
    near = get_close_matches(name, known, 1, 0.75)
    if not near:
        return f"there are {', '.join(known)}"
    if origin is not None and origin.startswith(PREFIX):
        return f"did you mean {PREFIX}{near[0].upper().replace('.', '__')}?"
    return f"did you mean {near[0]}?"


def _allowed(kind: Any) -> str:
    """The values that an option accepts, in words."""
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if kind is bool:
        return "true or false"
    if get_origin(kind) is not Annotated:
        return "text"
    plain, limits = get_args(kind)
    number = "a whole number" if plain is int else "a number"
    if limits.gt is not None:
        return f"{number} above {limits.gt}"
    return f"{number} from {limits.ge} to {limits.le}" if kind is Port else f"{number} of at least {limits.ge}"


def _show(name: str, value: Any) -> str:
    """A value for an error text; what may be a secret is hidden."""
    text = repr(value)
    if _SECRET.search(name) or _SECRET.search(text):
        return "***"
    return text if len(text) <= 80 else f"{text[:77]}..."
