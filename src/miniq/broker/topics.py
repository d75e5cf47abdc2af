"""Topics: what is published to one is copied into every subscribed queue whose pattern and filter match.

Topics and subscriptions are small records of the store. On a store that several brokers share, each publication first
makes sure that the subscriptions are current; so a subscription that was confirmed, by whichever broker, gets all that
is published afterwards.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from miniq.broker import rules
from miniq.broker.envelopes import Envelope, check_envelope
from miniq.broker.filters import Filter, Scope, compile_filter
from miniq.broker.patterns import check_pattern
from miniq.broker.routing import Router, check_copies, stretches
from miniq.broker.settings import texts
from miniq.errors import (
    InvalidRequest,
    QueueNotFound,
    SubscriptionNotFound,
    TooManySubscriptions,
    TooManyTopics,
    TopicNotFound,
    show,
)
from miniq.message import SECOND, Draft
from miniq.options import Limits
from miniq.store.arguments import Once, Publication, RecordSet, Stretch, Target
from miniq.store.contract import RevisionChanged
from miniq.store.names import publication_name
from miniq.topic import Match, Published, Subscription, TopicInfo, TopicRates, TopicSettings

if TYPE_CHECKING:
    from miniq.broker.broker import Broker
    from miniq.broker.catalog import CheckNew
    from miniq.broker.schedules import Stamp

KIND = "topic"
SUBSCRIPTION_KIND = "subscription"
"""The kinds of the records. The name of a subscription's record is TOPIC/NAME."""
WINDOW = 5
"""Seconds over which a rate is averaged."""
EVENTS = ("published", "unmatched", "copied", "deduplicated")
"""What is counted of a topic."""

Named = Callable[[str, int], Once | None]
"""The named call that a publication is, given the topic's id and the time; None if it has no name."""


class TopicRecord(Struct, frozen=True):
    """A topic as it is stored. `id` is made with it."""

    id: str
    settings: TopicSettings


class Topic:
    """A topic, with its subscriptions by name. Filters that an earlier state of it has compiled are not compiled
    again."""

    def __init__(
        self, name: str, record: TopicRecord, subscriptions: dict[str, Subscription], before: Topic | None = None
    ) -> None:
        self.name = name
        self.record = record
        self.subscriptions = subscriptions
        self._filters: dict[str, Filter] = {}
        for key, subscription in subscriptions.items():
            if subscription.filter is not None:
                is_known = before is not None and before.subscriptions.get(key) == subscription
                known = before._filters[key] if is_known and before is not None else None
                self._filters[key] = known or compile_filter(subscription.filter, subscription.filter_on)

    @cached_property
    def router(self) -> Router:
        """Finds the queues of a message."""
        return Router(list(self.subscriptions.values()), self._filters)

    def with_subscription(self, name: str, subscription: Subscription | None) -> Topic:
        """The topic with one subscription added, replaced or removed."""
        others = {key: value for key, value in self.subscriptions.items() if key != name}
        changed = others if subscription is None else others | {name: subscription}
        return Topic(self.name, self.record, dict(sorted(changed.items())), self)


