"""All settings of a broker with their defaults, in one record.

Only the command line and `server.py` fill it from flags, environment and file; everything else is
handed the finished record.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from miniq.logs import LogFormat

MIB = 1024 * 1024


class Limits(Struct, frozen=True, kw_only=True):
    """What one call may carry."""

    body_bytes: int = MIB
    request_bytes: int = 16 * MIB
    batch: int = 1000
    headers: int = 64
    header_bytes: int = 4096
    name_bytes: int = 256
    """Longest `key`, `recipient`, `group`, `dedup_id`, `content_type` and consumer name, in UTF-8."""
    wait: float = 60.0
    visibility_timeout: float = 43200.0
    delay: float = 14 * 86400.0
    claim: int = 1_000_000
    """Most messages in one claim."""
    claim_bytes: int = 1024 * MIB
    upload: int = 100_000
    """Most messages in one upload to a stage, and in one page of Arrow."""
    upload_bytes: int = 64 * MIB
    """Largest request in Arrow."""
    commit_alone: int = 100_000
    """Most messages of one commit that have a recipient, group or dedup id: they are written one by one."""
    response_bytes: int = 16 * MIB
    """A receive or peek stops adding messages past this; at least one is always given."""


class Options(Struct, frozen=True, kw_only=True):
    """How one broker runs."""

    store: str = "rocksdb:./miniq-data"
    host: str = "127.0.0.1"
    """Anything but loopback needs an API key to exist."""
    port: int = 5000
    zmq: bool = True
    """Whether it speaks ZeroMQ, on the three ports that follow."""
    command_port: int = 5557
    producer_port: int = 5555
    consumer_port: int = 5556
    curve: bool = False
    """Whether ZeroMQ connections must be encrypted (CURVE) by a key that is listed."""
    busy_poll: float = 0.001
    """Seconds for which a server looks for the next request of one who sends them one after the other before it goes
    to sleep; 0 is never."""
    allowed_hosts: str = ""
    """Names, with commas between them, under which browsers may reach a broker without keys, or behind a proxy."""
    log_format: LogFormat = "text"
    report: str | None = None
    """The page that `miniq pipeline report` wrote, for the console to show."""
    tracing: bool = False
    """Whether spans are exported over OTLP, to where the variables OTEL_* say."""
    tls_cert: str | None = None
    tls_key: str | None = None
    durability: Literal["fsync", "relaxed"] = "fsync"
    """`fsync`: confirmed means on disk. `relaxed`: confirmed means the operating system has it."""
    auto_create: bool = True
    min_free_bytes: int = 64 * MIB
    """Sends are refused with `no_space` while the disk has less than this free."""
    history_retention: float = 7 * 86400.0
    history_max_bytes: int = 1024 * MIB
    stage_ttl: float = 86400.0
    """Seconds for which messages that were uploaded wait to be committed."""
    upkeep_interval: float = 1.0
    """Seconds between two bounded background passes (ttl, retention, dedup records, history)."""
    upkeep_batch: int = 500
    """Messages that one pass looks at, in all queues together."""
    refresh_interval: float = 1.0
    """Seconds between two looks at what other brokers changed, where a store is shared; hints come sooner."""
    database_connections: int = 8
    """Connections to a PostgreSQL or MongoDB, each for one call at a time."""
    database_timeout: float = 10.0
    """Seconds after which a database that does not answer counts as away."""
    limits: Limits = Limits()
