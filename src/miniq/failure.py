"""Why messages of a queue failed, and what is wrong with a queue."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

QueueProblem = Literal["stuck_claim", "failing", "no_consumer", "full", "paused"]
"""What is wrong with a queue, the worst first."""


class FailureGroup(Struct, frozen=True, gc=False):
    """Failures of the last hour with about the same error: their first lines differ only in numbers and ids."""

    error: str
    """The last of them; of one of more than 1,000 characters, the beginning and the end."""
    count: int
    first_at: datetime
    last_at: datetime


class RecentFailures(Struct, frozen=True, gc=False):
    """The failures of the last five minutes: of how many attempts, and the first line of the last error."""

    failed: int
    attempts: int
    error: str
    last_at: datetime


class HeldClaim(Struct, frozen=True, gc=False):
    """The oldest claim of a queue that is not acked."""

    group: str
    claim: int
    messages: int
    made_at: datetime


class LastDeath(Struct, frozen=True, gc=False):
    """The last message of a queue that became a dead letter, and the first line of its error; after a restart, the
    oldest one that is there."""

    at: datetime
    error: str
