"""The kinds of stores and the forms of their URLs. A new store is a row here, and a package that implements `Store`."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct


class StoreKind(Struct, frozen=True):
    """How the URL of a store looks, and what implements it."""

    form: str
    """Its URL as shown in help and error texts."""
    place: Literal["folder", "database", "memory"]
    implementation: str
    """The module in `miniq.store` and its class."""
    driver: str | None = None
    """What has to be installed for it, by the extra that is named like the scheme."""
    alias: str | None = None
    """Another scheme."""

    @property
    def scheme(self) -> str:
        return self.form.partition(":")[0]

    def accepts(self, rest: str) -> bool:
        """Whether a URL may have this after its scheme."""
        return rest.startswith("//") if self.place == "database" else bool(rest) == (self.place == "folder")


KINDS = (
    StoreKind("rocksdb:DIR", "folder", "embedded.store.EmbeddedStore"),
    StoreKind("leveldb:DIR", "folder", "embedded.store.EmbeddedStore"),
    StoreKind("postgresql://USER@HOST/DATABASE", "database", "postgres.store.PostgresStore", "psycopg", "postgres"),
    StoreKind("mongodb://HOST/NAME", "database", "mongodb.store.MongoStore", "PyMongo", "mongodb+srv"),
    StoreKind("memory:", "memory", "memory.MemoryStore"),
)
BY_SCHEME = {scheme: kind for kind in KINDS for scheme in (kind.scheme, kind.alias) if scheme}
_PASSWORD = re.compile(r"(?<=//)([^:/@]*):.*@")
FORMS = " or ".join((", ".join(kind.form for kind in KINDS[:-1]), KINDS[-1].form))


def without_password(url: str) -> str:
    """A URL for error texts. A password may have any characters, so everything up to the last @ is hidden."""
    return _PASSWORD.sub(r"\1:***@", url)


def is_url(path: str) -> bool:
    """Whether a text that should be the path of a folder is the URL of a store or of a server."""
    scheme, colon, rest = path.partition(":")
    return bool(colon) and scheme.isascii() and (scheme in BY_SCHEME or (scheme.isalnum() and rest.startswith("//")))


def schemes(place: str) -> tuple[str, ...]:
    """The schemes of the stores in folders, in databases or in memory."""
    return tuple(scheme for scheme, kind in BY_SCHEME.items() if kind.place == place)
