"""Programs that speak Amazon SQS and SNS, as they are, against a real server."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import store_url
from tests.node import PACKAGES, node
from tests.serving import Served, serving
from tests.sqs import client

PATIENCE = 120
"""Seconds that something may take on a machine that is busy with other things."""
ROOT = Path(__file__).parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "thing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(f"rocksdb:{tmp_path_factory.mktemp('sqs') / 'data'}", 0, "--no-zmq") as server:
        yield server


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# boto3


@pytest.mark.parametrize("kind", ["rocksdb", "postgresql", "mongodb"])
def test_boto3_publishes_and_consumes_on_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with serving(store_url(kind, tmp_path), 0, "--no-zmq") as server:
        sqs, sns = client(server.url), client(server.url, service="sns")
        topic = sns.create_topic(Name="orders")["TopicArn"]
        urls = {}
        for name, policy in (("all", {}), ("large", {"total": [{"numeric": [">=", 50]}]})):
            urls[name] = sqs.create_queue(QueueName=name)["QueueUrl"]
            arn = sqs.get_queue_attributes(QueueUrl=urls[name], AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            attributes = {"FilterPolicy": json.dumps(policy), "FilterPolicyScope": "MessageBody"}
            sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)

        def publish(start: int) -> None:
            entries = [{"Id": str(n), "Message": json.dumps({"total": n})} for n in range(start, start + 10)]
            reply = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
            assert (len(reply["Successful"]), reply["Failed"]) == (10, [])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(publish, range(0, 100, 10)))
            consumed = {name: sorted(threads.submit(consume, sqs, url).result()) for name, url in urls.items()}
        assert consumed == {"all": list(range(100)), "large": list(range(50, 100))}
        for url in urls.values():
            counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def consume(sqs: Any, url: str) -> list[int]:
    """The totals in the notifications of a queue, which is empty afterwards."""
    totals: list[int] = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        totals += [json.loads(json.loads(message["Body"])["Message"])["total"] for message in messages]
        entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
        assert "Failed" not in sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    return totals


# The aws command line


def test_the_aws_command_line_creates_sends_receives_and_publishes(served: Served) -> None:
    def aws(*arguments: str) -> Any:
        command = [Path(sys.executable).with_name("aws"), "--endpoint-url", served.url, "--output", "json", *arguments]
        done = subprocess.run(command, env={**os.environ, **KEYS}, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    url = aws("sqs", "create-queue", "--queue-name", "cli", "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    topic = aws("sns", "create-topic", "--name", "cli", "--tags", "Key=team,Value=a")["TopicArn"]
    arn = aws("sqs", "get-queue-attributes", "--queue-url", url, "--attribute-names", "QueueArn")["Attributes"][
        "QueueArn"
    ]
    to = ("--topic-arn", topic)
    aws(
        "sns",
        "subscribe",
        *to,
        "--protocol",
        "sqs",
        "--notification-endpoint",
        arn,
        "--attributes",
        "RawMessageDelivery=true",
    )
    attributes = '{"color": {"DataType": "String", "StringValue": "red"}}'
    sent = aws("sns", "publish", *to, "--message", "hello ü", "--message-attributes", attributes)
    received = aws("sqs", "receive-message", "--queue-url", url, "--message-attribute-names", "All")
    (message,) = received["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello ü")
    assert message["MessageAttributes"]["color"]["StringValue"] == "red"
    aws("sqs", "delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])


# JavaScript


def test_sqs_consumer_handles_messages_and_repeats_one_that_failed(served: Served, tmp_path: Path) -> None:
    program, _ = node("sqs-consumer")
    shutil.copytree(Path(__file__).with_name("node"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    done = subprocess.run(
        [program, "consume.js", served.url], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    assert sorted(reply["handled"]) == sorted([["last", "größe"], *([f"message {n}", None] for n in range(10))])
    assert (reply["failures"], reply["left"]) == (["message 3"], 0)


# Celery and Dramatiq


@contextlib.contextmanager
def worker(log: Path, environment: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as a process of its own, which is killed at the end with all processes that it has started."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)


def is_empty(served: Served, queue: str) -> bool:
    names = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ]
    counts = client(served.url).get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return set(counts.values()) == {"0"}


def done(folder: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in folder.glob("done-*")}


@pytest.fixture
def tasks(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], tuple[Any, dict[str, str]]]:
    """Imports a module of tasks, and says in which environment its workers run."""

    def load(name: str, broker: str) -> tuple[Any, dict[str, str]]:
        environment = {"MINIQ_TEST_BROKER": broker, "MINIQ_TEST_FOLDER": str(tmp_path), **KEYS}
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        return importlib.import_module(f"tests.acceptance.{name}"), environment

    return load


def test_celery_runs_its_tasks_retries_them_and_survives_a_killed_worker(
    served: Served, tmp_path: Path, tasks: Callable[[str, str], tuple[Any, dict[str, str]]]
) -> None:
    module, environment = tasks("sqs_tasks", f"sqs://any:thing@127.0.0.1:{served.port}//")
    command = ("celery", "-A", "tests.acceptance.sqs_tasks", "worker", "--pool=solo", "--loglevel=INFO")
    log = tmp_path / "log"
    with module.app.connection_for_write() as connection, connection.Producer() as producer:
        module.slow.apply_async((1000,), producer=producer)
        with worker(log, environment, *command) as process:
            until((tmp_path / "tried-1000").exists, "the slow task was not started")
            process.kill()
        for number in range(200):
            module.work.apply_async((number,), producer=producer)
        for number in range(200, 205):
            module.flaky.apply_async((number,), producer=producer)
        module.work.apply_async((205,), countdown=2, producer=producer)
    with worker(log, environment, *command):
        expected = {*range(206), 1000}
        until(lambda: done(tmp_path) == expected, f"not all tasks were done: {log}")
        until(lambda: is_empty(served, "celery-tasks"), "messages were left")


def test_dramatiq_runs_its_actors_and_retries_them(
    served: Served, tmp_path: Path, tasks: Callable[[str, str], tuple[Any, dict[str, str]]]
) -> None:
    module, environment = tasks("sqs_actors", served.url)
    for number in range(50):
        module.work.send(number)
    command = ("dramatiq", "tests.acceptance.sqs_actors", "--processes", "1", "--threads", "2")
    with worker(tmp_path / "log", environment, *command) as process:
        until(lambda: done(tmp_path) == set(range(50)), "not all actors ran")
        until(lambda: is_empty(served, "dramatiq_default"), "messages were left")
        process.terminate()
        process.wait(PATIENCE)
    assert {path.name for path in tmp_path.glob("tried-*")} == {f"tried-{number}" for number in range(0, 50, 10)}
