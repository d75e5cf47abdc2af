"""The queries of `queries.sql`, by name, each plain and with history."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files


class Query:
    """One query in its two variants, which are the same where a query tells nothing."""

    __slots__ = ("history", "name", "plain")

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.plain = "\n".join(_variant(lines, history=False)).encode()
        self.history = "\n".join(_variant(lines, history=True)).encode()

    def pick(self, history: bool) -> bytes:
        return self.history if history else self.plain


def load() -> dict[str, Query]:
    """All queries. `--include: NAME` stands for the lines of `-- part: NAME`."""
    found: dict[str, list[str]] = {}
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in files(__package__).joinpath("queries.sql").read_text(encoding="utf-8").splitlines():
        mark, _, name = line.partition(": ")
        if mark == "-- name":
            lines = found[name] = []
        elif mark == "-- part":
            lines = parts[name] = []
        elif line == "-- end":
            lines = []
        elif line and not line.startswith("-- "):  # marks within a query have no space, words of comment have one
            lines.append(line)
    return {name: Query(name, list(_included(lines, parts))) for name, lines in found.items()}


def _included(lines: list[str], parts: dict[str, list[str]]) -> Iterator[str]:
    for line in lines:
        mark, _, name = line.partition(": ")
        if mark == "--include":
            yield from parts[name]
        else:
            yield line


def _variant(lines: list[str], *, history: bool) -> Iterator[str]:
    skip = False
    for line in lines:
        if line == "--{history":
            skip = not history
        elif line == "--}":
            skip = False
        elif not skip:
            yield line
