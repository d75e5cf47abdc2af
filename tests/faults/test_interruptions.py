"""Ctrl-C and SIGTERM leave nothing behind: two rounds of what `python -m tests.faults interruptions` repeats."""

from __future__ import annotations

import pytest

from tests.faults import interruptions


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("miniq receive", "http"),
        ("miniq consume", "zmq"),
        ("miniq export --consume", "folder"),
        ("miniq copy", "folder"),
        ("miniq import", "zmq"),
        ("queue.receive", "zmq"),
        ("queue.consume", "http"),
    ],
)
def test_an_interruption_leaves_nothing_behind(name: str, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "LINES", 30_000)
    assert interruptions.run(name, wire, rounds=2, seed="suite") == []
