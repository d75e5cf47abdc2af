"""Dramatiq on MiniQ: a real server, workers that are started by the command `dramatiq`, and workers in this process."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
from dramatiq import Message, Worker, group, pipeline
from dramatiq.encoder import PickleEncoder
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import AgeLimit, Callbacks, GroupCallbacks, Pipelines, Retries, TimeLimit, TimeLimitExceeded
from dramatiq.rate_limits import Barrier, ConcurrentRateLimiter
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout

import miniq
from miniq.dramatiq import MiniQBroker, MiniQRateLimiterBackend, MiniQResultBackend
from miniq.dramatiq.broker import level
from miniq.errors import InvalidRequest
from tests.serving import Served, serving

PATIENCE = 120
"""Seconds that something may take on a machine that is busy with other things."""
MILLIS = PATIENCE * 1000
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(f"rocksdb:{tmp_path_factory.mktemp('dramatiq') / 'data'}", 0, "--no-zmq") as server:
        yield server


@pytest.fixture
def broker(served: Served) -> Iterator[MiniQBroker]:
    """A broker whose queues no other test uses."""
    broker = MiniQBroker(
        served.url, namespace=f"t{uuid4().hex[:12]}", middleware=[Retries(min_backoff=50), TimeLimit()]
    )
    yield broker
    broker.close()


@contextmanager
def working(broker: MiniQBroker, threads: int = 4, **options: Any) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=200, worker_threads=threads, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def dead(broker: MiniQBroker, queue: str = "default") -> list[Any]:
    return list(broker.client.queue(broker.queue_of(queue) + ".dead").peek())


def leased(broker: MiniQBroker, queue: str = "default") -> int:
    return broker.client.queue(broker.queue_of(queue)).info().counts.leased


# Worker processes


@pytest.fixture(scope="module")
def actors(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("actors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIQ_TEST_FOLDER", str(folder))
        patch.setenv("MINIQ_TEST_BROKER", served.url)
        module = importlib.import_module("tests.acceptance.dramatiq_actors")
        yield module
        module.broker.close()
        sys.modules.pop("tests.acceptance.dramatiq_actors")
        dramatiq.broker.global_broker = None


@contextmanager
def command(actors: Any, processes: int, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command `dramatiq` with so many processes."""
    arguments = ["tests.acceptance.dramatiq_actors", "-p", str(processes), "-t", str(threads)]
    with (actors.FOLDER / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dramatiq", *arguments], cwd=ROOT, env=os.environ | {}, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_processes_and_threads_share_the_work_and_retry_it(actors: Any) -> None:
    with command(actors, 2, 4):
        messages = [actors.work.send(number) for number in range(100)]
        assert [one.get_result(block=True, timeout=MILLIS) for one in messages] == [2 * n for n in range(100)]
        later = actors.work.send_with_options(args=(1000,), delay=300)
        assert later.get_result(block=True, timeout=MILLIS) == 2000
    for number in range(100):
        assert len((actors.FOLDER / f"work-{number}").read_text().splitlines()) == 1 + (number % 10 == 9)


def test_the_work_of_a_killed_worker_is_done_once_more_and_long_work_only_once(actors: Any) -> None:
    queue = actors.broker.client.queue("dramatiq.slow")
    queue.configure(visibility_timeout=2)
    with command(actors, 1, 2) as process:
        actors.slow.send("killed")
        until((actors.FOLDER / "slow-killed").exists, "it did not begin")
        pid = int((actors.FOLDER / "slow-killed").read_text().split()[0])
        assert pid != process.pid
        until(lambda: queue.info().counts.leased == 1, "it is not leased")
        os.kill(pid, signal.SIGKILL)
        process.kill()
    with command(actors, 1, 2):
        until(lambda: len((actors.FOLDER / "slow-killed").read_text().splitlines()) == 2, "it did not come again")
        actors.slow.send("long")
        until((actors.FOLDER / "slow-long").exists, "it did not begin")
        [message] = queue.peek()
        first = message.lease_until
        # The lease ends long before the work: without renewal, the message would come again.
        until(lambda: (queue.get(message.id).lease_until - first).total_seconds() > 4, "it is not renewed")
        assert queue.get(message.id).receives == 1
        (actors.FOLDER / "over-long").touch()
        until(lambda: queue.info().counts.leased == 0, "it was not acked")
    assert len((actors.FOLDER / "slow-long").read_text().splitlines()) == 1
    assert len((actors.FOLDER / "slow-killed").read_text().splitlines()) == 2


def test_a_worker_that_is_stopped_leaves_nothing_leased(actors: Any) -> None:
    queue = actors.broker.client.queue("dramatiq.slow")
    queue.configure(visibility_timeout=3600)
    with command(actors, 1, 1) as process:
        for number in range(5):
            actors.slow.send(f"stop-{number}")
        until(lambda: queue.info().counts.leased >= 2, "nothing is leased")  # one runs, others are fetched
        until((actors.FOLDER / "slow-stop-0").exists, "it did not begin")
        log = actors.FOLDER / "worker.log"
        before = log.read_text().count("Shutting down...")
        process.send_signal(signal.SIGTERM)
        until(lambda: log.read_text().count("Shutting down...") > before, "it does not stop")
        for number in range(5):
            (actors.FOLDER / f"over-stop-{number}").touch()
        assert process.wait(60) == 0
    done = [number for number in range(5) if (actors.FOLDER / f"done-stop-{number}").exists()]
    assert done[0] == 0  # which ran to its end
    counts = queue.info().counts
    assert (counts.leased, counts.ready) == (0, 5 - len(done))
    queue.purge()


# The broker


def test_delays_are_held_by_the_broker_and_end_in_their_order(broker: MiniQBroker) -> None:
    ran: list[int] = []
    actor = dramatiq.actor(ran.append, actor_name="append", broker=broker)
    actor.send_with_options(args=(2,), delay=600)
    actor.send_with_options(args=(1,), delay=200)
    assert broker.get_queue_message_counts("default") == (0, 2, 0)
    assert broker.get_declared_delay_queues() == set()
    with working(broker) as worker:
        broker.join("default", timeout=MILLIS)
        worker.join()
    assert ran == [1, 2]


def test_messages_that_fail_are_dead_with_the_reason(broker: MiniQBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    @dramatiq.actor(broker=broker, max_retries=1, max_backoff=60)
    def bad() -> None:
        raise ValueError("it cannot be done")

    bad.send()
    broker.enqueue(Message("default", "unknown", (), {}, {}))
    broker.client.queue(broker.queue_of("default")).send("no message of Dramatiq")
    with working(broker) as worker:
        broker.join("default", timeout=MILLIS)
        worker.join()
    letters = {letter.body["actor_name"] if isinstance(letter.body, dict) else "": letter for letter in dead(broker)}
    assert set(letters) == {"bad", "unknown", ""}
    assert letters["bad"].dead.error.startswith("ValueError: it cannot be done\n")
    assert "raise ValueError" in letters["bad"].dead.error
    assert "unknown" in letters["unknown"].dead.error
    assert broker.get_queue_message_counts("default") == (0, 0, 3)
    # Once it is fixed, it is redriven, and runs.
    ran: list[int] = []
    bad.fn = lambda: ran.append(1)
    dead_queue = broker.client.queue(broker.queue_of("default") + ".dead")
    dead_queue.redrive([letters["bad"].id])
    with working(broker) as worker:
        broker.join("default", timeout=MILLIS)
        worker.join()
    assert ran == [1]


FIELDS = {"queue_name": "default", "actor_name": "ok", "args": [1], "kwargs": {}, "options": {}}
MALFORMED: list[tuple[Any, str]] = [
    (None, "message: null is not a mapping"),
    ([FIELDS], "message: ["),
    ({}, "queue_name: missing"),
    *[
        (FIELDS | {name: value}, f"{name}: ")
        for name, value in [
            *[
                ("queue_name", None),
                ("actor_name", []),
                ("args", 5),
                ("args", "text"),
                ("kwargs", []),
                ("options", None),
            ],
            *[("message_id", None), ("message_timestamp", "x"), ("options", [])],
        ]
    ],
    *[
        (FIELDS | {"options": {name: value}}, f"options.{name}")
        for name, value in [
            *[
                ("eta", "x"),
                ("eta", 10**20),
                ("retries", "x"),
                ("max_retries", 1.5),
                ("max_age", "x"),
                ("time_limit", []),
            ],
            *[("min_backoff", "x"), ("broker_priority", "x"), ("throws", "ValueError"), ("on_failure", 5)],
            *[("pipe_target", 5), ("pipe_target", FIELDS | {"options": None}), ("group_completion_callbacks", [1])],
        ]
    ],
    (FIELDS | {"extra": 1}, "TypeError: "),
]


def test_malformed_messages_are_dead_with_the_reason_and_stall_nothing(broker: MiniQBroker) -> None:
    ran: list[int] = []

    @dramatiq.actor(broker=broker, actor_name="ok")
    def ok(number: int) -> None:
        ran.append(number)

    queue = broker.client.queue(broker.queue_of("default"))
    ids = queue.send_many([message for message, _ in MALFORMED])
    queue.send(FIELDS | {"args": [2], "options": {"eta": None, "max_retries": None}})
    consumer = broker.consume("default", prefetch=100, timeout=1000)
    good = next(consumer)  # type: ignore[call-overload]
    assert good.args == (2,)
    consumer.requeue([good])
    consumer.close()
    with working(broker) as worker:
        broker.join("default", timeout=MILLIS)
        worker.join()
    assert ran == [2]
    errors = {letter.id: letter.dead.error for letter in dead(broker)}
    assert len(errors) == len(ids)
    told = [(errors[id], why) for id, (_, why) in zip(ids, MALFORMED, strict=True)]
    assert [each for each in told if not each[0].startswith(each[1])] == []


def test_priorities_of_actors_and_messages(broker: MiniQBroker) -> None:
    ran: list[str] = []

    def actor(name: str, **options: Any) -> Any:
        return dramatiq.actor(lambda: ran.append(name), actor_name=name, broker=broker, **options)

    low, normal, high = actor("low", priority=100), actor("normal"), actor("high", priority=-1)
    urgent = actor("urgent", broker_priority=9)
    for each in (low, normal, high, urgent):
        each.send()
    low.send_with_options(broker_priority=8)
    priorities = [message.priority for message in broker.client.queue(broker.queue_of("default")).peek()]
    assert sorted(priorities) == [2, 5, 6, 8, 9]
    with working(broker, threads=1) as worker:
        broker.join("default", timeout=MILLIS)
        worker.join()
    assert sorted(ran) == ["high", "low", "low", "normal", "urgent"]
    consumer_order = [level(priority) for priority in (-1000, -1, 0, 1, 9, 10, 99, 100, 10**9)]
    assert consumer_order == [9, 6, 5, 4, 4, 3, 3, 2, 0]
    for wrong in (10, -1, "9", True):
        with pytest.raises(InvalidRequest, match=r"^broker_priority: "):
            normal.send_with_options(broker_priority=wrong)


def test_a_consumer_holds_no_more_than_its_prefetch_and_gives_back_the_rest(broker: MiniQBroker) -> None:
    broker.declare_queue("q")
    for number in range(10):
        broker.enqueue(Message("q", "a", (number,), {}, {}))
    consumer = broker.consume("q", prefetch=3, timeout=100)
    held = [next(consumer) for _ in range(3)]
    assert [message.args for message in held if message is not None] == [(0,), (1,), (2,)]
    assert next(consumer) is None
    assert leased(broker, "q") == 3
    consumer.ack(held[0])
    consumer.requeue([held[1]])
    again = next(consumer)
    assert again is not None
    assert again.args == (1,)
    consumer.nack(again)
    assert [letter.dead.error for letter in dead(broker, "q")] == ["failed without an exception"]
    consumer.close()
    consumer.requeue([message for message in held[2:] if message is not None])
    assert leased(broker, "q") == 0
    assert broker.count("q") == 8
    consumer.ack(broker_message())  # of nobody
    with pytest.raises(QueueNotFound):
        broker.consume("nowhere")


def broker_message() -> Any:
    return dramatiq.MessageProxy(Message("q", "a", (), {}, {}))


def test_a_consumer_is_woken_by_a_message(broker: MiniQBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.declare_queue("q")
    broker.client.queue(broker.queue_of("q")).configure()
    consumer = broker.consume("q", timeout=30_000)
    calls: list[Any] = []
    perform = broker.client.perform
    monkeypatch.setattr(broker.client, "perform", lambda call: [calls.append(call), perform(call)][1])
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(next(consumer)))
    thread.start()
    until(lambda: calls, "it does not receive")
    broker.enqueue(Message("q", "a", (), {}, {}))
    thread.join(PATIENCE)
    assert got[0].actor_name == "a"
    assert len(calls) == 1
    consumer.ack(got[0])


def test_queues_are_flushed_and_joined(broker: MiniQBroker) -> None:
    actor = dramatiq.actor(lambda: None, actor_name="a", broker=broker, queue_name="q")
    dramatiq.actor(lambda: None, actor_name="b", broker=broker)
    assert broker.get_declared_queues() == {"default", "q"}
    broker.join("q", timeout=100)  # it does not exist yet
    broker.flush("q")
    actor.send()
    actor.send_with_options(delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("q", timeout=50, interval=10)
    broker.flush_all()
    broker.join("q", timeout=MILLIS)
    for call in (broker.join, broker.flush):
        with pytest.raises(QueueNotFound):
            call("nowhere")


def test_middleware_works_as_with_other_brokers(served: Served) -> None:
    url = served.url
    limits = MiniQRateLimiterBackend(url)
    broker = MiniQBroker(
        url,
        namespace=f"t{uuid4().hex[:12]}",
        middleware=[AgeLimit(), TimeLimit(interval=50), Callbacks(), Pipelines(), Retries(max_retries=0)],
    )
    results = MiniQResultBackend(url)
    broker.add_middleware(Results(backend=results, store_results=True))
    broker.add_middleware(GroupCallbacks(limits))
    dramatiq.set_broker(broker)
    broker.emit_after("process_boot")  # which starts the clock of TimeLimit
    called = threading.Event()
    told: list[Any] = []

    @dramatiq.actor(broker=broker)
    def add(x: int, y: int) -> int:
        return x + y

    @dramatiq.actor(broker=broker, time_limit=200)
    def endless() -> None:
        try:
            for _ in range(100 * PATIENCE):
                time.sleep(0.01)
        except TimeLimitExceeded:
            told.append("late")
            raise

    @dramatiq.actor(broker=broker)
    def after() -> None:
        called.set()

    @dramatiq.actor(broker=broker)
    def failed(message: Any, error: Any) -> None:
        told.append(error["type"])

    try:
        with working(broker):
            assert (
                pipeline([add.message(1, 2), add.message(3), add.message(4)])
                .run()
                .get_result(block=True, timeout=MILLIS)
                == 10
            )
            many = group(add.message(number, number) for number in range(20))
            many.add_completion_callback(after.message())
            many.run()
            assert list(many.get_results(block=True, timeout=MILLIS)) == [2 * number for number in range(20)]
            assert called.wait(PATIENCE)
            endless.send_with_options(on_failure=failed)
            until(lambda: sorted(map(str, told)) == ["TimeLimitExceeded", "late"], "it was not stopped")
            old = add.message(1, 1).copy(options={"max_age": 1})
            time.sleep(0.01)
            broker.enqueue(old)
            with pytest.raises(ResultFailure):
                results.get_result(old, block=True, timeout=MILLIS)
    finally:
        broker.close()
        dramatiq.broker.global_broker = None


def test_results_are_waited_for_and_expire(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    results = MiniQResultBackend(served.url, queue="results-here")
    message: Message[Any] = Message("q", "a", (), {}, {})
    with pytest.raises(ResultMissing):
        results.get_result(message)
    with pytest.raises(ResultTimeout):
        results.get_result(message, block=True, timeout=50)
    calls: list[float] = []
    get = results._kept.get
    monkeypatch.setattr(results._kept, "get", lambda id, wait=0: [calls.append(wait), get(id, wait)][1])
    timer = threading.Timer(0.2, lambda: results.store_result(message, {"a": None}, 60_000))
    timer.start()
    assert results.get_result(message, block=True, timeout=MILLIS) == {"a": None}
    timer.join()
    assert len(calls) == 1  # it was woken
    results.store_result(message, None, 60_000)
    assert results.get_result(message) is None
    results.store_exception(message, ValueError("bad"), 100)
    with pytest.raises(ResultFailure, match="actor raised ValueError: bad"):
        results.get_result(message)
    time.sleep(0.11)
    with pytest.raises(ResultMissing):
        results.get_result(message)
    for wrong in ("x" * 1_100_000, float("nan")):
        results.store_result(message, wrong, 60_000)
        with pytest.raises(ResultFailure, match=r"result|JSON"):
            results.get_result(message)
    other = MiniQResultBackend(served.url, queue="results-here", encoder=PickleEncoder())
    other.store_result(message, {1, 2}, 60_000)
    assert other.get_result(message) == {1, 2}


def test_limits_hold_across_threads(served: Served) -> None:
    backend = MiniQRateLimiterBackend(served.url, queue=f"t{uuid4().hex[:12]}")
    running = most = 0
    lock = threading.Lock()
    passed: list[int] = []

    def work() -> None:
        nonlocal running, most
        while True:
            with ConcurrentRateLimiter(backend, "two", limit=2).acquire(raise_on_failure=False) as acquired:
                if acquired:
                    with lock:
                        running += 1
                        most = max(most, running)
                    time.sleep(0.01)
                    with lock:
                        running -= 1
                        passed.append(1)
                    return
            time.sleep(0.005)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (most, len(passed)) == (2, 8)
    barrier = Barrier(backend, "three", ttl=MILLIS)
    assert barrier.create(parties=3)
    assert not barrier.create(parties=3)
    assert [barrier.wait(block=False) for _ in range(2)] == [False, False]
    waiting = threading.Thread(target=lambda: passed.append(barrier.wait(timeout=MILLIS)))
    waiting.start()
    waiting.join(PATIENCE)
    assert passed[-1] is True


def test_a_broker_that_restarts_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    store = f"rocksdb:{tmp_path / 'data'}"
    began, over = threading.Event(), threading.Event()
    ran: list[int] = []

    with serving(store, 0, "--no-zmq") as first:
        port = first.port
        broker = MiniQBroker(first.url, retry=0, middleware=[])

        @dramatiq.actor(broker=broker)
        def work(number: int) -> None:
            if number == 0:
                began.set()
                assert over.wait(PATIENCE)
            ran.append(number)

        for number in range(10):
            work.send(number)
        worker = Worker(broker, worker_timeout=200, worker_threads=2)
        worker.start()
        assert began.wait(PATIENCE)
        first.stop(signal.SIGKILL)
        with pytest.raises(ConnectionClosed):
            work.send(10)
    over.set()  # its ack finds no broker, and is repeated
    until(lambda: 0 in ran, "it did not end")
    with serving(store, port, "--no-zmq"):
        work.send(11)
        until(lambda: set(ran) == {*range(10), 11}, "it does not go on")
        broker.join("default", timeout=MILLIS)
        worker.stop()
        assert ran.count(0) == 1
        broker.close()


def test_other_encoders_and_values_that_json_has_not(broker: MiniQBroker) -> None:
    got: list[Any] = []
    actor = dramatiq.actor(got.append, actor_name="a", broker=broker)
    actor.send(float("inf"))
    encoder = dramatiq.get_encoder()
    queue = broker.client.queue(broker.queue_of("default"))
    assert queue.peek()[0].content_type == "application/octet-stream"
    with working(broker) as worker:
        broker.join("default", timeout=MILLIS)
        worker.join()
    dramatiq.set_encoder(PickleEncoder())
    try:
        actor.send({1, 2})
        assert queue.peek()[0].content_type == "application/octet-stream"
        with working(broker) as worker:
            broker.join("default", timeout=MILLIS)
            worker.join()
    finally:
        dramatiq.set_encoder(encoder)
    assert got == [float("inf"), {1, 2}]
    actor.send("text")
    [message] = queue.peek()
    assert json.loads(message.data)["args"] == message.body["args"] == ["text"]


def test_wrong_arguments_are_told_at_once(served: Served) -> None:
    for given, field in (
        ({"url": "127.0.0.1:5000"}, "url"), ({"namespace": "a b"}, "namespace"), ({"colour": 1}, "colour"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest) as raised:
            MiniQBroker(**{"url": served.url} | given)
        assert raised.value.field == field
    broker = MiniQBroker(served.url, namespace="x" * 100)
    with pytest.raises(InvalidRequest, match=r"^queue_name: "):
        broker.declare_queue("y" * 100)
    assert MiniQBroker(served.url, namespace="").queue_of("q.DQ") == "q"


def test_a_key_that_may_only_receive_is_enough_for_workers(tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}", 0, "--no-zmq") as server:
        with miniq.connect(server.url) as mq:
            admin = mq.create_key("admin", ["admin"]).secret
        with miniq.connect(server.url, api_key=admin) as mq:
            keys = {each: mq.create_key(each, [f"{each}:dramatiq.*"]).secret for each in ("send", "receive")}
        sender = MiniQBroker(server.url, api_key=keys["send"])
        receiver = MiniQBroker(server.url, api_key=keys["receive"])
        ran: list[int] = []
        for broker in (sender, receiver):
            dramatiq.actor(ran.append, actor_name="a", broker=broker)
        sender.actors["a"].send(1)
        with working(receiver):
            until(lambda: ran == [1], "it did not run")
        for broker in (sender, receiver):
            broker.close()
