"""Ctrl-C and SIGTERM leave nothing behind: two rounds of what `python -m tests.faults interruptions` repeats."""

from __future__ import annotations

import pytest

from tests.faults.interruptions import run


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("miniq receive", "http"),
        ("miniq export --consume", "folder"),
        ("miniq copy", "folder"),
        ("queue.receive", "zmq"),
        ("queue.consume", "http"),
    ],
)
def test_an_interruption_leaves_nothing_behind(name: str, wire: str) -> None:
    assert run(name, wire, rounds=2, seed="suite") == []
