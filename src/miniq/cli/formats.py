"""File formats: how JSON Lines, CSV and Parquet are read and written.

Messages are read one by one, so that a large file is never in memory. CSV and Parquet need all columns before the first
row, so rows are first written to a temporary file.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any, BinaryIO, Literal, cast

import msgspec

from miniq.cli.records import COLUMNS, Row, bare_draft, bare_line, full_draft, full_line, table_draft, table_row
from miniq.client._sync.message import Message
from miniq.errors import InvalidRequest, MissingExtra
from miniq.message import Draft

Format = Literal["jsonl", "csv", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
ROWS = 10_000
"""Rows in one group of a Parquet file."""


def format_of(path: str) -> Format | None:
    """The format that belongs to the suffix of a file."""
    return SUFFIXES.get(os.path.splitext(path)[1].lower())


# Reading


def read(file: BinaryIO, format: Format, full: bool) -> Iterator[Draft]:
    """The messages in a file."""
    if format == "jsonl":
        return _read_jsonl(file, full)
    return _read_csv(file, full) if format == "csv" else _read_parquet(file, full)


def _read_jsonl(file: BinaryIO, full: bool) -> Iterator[Draft]:
    for number, line in enumerate(file, 1):
        if text := line.strip():
            yield (full_draft if full else bare_draft)(text, f"line {number}")


def _read_csv(file: BinaryIO, full: bool) -> Iterator[Draft]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    csv.field_size_limit(1 << 30)
    rows = csv.DictReader(text, strict=True)
    try:
        for row in rows:
            line = f"line {rows.line_num}"
            if None in row or None in row.values():
                raise InvalidRequest(f"{line}: not as many columns as in the first line")
            yield table_draft(row, full, line)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRequest(f"line {rows.line_num + 1}: cannot be read as CSV: {error}") from None
    finally:
        text.detach()


def _read_parquet(file: BinaryIO, full: bool) -> Iterator[Draft]:
    parquet = _pyarrow()[1]
    try:
        source = parquet.ParquetFile(file)
    except Exception as error:  # pyarrow raises errors of many kinds for this
        raise InvalidRequest(f"the file is not Parquet: {error}") from None
    number = 0
    for batch in source.iter_batches(batch_size=1000):
        for row in batch.to_pylist():
            number += 1
            if not full:
                # A name that a body does not have is null in its column.
                row = {name: value for name, value in row.items() if value is not None}
            yield table_draft(row, full, f"row {number}")


def length(path: str, format: Format) -> int:
    """The number of rows of a Parquet file, the number of bytes of any other."""
    if format == "parquet":
        try:
            return int(_pyarrow()[1].read_metadata(path).num_rows)
        except MissingExtra:
            raise
        except Exception as error:
            raise InvalidRequest(f"{path} is not Parquet: {error}") from None
    return os.path.getsize(path)


# Writing


def write(file: BinaryIO, format: Format, full: bool, messages: Iterable[Message]) -> None:
    """Write messages to a file."""
    if format == "jsonl":
        for message in messages:
            file.write((full_line(message) if full else bare_line(message)) + b"\n")
        return
    if format == "parquet":
        _pyarrow()
    columns: dict[str, None] = dict.fromkeys(COLUMNS if full else ())
    with tempfile.TemporaryFile() as spool:
        for message in messages:
            row = table_row(message, full)
            columns |= dict.fromkeys(row)
            spool.write(msgspec.json.encode(row) + b"\n")
        _write_csv(file, spool, list(columns)) if format == "csv" else _write_parquet(file, spool, full)


def _rows(spool: IO[bytes]) -> Iterator[Row]:
    spool.seek(0)
    return map(msgspec.json.decode, spool)


def _write_csv(file: BinaryIO, spool: IO[bytes], columns: list[str]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in _rows(spool):
        writer.writerow([_cell(row.get(name)) for name in columns])
    text.flush()
    text.detach()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _write_parquet(file: BinaryIO, spool: IO[bytes], full: bool) -> None:
    arrow, parquet = _pyarrow()
    try:
        schema = _full_schema(arrow) if full else _schema(arrow, spool)
        with parquet.ParquetWriter(file, schema) as writer:
            for rows in _groups(spool):
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the bodies do not fit in the columns of one Parquet file; use --full ({error})", field="body"
        ) from None


def _full_schema(arrow: Any) -> Any:
    numbers = {"priority", "receives"}
    return arrow.schema([(name, arrow.int64() if name in numbers else arrow.string()) for name in COLUMNS])


def _schema(arrow: Any, spool: IO[bytes]) -> Any:
    """The schema that fits all rows."""
    schemas = [arrow.Table.from_pylist(rows).schema for rows in _groups(spool)]
    if not schemas:
        return arrow.schema([("body", arrow.string())])
    return arrow.unify_schemas(schemas, promote_options="permissive")


def _groups(spool: IO[bytes]) -> Iterator[list[Row]]:
    """Rows in groups. Within a group every row has all names: Arrow takes the columns of a table from its first row."""
    rows = _rows(spool)
    while group := list(islice(rows, ROWS)):
        names = dict.fromkeys(name for row in group for name in row)
        yield [{name: row.get(name) for name in names} for row in group]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("Parquet needs pyarrow: pip install 'miniq[parquet]'") from None
    return cast(Any, pyarrow), parquet
