"""File formats: JSON Lines, CSV and Parquet, each a way to read rows and to write them.

Reading yields drafts one by one, with how far into the file we are, so that a large file is never in memory. CSV and
Parquet must know all columns before the first row, so what is written to them is first laid aside in a file.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
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
    """The format that a file's name tells."""
    return SUFFIXES.get(os.path.splitext(path)[1].lower())


# Reading


def read(file: BinaryIO, format: Format, full: bool) -> Iterator[tuple[Draft, int]]:
    """The messages in a file, each with how many bytes (in Parquet: rows) were read by then."""
    if format == "jsonl":
        return _read_jsonl(file, full)
    return _read_csv(file, full) if format == "csv" else _read_parquet(file, full)


def _read_jsonl(file: BinaryIO, full: bool) -> Iterator[tuple[Draft, int]]:
    done = 0
    for number, line in enumerate(file, 1):
        done += len(line)
        if text := line.strip():
            yield (full_draft if full else bare_draft)(text, f"line {number}"), done


def _read_csv(file: BinaryIO, full: bool) -> Iterator[tuple[Draft, int]]:
    counter = _Counter(file)
    text = io.TextIOWrapper(io.BufferedReader(counter), encoding="utf-8-sig", newline="")
    csv.field_size_limit(1 << 30)
    rows = csv.DictReader(text, strict=True)
    try:
        for row in rows:
            place = f"line {rows.line_num}"
            if None in row or None in row.values():
                raise InvalidRequest(f"{place}: not as many columns as in the first line")
            yield table_draft(row, full, place), counter.done
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRequest(f"line {rows.line_num + 1}: cannot be read as CSV: {error}") from None
    finally:
        text.detach()


class _Counter(io.RawIOBase):
    """A file that knows how much was read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.done += len(data)
        return len(data)


def _read_parquet(file: BinaryIO, full: bool) -> Iterator[tuple[Draft, int]]:
    parquet = _pyarrow()[1]
    try:
        source = parquet.ParquetFile(file)
    except Exception as error:  # the driver has errors of many kinds for this
        raise InvalidRequest(f"the file is not Parquet: {error}") from None
    number = 0
    for batch in source.iter_batches(batch_size=1000):
        for row in batch.to_pylist():
            number += 1
            if not full:
                # A name that a row does not have is null in its column; objects keep what is there.
                row = {name: value for name, value in row.items() if value is not None}
            yield table_draft(row, full, f"row {number}"), number


def length(path: str, format: Format) -> int:
    """How much there is to read, in the unit that `read` counts in."""
    if format == "parquet":
        try:
            return int(_pyarrow()[1].read_metadata(path).num_rows)
        except MissingExtra:
            raise
        except Exception as error:
            raise InvalidRequest(f"{path} is not Parquet: {error}") from None
    return os.path.getsize(path)


# Writing


def write(file: BinaryIO, format: Format, full: bool, messages: Iterable[Message]) -> int:
    """Write messages to a file, and say how many there were."""
    if format == "jsonl":
        count = 0
        for message in messages:
            file.write((full_line(message) if full else bare_line(message)) + b"\n")
            count += 1
        return count
    if format == "parquet":
        _pyarrow()
    with tempfile.TemporaryFile() as aside:
        count, columns = _lay_aside(aside, full, messages)
        _write_csv(file, aside, columns) if format == "csv" else _write_parquet(file, aside, full)
    return count


def _lay_aside(aside: IO[bytes], full: bool, messages: Iterable[Message]) -> tuple[int, list[str]]:
    """Rows as JSON Lines, and all columns they have."""
    columns: dict[str, None] = dict.fromkeys(COLUMNS if full else ())
    count = 0
    for message in messages:
        row = table_row(message, full)
        columns |= dict.fromkeys(row)
        aside.write(msgspec.json.encode(row) + b"\n")
        count += 1
    return count, list(columns)


def _rows(aside: IO[bytes]) -> Iterator[Row]:
    aside.seek(0)
    for line in aside:
        yield msgspec.json.decode(line)


def _write_csv(file: BinaryIO, aside: IO[bytes], columns: list[str]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in _rows(aside):
        writer.writerow([_cell(row.get(name)) for name in columns])
    text.flush()
    text.detach()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _write_parquet(file: BinaryIO, aside: IO[bytes], full: bool) -> None:
    arrow, parquet = _pyarrow()
    try:
        schema = _full_schema(arrow) if full else _schema(arrow, aside)
        with parquet.ParquetWriter(file, schema) as writer:
            for rows in _groups(aside):
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the bodies do not fit in the columns of one Parquet file; use --full ({error})", field="body"
        ) from None


def _full_schema(arrow: Any) -> Any:
    numbers = {"priority", "receives"}
    return arrow.schema([(name, arrow.int64() if name in numbers else arrow.string()) for name in COLUMNS])


def _schema(arrow: Any, aside: IO[bytes]) -> Any:
    """The schema that all rows fit in, found by looking at all of them."""
    found = [arrow.Table.from_pylist(rows).schema for rows in _groups(aside)]
    if not found:
        return arrow.schema([("body", arrow.string())])
    # A table takes its columns from its first row, so each row is looked at for names of its own.
    return arrow.unify_schemas(found, promote_options="permissive")


def _groups(aside: IO[bytes]) -> Iterator[list[Row]]:
    """Rows in portions; within one, every row has every name."""
    rows: list[Row] = []
    for row in _rows(aside):
        rows.append(row)
        if len(rows) >= ROWS:
            yield _level(rows)
            rows = []
    if rows:
        yield _level(rows)


def _level(rows: list[Row]) -> list[Row]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("Parquet needs pyarrow: pip install 'miniq[parquet]'") from None
    return cast(Any, pyarrow), parquet
