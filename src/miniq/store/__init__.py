"""Stores for messages: one contract (`contract.py`), several implementations; drivers are imported on demand."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

from miniq.errors import InvalidRequest, MissingExtra, install
from miniq.options import Options
from miniq.store.contract import Store
from miniq.store_urls import BY_SCHEME, FORMS

_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^/]*@")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&]password=)[^&]*")


def open_store(url: str, options: Options | None = None) -> Store:
    """Create the store that a URL names; the caller opens it."""
    options = options or Options()
    scheme, _, rest = url.partition(":")
    kind = BY_SCHEME.get(scheme)
    if kind is None or not kind.accepts(rest):
        raise InvalidRequest(f"store: {shown(url)!r} is not a store; use {FORMS}", field="store")
    module, _, name = kind.implementation.rpartition(".")
    try:
        store: Callable[..., Store] = getattr(import_module(f"miniq.store.{module}"), name)
    except ImportError:
        text = f"store: {kind.scheme}:// needs {kind.driver}: {install(kind.scheme)}"
        raise MissingExtra(text, field="store") from None
    durable = options.durability == "fsync"
    if kind.place == "memory":
        return store()
    if kind.place == "folder":
        return store(scheme, rest, durable=durable, min_free_bytes=options.min_free_bytes)
    return store(url, durable=durable, connections=options.database_connections, timeout=options.database_timeout)


def shown(url: str) -> str:
    """A store URL without its password, for logs and error texts."""
    return _PASSWORD_PARAMETER.sub("***", _PASSWORD.sub(r"\1:***@", url))


__all__ = ["Store", "open_store", "shown"]
