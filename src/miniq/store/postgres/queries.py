"""Loads the queries of the `.sql` files by name, in the variants that `queries.sql` describes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from miniq.message import LEASE_EXPIRED, NEVER
from miniq.store.postgres.rows import TAKEN_BACK

FILES = ("queries.sql", "claims.sql", "stages.sql", "topics.sql", "results.sql")


_TAGS = (
    (), ("history",), ("call",), ("history", "call"), ("told",), ("results",), ("history", "results"),
)  # fmt: skip
"""The combinations that are used."""


class Query:
    """One query in its variants: with or without history, a named call, a signal to other brokers, results."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self._lines = lines
        self._variants: dict[tuple[str, ...], bytes] = {}

    def pick(self, *tags: str) -> bytes:
        """The variant with the lines between `--{TAG` and `--}` of these tags."""
        text = self._variants.get(tags)
        if text is None:
            lines = [f"/* miniq:{self.name} */", *_variant(self._lines, tags)]  # logs and statistics show the name
            text = self._variants[tags] = "\n".join(lines).encode()
        return text

    @property
    def variants(self) -> list[bytes]:
        """All variants, for tests."""
        marked = {line[3:] for line in self._lines if line.startswith("--{")}
        possible = [tags for tags in _TAGS if marked >= set(tags)]
        return [self.pick(*tags) for tags in possible]


def load() -> dict[str, Query]:
    """All queries. `--include: NAME` stands for the lines of `-- part: NAME`, and NEVER,
    TAKEN_BACK and LEASE_EXPIRED for their values."""
    queries: dict[str, list[str]] = {}
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    text = "".join(files(__package__).joinpath(name).read_text(encoding="utf-8") for name in FILES)
    text = text.replace("NEVER", str(NEVER)).replace("LEASE_EXPIRED", f"'{LEASE_EXPIRED}'")
    text = text.replace("TAKEN_BACK", str(TAKEN_BACK))
    for line in text.splitlines():
        mark, _, name = line.partition(": ")
        if mark == "-- name":
            lines = queries[name] = []
        elif mark == "-- part":
            lines = parts[name] = []
        elif line == "-- end":
            lines = []
        elif line and not line.lstrip().startswith("-- "):  # markers have no space, comments have one
            lines.append(line.strip())  # psycopg does not cache the parsing of texts above 4 KB
    return {name: Query(name, list(_included(lines, parts))) for name, lines in queries.items()}


def _included(lines: list[str], parts: dict[str, list[str]]) -> Iterator[str]:
    for line in lines:
        mark, _, name = line.partition(": ")
        if mark == "--include":
            yield from _included(parts[name], parts)
        else:
            yield line


def _variant(lines: list[str], tags: tuple[str, ...]) -> Iterator[str]:
    skip = False
    for line in lines:
        if line.startswith("--{"):
            skip = line[3:] not in tags
        elif line == "--}":
            skip = False
        elif not skip:
            yield line
