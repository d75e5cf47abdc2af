"""Celery on MiniQ when something breaks: workers and brokers that are killed, stopped or restarted."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil

import miniq
from tests.acceptance.celery_kit import call, environment, notes, until, working
from tests.serving import Served, free_ports, serving

LEASE = {"lease": 2}


def url_of(served: Served) -> str:
    return f"miniq://127.0.0.1:{served.port}"


def test_tasks_of_a_killed_worker_run_again_but_never_at_the_same_time(server: Served, tmp_path: Path) -> None:
    env = environment(url_of(server), tmp_path / "notes", LEASE, task_default_queue="killed")
    with working(env, "-c", "2", name="lost") as lost:
        call(env, "for n in range(4): late.delay(n, 5)")
        until(lambda: len(notes(env, "began")) >= 2)
        with working(env, "-c", "2", name="other"):
            orphans = {child.pid for child in psutil.Process(lost.process.pid).children(recursive=True)}
            lost.process.kill()
            killed = time.time()
            ended = {note["number"] for note in notes(env, "ended")}
            held = {note["number"] for note in notes(env, "began")} - ended
            until(lambda: {note["number"] for note in notes(env, "ended")} == {0, 1, 2, 3})
    again = [note for note in notes(env, "began") if note["pid"] not in orphans]
    assert {note["number"] for note in again} == {0, 1, 2, 3} - ended
    assert all(note["redelivered"] for note in again if note["number"] in held)
    # The processes of its pool did not go on with their tasks.
    assert not [note for note in notes(env, "ended") if note["pid"] in orphans and note["at"] > killed]
    assert len(notes(env, "ended")) == 4


def test_a_worker_that_was_held_up_cannot_ack_what_another_has(server: Served, tmp_path: Path) -> None:
    env = environment(url_of(server), tmp_path / "notes", LEASE, task_default_queue="held")
    with working(env, "-c", "1", name="slow") as slow:
        call(env, "late.delay(1, 0.5)")
        until(lambda: notes(env, "began"))
        slow.process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: len(notes(env, "ended")) == 1)  # its pool goes on, its main process does not
            with working(env, "-c", "1", name="other"):
                call(env, "late.delay(2, 6)")
                until(lambda: len(notes(env, "began")) >= 3)
                slow.process.send_signal(signal.SIGCONT)
                until(lambda: "came too late" in slow.output or "lost to another" in slow.output, lambda: slow.output)
                until(lambda: len(notes(env, "ended")) >= 3)
        finally:
            with contextlib.suppress(ProcessLookupError):
                slow.process.send_signal(signal.SIGCONT)
    with miniq.connect(server.url) as mq:
        assert mq.queue("held").info().counts.total == 0


def test_a_restart_of_the_broker_disturbs_no_task(tmp_path: Path) -> None:
    [port] = free_ports(1)
    store = f"rocksdb:{tmp_path / 'data'}"
    env = environment(f"miniq://127.0.0.1:{port}", tmp_path / "notes", {"lease": 4})
    with contextlib.ExitStack() as stack:
        with serving(store, port) as first:
            worker = stack.enter_context(working(env, "-c", "2"))
            call(env, "for n in range(2): late.delay(n, 3)\nadd.apply_async((5, 5), countdown=4)")
            until(lambda: len(notes(env, "began")) == 2)
            first.stop(signal.SIGKILL)
        until(lambda: len(notes(env, "ended")) == 2)  # while there is no broker
        with serving(store, port) as second:
            call(env, "for n in range(2, 6): late.delay(n, 0)")
            until(lambda: len(notes(env, "ended")) == 6, lambda: worker.output)
            until(lambda: notes(env, "added"))
            with miniq.connect(second.url) as mq:
                until(lambda: mq.queue("celery").info().counts.total == 0)
            assert "pong" in call(env, "print(app.control.inspect(timeout=30, limit=1).ping())")
            assert worker.stop() == 0
    assert sorted(note["number"] for note in notes(env, "ended")) == list(range(6))
    assert len(notes(env, "began")) == 6
    assert [note["of"] for note in notes(env, "added")] == [10]


def test_leases_last_as_long_as_tasks_in_every_pool(server: Served, tmp_path: Path) -> None:
    envs = {}
    with contextlib.ExitStack() as stack:
        for pool in ("solo", "threads", "gevent"):
            env = envs[pool] = environment(url_of(server), tmp_path / pool, LEASE, task_default_queue=f"long-{pool}")
            stack.enter_context(working(env, "-P", pool, "-c", "2", name=pool))
        for env in envs.values():
            call(env, "late.delay(1, 0)")
        for env in envs.values():  # what comes after a pause has to be extended as well
            until(lambda env=env: notes(env, "ended"))
            call(env, "late.delay(2, 6)")
        for env in envs.values():
            until(lambda env=env: len(notes(env, "ended")) == 2)
        time.sleep(2.5)  # a second delivery would have come
    for env in envs.values():
        assert [note["number"] for note in notes(env, "began")] == [1, 2]


def test_a_worker_that_loses_its_permission_says_so_and_ends(tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served, miniq.connect(served.url) as mq:
        admin = mq.create_key("admin", ["*"])
        with miniq.connect(served.url, api_key=admin.secret) as keys:
            key = keys.create_key("worker", ["*"])
            env = environment(f"miniq://:{key.secret}@127.0.0.1:{served.port}", tmp_path / "notes")
            with working(env, "-c", "1") as worker:
                keys.revoke_key(key.id)
                assert worker.process.wait(60) != 0
                assert "Unauthorized" in worker.output
