"""One face for both clients: an `AsyncClient` that is used like a blocking one, so that one suite runs on both."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import miniq
from miniq.client.delivery import MessagePage

ASYNC_KINDS = (
    miniq.AsyncClient,
    miniq.AsyncQueue,
    miniq.AsyncMessage,
    miniq.AsyncClaims,
    miniq.AsyncStaging,
    miniq.AsyncTopic,
)


class Blocking:
    """An async object whose coroutine methods are run to their end in `loop`."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*[_bare(arg) for arg in args], **kwargs)
            if inspect.isawaitable(result):
                result = self._loop.run_until_complete(result)
            return self._wrap(result)

        return call

    def __enter__(self) -> Any:
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._loop.run_until_complete(self._target.__aexit__(*error))

    def __repr__(self) -> str:
        return repr(self._target).replace("Async", "")

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, MessagePage):
            return MessagePage([self._wrap(item) for item in result], result.next)
        if isinstance(result, list):
            return [self._wrap(item) for item in result]
        return Blocking(result, self._loop) if isinstance(result, ASYNC_KINDS) else result


def _bare(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_bare(item) for item in argument]
    return argument._target if isinstance(argument, Blocking) else argument


class Opener:
    """Connects in one of both ways, and closes what the test left open."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self._opened: list[Any] = []

    def __call__(self, url: Any, **options: Any) -> Any:
        if self._loop is None:
            client: Any = miniq.connect(url, **options)
        else:
            client = Blocking(self._loop.run_until_complete(_connect(url, options)), self._loop)
        self._opened.append(client)
        return client

    def close(self) -> None:
        for client in self._opened:
            client.close()
        if self._loop is not None:
            self._loop.close()


async def _connect(url: Any, options: dict[str, Any]) -> miniq.AsyncClient:
    return await miniq.connect_async(url, **options)
