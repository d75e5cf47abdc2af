"""Routing: which queues get a published message, and how the messages of a publication are cut for the store.

A router is made from the subscriptions of a topic whenever these change. Patterns are matched together, filters one by
one for the subscriptions whose pattern matches. A queue with several matching subscriptions gets one copy, in no
envelope if one of them has none, else in that of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from miniq.broker import rules
from miniq.broker.envelopes import Envelope, wrapped
from miniq.broker.filters import BodyValues, Filter, Values
from miniq.broker.patterns import Patterns
from miniq.errors import TooLarge
from miniq.ids import SHARE, IdSource
from miniq.message import Draft, Message, PlainBatch, PlainDrafts, QueueSettings
from miniq.options import Limits
from miniq.store.arguments import Stretch
from miniq.store.decisions import plain_batch, size_of
from miniq.topic import Match, Subscription

MESSAGE = 20
"""What each message costs, in the same unit as the conditions of a filter."""
TURN = 5000
"""Names and conditions of filters that are tested, and keys matched, before other calls get their turn: about a
millisecond."""
_PLAIN = QueueSettings()
_NO_HEADERS: Mapping[str, str] = {}

Route = tuple[int, ...]
"""The positions of outlets in `Router.outlets`, rising."""
Destination = tuple[int, Envelope | None]
"""The position of a queue among the targets of a publication, and what its copies are wrapped in."""


class Outlet(Struct, frozen=True):
    """A queue, and what its copies are wrapped in."""

    queue: str
    envelope: Envelope | None = None


class Router:
    """The subscriptions of a topic, compiled; `filters` has their filters by name."""

    def __init__(self, subscriptions: Sequence[Subscription], filters: Mapping[str, Filter]) -> None:
        self._subscriptions = subscriptions
        self.queues = list(dict.fromkeys(subscription.queue for subscription in subscriptions))
        signs = [(one.envelope is not None, one.queue, _sign(one.envelope)) for one in subscriptions]
        outlets = {sign: Outlet(one.queue, one.envelope) for sign, one in zip(signs, subscriptions, strict=True)}
        order = sorted(outlets, key=lambda sign: sign[0])
        self.outlets = [outlets[sign] for sign in order]
        """Those without an envelope first."""
        places = {sign: place for place, sign in enumerate(order)}
        self._places = [places[sign] for sign in signs]
        self._filters = [filters.get(subscription.name) for subscription in subscriptions]
        self._open: list[int] = []
        """Subscriptions without a pattern."""
        self._patterned: list[int] = []
        for number, subscription in enumerate(subscriptions):
            (self._open if subscription.pattern is None else self._patterned).append(number)
        self._patterns = Patterns([subscriptions[number].pattern or "#" for number in self._patterned])
        scopes = {filter.scope for filter in filters.values()}
        self._reads_headers, self._reads_bodies = "headers" in scopes, "body" in scopes
        self._spent = 0
        """What was tested since other calls had their turn."""

    def destinations(self, targets: Mapping[str, int]) -> list[Destination]:
        """The destination of each outlet, given the positions of queues. A queue that is not there has none: -1."""
        return [(targets.get(outlet.queue, -1), outlet.envelope) for outlet in self.outlets]

    async def routes(self, drafts: Sequence[Draft]) -> list[Route]:
        """Where each message goes."""
        if isinstance(drafts, PlainDrafts) and not self._reads_bodies:
            return [await self._route(None, _NO_HEADERS, b"")] * len(drafts)
        routes: list[Route] = []
        known: dict[object, Route] = {}
        for draft in drafts:
            headers = draft.headers if self._reads_headers and draft.headers else _NO_HEADERS
            body = draft.body if self._reads_bodies else b""
            sign = (draft.key, frozenset(headers.items()), body) if headers or body else draft.key
            route = known.get(sign)
            if route is None:
                route = known[sign] = await self._route(draft.key, headers, body)
            routes.append(route)
        return routes

    async def explain(self, key: str | None, headers: Mapping[str, str], body: bytes) -> list[Match]:
        """For each subscription, whether a message would match it."""
        matched = {self._patterned[number] for number in await self._match(key)}
        values, inner = Values(headers), BodyValues(body)
        found: list[Match] = []
        for number, subscription in enumerate(self._subscriptions):
            filter = self._filters[number]
            reason = None
            if subscription.pattern is not None and number not in matched:
                shown = "a message without a key" if key is None else f"the key {key[:256]!r}"
                reason = f"pattern {subscription.pattern!r} does not match {shown}"
            elif filter is not None and not await self._matches(filter, values, inner):
                reason = f"the filter does not match the {filter.scope}"
            found.append(Match(subscription.name, subscription.queue, reason is None, reason))
        return found

    async def _route(self, key: str | None, headers: Mapping[str, str], body: bytes) -> Route:
        numbers = [*self._open, *(self._patterned[number] for number in await self._match(key))]
        filters, places, values, inner = self._filters, self._places, Values(headers), BodyValues(body)
        reached: set[int] = set()
        for number in numbers:
            filter = filters[number]
            if filter is None or await self._matches(filter, values, inner):
                reached.add(places[number])
        route = tuple(sorted(reached))
        if len(self.outlets) > len(self.queues):  # a queue has several, of which it gets one copy
            first = {self.outlets[place].queue: place for place in reversed(route)}
            route = tuple(sorted(first.values()))
        return route

    async def _match(self, key: str | None) -> Sequence[int]:
        """The patterns that match a key."""
        matched = self._patterns.match(key)
        await self._spend(MESSAGE + self._patterns.cost(key, matched))
        return matched

    async def _matches(self, filter: Filter, values: Values, inner: BodyValues) -> bool:
        await self._spend(filter.cost)
        if filter.scope == "headers":
            return filter.matches(values)
        return inner.is_object and filter.matches(inner)

    async def _spend(self, cost: int) -> None:
        """Let other calls have their turn when enough was tested."""
        self._spent += cost
        if self._spent > TURN:
            self._spent = 0
            await asyncio.sleep(0)


def _sign(envelope: Envelope | None) -> frozenset[tuple[str, str]]:
    return frozenset() if envelope is None else frozenset(envelope.items())


def stretches(
    topic: str,
    drafts: Sequence[Draft],
    routes: Sequence[Route],
    ids: IdSource,
    now: int,
    limits: Limits,
    destinations: Sequence[Destination],
) -> list[Stretch]:
    """The messages of valid drafts in order, with rising ids, cut where the queues that they go to change. Those that
    some queues get in an envelope follow once more for each of these."""
    if isinstance(drafts, PlainDrafts) and routes.count(routes[0]) == len(routes):
        plain = [_plain(topic, drafts[start : start + SHARE], ids, now) for start in range(0, len(drafts), SHARE)]
        return [stretch for batch in plain for stretch in _variants(batch, routes[0], False, destinations)]
    cut: list[Stretch] = []
    start = 0
    before: object = None
    for place, draft in enumerate(drafts):
        alone = draft.recipient is not None or draft.group is not None or draft.dedup_id is not None
        kind = None if alone else (routes[place], draft.priority, draft.delay, draft.deliver_at)
        if place > start and (kind is None or kind != before or place - start == SHARE):
            cut += _stretch(topic, drafts[start:place], routes[start], ids, now, limits, destinations)
            start = place
        before = kind
    if drafts:
        cut += _stretch(topic, drafts[start:], routes[start], ids, now, limits, destinations)
    return cut


def _plain(topic: str, drafts: PlainDrafts, ids: IdSource, now: int) -> PlainBatch:
    return PlainBatch(ids.run(len(drafts), now), "", now, now, drafts.bodies, drafts.content_type, 0, topic)


def _stretch(
    topic: str,
    drafts: Sequence[Draft],
    route: Route,
    ids: IdSource,
    now: int,
    limits: Limits,
    destinations: Sequence[Destination],
) -> list[Stretch]:
    run = ids.run(len(drafts), now)
    messages: Sequence[Message] = [
        rules.message(draft, "", _PLAIN, id, now, limits, topic) for draft, id in zip(drafts, run, strict=True)
    ]
    first = drafts[0]
    timed = first.delay is not None or first.deliver_at is not None
    return _variants(plain_batch(messages) or messages, route, timed, destinations)


def _variants(
    messages: Sequence[Message], route: Route, timed: bool, destinations: Sequence[Destination]
) -> list[Stretch]:
    """Messages as they are, and in each envelope."""
    reached = [destinations[place] for place in route]
    cut = [Stretch(messages, sorted(target for target, envelope in reached if envelope is None), timed)]
    for target, envelope in reached:
        if envelope is not None:
            variant = wrapped(messages, envelope)
            cut.append(Stretch(plain_batch(variant) or variant, [target], timed, is_variant=True))
    return cut


def check_copies(cut: Sequence[Stretch], limits: Limits) -> None:
    """Raise if a publication would add more than one call may."""
    copies = sum(len(stretch.messages) * len(stretch.targets) for stretch in cut)
    if copies > limits.copies:
        text = f"messages: {copies} copies in all queues; at most {limits.copies} in one call, publish fewer at a time"
        raise TooLarge(text, field="messages")
    size = sum(size_of(stretch.messages) * len(stretch.targets) for stretch in cut)
    if size > limits.copy_bytes:
        text = f"messages: {size} bytes in all queues; at most {limits.copy_bytes} in one call, publish fewer at a time"
        raise TooLarge(text, field="messages")
