"""Celery on MiniQ: real workers and programs, a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection

import miniq
import miniq.celery.registration
from tests.acceptance.celery_kit import HERE, Worker, call, environment, notes, until, working
from tests.server import clear
from tests.serving import Served, free_ports, serving

Env = dict[str, str]


@pytest.fixture(scope="module")
def broker(server: Served) -> Iterator[str]:
    clear(server.url)
    yield f"miniq://{server.url.removeprefix('http://')}"
    clear(server.url)


@pytest.fixture(scope="module")
def env(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Env:
    return environment(broker, tmp_path_factory.mktemp("celery") / "notes")


@pytest.fixture(scope="module")
def worker(env: Env) -> Iterator[Worker]:
    with working(env, "-c", "2", "-E") as started:
        yield started


def test_two_hundred_tasks_with_retries_and_countdown_each_run_once(env: Env, worker: Worker) -> None:
    call(
        env,
        "for n in range(200):\n"
        "    flaky.apply_async((n, n % 3), countdown=0.5 if n % 2 else None, priority=n % 10, ignore_result=True)",
    )
    until(lambda: len(notes(env, "done")) >= 200, lambda: worker.output[-2000:])
    assert sorted(note["number"] for note in notes(env, "done")) == list(range(200))
    tried = sorted((note["number"], note["retries"]) for note in notes(env, "tried"))
    assert tried == [(number, retry) for number in range(200) for retry in range(number % 3 + 1)]


def test_remote_control_reaches_the_worker(env: Env, worker: Worker) -> None:
    code = """
inspect = app.control.inspect(timeout=30, limit=1)
print(inspect.ping())
print(inspect.registered())
late.delay(1000, 2)
import time
for _ in range(200):
    active = inspect.active()
    if active["w@here"]: break
print([task["name"] for task in active["w@here"]])
revoked = add.apply_async((7000, 0), countdown=1)
print(app.control.revoke(revoked.id, reply=True, timeout=30, limit=1))
"""
    ping, registered, active, revoked = call(env, code).splitlines()
    assert ping == "{'w@here': {'ok': 'pong'}}"
    assert "celery_tasks.flaky" in registered
    assert active == "['celery_tasks.late']"
    assert "revoked" in revoked
    call(env, "add.apply_async((8000, 0), countdown=1)")
    until(lambda: 8000 in [note["of"] for note in notes(env, "added")])
    assert 7000 not in [note["of"] for note in notes(env, "added")]


def test_events_tell_what_workers_do(env: Env, worker: Worker) -> None:
    code = """
import threading
seen = set()
def look(event):
    seen.add(event["type"])
    if "task-succeeded" in seen:
        receiver.should_stop = True
with app.connection_for_read() as connection:
    receiver = app.events.Receiver(connection, handlers={"*": look})
    receiver.on_consume_ready = lambda *given, **named: add.delay(1, 1)
    for _ in receiver.consume(limit=None, timeout=60, wakeup=False):
        pass