class Topics:
    """The topics of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topics: dict[str, Topic] = {}
        self.counters: Counter[tuple[str, str]] = Counter()
        """(topic, event) → messages; the events are `EVENTS`."""
        self._seconds: dict[str, deque[tuple[int, Counter[str]]]] = {}
        """By topic: the seconds in which something was published, and how much."""
        self.changes = 0
        """How often this broker itself changed a topic."""
        self.changing = asyncio.Lock()
        """Held while a topic, a subscription, or a queue that may have subscriptions is changed or removed. Other
        brokers are noticed by the store's revision."""

    async def load(self) -> None:
        """Read all topics from the store."""
        store = self._broker.store
        while True:
            changes = self.changes
            records = await store.records(KIND)
            subscribed = await store.records(SUBSCRIPTION_KIND) if records else {}
            if changes == self.changes:  # else this broker has just written something newer
                break
        by_topic: dict[str, dict[str, Subscription]] = {}
        for key in sorted(subscribed):
            topic, _, name = key.partition("/")
            by_topic.setdefault(topic, {})[name] = msgspec.json.decode(subscribed[key], type=Subscription)
        loaded: dict[str, Topic] = {}
        for name in sorted(records):
            record = msgspec.json.decode(records[name], type=TopicRecord)
            subscriptions, before = by_topic.get(name, {}), self.topics.get(name)
            if before is not None and (before.record, before.subscriptions) == (record, subscriptions):
                loaded[name] = before
            else:
                loaded[name] = Topic(name, record, subscriptions, before)
        for name in self.topics.keys() - loaded.keys():
            self._forget(name)
        self.topics = loaded

    # Publishing

    async def publish(
        self,
        topic: str,
        drafts: Sequence[Draft],
        call: str | None = None,
        scope: str = "",
        stamp: Stamp | None = None,
        limits: Limits | None = None,
    ) -> Published:
        """Copy messages into all matching queues, into all of them or into none, and return their ids once they are on
        disk. `call`, `scope`, `stamp` and `limits` are as with `Broker.send`."""
        limits = limits or self._broker.options.limits
        found = await self.use(topic)
        rules.check_drafts(drafts, limits)
        name = None if call is None else rules.check_call(call, limits)

        def named(topic: str, now: int) -> Once | None:
            if name is None:
                return None
            own = rules.once(name, scope, drafts, now)
            return Once(publication_name(topic, own.name), own.until, own.content)

        return (await self.put(found, drafts, named, stamp))[0]

    async def use(self, topic: str) -> Topic:
        """A topic for a publication, created if it does not exist."""
        self._broker.check_open()
        await self._broker.catalog.refresh()
        return self.topics.get(topic) or await self._create(topic)

    async def put(
        self, found: Topic, drafts: Sequence[Draft], named: Named, stamp: Stamp | None = None
    ) -> tuple[Published, Publication]:
        """Publish valid drafts; also returns what was to be added, which has other ids than the answer if `named` gives
        a call that is on record."""
        broker, limits, topic = self._broker, self._broker.options.limits, found.name
        while True:
            router = found.router
            routes = await router.routes(drafts)
            places, targets = self._targets(router)
            if len(places) < len(router.queues):  # a queue was deleted, and its subscription is about to be
                outlets = router.outlets
                routes = [tuple(place for place in route if outlets[place].queue in places) for route in routes]
            now = broker.clock.now()
            cut = stretches(topic, drafts, routes, broker.ids, now, limits, router.destinations(places))
            check_copies(cut, limits)
            record = None
            if stamp is not None:
                ids = [id for stretch in cut if not stretch.is_variant for id in stretch.ids]
                record = stamp(ids, [len(route) for route in routes])
            publication = Publication(
                topic=topic,
                scope=found.record.id,
                stretches=cut,
                targets=targets,
                now=now,
                keep=found.record.settings.history,
                dedup_until=now + rules.micros(found.record.settings.dedup_window),
                call=named(found.record.id, now),
                record=record,
                reason=None if record is None else f"{record.kind}:{record.name}",
            )
            try:
                published = await broker.store.messages.publish(publication)
                break
            except QueueNotFound as error:
                await self._reload(targets, error)
                found = self.topics.get(topic) or await self._create(topic)
        self._count(topic, publication, published, now)
        return published, publication

    def _targets(self, router: Router) -> tuple[dict[str, int], list[Target]]:
        """The queues of a router that exist, and their positions by name."""
        places: dict[str, int] = {}
        targets: list[Target] = []
        for queue in router.queues:
            settings = self._broker.catalog.find(queue)
            if settings is not None:
                places[queue] = len(targets)
                targets.append(Target(queue, settings.history, rules.room(settings), rules.micros(settings.delay)))
        return places, targets

    async def _reload(self, targets: Sequence[Target], error: QueueNotFound) -> None:
        """A queue was deleted meanwhile: forget it."""
        broker = self._broker
        queues = await broker.store.queues()
        gone = [target.queue for target in targets if target.queue not in queues]
        if not gone:
            raise error
        for queue in gone:
            broker.catalog.forget(queue)
        await self.load()

    def _count(self, topic: str, publication: Publication, published: Published, now: int) -> None:
        """Count what a publication added."""
        counts = Counter[str]()
        answered = set(published.ids)
        total = 0
        variants = {stretch.ids[0] for stretch in publication.stretches if stretch.is_variant}
        for stretch in publication.stretches:
            total += 0 if stretch.is_variant else len(stretch.messages)
            if stretch.ids[0] not in answered:  # on record already
                continue
            counts["copied"] += len(stretch.messages) * len(stretch.targets)
            self._count_arrivals(publication.targets, stretch)
            if stretch.is_variant:
                continue
            counts["published"] += len(stretch.messages)
            if not stretch.targets and stretch.ids[0] not in variants:
                counts["unmatched"] += len(stretch.messages)
        counts["deduplicated"] = total - counts["published"]
        for event, count in counts.items():
            if count:
                self.counters[topic, event] += count
        seconds = self._seconds.setdefault(topic, deque(maxlen=WINDOW + 2))
        if not seconds or seconds[-1][0] != now // SECOND:
            seconds.append((now // SECOND, Counter()))
        seconds[-1][1].update(counts)

    def _count_arrivals(self, targets: Sequence[Target], stretch: Stretch) -> None:
        broker = self._broker
        ends = [message.expires_at for message in stretch.messages if message.expires_at is not None]
        for place in stretch.targets:
            queue = targets[place].queue
            broker.metrics.messages[queue, "sent"] += len(stretch.messages)
            if ends:
                broker.sweeper.expect(queue, min(ends))

    def _rates(self, topic: str) -> TopicRates:
        since = self._broker.clock.now() // SECOND - WINDOW
        recent: Counter[str] = Counter()
        for second, counts in self._seconds.get(topic, ()):
            if second > since:
                recent.update(counts)
        return TopicRates(*(round(recent[event] / WINDOW, 2) for event in ("published", "unmatched", "copied")))

    # Topics

    async def get(self, topic: str) -> TopicInfo:
        """One topic."""
        return self._info(await self.require(topic))

    async def all(self) -> list[TopicInfo]:
        """All topics by name."""
        self._broker.check_open()
        await self._broker.catalog.refresh()
        return [self._info(topic) for topic in self.topics.values()]

    async def configure(self, topic: str, changes: Mapping[str, Any] | None = None) -> TopicInfo:
        """Create a topic, or change some of its settings."""
        self._broker.check_open()
        async with self.changing:
            while True:
                await self._broker.catalog.refresh()
                found = self.topics.get(topic)
                settings = _changed(TopicSettings() if found is None else found.record.settings, changes or {})
                if found is None:
                    found = await self._create(topic, settings)  # another broker may be faster, with other settings
                if found.record.settings == settings:
                    return self._info(found)
                record = replace(found.record, settings=settings)
                if await self._save({(KIND, topic): record}):
                    found = self.topics[topic] = Topic(topic, record, found.subscriptions, found)

    async def delete(self, topic: str) -> None:
        """Delete a topic with its subscriptions. The queues stay, with all that is in them."""
        async with self.changing:
            while True:
                found = await self.require(topic)
                gone = {(SUBSCRIPTION_KIND, f"{topic}/{name}"): None for name in found.subscriptions}
                if await self._save({**gone, (KIND, topic): None}):
                    self._forget(topic)
                    return

    async def match(
        self,
        topic: str,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> list[Match]:
        """Which subscriptions a message would match; nothing is sent. `body` is a JSON object."""
        found = await self.require(topic)
        limits = self._broker.options.limits
        if key is not None:
            rules.check_text(key, "key", limits)
        if headers is not None:
            rules.check_headers(headers, limits)
        return await found.router.explain(key, headers or {}, b"" if body is None else rules.encode_body(body, limits))

    # Subscriptions

    async def subscribe(
        self,
        topic: str,
        name: str,
        queue: str | None = None,
        pattern: str | None = None,
        filter: dict[str, Any] | None = None,
        filter_on: Scope = "headers",
        envelope: Envelope | None = None,
        sns: dict[str, str] | None = None,
        check_new: CheckNew | None = None,
    ) -> Subscription:
        """Create or replace a subscription. The queue, by default of the same name, is created if it does not exist;
        `check_new` raises if the caller may not create it."""
        broker = self._broker
        broker.check_open()
        rules.check_label(name, "name", "subscription name")
        target = rules.check_name(name if queue is None else queue)
        if pattern is not None:
            check_pattern(pattern)
        if filter_on not in get_args(Scope):
            raise InvalidRequest(f"filter_on: {show(filter_on)}; use headers or body", field="filter_on")
        if filter is not None:
            filter = compile_filter(filter, filter_on).policy
        if envelope is not None:
            check_envelope(envelope)
        kept = texts("sns", {} if sns is None else sns, {})
        subscription = Subscription(name, target, pattern, filter, filter_on, envelope, kept)
        async with self.changing:
            while True:
                await broker.catalog.refresh()
                found = self.topics.get(topic)
                if found is None:
                    self._check_creatable(topic)
                else:
                    self._check_subscribable(found, name)
                if check_new is not None:
                    check_new([target])
                if broker.catalog.find(target) is None:
                    await broker.catalog.get_or_create(target)
                elif found is None:
                    await self._create(topic)
                elif await self._save({(SUBSCRIPTION_KIND, f"{topic}/{name}"): subscription}):
                    self.topics[topic] = found.with_subscription(name, subscription)
                    return subscription

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Remove a subscription. What its queue has got stays there."""
        async with self.changing:
            while True:
                found = await self.require(topic)
                if name not in found.subscriptions:
                    text = f"name: there is no subscription {name[:128]!r} of topic {topic!r}"
                    raise SubscriptionNotFound(text, field="name")
                if await self._save({(SUBSCRIPTION_KIND, f"{topic}/{name}"): None}):
                    self.topics[topic] = found.with_subscription(name, None)
                    return

    def records_without(self, queue: str) -> RecordSet:
        """The change of records that removes all subscriptions of a queue. `changing` is held."""
        gone = {(SUBSCRIPTION_KIND, f"{topic}/{name}"): None for topic, name in self._subscribed(queue)}
        return RecordSet(gone, self._broker.catalog.revision)

    def left(self, queue: str) -> None:
        """Forget the subscriptions of a queue that was deleted with them."""
        self.changes += 1
        for topic, name in self._subscribed(queue):
            self.topics[topic] = self.topics[topic].with_subscription(name, None)

    def _subscribed(self, queue: str) -> list[tuple[str, str]]:
        """The topic and name of each subscription of a queue."""
        return [
            (topic.name, name)
            for topic in self.topics.values()
            for name, subscription in topic.subscriptions.items()
            if subscription.queue == queue
        ]

    # Inside

    def _info(self, topic: Topic) -> TopicInfo:
        subscriptions = list(topic.subscriptions.values())
        return TopicInfo(topic.name, topic.record.settings, subscriptions, self._rates(topic.name))

    async def require(self, topic: str) -> Topic:
        """A topic that exists."""
        self._broker.check_open()
        await self._broker.catalog.refresh()
        found = self.topics.get(topic)
        if found is None:
            rules.check_name(topic, "topic")
            raise TopicNotFound(f"topic: there is no topic {topic!r}", field="topic")
        return found

    def _check_creatable(self, topic: str) -> None:
        """Raise unless a topic may be created by its first subscription or publication."""
        rules.check_name(topic, "topic")
        if not self._broker.options.auto_create:
            raise TopicNotFound(f"topic: there is no topic {topic!r}; create it first", field="topic")
        self._check_room(topic)

    def _check_subscribable(self, topic: Topic, name: str) -> None:
        """Raise if a topic cannot have one more subscription."""
        if name not in topic.subscriptions and len(topic.subscriptions) >= self._broker.options.limits.subscriptions:
            text = (
                f"name: topic {topic.name!r} has {len(topic.subscriptions)} subscriptions, which is the most; "
                "remove some"
            )
            raise TooManySubscriptions(text, field="name")

    def _check_room(self, topic: str) -> None:
        most = self._broker.options.max_topics
        if len(self.topics) >= most:
            text = f"topic: {topic!r} cannot be created, there are {most} topics; delete some, or raise max_topics"
            raise TooManyTopics(text, field="topic")

    async def _create(self, topic: str, settings: TopicSettings | None = None) -> Topic:
        """Create a topic: by name with settings, or by its first use."""
        if settings is None:
            self._check_creatable(topic)
        else:
            rules.check_name(topic, "topic")
            self._check_room(topic)
        self._broker.store.check_space(0, 1)
        made = TopicRecord(secrets.token_hex(6), settings or TopicSettings())
        # Another broker may create it at the same time: the first record stands.
        stored = await self._broker.store.add_record(KIND, topic, msgspec.json.encode(made))
        record = msgspec.json.decode(stored, type=TopicRecord)
        self.changes += 1
        self._broker.check_open()
        if topic not in self.topics:
            self.topics[topic] = Topic(topic, record, {})
            self.topics = dict(sorted(self.topics.items()))
        return self.topics[topic]

    async def _save(self, records: Mapping[tuple[str, str], Struct | None]) -> bool:
        """Write or remove records by kind and name, all or none, once `changing` is held and the catalog is current;
        False if another broker has changed it meanwhile. What is loaded at the same time may be older."""
        values = {key: None if value is None else msgspec.json.encode(value) for key, value in records.items()}
        if added := [value for value in values.values() if value is not None]:
            self._broker.store.check_space(sum(map(len, added)), len(added))
        try:
            await self._broker.store.save_records(RecordSet(values, self._broker.catalog.revision))
        except RevisionChanged:
            return False
        self.changes += 1
        return True

    def _forget(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self._seconds.pop(topic, None)
        for event in EVENTS:
            self.counters.pop((topic, event), None)


def _changed(settings: TopicSettings, changes: Mapping[str, Any]) -> TopicSettings:
    """Settings after a change; raises if it is invalid."""
    known = asdict(settings)
    changes = dict(changes)
    for field, value in changes.items():
        if field not in known:
            text = f"{str(field)[:80]}: there is no such setting; use {', '.join(known)}"
            raise InvalidRequest(text, field=str(field)[:80])
        if field == "dedup_window":
            rules.check_seconds(value, field, 0, rules.YEARS_100)
        elif field in ("tags", "sns"):
            changes[field] = texts(field, value, known[field])
        elif value not in ("off", "events"):
            raise InvalidRequest(f"{field}: {show(value)}; use off or events", field=field)
    return replace(settings, **changes)
