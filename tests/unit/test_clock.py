"""The broker's clock."""

from __future__ import annotations

import pytest

from miniq.broker import clock
from miniq.broker.clock import SystemClock

START = 1_700_000_000_000_000_000


class BusyMachine:
    """Time as a process sees it that is interrupted before some of its readings."""

    def __init__(self, interrupted: set[int]) -> None:
        self._interrupted = interrupted
        self._readings = 0
        self._now = 0

    def monotonic_ns(self) -> int:
        self._readings += 1
        self._now += 50_000_000 if self._readings in self._interrupted else 100
        return self._now

    def time_ns(self) -> int:
        return START + self.monotonic_ns()


@pytest.mark.parametrize("interrupted", [{2}, {3}, {2, 3, 5, 6, 8}, set()])
def test_a_clock_that_is_made_on_a_busy_machine_is_right(
    interrupted: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = BusyMachine(interrupted)
    monkeypatch.setattr(clock, "time", machine)
    made = SystemClock()
    assert abs(made.now() - machine.time_ns() // 1000) <= 1


def test_schedules_follow_a_clock_that_is_set_and_leases_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = BusyMachine(set())
    monkeypatch.setattr(clock, "time", machine)
    made = SystemClock()
    now, wall = made.now(), made.wall()
    monkeypatch.setattr(machine, "time_ns", lambda: START + 3_600_000_000_000)
    assert made.now() - now <= 1
    assert made.wall() == START // 1000 + 3_600_000_000 > wall
