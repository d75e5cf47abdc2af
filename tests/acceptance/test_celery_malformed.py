"""A worker of Celery that gets messages which cannot be tasks: they become dead letters, and the worker goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Queue

import miniq
from tests.acceptance.celery_kit import environment, notes, until, working
from tests.serving import Served

TASK = "celery_tasks.add"
SIGNATURE = {"task": TASK, "args": [1], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}


def data(content: bytes, kind: str) -> dict[str, Any]:
    return {"body": content, "content_type": kind}


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


BODIES: dict[str, tuple[Any, str]] = {
    "null": (None, "body: null is not a list"),
    "number": (1, "body: 1 is not a list"),
    "text": ("xyz", "body: 'xyz' is not a list"),
    "empty": ([], "body: [] is not a list"),
    "mapping": ({}, "body: {} is not a list"),
    "two": ([[1], {}], "body: [[1], {}] is not a list"),
    "args": ([{}, {}, {}], "args: {} is not a list"),
    "kwargs": ([[], [], {}], "kwargs: [] is not a mapping"),
    "options": ([[], {}, []], "options: [] is not a mapping"),
    "callbacks": ([[1], {}, {"callbacks": 5}], "callbacks: 5 is not a list"),
    "callback": ([[1, 1], {}, {"callbacks": [1]}], "callbacks[0]: 1 is not a mapping"),
    "errback": ([[1], {}, {"errbacks": [{}]}], "errbacks[0].task: null is not the name"),
    "chain": ([[1, 1], {}, {"chain": [{"task": "nope"}]}], "chain[0].args: null is not a list"),
    "chord": ([[1, 1], {}, {"chord": 5}], "chord: 5 is not a mapping"),
    "group": (
        [[1, 1], {}, {"callbacks": [SIGNATURE | {"subtask_type": "group"}]}],
        "callbacks[0].kwargs.tasks: null is not a list",
    ),
    "deep": ([[deep(505), 1], {}, {}], "body: nested more than 300 levels"),
    "hybrid": ({"args": [], "kwargs": 5}, "kwargs: 5 is not a mapping"),
    "kind of signature": (
        [[1, 1], {}, {"callbacks": [SIGNATURE | {"subtask_type": "none"}]}],
        "callbacks[0].subtask_type: 'none' is not a kind",
    ),
}
HEADERS = {
    "timelimit": ("x", "timelimit: 'x' is not a list of two"),
    "retries": ("NaN", "retries: nan is not a whole number"),
    "eta": ("soon", "eta: 'soon' is not a moment"),
    "expires": ("", "expires: '' is not a moment"),
    "stamped_headers": ("5", "stamped_headers: 5 is not a list"),
    "mine": ("[" * 505 + "]" * 505, "headers: nested more than 300 levels"),
    "compression": ("zlib", "body: cannot be decoded"),
    "amqp-content-encoding": ("5", "body: cannot be decoded"),
}
OTHERS = {
    "no task": ({"body": [[], {}, {}]}, "task: missing"),
    "task of protocol 1": ({"body": {"task": [], "id": "i"}}, "task: [] is not the name"),
    "id of protocol 1": ({"body": {"task": TASK, "args": [1, 1]}}, "id: null is not text"),
    "pickle": (
        data(b"\x80\x04cposix\n", "application/x-python-serialize") | {"headers": {"task": TASK}},
        "body: cannot be decoded: ContentDisallowed",
    ),
    "bytes": (data(b"\xff\xfe", "application/octet-stream") | {"headers": {"task": TASK}}, "body: cannot be decoded"),
    "wrapped": (data(b'{"headers": 5}', "application/vnd.miniq.amqp+json"), "body: not a body of"),
    "unknown": ({"body": [[], {}, {}], "headers": {"task": "unknown"}}, "rejected by Celery"),
}
MALFORMED = {
    **{f"body {name}": ({"body": body, "headers": {"task": TASK}}, why) for name, (body, why) in BODIES.items()},
    **{
        f"header {name}": ({"body": [[1, 1], {}, {}], "headers": {"task": TASK, name: text}}, why)
        for name, (text, why) in HEADERS.items()
    },
    **OTHERS,
}


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_malformed_messages_are_dead_letters_with_the_reason_and_the_worker_goes_on(
    server: Served, tmp_path: Path, pool: str
) -> None:
    queue = f"malformed-{pool}"
    env = environment(f"miniq://127.0.0.1:{server.port}", tmp_path / "notes", task_default_queue=queue)
    with miniq.connect(server.url) as mq, working(env, "-P", pool, "-c", "1") as worker:
        source = mq.queue(queue)
        ids = {name: source.send(**message) for name, (message, _) in MALFORMED.items()}
        source.send([[1000, 1], {}, {}], headers={"task": TASK, "id": "5", "timelimit": "[null, 60]"})
        source.send({"task": TASK, "id": "one", "args": [2000, 1], "kwargs": {}})
        source.send({"args": [3000], "kwargs": {"y": 1}}, headers={"task": TASK})
        good = [1001, 2001, 3001]
        until(
            lambda: set(good) <= {note["of"] for note in notes(env, "added")} or worker.process.poll() is not None,
            lambda: worker.output,
        )
        assert worker.process.poll() is None, worker.output
        dead = mq.queue(f"{queue}.dead")
        letters = until(lambda: source.info().counts.total == 0 and {each.id: each for each in dead.peek(limit=100)})
        assert worker.stop() == 0
    assert ids.keys() == {name for name, id in ids.items() if id in letters}
    reasons = {name: letters[id].dead for name, id in ids.items()}
    assert {name: dead.reason for name, dead in reasons.items()} == dict.fromkeys(MALFORMED, "rejected")
    wrong = {name: dead.error for name, dead in reasons.items() if not dead.error.startswith(MALFORMED[name][1])}
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("module", ["celery.worker.consumer", "program"])
def test_only_a_worker_of_celery_is_kept_from_what_a_message_causes(server: Served, module: str) -> None:
    name = f"raises-{module}"

    def take(message: Any) -> None:
        raise ValueError("it cannot be read")

    take.__module__ = module
    is_worker = module != "program"
    with miniq.connect(server.url) as mq, Connection(f"miniq://127.0.0.1:{server.port}") as connection:
        mq.queue(name).send(1)
        with connection.Consumer(Queue(name), on_message=take):
            if not is_worker:
                with pytest.raises(ValueError, match="it cannot be read"):
                    connection.drain_events(timeout=30)
                return
            connection.drain_events(timeout=30)
            [letter] = until(lambda: mq.queue(name).info().counts.total == 0 and mq.queue(f"{name}.dead").peek())
    assert letter.dead.reason == "rejected"
    assert letter.dead.error.startswith("ValueError: it cannot be read\n")


def test_what_only_says_that_it_is_wrapped_is_a_dead_letter_for_every_program(server: Served) -> None:
    with miniq.connect(server.url) as mq, Connection(f"miniq://127.0.0.1:{server.port}") as connection:
        mq.queue("wrapped").send(b"{}", content_type="application/vnd.miniq.amqp+json")
        mq.queue("wrapped").send("good")
        queue = Queue("wrapped", channel=connection.default_channel)
        message = queue.get()
        assert message is not None
        assert message.body == b'"good"'
        message.ack()
        [letter] = until(lambda: mq.queue("wrapped").info().counts.total == 0 and mq.queue("wrapped.dead").peek())
    assert letter.dead.error.startswith("body: not a body of application/vnd.miniq.amqp+json")
