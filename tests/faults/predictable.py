"""Ids, receipts and keys of a broker that makes them predictably, so that a request can name what another one makes."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest import mock

from miniq.ids import IdSource
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
    """All that is secret is counted instead, by its size."""
    counters: dict[int, itertools.count[int]] = {}

    def token(size: int) -> str:
        return f"{next(counters.setdefault(size, itertools.count(1))):0{2 * size}x}"

    def url_token(size: int) -> str:
        return token(16)

    with (
        mock.patch.object(secrets, "token_hex", token),
        mock.patch.object(secrets, "token_urlsafe", url_token),
    ):
        yield


def message_id(number: int) -> str:
    """The id of the first message of the `number`-th send to a broker that began at `START`."""
    return _IDS[number]


def receipt(number: int) -> str:
    return f"{number:024x}"


def secret(number: int) -> str:
    """The secret of the `number`-th key."""
    return f"mq_{number:012x}_{number:032x}"


def seed_ids(source: IdSource) -> IdSource:
    source._random = Random(7)
    return source


_source = seed_ids(IdSource())
_IDS = [_source.run(1, START)[0] for _ in range(40)]
