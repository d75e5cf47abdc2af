"""Celery's results in MiniQ: a real server, real workers in processes of their own."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import chord, group, states
from celery.exceptions import ChordError, ImproperlyConfigured, TimeoutError
from celery.result import AsyncResult, GroupResult

import miniq
from miniq.celery.urls import read_address
from miniq.errors import InvalidRequest
from tests.serving import Served, serving

PATIENCE = 120
"""Seconds that something may take on a machine that is busy with other things."""
ROOT = Path(__file__).parents[2]
QUEUE = "celery.results"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(f"rocksdb:{tmp_path_factory.mktemp('celery') / 'data'}", 0, "--no-zmq") as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def tasks(served: Served, folder: Path) -> Iterator[Any]:
    """The module of the tasks, with a worker of four processes."""
    url = served.url.replace("http://", "miniq://")
    environment = {"MINIQ_TEST_FOLDER": str(folder), "MINIQ_TEST_BACKEND": url}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        module = importlib.import_module("tests.acceptance.celery_result_tasks")
        worker = start_worker(folder)
        try:
            yield module
        finally:
            stop(worker)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module.app.close()
            sys.modules.pop("tests.acceptance.celery_result_tasks")


def start_worker(folder: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tests.acceptance.celery_result_tasks",
        "worker",
        "-c",
        "4",
        "-l",
        "INFO",
    ]
    more = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen([*command, *more], cwd=ROOT, env=os.environ | {}, stdout=log, stderr=log)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_result_a_failure_and_the_end_of_both(tasks: Any, served: Served) -> None:
    result = tasks.add.delay(2, 3)
    assert result.get(timeout=PATIENCE) == 5
    assert (result.state, result.successful(), result.children) == ("SUCCESS", True, [])
    with miniq.connect(served.url) as mq:  # which others can see, by the id of the task
        kept = mq.queue(QUEUE).result(result.id)
        assert (kept.status, kept.result["status"], kept.result["result"]) == ("done", "SUCCESS", 5)
        assert mq.queue(QUEUE).info().settings.results == 3600
    failed = tasks.fail.delay("bad")
    with pytest.raises(ValueError, match=r"^bad$"):
        failed.get(timeout=PATIENCE)
    assert failed.state == "FAILURE"
    assert "raise ValueError(text)" in failed.traceback
    assert failed.get(timeout=PATIENCE, propagate=False).args == ("bad",)
    for each in (result, failed):
        each.forget()
        assert AsyncResult(each.id, app=tasks.app).state == "PENDING"
    named = tasks.add.apply_async((1, 1), task_id="a name of my own")
    assert named.get(timeout=PATIENCE) == 2
    assert AsyncResult("a name of my own", app=tasks.app).get(timeout=PATIENCE) == 2


def test_the_state_is_known_while_a_task_runs(tasks: Any, folder: Path) -> None:
    result = tasks.held.delay("held-1")
    until(lambda: result.state == "STARTED", "it did not start")
    assert result.info["pid"]
    with pytest.raises(TimeoutError):
        result.get(timeout=0.1)
    (folder / "held-1").touch()
    assert result.get(timeout=PATIENCE) == "held-1"

    seen: list[Any] = []
    progress = tasks.steps.delay("step-1")

    def note(meta: dict[str, Any]) -> None:
        seen.append(meta["status"])
        if meta["status"] == "PROGRESS":
            assert meta["result"] == {"step": 1}
            (folder / "step-1").touch()

    assert progress.get(timeout=PATIENCE, on_message=note, interval=0.05) == "over"
    assert seen[-2:] == ["PROGRESS", "SUCCESS"]

    retried = tasks.again.delay("retry-1")
    until(lambda: retried.state in ("RETRY", "STARTED"), "it was not retried")
    (folder / "retry-1").touch()
    assert retried.get(timeout=PATIENCE) == "at last"


def test_a_caller_is_woken_and_does_not_poll(tasks: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tasks.held.delay("woken")
    calls: list[float] = []
    backend = result.backend
    get = backend.kept.get
    monkeypatch.setattr(backend.kept, "get", lambda id, wait=0: [calls.append(wait), get(id, wait)][1])
    until((folder / "woken-began").exists, "it did not begin")
    timer = threading.Timer(1.5, (folder / "woken").touch)
    timer.start()
    assert result.get(timeout=PATIENCE) == "woken"
    timer.join()
    assert len(calls) == 1  # a poll every half second would have made more
    assert calls[0] > 1


def test_a_group_is_joined_as_its_results_arrive_and_restored(tasks: Any, folder: Path) -> None:
    result = group(tasks.add.s(number, number) for number in range(30)).apply_async()
    assert result.get(timeout=PATIENCE) == [2 * number for number in range(30)]
    assert result.join(timeout=PATIENCE) == [2 * number for number in range(30)]

    slow, quick = result = group(tasks.held.s("slow"), tasks.add.s(1, 2)).apply_async()
    arrived: list[str] = []
    for id, meta in result.iter_native(timeout=PATIENCE):
        arrived.append(id)
        assert meta["status"] == "SUCCESS"
        (folder / "slow").touch()  # not before the quick one has arrived
    assert arrived == [quick.id, slow.id]
    told: list[str] = []
    result.join_native(timeout=PATIENCE, callback=lambda id, value: told.append(value))
    assert sorted(map(str, told)) == ["3", "slow"]

    result.save()
    restored = GroupResult.restore(result.id, app=tasks.app)
    assert restored is not None
    assert restored.get(timeout=PATIENCE) == ["slow", 3]
    restored.delete()
    result.backend._cache.pop(result.id, None)
    assert GroupResult.restore(result.id, app=tasks.app) is None
    with pytest.raises(TimeoutError):
        GroupResult("g", [AsyncResult(str(uuid4()), app=tasks.app), *result.results], app=tasks.app).get(timeout=0.2)


def test_the_body_of_a_chord_runs_once_with_all_results(tasks: Any, folder: Path) -> None:
    bodies = folder / "bodies"
    before = len(bodies.read_text().splitlines()) if bodies.exists() else 0
    result = chord((tasks.add.s(number, 1) for number in range(60)), tasks.total.s())()
    assert result.get(timeout=PATIENCE) == sum(range(60)) + 60
    small = [chord([tasks.add.s(1, n), tasks.add.s(2, n)], tasks.total.s())() for n in range(10)]
    assert [one.get(timeout=PATIENCE) for one in small] == [3 + 2 * n for n in range(10)]
    nested = chord([group(tasks.add.s(1, 1), tasks.add.s(2, 2)), tasks.add.s(3, 3)], tasks.total.s())()
    assert nested.get(timeout=PATIENCE) == 12
    grown = chord([tasks.grow.s(), tasks.add.s(1, 1)], tasks.total.s())()
    assert grown.get(timeout=PATIENCE) == 1 + 2 + 42
    chained = (group(tasks.add.s(1, 1), tasks.add.s(2, 2)) | tasks.total.s() | tasks.add.s(100)).delay()
    assert chained.get(timeout=PATIENCE) == 106
    assert len(bodies.read_text().splitlines()) - before == 14


def test_a_failure_in_the_header_fails_the_body_and_is_raised_as_it_was(tasks: Any) -> None:
    result = chord([tasks.add.s(1, 1), tasks.fail.s("bad part"), tasks.add.s(2, 2)], tasks.total.s())()
    with pytest.raises(ValueError, match=r"^bad part$"):
        result.get(timeout=PATIENCE)
    assert isinstance(result.result, ChordError)
    with pytest.raises(
        ChordError, match=rf"^Dependency {result.parent.results[1].id} raised ValueError\('bad part'\)$"
    ):
        AsyncResult(result.id, app=tasks.app).get(timeout=PATIENCE)  # which knows no parts


def test_a_chord_survives_processes_that_are_lost(tasks: Any, folder: Path) -> None:
    bodies = folder / "bodies"
    before = len(bodies.read_text().splitlines()) if bodies.exists() else 0
    header = [tasks.die_once.s("lost-1"), tasks.add.s(1, 1), tasks.die_once.s("lost-2"), tasks.add.s(2, 2)]
    assert chord(header, tasks.total.s())().get(timeout=PATIENCE) == 16
    assert tasks.add.delay(1, 1).get(timeout=PATIENCE) == 2
    assert len(bodies.read_text().splitlines()) == before + 1


def test_a_part_that_returns_twice_is_counted_once(tasks: Any, folder: Path) -> None:
    backend = tasks.app.backend
    ids = [str(uuid4()) for _ in range(3)]
    parts = [AsyncResult(id, app=tasks.app) for id in ids]
    gid, body = str(uuid4()), tasks.total.s()
    bodyres = body.freeze()
    sent = len((folder / "bodies").read_text().splitlines()) if (folder / "bodies").exists() else 0
    backend.apply_chord((gid, parts), body)
    body["chord_size"] = 3

    class Request:
        def __init__(self, id: str) -> None:
            self.id, self.group, self.chord, self.ignore_result = id, gid, body, False

    for number in (0, 1):
        backend.store_result(ids[number], number, states.SUCCESS)
    for id in (ids[0], ids[1], ids[0], ids[1], ids[1]):
        backend.on_chord_part_return(Request(id), states.SUCCESS, 0)
    assert bodyres.state == "PENDING"  # a part that is missing would have failed it
    backend.store_result(ids[2], 2, states.SUCCESS)
    threads = [
        threading.Thread(target=backend.on_chord_part_return, args=(Request(ids[2]), states.SUCCESS, 2)),
        *(
            threading.Thread(target=backend.on_chord_part_return, args=(Request(id), states.SUCCESS, 2))
            for id in ids[:2]
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodyres.get(timeout=PATIENCE) == 3
    for id in ids:  # all of it, again
        backend.on_chord_part_return(Request(id), states.SUCCESS, 2)
    assert tasks.add.delay(1, 1).get(timeout=PATIENCE) == 2
    assert len((folder / "bodies").read_text().splitlines()) == sent + 1


def test_what_a_lost_worker_says_later_does_not_replace_a_success(tasks: Any) -> None:
    backend, id = tasks.app.backend, str(uuid4())
    backend.store_result(id, {"pid": 1}, states.STARTED)
    backend.store_result(id, 42, states.SUCCESS)
    for state in (states.FAILURE, states.RETRY):
        backend.store_result(id, ValueError("late"), state)
    backend.store_result(id, {"pid": 2}, states.STARTED)
    assert backend.get_task_meta(id)["result"] == 42
    backend.store_result(id, 43, states.SUCCESS)
    assert backend.get_task_meta(id, cache=False)["result"] == 43


def test_a_result_that_is_too_large_fails_the_task(tasks: Any) -> None:
    assert len(tasks.big.delay(500_000).get(timeout=PATIENCE)) == 500_000
    result = tasks.big.delay(1_100_000)
    with pytest.raises(Exception, match=r"result: 11\d{5} bytes; at most 1048576"):
        result.get(timeout=PATIENCE)
    assert result.state == "FAILURE"


def test_results_of_other_serializers_are_kept_as_they_are(served: Served) -> None:
    from celery import Celery

    url = served.url.replace("http://", "miniq://")
    for serializer in ("pickle", "yaml"):
        app = Celery("other", backend=f"{url}?queue=of.{serializer}", set_as_current=False)
        app.conf.update(result_serializer=serializer, accept_content=[serializer, "json"], result_expires=None)
        backend = app.backend
        backend.store_result("x", {"a": [1, None, "ü"]}, states.SUCCESS)
        assert backend.get_task_meta("x", cache=False)["result"] == {"a": [1, None, "ü"]}
        assert app.AsyncResult("x").get(timeout=PATIENCE) == {"a": [1, None, "ü"]}
        backend.store_result("y", KeyError("k"), states.FAILURE)
        with pytest.raises(KeyError):
            app.AsyncResult("y").get(timeout=PATIENCE)
        app.close()


def test_results_expire(served: Served) -> None:
    from celery import Celery

    app = Celery("short", backend=served.url.replace("http://", "miniq://"), set_as_current=False)
    app.conf.result_expires = 0.3
    app.backend.store_result("short", 1, states.SUCCESS)
    until(lambda: app.backend.get_task_meta("short", cache=False)["status"] == "PENDING", "it did not expire")
    app.close()


def test_a_caller_goes_on_waiting_while_the_broker_restarts(tmp_path: Path) -> None:
    from celery import Celery

    store = f"rocksdb:{tmp_path / 'data'}"
    with serving(store, 0, "--no-zmq") as first:
        port = first.port
        app = Celery("patient", backend=f"miniq://127.0.0.1:{port}?retry=0", set_as_current=False)
        app.backend.store_result("before", 1, states.SUCCESS)
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(app.AsyncResult("late").get(timeout=PATIENCE)))
        thread.start()
        first.stop(signal.SIGKILL)
    with serving(store, port, "--no-zmq"):
        assert app.backend.get_task_meta("before", cache=False)["result"] == 1
        app.backend.store_result("late", 2, states.SUCCESS)
        thread.join(PATIENCE)
        assert got == [2]
    app.close()


@pytest.mark.parametrize(
    ("url", "address", "options", "others"),
    [
        ("miniq://", "http://127.0.0.1:5000", {}, {}),
        ("miniq://host", "http://host:5000", {}, {}),
        ("miniq://key%2F1@host:1/p/", "http://host:1/p", {"api_key": "key/1"}, {}),
        ("miniq://:k@[::1]:1?queue=q&retry=0", "http://[::1]:1", {"api_key": "k", "retry": 0.0}, {"queue": "q"}),
        ("https://host?ca=/a", "https://host:5000", {"ca": "/a"}, {}),
        ("miniq+https://host", "https://host:5000", {}, {}),
        ("tcp://host:1", "tcp://host:1", {}, {}),
        ("folder:///a%20b?queue=q", "rocksdb:/a b", {}, {"queue": "q"}),
    ],
)
def test_urls(url: str, address: str, options: dict[str, Any], others: dict[str, str]) -> None:
    read = read_address(url, "result_backend")
    assert (read.url, read.options, read.others) == (address, options, others)


@pytest.mark.parametrize("url", ["redis://host", "miniq://host:x", "folder://", "miniq://h?retry=x"])
def test_bad_urls_name_the_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^result_backend: "):
        read_address(url, "result_backend")


def test_wrong_options_are_a_wrong_configuration() -> None:
    from celery import Celery

    app = Celery("wrong", backend="miniq://127.0.0.1:1", set_as_current=False)
    app.conf.result_backend_transport_options = {"colour": 1}
    with pytest.raises(ImproperlyConfigured, match=r"result_backend: .*colour"):
        app.backend.store_result("x", 1, states.SUCCESS)
    app.close()


def test_a_folder_is_broker_and_results_of_a_single_process(tmp_path: Path) -> None:
    program = f"""
from celery import Celery, chord
from celery.contrib.testing.worker import start_worker

url = "miniq+folder://{tmp_path}"
app = Celery("single", broker=url, backend=url)

@app.task
def add(x, y):
    return x + y

@app.task
def total(numbers):
    return sum(numbers)

with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
    result = add.delay(1, 2)
    assert result.get(timeout={PATIENCE}) == 3
    result.forget()
    assert result.state == "PENDING"
    assert chord([add.s(n, n) for n in range(5)])(total.s()).get(timeout={PATIENCE}) == 20
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert run.returncode == 0, run.stderr
