"""Where messages are kept: one contract (`base.py`), several stores, drivers imported when needed."""

from __future__ import annotations

from miniq.errors import InvalidRequest, MissingExtra
from miniq.options import Options
from miniq.store.base import Store


def open_store(url: str, options: Options | None = None) -> Store:
    """The store that a URL names, not yet opened."""
    options = options or Options()
    scheme, colon, rest = url.partition(":")
    if url in ("memory", "memory:"):
        from miniq.store.memory import MemoryStore

        return MemoryStore()
    if colon and scheme in ("rocksdb", "leveldb") and rest:
        from miniq.store.embedded import EmbeddedStore

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
        return MongoStore(url, durable=options.durability == "fsync")
    raise InvalidRequest(
        f"store: {url!r} is not a store; use rocksdb:DIR, leveldb:DIR, mongodb://HOST/NAME or memory:", field="store"
    )


__all__ = ["Store", "open_store"]
