"""What is wrong with a queue, as kinds for machines and people: the console and `miniq top` put them into words."""

from __future__ import annotations

from miniq.failure import QueueProblem, RecentFailures
from miniq.message import SECOND, Counts, QueueSettings

STUCK = 300 * SECOND
"""A claim that is held for so long is stuck."""
UNATTENDED = 90 * SECOND
"""A queue has no consumer after this time without a receive: long polls last 60 s at most."""
FEWEST_FAILURES = 3
FAILING = 0.1
"""A queue is failing if so many attempts, and this share of them, failed in the last minutes."""


def unattended_since(counts: Counts, seen: int | None, now: int) -> int | None:
    """Since when a queue has had no consumer, given when one was last seen; None if it has one, or never had any."""
    return seen if seen is not None and not counts.leased and seen <= now - UNATTENDED else None


def problems(
    settings: QueueSettings,
    counts: Counts,
    seen: int | None,
    is_dead_letter_queue: bool,
    failures: RecentFailures | None,
    held_since: int | None,
    now: int,
) -> list[QueueProblem]:
    """What is wrong with a queue; `seen` is when a consumer last asked it for messages, `held_since` when its oldest
    open claim was made."""
    found: list[QueueProblem] = []
    if held_since is not None and held_since <= now - STUCK:
        found.append("stuck_claim")
    if failures is not None and failures.failed >= FEWEST_FAILURES and failures.failed >= failures.attempts * FAILING:
        found.append("failing")
    waits = counts.ready > 0 and not counts.leased and not settings.paused
    if waits and not is_dead_letter_queue and (seen is None or seen <= now - UNATTENDED):
        found.append("no_consumer")
    if (settings.max_length and counts.total >= settings.max_length) or (
        settings.max_bytes and counts.bytes >= settings.max_bytes
    ):
        found.append("full")
    if settings.paused:
        found.append("paused")
    return found
