"""Parses the URL of a store: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME`.

All parameters are libpq's except `schema`, the schema of the tables (default `miniq`), so that one database can hold
several stores.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from miniq.errors import InvalidRequest

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
KEEPALIVE = {
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""Detects a silently lost server within seconds. The URL may override these."""


class Address(Struct, frozen=True):
    """The connection string of a store, its schema, and its notification channel."""

    conninfo: str
    schema: str

    @property
    def channel(self) -> str:
        return f"miniq_{self.schema}"


def parse(url: str, *, durable: bool) -> Address:
    """Parse a store URL; raises `InvalidRequest` if libpq would not accept it."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(query).get("schema", "miniq")
    if _SCHEMA.fullmatch(schema) is None or schema.startswith("pg_"):
        raise InvalidRequest(
            f"store: {schema!r} is not a valid schema name; use up to 48 of a-z 0-9 _, not starting with a digit",
            field="store",
        )
    rest = "&".join(f"{name}={quote(value, safe='')}" for name, value in query if name != "schema")
    try:
        given = conninfo_to_dict(urlunsplit(parts._replace(query=rest)))
    except psycopg.ProgrammingError as error:
        raise InvalidRequest(
            f"store: not a valid PostgreSQL URL: {' '.join(str(error).split())}", field="store"
        ) from None
    if not all(port.isdigit() for port in str(given.get("port") or "5432").split(",")):
        raise InvalidRequest(f"store: port {given['port']!r} is not a number", field="store")
    settings = {
        "search_path": schema,
        "synchronous_commit": "on" if durable else "off",
        # Plans are made once per connection, perhaps while the tables are empty and all plans look equally cheap. Each
        # query has an index that returns its rows in order; these settings leave only that plan.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_sort": "off",
        "enable_incremental_sort": "off",
        "jit": "off",
        "client_min_messages": "warning",
        "timezone": "UTC",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    known = KEEPALIVE | {"application_name": "miniq"} | {name: str(value) for name, value in given.items()}
    known["options"] = f"{given.get('options') or ''} {options}".strip()
    return Address(make_conninfo("", **known), schema)
