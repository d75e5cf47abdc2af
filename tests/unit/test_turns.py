"""Calls that are made together in the MongoDB store: what becomes of one that is cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from miniq.store.mongodb.turns import Turn, Turns


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_call_that_is_cancelled_leaves_no_error_that_nobody_reads(at_once: bool) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    begun = asyncio.Event()

    async def work(queue: str, turns: list[Turn[int, int]]) -> None:
        begun.set()
        await asyncio.Event().wait()

    turns = Turns(work, at_once=at_once)
    calls = [asyncio.create_task(turns.make("q", number)) for number in range(3)]
    await begun.wait()
    for call in calls:
        call.cancel()
    closing = asyncio.create_task(turns.close())
    await asyncio.gather(*calls, closing, return_exceptions=True)
    del calls, closing, turns
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
