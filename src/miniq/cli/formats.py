"""File formats: how JSON Lines, CSV and Parquet are read and written.

Messages are read one by one, so that a large file is never in memory. CSV and Parquet need all columns before the first
row, so rows are first written to a temporary file.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, BinaryIO, Literal, cast

import msgspec

from miniq.cli.records import (
    COLUMNS,
    Record,
    bare,
    bare_draft,
    bare_line,
    bare_row,
    full_draft,
    full_line,
    full_row,
    row_body,
    table_draft,
)
from miniq.client._sync.message import Message
from miniq.errors import InvalidRequest, MissingExtra, install
from miniq.message import Draft

Format = Literal["jsonl", "csv", "parquet"]
Row = tuple[str, Draft]
"""A message, after its place in the file."""
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
JSON_COLUMN = "_json"
"""The column of a Parquet file with bodies that its other columns cannot hold, as JSON."""
MARK = {b"miniq.json": JSON_COLUMN.encode()}
"""In the metadata of a Parquet file with that column."""
ROWS = 10_000
"""Rows in one group of a Parquet file."""


def format_of(path: str) -> Format | None:
    """The format that belongs to the suffix of a file."""
    return SUFFIXES.get(os.path.splitext(path)[1].lower())


# Reading


def read(file: BinaryIO, format: Format, full: bool) -> Generator[Row]:
    """The messages in a file, each with its place there: `line 5`."""
    if format == "jsonl":
        return _read_jsonl(file, full)
    return _read_csv(file, full) if format == "csv" else _read_parquet(file, full)


def _read_jsonl(file: BinaryIO, full: bool) -> Generator[Row]:
    for number, line in enumerate(file, 1):
        if text := (line if number > 1 else line.removeprefix(codecs.BOM_UTF8)).strip():
            place = f"line {number}"
            yield place, (full_draft if full else bare_draft)(text, place)


def _read_csv(file: BinaryIO, full: bool) -> Generator[Row]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    csv.field_size_limit(1 << 30)
    rows = csv.DictReader(_valid_lines(text), strict=True)
    try:
        _check_columns(rows.fieldnames or (), "line 1")
        for row in rows:
            line = f"line {rows.line_num}"
            if None in row or None in row.values():
                raise InvalidRequest(f"{line}: not as many columns as in the first line")
            yield line, table_draft(row, full, line)
    except csv.Error as error:
        raise InvalidRequest(f"line {rows.line_num + 1}: cannot be read as CSV: {error}") from None
    finally:
        if not file.closed:  # it was, if the command is ending
            text.detach()


def _valid_lines(text: Iterable[str]) -> Iterator[str]:
    """The lines of a text whose invalid bytes are surrogates; raises at the first line that has one. A decoder that is
    strict raises for whole blocks, long before the lines in them are read."""
    for number, line in enumerate(text, 1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            byte = len(line[: error.start].encode())
            raise InvalidRequest(f"line {number}: not UTF-8 at byte {byte} of the line") from None
        yield line


def _check_columns(names: Sequence[str], place: str) -> None:
    """Refuse two columns with one name: a row would lose one of its values."""
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise InvalidRequest(f"{place}: two columns are named {twice!r}; rename one of them")


def _read_parquet(file: BinaryIO, full: bool) -> Generator[Row]:
    parquet = _pyarrow()[1]
    try:
        source = parquet.ParquetFile(file)
    except Exception as error:  # pyarrow raises errors of many kinds for this
        raise InvalidRequest(f"the file is not Parquet: {error}") from None
    _check_columns(source.schema_arrow.names, "the file")
    number = 0
    is_marked = MARK.items() <= (source.schema_arrow.metadata or {}).items()
    for batch in source.iter_batches(batch_size=1000):
        for row in batch.to_pylist():
            number += 1
            place = f"row {number}"
            if is_marked and row[JSON_COLUMN] is not None:
                yield place, bare_draft(row[JSON_COLUMN].encode(), place)
            else:
                yield place, table_draft(row if full else _present(row), full, place)


def _present(row: Record) -> Record:
    """A row without the names that its body does not have, which are null in their columns."""
    return {name: value for name, value in row.items() if value is not None}


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
            value = full_row(message) if full else bare(message)
            columns |= dict.fromkeys(bare_row(value))
            spool.write(msgspec.json.encode(value) + b"\n")
        _write_csv(file, spool, list(columns)) if format == "csv" else _write_parquet(file, spool, full)


def _values(spool: IO[bytes]) -> Iterator[Any]:
    spool.seek(0)
    return map(msgspec.json.decode, spool)


def _write_csv(file: BinaryIO, spool: IO[bytes], columns: list[str]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in map(bare_row, _values(spool)):
        writer.writerow([_cell(row.get(name)) for name in columns])
    text.flush()
    text.detach()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _write_parquet(file: BinaryIO, spool: IO[bytes], full: bool) -> None:
    arrow, parquet = _pyarrow()
    schema = _full_schema(arrow) if full else _bare_schema(arrow, spool)
    is_marked = JSON_COLUMN in schema.names
    with parquet.ParquetWriter(file, schema) as writer:
        for values in _groups(spool):
            rows = [bare_row(value) for value in values]
            if is_marked and len(schema.names) == 1:
                rows = [{JSON_COLUMN: _text(value)} for value in values]
            elif is_marked:
                exact = _exact(arrow.Table.from_pylist(rows, schema=schema.remove(len(schema.names) - 1)), values)
                rows = [
                    row if good else row | {JSON_COLUMN: _text(value)}
                    for row, value, good in zip(rows, values, exact, strict=True)
                ]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _full_schema(arrow: Any) -> Any:
    types = {"priority": arrow.int64(), "receives": arrow.int64(), "delay": arrow.float64(), "ttl": arrow.float64()}
    return arrow.schema([(name, types.get(name, arrow.string())) for name in COLUMNS])


def _bare_schema(arrow: Any, spool: IO[bytes]) -> Any:
    """The columns that fit all bodies; with the JSON column if they do not hold each of them exactly, and with that
    column alone if there are none."""
    mark = arrow.field(JSON_COLUMN, arrow.string())
    try:
        tables = [arrow.Table.from_pylist(_filled(values)) for values in _groups(spool)]
        if not tables:
            return arrow.schema([("body", arrow.string())])
        schema = arrow.unify_schemas([table.schema for table in tables], promote_options="permissive")
        if JSON_COLUMN in schema.names:
            return arrow.schema([mark], metadata=MARK)
        is_exact = all(
            all(_exact(arrow.Table.from_pylist([bare_row(value) for value in values], schema=schema), values))
            for values in _groups(spool)
        )
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        return arrow.schema([mark], metadata=MARK)
    return schema if is_exact else schema.append(mark).with_metadata(MARK)


def _exact(table: Any, values: list[Any]) -> list[bool]:
    """For each body whether it can be read back from its row."""
    return [
        _text(row_body(_present(row))) == _text(value) for row, value in zip(table.to_pylist(), values, strict=True)
    ]


def _text(value: Any) -> str:
    """A body as JSON, the same for equal bodies."""
    return msgspec.json.encode(value, order="sorted").decode()


def _groups(spool: IO[bytes]) -> Iterator[list[Any]]:
    values = _values(spool)
    while group := list(islice(values, ROWS)):
        yield group


def _filled(values: list[Any]) -> list[Record]:
    """Rows that have all names: without a schema, Arrow takes the columns of a table from its first row."""
    rows = [bare_row(value) for value in values]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra(f"Parquet needs pyarrow: {install('parquet')}") from None
    return cast(Any, pyarrow), parquet
