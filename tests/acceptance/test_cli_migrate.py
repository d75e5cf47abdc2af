"""`miniq migrate` as people type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import miniq
from tests.conftest import ENGINES, store_url


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "miniq", *args], capture_output=True, text=True, timeout=120)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A folder with a message that is ready, one that is leased, and one event of history."""
    url = f"rocksdb:{tmp_path / 'source'}"
    with miniq.connect(url) as mq:
        queue = mq.queue("jobs")
        queue.configure(history="events")
        queue.send("leased")
        queue.receive()
        queue.send("ready")
    return url


@pytest.mark.parametrize("kind", [*ENGINES[1:], "postgresql", "mongodb"])
def test_everything_goes_from_one_store_to_another(source: str, kind: str, tmp_path: Path) -> None:
    target = store_url(kind, tmp_path / "target")
    done = run("migrate", source, target, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"queues": 2, "messages": 2, "events": 3, "records": 0}
    with miniq.connect(target) as mq:
        counts = mq.queue("jobs").info().counts
        assert (counts.ready, counts.leased) == (1, 1)
        assert [m.body for m in mq.queue("jobs").receive(max=5)] == ["ready"]
        assert [record.offset for record in mq.history(0, 10).records] == [1, 2, 3, 4]
    again = run("migrate", source, target)
    assert again.returncode == 1
    assert again.stderr == "miniq: to: the target is not empty: it holds a queue 'jobs'; name a new one\n"
    back = run("migrate", target, str(tmp_path / "back"))
    assert back.stdout == "copied 2 messages in 2 queues, 4 events of history and 0 records; verified\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["SOURCE", "SOURCE"], "is the source"),
        (["rocksdb:nowhere", "rocksdb:x"], "from: there is no store in nowhere"),
        (["memory:", "rocksdb:x"], "from: the contents of memory:"),
        (["SOURCE", "memory:"], "to: the contents of memory:"),
        (["SOURCE", "sqlite:x"], "'sqlite:x' is not a store"),
    ],
)
def test_what_cannot_be_copied_is_named(source: str, asked: list[str], said: str, tmp_path: Path) -> None:
    done = run("migrate", *[source if word == "SOURCE" else word for word in asked])
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("nowhere").exists()


def test_a_folder_that_is_open_is_refused(source: str, tmp_path: Path) -> None:
    with miniq.connect(source):
        done = run("migrate", source, f"rocksdb:{tmp_path / 'target'}")
    assert done.returncode == 1
    assert "is open in process" in done.stderr
    assert not (tmp_path / "target").exists()


def test_ctrl_c_leaves_a_target_that_is_refused(tmp_path: Path) -> None:
    source, target = f"rocksdb:{tmp_path / 'source'}", f"rocksdb:{tmp_path / 'target'}"
    with miniq.connect(source) as mq:
        for _ in range(40):
            mq.queue("jobs").send_many(["x" * 100] * 1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "miniq", "migrate", source, target], stderr=subprocess.PIPE, text=True
    )
    # The first log of the target's database grows once the mark and the first messages are written.
    while not any(file.stat().st_size > 100_000 for file in (tmp_path / "target" / "data").glob("*.log")):
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line for line in said.splitlines() if line] == [
        "miniq: the target is incomplete: remove it before another attempt",
        "miniq: interrupted",
    ]
    for refused in (run("queues", "--url", target), run("migrate", source, target)):
        assert refused.returncode == 1
        assert "was left incomplete by a `miniq migrate` that did not finish" in refused.stderr
    with miniq.connect(source) as mq:
        assert mq.queue("jobs").info().counts.ready == 40_000
