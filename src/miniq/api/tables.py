"""Tables of messages or history, without a Python object per row: given by callers, sent, and read.

docs/protocol.md describes the columns. `pyarrow` is an extra, imported on first use.
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
    """A `pyarrow.Table`, and the `after` of the next page, None at the end. For history also its first and last
    offset."""

    table: Any
    next: Any
    first: int = 1
    last: int = 0


class ArrowStream(Struct, frozen=True):
    """Messages in an Arrow stream that is not decoded yet."""

    raw: bytes

    def drafts(self, most: int) -> Sequence[Draft]:
        try:
            return columns.drafts_of(self.raw, most)
        except MissingExtra as error:
            raise WrongMedia(error.text, field="content-type") from None


def to_stream(table: Any) -> memoryview:
    """A `pyarrow.Table`, a record batch or several of them as an Arrow stream."""
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    whole = to_table(table)
    with arrow.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return memoryview(sink.getvalue())


def to_table(table: Any) -> Any:
    """A table, from one or from record batches."""
    arrow = pyarrow()
    if isinstance(table, arrow.Table):
        return table
    try:
        return arrow.Table.from_batches([table] if isinstance(table, arrow.RecordBatch) else list(table))
    except (TypeError, ValueError, arrow.ArrowException) as error:
        raise InvalidRequest(f"table: not a pyarrow.Table or record batches: {error}", field="table") from None


def is_table(messages: Any) -> bool:
    """Whether messages are an Arrow object, without importing `pyarrow`."""
    return type(messages).__module__.partition(".")[0] == "pyarrow"


def read_table(body: bytes) -> Any:
    """The table in an Arrow stream; `ValueError` if it is invalid."""
    arrow = pyarrow()
    with arrow.ipc.open_stream(body) as reader:
        return reader.read_all()


def read_messages_page(body: bytes) -> TablePage:
    table, metadata = _page(body)
    cursor = metadata.get(b"miniq-next")
    return TablePage(table, None if cursor is None else cursor.decode())


def read_history_page(body: bytes) -> TablePage:
    table, metadata = _page(body)
    return TablePage(table, *(int(metadata[name]) for name in (b"miniq-next", b"miniq-first", b"miniq-last")))


def _page(body: bytes) -> tuple[Any, dict[bytes, bytes]]:
    """A table, and the metadata of its schema."""
    table = read_table(body)
    return table.replace_schema_metadata(None), table.schema.metadata or {}


def only_over_http() -> InvalidRequest:
    return InvalidRequest("url: tables need HTTP or an embedded broker", field="url")
