"""Work of several tests that mostly waits, done at the same time: each test then asks for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
AT_ONCE = 4


def ahead(request: pytest.FixtureRequest, argument: str, work: Callable[[Any], T]) -> Iterator[Callable[[Any], T]]:
    """For a fixture of a module: begin the work for every value that its tests will be asked with as `argument`, and
    give a function that waits for that of one value."""
    asked = {
        id(value := item.callspec.params[argument]): value
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
        and argument in item.callspec.params
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun: dict[int, Future[T]] = {key: pool.submit(work, value) for key, value in asked.items()}
        try:
            yield lambda value: begun[id(value)].result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
