"""`GET /v1/events`: the statistics of all queues, or of one, as server-sent events.

The first event lists all queues that the caller may read; later ones list the queues that changed and the names of
those that were deleted. An event is sent every `interval` seconds even if nothing changed, so that a client can tell a
quiet broker from a dead connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request as HTTPRequest
from starlette.responses import StreamingResponse

from miniq import dispatch
from miniq.api import codec, shapes
from miniq.api.operations import Stats
from miniq.broker import Broker, rules
from miniq.dispatch import Caller
from miniq.errors import InvalidRequest, MiniQError
from miniq.server.operations import BY_NAME, Request, authorise, bearer, check_query, integer

PARAMETERS = {"interval": float, "queue": str, "count": int}
PATH = "/v1/events"


async def listen(broker: Broker, http: HTTPRequest) -> StreamingResponse:
    """Check the request and return its event stream."""
    query = http.query_params
    check_query(query, PARAMETERS)
    interval = _seconds(query.get("interval", "2"))
    count = rules.check_count(integer(query, "count") if "count" in query else 2**31, "count", 1, 2**31)
    request = Request({}, query, None, "json", bearer(http.headers.get("authorization")))
    authorise(broker, BY_NAME["stats"], request)
    first = await _stats_by_queue(broker, request)
    return StreamingResponse(
        _events(broker, request, first, interval, count),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


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


def _seconds(text: str) -> float:
    try:
        return rules.check_seconds(float(text), "interval", 0.1, 60)
    except ValueError:
        raise InvalidRequest(f"interval: {text[:80]!r} is not a number of seconds", field="interval") from None
