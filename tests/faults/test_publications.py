"""`kill -9` during publications: all copies or none. `MINIQ_KILL_ROUNDS` sets how often."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import STORES, store_url

ROUNDS = {"rocksdb": 40, "leveldb": 15, "postgresql": 3, "mongodb": 3}


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "memory"])
def test_a_publication_is_in_all_queues_or_in_none_after_kill_9(kind: str, tmp_path: Path) -> None:
    url = store_url(kind, tmp_path)
    store = url if "://" in url else kind
    rounds = os.environ.get("MINIQ_KILL_ROUNDS", str(ROUNDS[kind]))
    command = [sys.executable, "-m", "tests.faults.publications", "--rounds", rounds, "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "all copies or none" in done.stdout
