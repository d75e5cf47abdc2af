"""The records of schedules that broker, wires and clients share."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from miniq.message import Draft

CatchUp = Literal["skip", "last", "all"]
"""Which of the moments that no broker could handle in time are sent later: none, the latest, or all of them."""
FiringOutcome = Literal["sent", "duplicate", "failed", "skipped"]
"""`duplicate`: the queue or topic had a message with the same dedup id, and nothing was added."""

COUNTED = 1000
"""Moments of cron that are counted, if more were skipped."""
NAME_HEADER = "miniq-schedule"
"""The header of a message that has the name of the schedule that sent it."""
MOMENT_HEADER = "miniq-moment"
"""The header of a message that has the moment for which it was sent."""


class Definition(Struct, frozen=True, omit_defaults=True):
    """What is sent, to which queue or topic, and when: by one of `cron`, `every` (seconds) and `at`."""

    draft: Draft
    queue: str | None = None
    topic: str | None = None
    cron: str | None = None
    every: float | None = None
    at: datetime | None = None
    timezone: str = "UTC"
    catch_up: CatchUp = "last"


class Firing(Struct, frozen=True, omit_defaults=True):
    """What happened at a moment of a schedule."""

    moment: datetime
    """When the message was due; of a run on request, when that was made."""
    at: datetime
    """When it was handled."""
    outcome: FiringOutcome
    id: str | None = None
    """The id of the message, or of the one that it is a duplicate of; None if it was not sent."""
    error: str | None = None
    """Why it failed."""
    count: int = 1
    """How many moments failed alike, or were skipped; of skipped moments of cron, 1000 is 1000 or more."""
    until: datetime | None = None
    """The last of several moments that were skipped; `moment` is the first."""
    on_request: bool = False
    """Whether it was run on request, and not by the clock."""
    queues: int | None = None
    """How many queues of a topic got it; None if it was sent to a queue."""


class Schedule(Struct, frozen=True):
    """A schedule with its next moments in UTC, and its last results, newest first."""

    name: str
    draft: Draft | None
    """The message; None if the caller may not read the queue."""
    queue: str | None
    topic: str | None
    cron: str | None
    every: float | None
    at: datetime | None
    timezone: str
    catch_up: CatchUp
    paused: bool
    next: list[datetime]
    results: list[Firing]
