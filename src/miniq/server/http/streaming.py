"""An answer that is sent while it is made."""

from __future__ import annotations

import asyncio

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from miniq.errors import MiniQError


class StreamingAnswer(StreamingResponse):
    """Begins before the request was read to its end, so it does not depend on whether the rest is valid."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_end() -> Message:
            while True:
                try:
                    return await receive()
                except MiniQError:
                    await asyncio.sleep(0)  # until the answer has begun; see `AsgiCycle.receive`

        await super().__call__(scope, receive_end, send)
