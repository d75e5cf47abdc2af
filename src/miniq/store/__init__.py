"""Stores for messages: one contract (`contract.py`), several implementations; drivers are imported on demand."""

from __future__ import annotations

import re
from typing import Any

from miniq.errors import InvalidRequest, MissingExtra
from miniq.options import Options
from miniq.store.contract import Store

_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^/]*@")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&]password=)[^&]*")


def open_store(url: str, options: Options | None = None) -> Store:
    """Create the store that a URL names; the caller opens it."""
    options = options or Options()
    scheme, colon, rest = url.partition(":")
    durable = options.durability == "fsync"
    if url in ("memory", "memory:"):
        from miniq.store.memory import MemoryStore

        return MemoryStore()
    if colon and scheme in ("rocksdb", "leveldb") and rest:
        from miniq.store.embedded.store import EmbeddedStore

        return EmbeddedStore(scheme, rest, durable=durable, min_free_bytes=options.min_free_bytes)
    if rest.startswith("//"):
        settings: dict[str, Any] = {
            "durable": durable,
            "connections": options.database_connections,
            "timeout": options.database_timeout,
        }
        try:
            if scheme in ("mongodb", "mongodb+srv"):
                from miniq.store.mongodb import MongoStore

                return MongoStore(url, **settings)
            if scheme in ("postgresql", "postgres"):
                from miniq.store.postgres import PostgresStore

                return PostgresStore(url, **settings)
        except ImportError:
            name, driver = ("mongodb", "PyMongo") if scheme.startswith("mongodb") else ("postgresql", "psycopg")
            text = f"store: {name}:// needs {driver}: pip install 'miniq[{name}]'"
            raise MissingExtra(text, field="store") from None
    raise InvalidRequest(
        f"store: {shown(url)!r} is not a store; use rocksdb:DIR, leveldb:DIR, postgresql://USER@HOST/DATABASE, "
        "mongodb://HOST/NAME or memory:",
        field="store",
    )


def shown(url: str) -> str:
    """A store URL without its password, for logs and error texts."""
    return _PASSWORD_PARAMETER.sub("***", _PASSWORD.sub(r"\1:***@", url))


__all__ = ["Store", "open_store", "shown"]
