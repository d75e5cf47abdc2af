"""Where messages are kept: one contract (`contract.py`), several stores, drivers imported when needed."""

from __future__ import annotations

import re

from miniq.errors import InvalidRequest, MissingExtra
from miniq.options import Options
from miniq.store.contract import Store

_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^/]*@")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&]password=)[^&]*")


def open_store(url: str, options: Options | None = None) -> Store:
    """The store that a URL names, not yet opened."""
    options = options or Options()
    scheme, colon, rest = url.partition(":")
    if url in ("memory", "memory:"):
        from miniq.store.memory import MemoryStore

        return MemoryStore()
    if colon and scheme in ("rocksdb", "leveldb") and rest:
        from miniq.store.embedded.store import EmbeddedStore

        return EmbeddedStore(
            scheme,
            rest,
            durable=options.durability == "fsync",
            min_free_bytes=options.min_free_bytes,
        )
    if colon and scheme in ("mongodb", "mongodb+srv") and rest.startswith("//"):
        try:
            from miniq.store.mongodb import MongoStore
        except ImportError:
            raise MissingExtra("store: mongodb:// needs PyMongo: pip install 'miniq[mongodb]'", field="store") from None
        return MongoStore(
            url,
            durable=options.durability == "fsync",
            connections=options.database_connections,
            timeout=options.database_timeout,
        )
    if colon and scheme in ("postgresql", "postgres") and rest.startswith("//"):
        try:
            from miniq.store.postgres import PostgresStore
        except ImportError:
            raise MissingExtra(
                "store: postgresql:// needs psycopg: pip install 'miniq[postgresql]'", field="store"
            ) from None
        return PostgresStore(
            url,
            durable=options.durability == "fsync",
            connections=options.database_connections,
            timeout=options.database_timeout,
        )
    raise InvalidRequest(
        f"store: {shown(url)!r} is not a store; use rocksdb:DIR, leveldb:DIR, postgresql://USER@HOST/DATABASE, "
        "mongodb://HOST/NAME or memory:",
        field="store",
    )


def shown(url: str) -> str:
    """A store's URL as it may be shown: without the password."""
    return _PASSWORD_PARAMETER.sub("***", _PASSWORD.sub(r"\1:***@", url))


__all__ = ["Store", "open_store", "shown"]
