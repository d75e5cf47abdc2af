"""Background tasks end, also those that swallow a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from miniq.broker import background
from miniq.broker.background import Background


async def test_a_task_that_takes_a_cancellation_for_an_error_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PATIENCE", 0.01)
    passes = 0

    async def work() -> None:
        nonlocal passes
        while passes < 3:
            passes += 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    tasks = Background()
    tasks.spawn(work())
    await asyncio.sleep(0)
    await tasks.stop()
    assert passes == 3


async def test_a_task_that_failed_before_does_not_raise_again() -> None:
    async def fail() -> None:
        raise ValueError

    tasks = Background()
    tasks.spawn(fail())
    await asyncio.sleep(0)
    await tasks.stop()
