"""Coroutines that begin at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from miniq.broker.prompt import begin
from miniq.errors import Closed


class Told:
    """What came of a coroutine."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, Exception | None]] = []

    def __call__(self, result: Any, error: Exception | None) -> None:
        self.ends.append((result, error))


async def test_what_waits_for_nothing_is_over_at_once() -> None:
    async def call() -> int:
        return 7

    told = Told()
    assert begin(asyncio.get_running_loop(), call(), told) is None
    assert told.ends == [(7, None)]


async def test_an_error_before_the_first_wait_is_told_at_once() -> None:
    wrong = ValueError("wrong")

    async def call() -> None:
        raise wrong

    told = Told()
    assert begin(asyncio.get_running_loop(), call(), told) is None
    assert told.ends == [(None, wrong)]


async def test_what_waits_goes_on_as_a_task() -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    steps = []

    async def call() -> int:
        steps.append("begun")
        got = await first
        await asyncio.sleep(0)
        try:
            await second
        except ValueError:
            steps.append("caught")
        async with asyncio.timeout(5):  # asks for the current task
            await asyncio.sleep(0)
        return int(got)

    told = Told()
    task = begin(loop, call(), told)
    assert task is not None
    assert steps == ["begun"]
    first.set_result(3)
    second.set_exception(ValueError())
    assert await task == 3
    await asyncio.sleep(0)
    assert steps == ["begun", "caught"]
    assert told.ends == [(3, None)]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_one_that_waits_can_be_cancelled_at_any_time(turns: int) -> None:
    loop = asyncio.get_running_loop()
    cleaned = []

    async def call() -> None:
        try:
            await loop.create_future()
        finally:
            cleaned.append(True)

    told = Told()
    task = begin(loop, call(), told)
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    assert task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert cleaned == [True]
    ((result, error),) = told.ends
    assert result is None
    assert isinstance(error, Closed)


async def test_one_that_has_to_be_a_task_is_one_from_its_beginning() -> None:
    async def call() -> bool:
        return asyncio.current_task() is not None

    told = Told()
    task = begin(asyncio.get_running_loop(), call(), told, at_once=False)
    assert task is not None
    assert await task
    await asyncio.sleep(0)
    assert told.ends == [(True, None)]
