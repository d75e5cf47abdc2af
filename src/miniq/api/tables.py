"""Tables of many messages or records, without a Python object for each: as they are given, sent and read.

The columns are those of the protocol's page on Arrow. `pyarrow` is an extra, imported when a table is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from miniq.api import arrow as columns
from miniq.api.arrow import arrow as pyarrow
from miniq.errors import InvalidRequest, MissingExtra, WrongMedia
from miniq.message import Draft


class TablePage(Struct, frozen=True):
    """A `pyarrow.Table`, and what to give as `after` for the rows that follow; None where there are none. Of history
    also how far it reaches: its first and last offset."""

    table: Any
    next: Any
    first: int = 1
    last: int = 0


class ArrowStream(Struct, frozen=True):
    """Messages that came as an Arrow stream, and are not read yet."""

    raw: bytes

    def drafts(self) -> Sequence[Draft]:
        """The messages in it."""
        try:
            return columns.drafts_of(self.raw)
        except MissingExtra as error:
            raise WrongMedia(error.text, field="content-type") from None


def to_stream(table: Any) -> bytes:
    """A `pyarrow.Table`, a record batch or several of them as an Arrow stream."""
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    whole = to_table(table)
    with arrow.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def to_table(table: Any) -> Any:
    """The table that was given, perhaps as record batches."""
    arrow = pyarrow()
    if isinstance(table, arrow.Table):
        return table
    try:
        return arrow.Table.from_batches([table] if isinstance(table, arrow.RecordBatch) else list(table))
    except (TypeError, ValueError, arrow.ArrowException) as error:
        raise InvalidRequest(f"table: not a pyarrow.Table or record batches: {error}", field="table") from None


def is_table(messages: Any) -> bool:
    """Whether messages are given in Arrow, without asking for `pyarrow` where they are not."""
    return type(messages).__module__.partition(".")[0] == "pyarrow"


def read_table(body: bytes) -> Any:
    """The table that an Arrow stream holds; `ValueError` if it is none."""
    arrow = pyarrow()
    with arrow.ipc.open_stream(body) as reader:
        return reader.read_all()


def read_messages_page(body: bytes) -> TablePage:
    table, about = _page(body)
    following = about.get(b"miniq-next")
    return TablePage(table, None if following is None else following.decode())


def read_history_page(body: bytes) -> TablePage:
    table, about = _page(body)
    return TablePage(table, *(int(about[name]) for name in (b"miniq-next", b"miniq-first", b"miniq-last")))


def _page(body: bytes) -> tuple[Any, dict[bytes, bytes]]:
    """A table, and what stands beside its schema."""
    table = read_table(body)
    about = table.schema.metadata or {}
    return table.replace_schema_metadata(None), about


def only_over_http() -> InvalidRequest:
    return InvalidRequest("url: tables are given over HTTP, or by a store in this process", field="url")
