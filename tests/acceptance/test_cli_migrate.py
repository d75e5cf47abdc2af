"""`miniq migrate` as people type it."""

from __future__ import annotations

import json
import os
import shlex
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
    assert json.loads(done.stdout) == {"queues": 2, "messages": 2, "events": 3, "records": 1}
    with miniq.connect(target) as mq:
        counts = mq.queue("jobs").info().counts
        assert (counts.ready, counts.leased) == (1, 1)
        assert [m.body for m in mq.queue("jobs").receive(max=5)] == ["ready"]
        assert [record.offset for record in mq.history(0, 10).records] == [1, 2, 3, 4]
    again = run("migrate", source, target)
    assert again.returncode == 1
    assert again.stderr == "miniq: to: the target is not empty: it holds a queue 'jobs'; name a new one\n"
    back = run("migrate", target, str(tmp_path / "back"))
    assert back.stdout == "copied 2 messages in 2 queues, 4 events of history and 1 record; verified\n"


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
    assert "address of a broker" not in done.stderr
    assert not Path("nowhere").exists()


def test_a_folder_that_is_open_is_refused(source: str, tmp_path: Path) -> None:
    with miniq.connect(source):
        done = run("migrate", source, f"rocksdb:{tmp_path / 'target'}")
    assert done.returncode == 1
    assert "is open in process" in done.stderr
    assert "--url" not in done.stderr
    assert not (tmp_path / "target").exists()


def test_held_claims_are_refused_with_the_command_that_releases_them_and_the_target_is_not_created(
    source: str, tmp_path: Path
) -> None:
    with miniq.connect(source) as mq:
        claims = mq.queue("jobs").claims("readers")
        claims.open()
        assert claims.next(0) is not None
    target = tmp_path / "target"
    refused = run("migrate", source, str(target))
    assert refused.returncode == 2
    assert "from: group 'readers' holds 1 claim of queue 'jobs'; let its reader finish, or release" in refused.stderr
    assert not target.exists()
    python, *command = shlex.split(refused.stderr.split("`")[1])
    assert python == "python"
    subprocess.run([sys.executable, *command], check=True, timeout=60)
    assert "copied 2 messages" in run("migrate", source, str(target)).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_a_target_that_is_refused(tmp_path: Path, number: int) -> None:
    source, target = f"rocksdb:{tmp_path / 'source'}", f"rocksdb:{tmp_path / 'target'}"
    with miniq.connect(source) as mq:
        for _ in range(40):
            mq.queue("jobs").send_many(["x" * 100] * 1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "miniq", "migrate", source, target], stderr=subprocess.PIPE, text=True
    )
    # The second segment of the target's log begins once the mark and the first messages are written.
    while not (tmp_path / "target" / "log" / "000002.segment").exists():
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines() == [
        "miniq: the target is incomplete: remove it before another attempt",
        "miniq: interrupted",
    ]
    for refused in (run("queues", "--url", target), run("migrate", source, target)):
        assert refused.returncode == 1
        assert "was left incomplete by a `miniq migrate` that did not finish" in refused.stderr
    with miniq.connect(source) as mq:
        assert mq.queue("jobs").info().counts.ready == 40_000


@pytest.mark.parametrize("way", ["migrate", "backup"])
def test_topics_subscriptions_and_schedules_go_along(tmp_path: Path, way: str) -> None:
    source, target = f"rocksdb:{tmp_path / 'source'}", f"rocksdb:{tmp_path / 'target'}"
    with miniq.connect(source) as mq:
        mq.topic("shop").configure(history="events", dedup_window=60)
        mq.topic("shop").subscribe("billing", pattern="orders.#", filter={"country": ["de"]})
        mq.topic("shop").subscribe("all", "log")
        mq.topic("shop").publish({"n": 1}, key="orders.1", headers={"country": "de"}, dedup_id="d")
        mq.schedule("nightly", topic="shop", cron="0 3 * * *", timezone="Europe/Berlin", body="go", key="orders.2")
        before = mq.topic("shop").info().settings, mq.topic("shop").info().subscriptions, mq.schedules()
        if way == "backup":
            mq.backup(str(tmp_path / "saved"))
    given = (source, target) if way == "migrate" else (str(tmp_path / "saved"), str(tmp_path / "target"))
    done = run("migrate" if way == "migrate" else "restore", *given)
    assert done.returncode == 0, done.stderr
    with miniq.connect(target) as mq:
        info = mq.topic("shop").info()
        assert (info.settings, info.subscriptions, mq.schedules()) == before
        mq.topic("shop").publish({"n": 2}, dedup_id="d")
        assert [message.body for message in mq.queue("log").receive(max=9)] == [{"n": 1}], "the dedup id is known"
        mq.run_schedule("nightly")
        assert [message.body for message in mq.queue("log").receive(max=9)] == ["go"]
