"""What is wrong with queues, in words: the broker decides (`problems` of /v1/stats), this says it."""

from __future__ import annotations

from datetime import datetime

from miniq.api import shapes
from miniq.cli.output import duration, plural
from miniq.failure import QueueProblem

OFTEN = 0.25
"""The share of failed attempts from which a queue is failing; below, some of the work fails."""


def words(entry: shapes.QueueStats, at: datetime) -> list[str]:
    """The problems of a queue, the worst first; `at` is the time of its numbers."""
    return [_word(problem, entry, at) for problem in entry.problems]


def troubles(queues: list[shapes.QueueStats], at: datetime) -> list[str]:
    """A line for each queue with a problem other than being paused, those that stand still first, then the one whose
    oldest message waits longest."""
    troubled = [entry for entry in queues if any(problem != "paused" for problem in entry.problems)]
    troubled.sort(key=lambda entry: (_is_slow(entry), entry.oldest is None, entry.oldest or at, entry.name))
    return [f"{entry.name}: {'; '.join(words(entry, at))}" for entry in troubled]


def _is_slow(entry: shapes.QueueStats) -> bool:
    """Whether work goes on, if more slowly."""
    return set(entry.problems) <= {"failing", "paused"} and not _fails_often(entry)


def _fails_often(entry: shapes.QueueStats) -> bool:
    failures = entry.failures
    return failures is not None and failures.failed >= failures.attempts * OFTEN


def _word(problem: QueueProblem, entry: shapes.QueueStats, at: datetime) -> str:
    if problem == "stuck_claim" and (claim := entry.claim) is not None:
        messages = plural(claim.messages, "message")
        return f"claim of group {claim.group} stuck for {_since(claim.made_at, at)}: {messages}"
    if problem == "failing" and (failures := entry.failures) is not None:
        kind = "failing" if _fails_often(entry) else "some fail"
        share = f"{failures.failed} of the last {plural(failures.attempts, 'attempt')}"
        first_line = failures.error.strip().partition("\n")[0]
        return f"{kind}: {share}: {first_line}"
    if problem == "no_consumer":
        gone = entry.unattended_since
        waits = "" if entry.oldest is None or (gone and entry.oldest <= gone) else f" for {_since(entry.oldest, at)}"
        return f"{entry.ready} ready{waits}, no consumer {f'for {_since(gone, at)}' if gone else 'yet'}"
    if problem == "full":
        return f"full: {plural(entry.total, 'message')}, new ones are refused"
    return problem.replace("_", " ")


def _since(moment: datetime, at: datetime) -> str:
    return duration(round((at - moment).total_seconds()))
