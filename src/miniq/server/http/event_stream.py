"""`GET /v1/events`: the statistics of all queues, or of one, as server-sent events.

The first event lists all queues that the caller may read; later ones list the queues that changed and the names of
those that were deleted. An event is sent every `interval` seconds even if nothing changed, so that a client can tell a
quiet broker from a dead connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from miniq import dispatch
from miniq.api import codec, shapes
from miniq.broker import Broker, rules
from miniq.broker.trends import QueueStats
from miniq.dispatch import OWNER, Caller
from miniq.errors import MiniQError, TooManyStreams
from miniq.server.http.streaming import StreamingAnswer
from miniq.server.operations import BY_NAME, Request, authorise, bearer, check_query, integer, seconds

PARAMETERS = {"interval": float, "queue": str, "count": int}
PATH = "/v1/events"
MEDIA = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def listen(broker: Broker, http: HTTPRequest) -> Response:
    """Check the request and return its event stream; for HEAD, an empty one."""
    query = http.query_params
    check_query(query, PARAMETERS)
    interval = rules.check_seconds(seconds(query, "interval") if "interval" in query else 2.0, "interval", 0.1, 60)
    count = rules.check_count(integer(query, "count") if "count" in query else 2**31, "count", 1, 2**31)
    request = Request({}, query, None, "json", bearer(http.headers.get("authorization")))
    authorise(broker, BY_NAME["stats"], request)
    first = await _stats_by_queue(broker, request, interval)
    if http.method == "HEAD":
        return Response(media_type=MEDIA, headers=HEADERS)
    if broker.trends.streams >= broker.options.max_streams:
        text = f"{PATH}: {broker.trends.streams} event streams are open, as many as max_streams allows; try again later"
        raise TooManyStreams(text)
    broker.trends.streams += 1
    return _EventStream(broker, _events(broker, request, first, interval, count))


class _EventStream(StreamingAnswer):
    """A stream that is counted until it ends."""

    def __init__(self, broker: Broker, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type=MEDIA, headers=HEADERS)
        self._broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._broker.trends.streams -= 1


async def _events(
    broker: Broker, request: Request, current: dict[str, QueueStats], interval: float, count: int
) -> AsyncIterator[bytes]:
    caller = Caller(request.secret)
    previous: dict[str, QueueStats] = _NOTHING
    while True:
        if "queue" not in request.query and caller.may(broker, "read", None):
            yield await _shared_event(broker, previous, current)
        else:
            yield await _event(broker, previous, current, caller)
        count -= 1
        if not count or not await broker.trends.pause(interval):
            return
        previous = current
        try:
            authorise(broker, BY_NAME["stats"], request)
            current = await _stats_by_queue(broker, request, interval)
        except MiniQError as error:
            yield b"event: problem\ndata: %b\n\n" % codec.encode_json(codec.problem(error))
            return


_NOTHING: dict[str, QueueStats] = {}
_shared: deque[tuple[dict[str, QueueStats], dict[str, QueueStats], asyncio.Task[bytes]]] = deque(maxlen=4)
"""The latest events for callers that may see all queues, with the numbers before and after."""


async def _shared_event(broker: Broker, previous: dict[str, QueueStats], current: dict[str, QueueStats]) -> bytes:
    """An event that is encoded once for all streams with the same numbers."""
    for before, after, task in _shared:
        if before is previous and after is current:
            return await asyncio.shield(task)
    task = asyncio.create_task(_event(broker, previous, current, OWNER))
    _shared.append((previous, current, task))
    return await asyncio.shield(task)


async def _event(
    broker: Broker, previous: dict[str, QueueStats], current: dict[str, QueueStats], caller: Caller
) -> bytes:
    """What has changed from the previous numbers to the current ones."""
    changed = [entry for name, entry in current.items() if previous.get(name) is not entry]
    deleted = [name for name in previous if name not in current and caller.may(broker, "read", name)]
    queues = await dispatch.wire_stats(broker, changed, caller)
    event = shapes.StatsEvent(codec.moment(broker.clock.now()), queues, deleted)
    return b"event: stats\ndata: %b\n\n" % codec.encode_json(event)


async def _stats_by_queue(broker: Broker, request: Request, interval: float) -> dict[str, QueueStats]:
    """The numbers of all queues, from the pass that all streams share, or of the one that was requested."""
    queue = request.query.get("queue")
    if queue is not None:
        broker.catalog.settings(queue)
    current = await broker.trends.current(interval / 2)
    return current if queue is None else {name: current[name] for name in (queue,) if name in current}
