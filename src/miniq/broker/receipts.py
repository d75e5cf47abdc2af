"""Receipts: random, and with what any broker needs to know about a lease that another one may have given: when it
began, and to whom.

28 characters: 10 of the time in microseconds, which are enough for 12 days, 6 of a hash of the consumer's name, and 12
that are random. Receipts of earlier versions are shorter, and tell nothing.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from hashlib import blake2b

_SIZE = 28
_TIMES = 1 << 40
UNNAMED = "000000"
"""The tag of consumers without a name."""


@lru_cache(4096)
def tag_of(consumer: str | None) -> str:
    """What stands for the name of a consumer in its receipts."""
    return UNNAMED if consumer is None else blake2b(consumer.encode(), digest_size=3).hexdigest()


def new_receipt(consumer: str | None, now: int) -> str:
    """The receipt of a lease that begins now. It never starts with a dash: people paste it into shells."""
    return f"{now % _TIMES:010x}{tag_of(consumer)}{secrets.token_hex(6)}"


def origin(receipt: str, now: int) -> tuple[str, int] | None:
    """What a receipt that was valid until now tells: the tag of the consumer, and how long ago it got the lease, in
    microseconds."""
    if len(receipt) != _SIZE:
        return None
    age = (now - int(receipt[:10], 16)) % _TIMES
    return receipt[10:16], age if age < _TIMES // 2 else 0  # the clock of another broker may be ahead
