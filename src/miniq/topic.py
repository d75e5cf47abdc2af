"""Topics: their settings and subscriptions, and what a publication answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import Struct


class Published(Struct, frozen=True):
    """The ids of published messages, and how many queues got copies of some of them."""

    ids: list[str]
    queues: int


class Subscription(Struct, frozen=True, omit_defaults=True):
    """What a queue gets of a topic: messages whose key matches `pattern` and whose headers match `filter`, or with
    `filter_on` "body" their JSON body."""

    name: str
    queue: str
    pattern: str | None = None
    filter: dict[str, Any] | None = None
    filter_on: Literal["headers", "body"] = "headers"
    envelope: dict[str, str] | None = None
    """If given, a copy's body is the JSON notification of Amazon SNS, with these fields added."""
    sns: dict[str, str] = {}
    """Attributes that Amazon SNS keeps of a subscription, and that have no effect here."""


class TopicSettings(Struct, frozen=True, kw_only=True):
    """How a topic behaves. Durations are in seconds."""

    dedup_window: float = 300.0
    history: Literal["off", "events"] = "off"
    tags: dict[str, str] = {}
    """Free texts by name. A change adds and replaces some; null removes one."""
    sns: dict[str, str] = {}
    """Attributes that Amazon SNS keeps of a topic, and that MiniQ has no setting for. Changed as `tags`."""


class TopicChanges(TypedDict, total=False):
    """The fields of `TopicSettings`. Those that are not given stay as they are."""

    dedup_window: float
    history: Literal["off", "events"]
    tags: Mapping[str, str | None]
    sns: Mapping[str, str | None]


class TopicRates(Struct, frozen=True):
    """Messages per second over the last five seconds, at this broker: published, of these without a match, and copies
    put into queues."""

    published: float = 0.0
    unmatched: float = 0.0
    copied: float = 0.0


class ConfiguredTopic(Struct, frozen=True):
    """A topic's name, settings, subscriptions by name, and current rates. A caller that may configure the topic but not
    read it gets neither subscriptions nor rates."""

    name: str
    settings: TopicSettings
    subscriptions: list[Subscription] | None = None
    rates: TopicRates | None = None


class TopicInfo(ConfiguredTopic, frozen=True):
    """A topic's name, settings, subscriptions by name, and current rates."""

    subscriptions: list[Subscription]
    rates: TopicRates


class Match(Struct, frozen=True, omit_defaults=True):
    """Whether a message would be copied to the queue of a subscription, and if not, why."""

    name: str
    queue: str
    matches: bool
    reason: str | None = None
