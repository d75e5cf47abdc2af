"""`kill -9` of brokers while they fire schedules: each moment is sent once, and none is left out.

`MINIQ_KILL_ROUNDS` sets how often the brokers of each store are killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from miniq.broker.schedules import KIND, decode
from miniq.message import Page
from miniq.schedule import MOMENT_HEADER, NAME_HEADER
from miniq.store import open_store
from miniq.store.arguments import Scan
from miniq.timetable import moment_of
from tests.conftest import ENGINES, store_url
from tests.faults.firing_load import EVERY, NAMES, QUEUE

LOAD = Path(__file__).with_name("firing_load.py")
SHAPES = dict.fromkeys(ENGINES, (100, 1, 300, 40)) | {"postgresql": (4, 3, 30, 300), "mongodb": (4, 3, 30, 300)}
"""Of each store: rounds, brokers at the same time, how fast their clock runs, milliseconds until one is killed."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [*SHAPES])
async def test_each_moment_is_sent_once_whenever_brokers_are_killed(kind: str, tmp_path: Path) -> None:
    store, (rounds, *shape) = store_url(kind, tmp_path), SHAPES[kind]
    rounds = int(os.environ.get("MINIQ_KILL_ROUNDS", rounds))
    command = [sys.executable, str(LOAD), store, str(rounds), *map(str, shape)]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=580)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
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
