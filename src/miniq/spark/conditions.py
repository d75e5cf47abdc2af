"""Which rows a batch read wants: from its options, narrowed by the filters that Spark pushes down.

What the broker can filter by, it does: one queue, one kind of event, one status, ranges of offsets and of time. The
rest is filtered in the task, before Spark converts the rows. Spark evaluates pushed filters once more, so a condition
may let through more than was asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from miniq.spark.options import Options

COLUMNS = {"messages": ("status", "priority"), "history": ("queue", "event")}
"""Columns whose values can be listed."""
TICK = timedelta(microseconds=1)


class Conditions(Struct, frozen=True):
    """What the rows of a read have in common."""

    values: dict[str, frozenset[Any]] = {}
    """The values that a column may have."""
    first: int = 0
    last: int | None = None
    """The range of offsets, inclusive."""
    since: datetime | None = None
    until: datetime | None = None
    """The range of time; its end is exclusive."""

    def only(self, column: str) -> Any:
        """The single value that a column may have, None if there may be others."""
        values = self.values.get(column, frozenset())
        return next(iter(values)) if len(values) == 1 else None

    def among(self, column: str, values: Iterable[Any]) -> Conditions:
        allowed = frozenset(values)
        if column in self.values:
            allowed &= self.values[column]
        return replace(self, values=self.values | {column: allowed})

    def from_offset(self, offset: int) -> Conditions:
        return replace(self, first=max(self.first, offset))

    def to_offset(self, offset: int) -> Conditions:
        return replace(self, last=offset if self.last is None else min(self.last, offset))

    def from_time(self, at: datetime) -> Conditions:
        return replace(self, since=at if self.since is None else max(self.since, at))

    def to_time(self, at: datetime) -> Conditions:
        return replace(self, until=at if self.until is None else min(self.until, at))

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match."""
        tests = [pc.is_in(batch.column(name), _set(batch, name, values)) for name, values in self.values.items()]
        if self.last is not None:
            tests.append(pc.less_equal(batch.column("offset"), self.last))
        if self.since is not None:
            tests.append(pc.greater_equal(batch.column("at"), pa.scalar(self.since, batch.column("at").type)))
        if self.until is not None:
            tests.append(pc.less(batch.column("at"), pa.scalar(self.until, batch.column("at").type)))
        for test in tests:
            if not pc.all(test, min_count=0).as_py():
                mask = tests[0]
                for other in tests[1:]:
                    mask = pc.and_(mask, other)
                return batch.filter(mask)
        return batch


def _set(batch: pa.RecordBatch, name: str, values: Iterable[Any]) -> pa.Array:
    return pa.array(sorted(values), batch.column(name).type)


def asked(options: Options) -> Conditions:
    """The conditions that the options of a read state."""
    conditions = Conditions()
    for column in COLUMNS[options.view]:
        value = getattr(options, column)
        if value is not None:
            conditions = conditions.among(column, [value])
    if isinstance(options.startingOffset, int):
        conditions = conditions.from_offset(options.startingOffset)
    if options.endingOffset is not None:
        conditions = conditions.to_offset(options.endingOffset)
    if options.startingTime is not None:
        conditions = conditions.from_time(options.startingTime)
    if options.endingTime is not None:
        conditions = conditions.to_time(options.endingTime)
    return conditions


def narrowed(conditions: Conditions, filter: Filter, view: str) -> Conditions:
    """The conditions with one filter of Spark; a filter that they cannot express changes nothing."""
    if (
        not isinstance(filter, (EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual))
        or len(filter.attribute) != 1
    ):
        return conditions
    (column,), value = filter.attribute, filter.value
    if column in COLUMNS[view]:
        if isinstance(filter, (EqualTo, EqualNullSafe)) and value is not None:
            return conditions.among(column, [value])
        if isinstance(filter, In):
            return conditions.among(column, [each for each in value if each is not None])
    elif view == "history" and column == "offset" and isinstance(value, int):
        return _offsets(conditions, filter, value)
    elif view == "history" and column == "at" and isinstance(value, datetime):
        return _times(conditions, filter, value if value.tzinfo else value.replace(tzinfo=UTC))
    return conditions


def _offsets(conditions: Conditions, filter: Filter, value: int) -> Conditions:
    if isinstance(filter, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
        conditions = conditions.from_offset(value)
    if isinstance(filter, (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual)):
        conditions = conditions.to_offset(value)
    return conditions


def _times(conditions: Conditions, filter: Filter, value: datetime) -> Conditions:
    if isinstance(filter, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
        conditions = conditions.from_time(value)
    if isinstance(filter, (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual)):
        conditions = conditions.to_time(value + TICK)
    return conditions


class FilteredReader(DataSourceReader):
    """A reader that narrows its conditions by the filters of a query.

    Spark refuses to read from a class that overrides `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is
    set, which by default it is not. It looks at the function behind the method; so `pushFilters` is an object that
    shows Spark's own function there. Without the setting, reads work, and nothing is pushed.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._conditions = asked(options)

    @property
    def pushFilters(self) -> Any:
        return _Pushdown(self)

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Take over filters as far as possible; Spark is to evaluate all of them again."""
        for filter in filters:
            self._conditions = narrowed(self._conditions, filter, self._options.view)
        return filters


class _Pushdown:
    def __init__(self, reader: FilteredReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.narrow(filters)
