"""`kill -9` of brokers while they fire schedules: each moment is sent once, and none is left out.

`MINIQ_KILL_ROUNDS` sets how often the brokers of each store are killed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import ENGINES, store_url
from tests.faults import firing

ROUNDS = dict.fromkeys(ENGINES, 40) | {"postgresql": 4, "mongodb": 4}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [*ROUNDS])
async def test_each_moment_is_sent_once_whenever_brokers_are_killed(kind: str, tmp_path: Path) -> None:
    store, rounds = store_url(kind, tmp_path), int(os.environ.get("MINIQ_KILL_ROUNDS", ROUNDS[kind]))
    firing.kill(store, rounds)
    await firing.look(store, rounds)
