"""The errors of the last hour: their memory is bounded, whatever consumers report."""

from __future__ import annotations

import sys

from miniq.broker.failures import Failures, first_line, grouped, last_death, recent
from miniq.message import SECOND

MOST = 16 * 1024 * 1024
LONG = "x" * 4070 + "\U0001f600"
"""The emoji makes each character take four bytes."""


def text_bytes(failures: Failures) -> int:
    """The memory of all texts."""
    return sum(
        sys.getsizeof(key) + sys.getsizeof(group.error)
        for queue in failures.queues.values()
        for key, group in queue.groups.items()
    )


def test_the_errors_of_all_queues_together_take_at_most_16_mib() -> None:
    failures = Failures()
    errors = [f"E{chr(ord('a') + number)}{LONG[-150:]}\n{LONG}" for number in range(20)]
    for number in range(400):
        for error in errors:
            failures.failed(f"q{number}", error, 1, number * SECOND)
    assert text_bytes(failures) <= MOST
    assert len(failures.queues["q399"].groups) == 20, "the queues that failed last keep all groups"
    assert "q0" not in failures.queues, "those that failed longest ago are forgotten first"
    assert len(failures.queues) > 100
    for number in range(400):
        failures.forget(f"q{number}")
    assert (failures.queues, failures.size) == ({}, 0)


def test_a_queue_that_fails_again_is_kept_and_repetitions_take_nothing() -> None:
    failures = Failures()
    for _ in range(3):
        failures.failed("q", f"E\n{LONG}", 1, SECOND)
    size = failures.size
    failures.failed("q", f"E\n{LONG}", 1, SECOND)
    assert failures.size == size > 0
    for number in range(30):  # beyond the most groups, the oldest go
        failures.failed("q", f"E{chr(ord('a') + number)}\n{LONG}", 1, SECOND)
    assert len(failures.queues["q"].groups) == 20
    failures.forget("q")
    assert failures.size == 0


def test_a_long_error_is_kept_by_its_beginning_and_its_end() -> None:
    failures = Failures()
    failures.failed("q", f"\n\nValueError: no such card\n\n  {LONG}\n  at line 7", 1, SECOND)
    failures.failed("q", "short\n  at line 1", 1, 2 * SECOND)
    short, long = grouped(failures.queues.values(), 2 * SECOND)
    assert short.error == "short\n  at line 1"
    assert len(long.error) == 1000
    assert long.error.startswith("ValueError: no such card\n\n  xxx")
    assert long.error.endswith("\U0001f600\n  at line 7")


def test_statistics_show_the_first_line_of_an_error() -> None:
    failures = Failures()
    failures.failed("q", f"  ValueError: no such card\n\n  {LONG}", 1, SECOND)
    failures.died("q", f"{LONG}\nmore", SECOND)
    assert recent(failures.queues.values(), SECOND)[:2] == (1, (SECOND, "ValueError: no such card"))
    assert last_death(failures.queues.values()) == (SECOND, "x" * 199 + "…")
    assert first_line("x" * 200) == "x" * 200
