"""The table of operations, and the decorator that adds a request with its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from miniq.api.operation import Call, Operation

C = TypeVar("C", bound=type[Call[Any]])
P = ParamSpec("P")

OPERATIONS: list[Operation[Any]] = []
"""The table."""


def _rows_of(row: Callable[Concatenate[type[Call[Any]], P], Operation[Any]]) -> Callable[P, Callable[[C], C]]:
    """The decorator that adds a request and its row to the table."""

    def decorator(*columns: P.args, **options: P.kwargs) -> Callable[[C], C]:
        def add(request: C) -> C:
            OPERATIONS.append(row(request, *columns, **options))
            return request

        return add

    return decorator


operation = _rows_of(Operation)
