"""Routing: which queues get a published message, and how the messages of a publication are cut for the store.

A router is made from the subscriptions of a topic whenever these change. Patterns are matched together, filters one by
one for the subscriptions whose pattern matches. A queue with several matching subscriptions gets one copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from miniq.broker import rules
from miniq.broker.filters import Filter, Values
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
"""The positions of queues in `Router.queues`, rising."""


class Router:
    """The subscriptions of a topic, compiled; `filters` has their filters by name."""

    def __init__(self, subscriptions: Sequence[Subscription], filters: Mapping[str, Filter]) -> None:
        self._subscriptions = subscriptions
        self.queues = list(dict.fromkeys(subscription.queue for subscription in subscriptions))
        places = {queue: place for place, queue in enumerate(self.queues)}
        self._places = [places[subscription.queue] for subscription in subscriptions]
        self._filters = [filters.get(subscription.name) for subscription in subscriptions]
        self._open: list[int] = []
        """Subscriptions without a pattern."""
        self._patterned: list[int] = []
        for number, subscription in enumerate(subscriptions):
            (self._open if subscription.pattern is None else self._patterned).append(number)
        self._patterns = Patterns([subscriptions[number].pattern or "#" for number in self._patterned])
        self._has_filters = bool(filters)
        self._spent = 0
        """What was tested since other calls had their turn."""

    async def routes(self, drafts: Sequence[Draft]) -> list[Route]:
        """Where each message goes."""
        if isinstance(drafts, PlainDrafts):
            return [await self._route(None, _NO_HEADERS)] * len(drafts)
        routes: list[Route] = []
        known: dict[object, Route] = {}
        for draft in drafts:
            headers = draft.headers if self._has_filters and draft.headers else _NO_HEADERS
            sign = (draft.key, frozenset(headers.items())) if headers else draft.key
            route = known.get(sign)
            if route is None:
                route = known[sign] = await self._route(draft.key, headers)
            routes.append(route)
        return routes

    async def explain(self, key: str | None, headers: Mapping[str, str]) -> list[Match]:
        """For each subscription, whether a message would match it."""
        matched = {self._patterned[number] for number in await self._match(key)}
        values = Values(headers)
        found: list[Match] = []
        for number, subscription in enumerate(self._subscriptions):
            filter = self._filters[number]
            reason = None
            if subscription.pattern is not None and number not in matched:
                shown = "a message without a key" if key is None else f"the key {key[:256]!r}"
                reason = f"pattern {subscription.pattern!r} does not match {shown}"
            elif filter is not None and not await self._matches(filter, values):
                reason = "the filter does not match the headers"
            found.append(Match(subscription.name, subscription.queue, reason is None, reason))
        return found

    async def _route(self, key: str | None, headers: Mapping[str, str]) -> Route:
        numbers = [*self._open, *(self._patterned[number] for number in await self._match(key))]
        filters, places, values = self._filters, self._places, Values(headers)
        reached: set[int] = set()
        for number in numbers:
            filter = filters[number]
            if filter is None or await self._matches(filter, values):
                reached.add(places[number])
        return tuple(sorted(reached))

    async def _match(self, key: str | None) -> Sequence[int]:
        """The patterns that match a key."""
        matched = self._patterns.match(key)
        await self._spend(MESSAGE + self._patterns.cost(key, matched))
        return matched

    async def _matches(self, filter: Filter, values: Values) -> bool:
        await self._spend(filter.cost)
        return filter.matches(values)

    async def _spend(self, cost: int) -> None:
        """Let other calls have their turn when enough was tested."""
        self._spent += cost
        if self._spent > TURN:
            self._spent = 0
            await asyncio.sleep(0)


def stretches(
    topic: str, drafts: Sequence[Draft], routes: Sequence[Route], ids: IdSource, now: int, limits: Limits
) -> list[Stretch]:
    """The messages of valid drafts in order, with rising ids, cut where the queues that they go to change."""
    if isinstance(drafts, PlainDrafts):
        return [
            Stretch(_plain(topic, drafts[start : start + SHARE], ids, now), routes[0])
            for start in range(0, len(drafts), SHARE)
        ]
    cut: list[Stretch] = []
    start = 0
    before: object = None
    for place, draft in enumerate(drafts):
        alone = draft.recipient is not None or draft.group is not None or draft.dedup_id is not None
        kind = None if alone else (routes[place], draft.priority, draft.delay, draft.deliver_at)
        if place > start and (kind is None or kind != before or place - start == SHARE):
            cut.append(_stretch(topic, drafts[start:place], routes[start], ids, now, limits))
            start = place
        before = kind
    if drafts:
        cut.append(_stretch(topic, drafts[start:], routes[start], ids, now, limits))
    return cut


def _plain(topic: str, drafts: PlainDrafts, ids: IdSource, now: int) -> PlainBatch:
    return PlainBatch(ids.run(len(drafts), now), "", now, now, drafts.bodies, drafts.content_type, 0, topic)


def _stretch(topic: str, drafts: Sequence[Draft], route: Route, ids: IdSource, now: int, limits: Limits) -> Stretch:
    run = ids.run(len(drafts), now)
    messages: Sequence[Message] = [
        rules.message(draft, "", _PLAIN, id, now, limits, topic) for draft, id in zip(drafts, run, strict=True)
    ]
    first = drafts[0]
    timed = first.delay is not None or first.deliver_at is not None
    return Stretch(plain_batch(messages) or messages, route, timed)


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
