"""`GET /v1/events`: the statistics of all queues, or of one, as server-sent events.

The first event lists all queues that the caller may read; later ones list the queues that changed and the names of
those that were deleted. An event is sent every `interval` seconds even if nothing changed, so that a client can tell a
quiet broker from a dead connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response, StreamingResponse

from miniq import dispatch
from miniq.api import codec, shapes
from miniq.api.operations import Stats
from miniq.broker import Broker, rules
from miniq.dispatch import Caller
from miniq.errors import MiniQError
from miniq.server.operations import BY_NAME, Request, authorise, bearer, check_query, integer, seconds

PARAMETERS = {"interval": float, "queue": str, "count": int}
PATH = "/v1/events"
MEDIA = "text/event-stream"


async def listen(broker: Broker, http: HTTPRequest) -> Response:
    """Check the request and return its event stream; for HEAD, an empty one."""
    query = http.query_params
    check_query(query, PARAMETERS)
    interval = rules.check_seconds(seconds(query, "interval") if "interval" in query else 2.0, "interval", 0.1, 60)
    count = rules.check_count(integer(query, "count") if "count" in query else 2**31, "count", 1, 2**31)
    request = Request({}, query, None, "json", bearer(http.headers.get("authorization")))
    authorise(broker, BY_NAME["stats"], request)
    first = await _stats_by_queue(broker, request)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if http.method == "HEAD":
        return Response(media_type=MEDIA, headers=headers)
    events = _events(broker, request, first, interval, count)
    return StreamingResponse(events, media_type=MEDIA, headers=headers)


async def _events(
    broker: Broker, request: Request, previous: dict[str, shapes.QueueStats], interval: float, count: int
) -> AsyncIterator[bytes]:
    changed, deleted = list(previous.values()), list[str]()
    while True:
        event = shapes.StatsEvent(codec.moment(broker.clock.now()), changed, deleted)
        yield b"event: stats\ndata: %b\n\n" % codec.encode_json(event)
        count -= 1
        if not count or not await broker.trends.pause(interval):
            return
        try:
            authorise(broker, BY_NAME["stats"], request)
            current = await _stats_by_queue(broker, request)
        except MiniQError as error:
            yield b"event: problem\ndata: %b\n\n" % codec.encode_json(codec.problem(error))
            return
        changed = [entry for name, entry in current.items() if previous.get(name) != entry]
        deleted = [name for name in previous if name not in current]
        previous = current


async def _stats_by_queue(broker: Broker, request: Request) -> dict[str, shapes.QueueStats]:
    reply = await dispatch.perform(broker, Stats(request.query.get("queue")), Caller(request.secret))
    return {entry.name: entry for entry in reply.queues}
