"""`kill -9` of brokers while they fire schedules: whether each moment was sent once, and none was left out."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from miniq.broker.schedules import KIND, decode
from miniq.message import Page
from miniq.schedule import MOMENT_HEADER, NAME_HEADER
from miniq.store import open_store
from miniq.store.arguments import Scan
from miniq.timetable import moment_of
from tests.faults.firing_load import EVERY, NAMES, QUEUE

LOAD = Path(__file__).with_name("firing_load.py")
EMBEDDED, SHARED = (1, 300, 40), (3, 30, 300)
"""Brokers at the same time, how fast their clock runs, milliseconds until one is killed."""


def kill(store: str, rounds: int, timeout: float = 580) -> int:
    """Kill brokers that fire the schedules of an empty store; returns how many brokers."""
    shape = SHARED if "://" in store else EMBEDDED
    command = [sys.executable, str(LOAD), store, str(rounds), *map(str, shape)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return rounds * shape[0]


async def look(store: str, rounds: int) -> int:
    """Raise unless each moment was sent once; returns how many were sent."""
    seen: dict[str, list[datetime]] = {name: [] for name in NAMES}
    opened = open_store(store)  # without a broker, which would go on firing
    await opened.open()
    try:
        page = Page([], "")
        while page.next is not None:
            page = await opened.messages.scan(QUEUE, Scan(limit=1000, max_bytes=2**30, now=0, after=page.next or None))
            for stored in page.messages:
                headers = stored.message.headers or {}
                seen[headers[NAME_HEADER]].append(datetime.fromisoformat(headers[MOMENT_HEADER]))
        entries = {name: decode(raw) for name, raw in (await opened.records(KIND)).items()}
    finally:
        await opened.close()
    for name, moments in seen.items():
        assert len(moments) > rounds
        ordered = sorted(moments)
        expected = [ordered[0] + timedelta(seconds=EVERY * n) for n in range(len(ordered))]
        assert ordered == expected, "one was sent twice, or left out"
        assert entries[name].results[0].moment == ordered[-1]
        assert moment_of(entries[name].due or 0) == ordered[-1] + timedelta(seconds=EVERY)
    return sum(map(len, seen.values()))
