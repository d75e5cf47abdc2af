"""Workers that are stopped or killed lose nothing: two rounds of what `python -m tests.faults workers` repeats."""

from __future__ import annotations

import pytest

from tests.faults.workers import run


@pytest.mark.parametrize("kind", ["stop", "kill"])
def test_workers_that_are_stopped_or_killed_lose_nothing(kind: str) -> None:
    assert run(kind, rounds=2, seed="suite") == []
