"""Ids, receipts and keys of a broker that makes them predictably, so that a request can name what another one makes."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from unittest import mock
from uuid import UUID

from miniq.broker import delivery, firing, keyring, receipts
from miniq.ids import IdSource
from miniq.server.http.aws import wire
from miniq.server.http.aws.sns import subscriptions
from tests.clock import START

KEYS: dict[str, list[str]] = {
    "all": ["*"],
    "sender": ["send:q*"],
    "consumer": ["receive:q", "receive:default"],
    "reader": ["read"],
    "manager": ["manage:q", "send:r"],
    "revoked": ["*"],
}
"""Names of the keys in their order, and what each allows."""


@contextmanager
def tokens() -> Iterator[None]:
    """All that is secret is counted instead, by its size; receipts, keys and subscriptions of SNS by themselves, so
    that they can be foretold. Retries are not spread. All requests of SQS and SNS have one id: answers contain it."""
    subscribed = itertools.count(1)
    same = SimpleNamespace(random=lambda: 0.5, shuffle=lambda due: None)
    with (
        mock.patch.object(secrets, "token_hex", _counted().token_hex),
        mock.patch.object(secrets, "token_urlsafe", _counted().token_urlsafe),
        mock.patch.object(receipts, "secrets", _counted()),
        mock.patch.object(keyring, "secrets", _counted()),
        mock.patch.object(subscriptions, "uuid4", map(uuid, subscribed).__next__),
        mock.patch.object(wire, "uuid4", return_value=uuid(0)),
        mock.patch.object(delivery, "random", same),
        mock.patch.object(firing, "random", same),
    ):
        yield


def _counted() -> SimpleNamespace:
    """What stands for the module `secrets`."""
    counters: dict[int, itertools.count[int]] = {}

    def token_hex(size: int) -> str:
        return f"{next(counters.setdefault(size, itertools.count(1))):0{2 * size}x}"

    return SimpleNamespace(token_hex=token_hex, token_urlsafe=lambda size: token_hex(16))


def message_id(number: int) -> str:
    """The id of the first message of the `number`-th send to a broker that began at `START`."""
    return _IDS[number]


def receipt(number: int) -> str:
    """The receipt of the `number`-th receive that got messages, without the name of a consumer, before time passed."""
    return f"{START % receipts._TIMES:010x}{receipts.UNNAMED}{number:012x}"


def uuid(number: int) -> UUID:
    return UUID(int=number)


def secret(number: int) -> str:
    """The secret of the `number`-th key."""
    return f"mq_{number:012x}_{number:032x}"


def seed_ids(source: IdSource) -> IdSource:
    source._random = Random(7)
    return source


_source = seed_ids(IdSource())
_IDS = [_source.run(1, START)[0] for _ in range(40)]
