"""All settings of a broker and their defaults, in one record.

Only the command line and `server.py` fill it in, from flags, environment and file; all other code receives the
finished record.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from miniq.logs import LogFormat

MIB = 1024 * 1024


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Upper limits on a single call. Durations are in seconds."""

    body_bytes: int = MIB
    request_bytes: int = 16 * MIB
    batch: int = 1000
    headers: int = 64
    header_bytes: int = 4096
    name_bytes: int = 256
    """Maximum length of `key`, `recipient`, `group`, `dedup_id`, `content_type` and consumer name, in UTF-8 bytes."""
    wait: float = 60.0
    visibility_timeout: float = 43200.0
    delay: float = 14 * 86400.0
    claim: int = 1_000_000
    """Maximum number of messages in one claim."""
    claim_bytes: int = 1024 * MIB
    upload: int = 100_000
    """Maximum number of messages in one upload to a stage, and in one page of Arrow."""
    upload_bytes: int = 64 * MIB
    """Maximum size of an Arrow request."""
    commit_alone: int = 100_000
    """Maximum number of messages in one commit that have a recipient, group or dedup id: these are written one by
    one."""
    response_bytes: int = 16 * MIB
    """A receive or peek stops adding messages past this size, but always returns at least one."""
    head_bytes: int = 64 * 1024
    """Maximum size of an HTTP request's line and headers, and of its trailers."""
    head_lines: int = 100
    """Maximum number of headers of an HTTP request."""
    url_bytes: int = 8 * 1024
    pipeline: int = 64
    """HTTP requests of one connection that may wait for their turn; then no more are read."""
    write_timeout: float = 30.0
    """Time within which an HTTP client must read its replies, or 1 MiB of them."""


class Options(Struct, frozen=True, kw_only=True):
    """How one broker runs. Durations are in seconds."""

    store: str = "rocksdb:./miniq-data"
    host: str = "127.0.0.1"
    """Any address but loopback requires that an API key exists."""
    port: int = 5000
    zmq: bool = True
    """Whether the server also listens for ZeroMQ, on the three ports below."""
    command_port: int = 5557
    producer_port: int = 5555
    consumer_port: int = 5556
    curve: bool = False
    """Whether ZeroMQ connections must use CURVE encryption with an allow-listed key."""
    busy_poll: float = 0.001
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
    durability: Literal["fsync", "relaxed"] = "fsync"
    """`fsync`: confirmed means on disk. `relaxed`: confirmed means handed to the operating system."""
    auto_create: bool = True
    max_queues: int = 10_000
    """Beyond it, callers can create no further queue, by a first message or otherwise. Dead-letter queues that the
    broker needs itself are still created."""
    max_streams: int = 100
    """Event streams (`GET /v1/events`, the console, `miniq top`) at the same time; beyond it they get 503."""
    metrics_queues: int = 1000
    """Queues with labels of their own in `/metrics`; all others are summed up as `queue="*"`."""
    min_free_bytes: int = 64 * MIB
    """Sends fail with `no_space` while less than this is free on the disk."""
    history_retention: float = 7 * 86400.0
    history_max_bytes: int = 1024 * MIB
    stage_ttl: float = 86400.0
    """Seconds until an uploaded stage that was not committed is deleted."""
    upkeep_interval: float = 1.0
    """Seconds between background passes (ttl, retention, dedup records, history)."""
    upkeep_batch: int = 500
    """Messages examined per background pass, across all queues."""
    refresh_interval: float = 1.0
    """Seconds between checks for changes by other brokers on a shared store; notifications usually come sooner."""
    database_connections: int = 8
    """Connections to PostgreSQL or MongoDB; each serves one call at a time."""
    database_timeout: float = 10.0
    """Seconds after which a database that does not respond counts as unreachable."""
    limits: Limits = Limits()