print(*sorted(event for event in seen if event.startswith("task-")))
"""
    assert call(env, code).split() == ["task-received", "task-started", "task-succeeded"]


def test_peek_shows_tasks(env: Env, server: Served) -> None:
    call(env, "flaky.apply_async((1, 0), countdown=3600, queue='shown', headers={'mine': 1})")
    shown = subprocess.run(
        [sys.executable, "-m", "miniq", "peek", "shown", "--celery", "--json", "--url", server.url],
        capture_output=True,
        text=True,
        check=True,
    )
    [line] = map(json.loads, shown.stdout.splitlines())
    assert line["status"] == "delayed"
    assert (line["task"]["name"], line["task"]["args"], line["task"]["retries"]) == ("celery_tasks.flaky", "1, 0", 0)
    assert line["task"]["eta"] is not None


def test_a_task_that_any_program_sends_as_json_runs(env: Env, worker: Worker, server: Served) -> None:
    with miniq.connect(server.url) as mq:
        mq.queue("celery").send([[300, 33], {}, {}], headers={"task": "celery_tasks.add"})
    until(lambda: 333 in [note["of"] for note in notes(env, "added")], lambda: worker.output[-2000:])


def test_a_rejected_task_is_a_dead_letter(env: Env, worker: Worker, server: Served) -> None:
    call(env, "rejected.delay()")
    with miniq.connect(server.url) as mq:
        [dead] = until(lambda: mq.queue("celery.dead").peek() if "celery.dead" in names(mq) else None)
    assert (dead.headers["task"], dead.dead.origin, dead.dead.reason) == ("celery_tasks.rejected", "celery", "rejected")


def names(mq: miniq.Client) -> list[str]:
    return [info.name for info in mq.queues()]


def test_a_task_whose_process_is_lost_runs_again(env: Env, worker: Worker) -> None:
    call(env, "suicide.delay()")
    until(lambda: len(notes(env, "suicide")) == 2, lambda: worker.output[-2000:])
    assert [note["redelivered"] for note in notes(env, "suicide")] == [False, True]


def test_higher_priorities_come_first_and_a_worker_holds_no_more_than_its_prefetch_limit(
    broker: str, tmp_path: Path, server: Served
) -> None:
    env = environment(broker, tmp_path / "notes", worker_prefetch_multiplier=1)
    call(env, "for n in range(10): add.apply_async((n, 0), priority=n, queue='ranked')")
    call(env, "for n in range(5): late.apply_async((n, 1), queue='other')")
    with working(env, "-c", "1", "-Q", "ranked,other", "-P", "solo"):
        with miniq.connect(server.url) as mq:
            until(lambda: mq.queue("other").info().counts.leased == 1 or notes(env, "began"))
            for _ in range(20):
                leased = sum(mq.queue(name).info().counts.leased for name in ("ranked", "other"))
                assert leased <= 2  # one that runs, and one whose ack is under way
        until(lambda: len(notes(env, "ended")) == 5 and len(notes(env, "added")) == 10)
    assert [note["of"] for note in notes(env, "added")] == list(range(9, -1, -1))


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_each_pool_works_and_gives_back_what_it_did_not_start(
    pool: str, broker: str, tmp_path: Path, server: Served
) -> None:
    env = environment(broker, tmp_path / "notes")
    call(env, f"for n in range(6): late.apply_async((n, 0.3), queue='{pool}')")
    with working(env, "-P", pool, "-c", "2", "-Q", pool) as worker:
        until(lambda: len(notes(env, "ended")) >= 2, lambda: worker.output)
        assert worker.stop() == 0, worker.output
        with miniq.connect(server.url) as mq:
            counts = mq.queue(pool).info().counts
        assert counts.leased == 0
        assert counts.ready + len(notes(env, "ended")) == 6
        assert counts.ready > 0 or pool != "solo"  # the other pools finish what they were given
    with miniq.connect(server.url) as mq:
        assert not [name for name in names(mq) if "pidbox" in name and name.startswith("w-here")]


def test_what_no_program_has_seen_does_not_count_as_received(broker: str, server: Served) -> None:
    with miniq.connect(server.url) as mq, Connection(broker) as connection:
        queues = [mq.queue("left"), mq.queue("right")]
        for queue in queues:
            queue.configure()
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        for queue in queues:
            channel.basic_consume(queue.name, callback=print)
        until(lambda: all(queue.consumers() for queue in queues))  # both wait in long polls
        for queue in queues:
            queue.send("x")
        until(
            lambda: states(queues) == [("leased", 1), ("ready", 0)]
        )  # there is credit for one, who gives back the other
        channel.close()  # with a message that was not drained
        until(lambda: states(queues) == [("ready", 0), ("ready", 0)], lambda: str(states(queues)))


def states(queues: list[miniq.Queue]) -> list[tuple[str, int]]:
    return sorted((message.status, message.receives) for queue in queues for message in queue.peek())


def test_a_worker_and_a_producer_need_only_these_permissions(tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        with miniq.connect(served.url) as mq:
            admin = mq.create_key("admin", ["*"])
            with miniq.connect(served.url, api_key=admin.secret) as keys:
                producer = keys.create_key("producer", ["send:celery"]).secret
                allowed = ["send", "receive", "publish", "read", "manage"]
                worker = keys.create_key("worker", [f"{verb}:*" for verb in allowed]).secret
                least = keys.create_key("least", ["receive:celery"]).secret
        at = f"127.0.0.1:{served.port}"
        env = environment(f"miniq://:{producer}@{at}", tmp_path / "notes")
        call(env, "add.delay(1, 1)")
        with working(environment(f"miniq://:{worker}@{at}", tmp_path / "notes"), "-c", "1"):
            until(lambda: notes(env, "added"))
        call(env, "add.delay(2, 2)")
        bare = environment(f"miniq://:{least}@{at}", tmp_path / "notes", worker_enable_remote_control=False)
        with working(bare, "-c", "1", "--without-gossip", "--without-mingle", "--without-heartbeat") as started:
            until(lambda: len(notes(env, "added")) == 2, lambda: started.output)
        wrong = environment(f"miniq://:wrong@{at}", tmp_path / "notes")
        output = failing(wrong)
        assert "unauthorized" in output.lower()
        assert "API key" in output
        assert output.count("CRITICAL") + output.count("Error: ") <= 2
        assert "wrong" not in output.replace("wrong@", "")


def failing(env: Env, code: str = "add.apply_async((1, 1), retry=False)") -> str:
    lines = f"from celery_tasks import *\n{code}"
    ended = subprocess.run(
        [sys.executable, "-c", lines], cwd=HERE, env=env, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    return ended.stderr


def test_a_wrong_url_is_one_clear_error(tmp_path: Path) -> None:
    [port] = free_ports(1)
    options = {"retry": 0.0}
    nobody = failing(environment(f"miniq://127.0.0.1:{port}", tmp_path / "notes", options))
    assert f"http://127.0.0.1:{port}" in nobody.splitlines()[-1]
    folder = failing(environment("miniq+folder://data", tmp_path / "notes"))
    assert "miniq+folder:///absolute/path" in folder.splitlines()[-1]
    other = failing(environment("miniq+ftp://127.0.0.1", tmp_path / "notes"))
    assert "miniq+folder://" in other.splitlines()[-1]
    lease = failing(environment(f"miniq://127.0.0.1:{port}", tmp_path / "notes", {"lease": 0.1}))
    assert "lease = 0.1" in lease.splitlines()[-1]


def test_a_folder_serves_one_process(tmp_path: Path) -> None:
    code = """
from celery.contrib.testing.worker import start_worker
app.loader.import_module("celery.contrib.testing.tasks")
with start_worker(app, pool="solo", perform_ping_check=False):
    add.delay(20, 22)
    import time
    end = time.monotonic() + 60
    while not os.path.exists(os.environ["LOG"]) and time.monotonic() < end: time.sleep(0.05)
"""
    env = environment(f"miniq+folder://{tmp_path}/data", tmp_path / "notes")
    call(env, code)
    assert [note["of"] for note in notes(env, "added")] == [42]


def test_a_warm_shutdown_finishes_what_runs(broker: str, tmp_path: Path) -> None:
    env = environment(broker, tmp_path / "notes")
    call(env, "late.apply_async((1, 1.5), queue='warm')")
    with working(env, "-c", "1", "-Q", "warm") as worker:
        until(lambda: notes(env, "began"))
        assert worker.stop(signal.SIGTERM) == 0
    assert len(notes(env, "ended")) == 1
