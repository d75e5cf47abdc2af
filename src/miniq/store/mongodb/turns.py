"""Calls of one queue that arrive while others are under way are made together, so that calls of one process do not
compete for a block."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from miniq.errors import Closed

Call = TypeVar("Call")
Answer = TypeVar("Answer")

MOST = 64
"""Calls that are made together."""


class Turn(Generic[Call, Answer]):
    """A call that waits for its answer."""

    __slots__ = ("answer", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def done(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def failed(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # asyncio reports errors that are not read, and a cancelled caller reads none


class Turns(Generic[Call, Answer]):
    """The calls of one kind."""

    def __init__(
        self, work: Callable[[str, list[Turn[Call, Answer]]], Awaitable[None]], *, at_once: bool = False
    ) -> None:
        self._work = work
        self._at_once = at_once
        """Whether a caller makes its call itself if none is under way, which is faster, and is interrupted if it is
        cancelled."""
        self._waiting: dict[str, list[Turn[Call, Answer]]] = {}
        self._running: dict[str, asyncio.Task[None] | None] = {}
        """Queues with a call under way: None if its caller makes it."""

    async def make(self, queue: str, call: Call) -> Answer:
        """Make a call, together with others that wait. If it is cancelled while it is being made, it is completed
        first: its caller may then look for what it did."""
        turn: Turn[Call, Answer] = Turn(call)
        if self._at_once and queue not in self._running:
            return await self._make_now(queue, turn)
        self._waiting.setdefault(queue, []).append(turn)
        if queue not in self._running:
            self._running[queue] = asyncio.create_task(self._run(queue))
        try:
            return await asyncio.shield(turn.answer)
        except asyncio.CancelledError:
            if turn in self._waiting.get(queue, ()):
                self._waiting[queue].remove(turn)
            else:
                await asyncio.wait([turn.answer])
                turn.answer.exception()
            raise

    async def _make_now(self, queue: str, turn: Turn[Call, Answer]) -> Answer:
        self._running[queue] = None
        try:
            await self._serve(queue, [turn])
        finally:
            if queue in self._waiting:
                self._running[queue] = asyncio.create_task(self._run(queue))
            else:
                del self._running[queue]
        return turn.answer.result()

    async def close(self) -> None:
        """Wait for the calls under way."""
        tasks = [task for task in self._running.values() if task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=2)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, queue: str) -> None:
        try:
            while waiting := self._waiting.pop(queue, None):
                turns, rest = waiting[:MOST], waiting[MOST:]
                if rest:
                    self._waiting[queue] = rest
                await self._serve(queue, turns)
        finally:
            del self._running[queue]

    async def _serve(self, queue: str, turns: list[Turn[Call, Answer]]) -> None:
        try:
            if turns:
                await self._work(queue, turns)
        except Exception as error:
            for turn in turns:
                turn.failed(error)
        except BaseException:
            for turn in turns:
                turn.failed(Closed("the store is closed"))
            raise
