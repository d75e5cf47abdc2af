"""Calls for those who watch a broker: what its queues are doing, now and in the last hour, and what a key may do."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from miniq.api import codec, shapes
from miniq.broker import Broker
from miniq.broker.keyring import VERBS
from miniq.server.query import number

if TYPE_CHECKING:
    from miniq.server.operations import Request


async def stats(broker: Broker, request: Request) -> shapes.StatsReply:
    return shapes.StatsReply(codec.moment(broker.clock.now()), await stats_of(broker, request))


async def stats_of(broker: Broker, request: Request) -> list[shapes.StatsEntry]:
    """The queues that a caller may see, or the one it asks for, as they are now."""
    return [
        shapes.StatsEntry(
            found.name,
            found.counts.ready,
            found.counts.delayed,
            found.counts.leased,
            found.counts.total,
            found.counts.bytes,
            None if found.counts.oldest is None else codec.moment(found.counts.oldest),
            shapes.WireRates(**found.rates),
            found.dead_letter_queue,
            found.dead,
        )
        for found in await broker.trends.stats(_visible(broker, request))
    ]


async def trends(broker: Broker, request: Request) -> shapes.TrendsReply:
    query = request.query
    points = number(query, "points", 60)
    series = query.get("series", "total,sent,acked").split(",")
    found = broker.trends.last_hour(_visible(broker, request), series, points)
    return shapes.TrendsReply(
        codec.moment(broker.trends.last), 3600 / points, [shapes.TrendEntry(one.name, one.series) for one in found]
    )


async def whoami(broker: Broker, request: Request) -> shapes.WhoReply:
    keys = broker.keys
    queue = request.query.get("queue")
    verbs = [verb for verb in VERBS if keys.may(request.secret, verb, queue)]
    report = broker.options.report is not None
    if keys.open:
        return shapes.WhoReply(True, None, None, ["*"], verbs, report, version("miniq"))
    key = keys.identify(request.secret)
    return shapes.WhoReply(False, key.name, key.id, key.allow, verbs, report, version("miniq"))


def _visible(broker: Broker, request: Request) -> list[str]:
    """The names of the queues that a caller may see; of one alone if it is asked for, which must be there."""
    queue = request.query.get("queue")
    if queue is not None:
        broker.catalog.settings(queue)
        return [queue]
    may = broker.keys.may
    return [name for name in sorted(broker.catalog.names()) if may(request.secret, "read", name)]
