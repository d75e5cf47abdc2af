"""Results by the client and by tasks, blocking and async: in process, and on a server over HTTP and ZeroMQ."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import threading
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

import miniq
from miniq.client._sync.worker import Worker
from miniq.testing import drain
from miniq.worker.plan import Plan
from tests.acceptance.faces import Opener
from tests.kit import case


@pytest.fixture
def mq(opener: Opener, place: str) -> Any:
    opened = opener(place)
    opened.queue("sums").configure(results=60)
    return opened


def test_a_result_is_given_with_the_ack_and_asked_for_by_id(mq: Any) -> None:
    queue = mq.queue("sums")
    id = queue.send([1, 2])
    assert queue.result(id) == miniq.Result(id, "waiting")
    [message] = queue.receive()
    assert queue.result(id, wait=0.05).status == "running"
    assert message.ack(result={"sum": sum(message.body), "at": datetime.date(2026, 11, 18)})
    found = queue.result(id, wait=5)
    assert (found.id, found.status, found.error) == (id, "done", None)
    assert found.result == {"sum": 3, "at": "2026-11-18"}
    assert isinstance(found.finished_at, datetime.datetime)
    assert queue.result("never") == miniq.Result("never", "unknown")
    with pytest.raises(miniq.ResultsOff):
        mq.queue("default").result(id)


def test_a_result_of_ones_own_is_put_replaced_and_forgotten(mq: Any) -> None:
    queue, id = mq.queue("sums"), "0b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"
    assert queue.result(id, wait=0.01, unknown="wait").status == "unknown"
    assert queue.put_result(id, {"at": datetime.date(2026, 11, 18)}, final=False, ttl=30)
    found = queue.result(id, wait=0.01)
    assert (found.status, found.result) == ("running", {"at": "2026-11-18"})
    assert not queue.put_result(id, 1, new=True)
    assert queue.put_result(id, 2, replaces=found.finished_at)
    assert not queue.put_result(id, 3, replaces=found.finished_at)
    assert queue.result(id, wait=5, unknown="wait")[1:3] == ("done", 2)
    assert queue.put_result(id, ttl=0)
    assert queue.result(id).status == "unknown"
    for given, field in (
        ({"id": "x"}, "id"), ({"replaces": "now"}, "replaces"), ({"ttl": "1"}, "ttl"), ({"result": object()}, "result"),
        ({"final": 1}, "final"), ({"new": None}, "new"),
    ):  # fmt: skip
        with case(given), pytest.raises(miniq.InvalidRequest) as caught:
            queue.put_result(**{"id": id} | given)
        assert caught.value.field == field
    with pytest.raises(miniq.ResultsOff):
        mq.queue("default").put_result(id, 1)


def test_many_acks_have_many_results(mq: Any) -> None:
    queue = mq.queue("sums")
    ids = queue.send_many([1, 2, 3])
    messages = queue.receive(max=3)
    with pytest.raises(miniq.InvalidRequest, match="results: 2 for 3 messages"):
        queue.ack(messages, results=[1, 2])
    with pytest.raises(miniq.InvalidRequest, match="result: not a JSON value"):
        queue.ack(messages, results=[1, object(), 3])
    with pytest.raises(miniq.TooLarge, match=r"leases\[2\].result"):
        queue.ack(messages, results=[1, 2, "x" * 65536])
    with pytest.raises(miniq.TooLarge) as caught:
        messages[0].ack(result="x" * 70000)
    assert (caught.value.text, caught.value.field) == ("result: 70002 bytes; at most 65536 (64 KiB)", "result")
    assert queue.ack(messages, results=[10, None, [30]]) == ["done"] * 3
    assert [queue.result(id).result for id in ids] == [10, None, [30]]


def test_a_rejected_message_has_its_error(mq: Any) -> None:
    queue = mq.queue("sums")
    id = queue.send("bad")
    queue.receive()[0].fail("not numbers", dead=True)
    assert queue.result(id)[:4] == (id, "dead", None, "not numbers")


# Tasks


@dataclasses.dataclass
class Total:
    amount: int
    on: datetime.date


class Model(pydantic.BaseModel):
    name: str


@pytest.fixture
def app() -> Iterator[miniq.App]:
    with miniq.App("memory:") as app:
        yield app


def test_what_a_task_returns_is_the_result_of_its_job(app: miniq.App) -> None:
    @app.task(queue="sums", results=60)
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(queue="sums")
    async def total(amount: int) -> Total:
        return Total(amount, datetime.date(2026, 11, 18))

    @app.task(queue="sums")
    def model(name: str) -> Model:
        return Model(name=name)

    @app.task(queue="sums")
    def nothing() -> None:
        pass

    app.queue("sums").configure(results=60)
    first = add.send(1, b=2)
    with pytest.raises(miniq.ResultTimeout, match=r"task 'add' \(.*\) is still waiting$"):
        first.result()
    second, third, fourth = total.send(7), model.send("ann"), nothing.send()
    assert drain(app) == 4
    assert first.result(wait=1) == 3
    assert second.result() == Total(7, datetime.date(2026, 11, 18))
    assert third.result() == Model(name="ann")
    assert fourth.result() is None
    assert add.job(first.id).result() == 3
    assert asyncio.run(first.result_async(wait=1)) == 3


def test_a_task_that_failed_raises_its_error_and_one_that_is_forgotten_says_so(app: miniq.App) -> None:
    @app.task(queue="sums", results=60, max_receives=2, retry={"delay": 0, "jitter": 0})
    def divide(by: int) -> float:
        return 1 / by

    app.queue("sums").configure(results=60)
    job = divide.send(0)
    drain(app, raise_errors=False)
    with pytest.raises(
        miniq.TaskFailed, match=r"task 'divide' .* failed: ZeroDivisionError: division by zero"
    ) as raised:
        job.result(wait=1)
    assert "return 1 / by" in str(raised.value.error)
    with pytest.raises(miniq.NotFound, match="id: no result for task 'divide' with id 'never'"):
        divide.job("never").result(wait=1)
    with pytest.raises(miniq.InvalidRequest, match="wait"):
        job.result(wait=-1)
    app.queue("sums").configure(results=0)
    with pytest.raises(miniq.ResultsOff):
        job.result()


def test_a_result_that_cannot_be_kept_fails_the_task_for_good_where_results_are_kept(app: miniq.App) -> None:
    ran: list[str] = []

    @app.task(queue="sums")
    def odd(kind: str) -> Any:
        ran.append(kind)
        return object() if kind == "object" else "x" * 70_000 if kind == "large" else float("nan")

    for kind in ("object", "large", "nan"):
        odd.send(kind)
    assert drain(app) == 3  # nothing is kept, so nothing is wrong
    app.queue("sums").configure(results=60)
    jobs = {kind: odd.send(kind) for kind in ("object", "large", "nan")}
    assert drain(app, raise_errors=False) == 3
    assert ran == ["object", "large", "nan"] * 2  # each once: its work is done
    for kind, text in (("object", "not a JSON value"), ("large", "70002 bytes; at most 65536"), ("nan", "NaN")):
        with pytest.raises(miniq.TaskFailed, match=f"result: .*{text}.*; the task is done, but"):
            jobs[kind].result()


def test_a_worker_keeps_the_results_of_its_tasks(place: str) -> None:
    with miniq.App(place) as app:

        @app.task(queue="sums")
        def double(n: int) -> int:
            return 2 * n

        app.queue("sums").configure(results=60)
        jobs = [double.send(n) for n in range(50)]
        done = threading.Event()
        worker = Worker([app.source(app.queue("sums"), app.hooks())], Plan(concurrency=4, wait=1, stop=done))
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert [job.result(wait=20) for job in jobs] == [2 * n for n in range(50)]
        finally:
            done.set()
            thread.join()


def test_wrong_arguments_are_refused_in_the_same_words_everywhere(mq: Any) -> None:
    queue = mq.queue("sums")
    id = queue.send(1)
    seconds = "is not a number of seconds, such as 1.5"
    calls: dict[str, Any] = {
        f"wait: '1' {seconds}": lambda: queue.result(id, wait="1"),
        f"wait: true {seconds}": lambda: queue.receive(wait=True),
        f"delay: '5' {seconds}": lambda: queue.send(1, delay="5"),
        "priority: 'high' is not a whole number": lambda: queue.send(1, priority="high"),
        "max: '2' is not a whole number": lambda: queue.receive(max="2"),
        "limit: '2' is not a whole number": lambda: queue.peek(limit="2"),
        "group: 5 is not text": lambda: queue.send(1, group=5),
        "group: '' is empty; use at least one character": lambda: queue.send(1, group=""),
        "rate: 'x' is not a number of messages per second": lambda: queue.redrive(rate="x"),
        "result: NaN and infinity are not JSON values; use null or text": lambda: queue.receive()[0].ack(
            result=float("nan")
        ),
    }
    for text, call in calls.items():
        with pytest.raises(miniq.InvalidRequest) as caught:
            call()
        assert caught.value.text == text
    with pytest.raises(miniq.MessageNotFound) as missing:
        queue.result(None)
    assert missing.value.text == "id: null is not a message id"
