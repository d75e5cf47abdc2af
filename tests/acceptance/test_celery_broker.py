"""What programs ask of a broker through Celery and kombu: exchanges, queue arguments, TLS, commands, idle workers, cut
connections."""

from __future__ import annotations

import importlib
import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery

import miniq
import miniq.celery.registration
from tests.acceptance.celery_kit import HERE, Worker, call, environment, notes, until, working
from tests.acceptance.client_wires import Cut, Proxy
from tests.certificate import write_certificate
from tests.serving import Served, serving

kombu: Any = importlib.import_module("kombu")  # it has no types
Env = dict[str, str]
NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"broker{next(NUMBERS)}"


@pytest.fixture
def connection(server: Served) -> Iterator[Any]:
    with kombu.Connection(server.url.replace("http://", "miniq://")) as opened:
        yield opened


def taken(queue: Any) -> list[Any]:
    """The bodies of what waits in a queue, which are acked."""
    bodies = []
    while (message := queue.get()) is not None:
        bodies.append(message.payload)
        message.ack()
    return bodies


def publish(connection: Any, exchange: Any, *keys: str) -> None:
    """Send to each routing key a message that says it."""
    producer = connection.Producer(exchange=exchange)
    for key in keys:
        producer.publish(key, routing_key=key)


@pytest.mark.parametrize(
    ("kind", "bindings", "expected"),
    [
        ("direct", {"a": ["red", "green"], "b": ["green"]}, {"a": ["red", "green"], "b": ["green"]}),
        ("fanout", {"a": [""], "b": ["ignored"]}, {"a": ["red", "green", "x.red"], "b": ["red", "green", "x.red"]}),
        ("topic", {"a": ["*.red", "green"], "b": ["#.red"]}, {"a": ["green", "x.red"], "b": ["red", "x.red"]}),
    ],
)
def test_an_exchange_routes_as_its_type_says(
    connection: Any, name: str, kind: str, bindings: dict[str, list[str]], expected: dict[str, list[str]]
) -> None:
    exchange = kombu.Exchange(name, kind, channel=connection.default_channel)
    exchange.declare()
    queues = {}
    for queue, keys in bindings.items():
        queues[queue] = kombu.Queue(f"{name}-{queue}", channel=connection.default_channel)
        queues[queue].declare()
        for key in keys:
            queues[queue].bind_to(exchange, routing_key=key)
    publish(connection, exchange, "red", "green", "x.red")
    assert {queue: taken(found) for queue, found in queues.items()} == expected
    queues["a"].unbind_from(exchange, routing_key=bindings["a"][-1])
    publish(connection, exchange, "green")
    assert (taken(queues["a"]), taken(queues["b"])) == ([], ["green"] if kind != "topic" else [])


def test_a_consumer_of_an_exchange_gets_what_is_published_while_it_listens(connection: Any, name: str) -> None:
    exchange, seen = kombu.Exchange(name, "topic"), list[Any]()
    queues = [kombu.Queue(f"{name}-{key}", exchange, key, auto_delete=True) for key in ("eu.#", "*.created")]
    consumer = kombu.Consumer(connection.channel(), queues, on_message=seen.append, no_ack=True)
    with consumer:
        publish(connection, exchange, "eu.created", "us.created", "eu.a.b", "us.deleted")
        for _ in range(4):
            connection.drain_events(timeout=30)
    keys = sorted((message.delivery_info["routing_key"], message.delivery_info["exchange"]) for message in seen)
    assert keys == [("eu.a.b", name), ("eu.created", name), ("eu.created", name), ("us.created", name)]


def test_arguments_of_a_queue_act_on_its_messages(connection: Any, server: Served, name: str) -> None:
    arguments = {
        "x-max-priority": 10,
        "x-message-ttl": 60_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{name}.failed",
    }
    queue = kombu.Queue(name, queue_arguments=arguments, channel=connection.default_channel)
    queue.declare()
    brief = kombu.Queue(f"{name}-brief", message_ttl=1.0, max_priority=5, channel=connection.default_channel)
    brief.declare()
    producer = connection.Producer()
    producer.publish("soon gone", routing_key=brief.name)
    for priority in (1, 9, 5):
        producer.publish(priority, routing_key=name, priority=priority)
    first = queue.get()
    assert first.payload == 9
    first.reject()
    assert taken(queue) == [5, 1]
    with miniq.connect(server.url) as mq:
        settings = mq.queue(name).info().settings
        assert (settings.retention, settings.dead_letter_queue) == (60, f"{name}.failed")
        [dead] = until(mq.queue(f"{name}.failed").peek if f"{name}.failed" in names(mq) else list)
        assert (dead.body, dead.dead.origin, dead.dead.reason) == (9, name, "rejected")
        until(lambda: mq.queue(brief.name).info().counts.total == 0)
    assert brief.get() is None


def names(mq: miniq.Client) -> list[str]:
    return [info.name for info in mq.queues()]


def test_tls_with_certificates_in_broker_use_ssl(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    files = [
        f"--tls-{what}={tmp_path / file}.pem" for what, file in (("cert", "cert"), ("key", "key"), ("client-ca", "ca"))
    ]
    tls = {"ca_certs": str(tmp_path / "ca.pem"), "certfile": str(tmp_path / "client.pem"), "cert_reqs": "CERT_REQUIRED"}
    with serving("memory:", 0, *files) as served:

        def app(**options: Any) -> Celery:
            made = Celery(broker=f"miniqs://127.0.0.1:{served.port}", set_as_current=False, broker_use_ssl=options)
            made.conf.broker_transport_options = {"retry": 0.0}
            return made

        good = app(**tls)
        good.send_task("shop.add", (1, 2))
        with good.connection_for_read() as connection:
            message = connection.SimpleQueue("celery").get(timeout=30)
            assert (message.headers["task"], message.payload[0]) == ("shop.add", [1, 2])
            message.ack()
        for missing, fault in (("ca_certs", "is not trusted"), ("certfile", "client_cert")):
            bad = app(**{option: value for option, value in tls.items() if option != missing})
            with bad.connection_for_write() as connection, pytest.raises(miniq.MiniQError, match=fault):
                connection.connect()


# A worker behind a proxy, which sees and cuts its connections


class Behind(NamedTuple):
    worker: Worker
    proxy: Proxy
    env: Env


@pytest.fixture(scope="module")
def behind(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp("behind")
    conf = {"task_default_queue": "behind", "worker_prefetch_multiplier": 1}
    env = environment(server.url.replace("http://", "miniq://"), folder / "notes", {"lease": 2}, **conf)
    proxy = Proxy(server.url)
    with proxy:
        through = env | {"BROKER": proxy.url.replace("http://", "miniq://")}
        flags = ("-c", "1", "-E", "--without-gossip", "--without-mingle", "--without-heartbeat", "--hostname=w@here")
        with working(through, *flags) as worker:
            yield Behind(worker, proxy, env)


def test_an_idle_worker_waits_in_long_polls(behind: Behind, server: Served) -> None:
    call(behind.env, "add.delay(1, 0)")
    until(lambda: notes(behind.env, "added"))
    with miniq.connect(server.url) as mq:
        until(lambda: mq.queue("behind").info().counts.total == 0)
        before = len(behind.proxy.asked)
        for number in range(300):
            mq.queue("elsewhere").send(number)
        meanwhile = behind.proxy.asked[before:]
    assert len(meanwhile) <= 2, meanwhile
    assert all(b'"wait":20.0' in request for request in behind.proxy.asked if b"/receive " in request)


def test_the_commands_status_and_events_see_the_worker(behind: Behind, server: Served, tmp_path: Path) -> None:
    celery = [sys.executable, "-m", "celery", "-A", "celery_tasks"]
    status = subprocess.run(
        [*celery, "status", "--destination", "w@here", "--timeout", "60"],
        cwd=HERE, env=behind.env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (status.returncode, "w@here" in status.stdout, "1 node online" in status.stdout) == (0, True, True), status
    shown = tmp_path / "events"
    with shown.open("w") as output:
        dump = subprocess.Popen([*celery, "events", "--dump"], cwd=HERE, env=behind.env, stdout=output)
    try:
        with miniq.connect(server.url) as mq:
            until(lambda: [topic for topic in mq.topics() if topic.name == "celeryev" and topic.subscriptions])
        call(behind.env, "add.delay(20, 3)")
        until(lambda: "task succeeded: celery_tasks.add" in shown.read_text(), shown.read_text)
    finally:
        dump.send_signal(signal.SIGINT)
        dump.wait(60)
    assert re.findall(r"task (received|started|succeeded): celery_tasks\.add", shown.read_text()) == [
        "received",
        "started",
        "succeeded",
    ]


def test_a_connection_that_is_cut_loses_no_task_and_repeats_none(behind: Behind, server: Served) -> None:
    env, proxy = behind.env, behind.proxy
    proxy.drop_all()  # while it waits in long polls
    call(env, "late.delay(1, 0.5)")
    until(lambda: [note for note in notes(env, "began") if note["number"] == 1])
    proxy.drop_all()
    proxy.cuts = [Cut(request=10), Cut(answer=10), Cut(request=300)]  # and again, in the middle of what follows
    call(env, "for n in range(2, 6): late.delay(n, 0)")
    until(lambda: len(notes(env, "ended")) == 5, lambda: behind.worker.output)
    with miniq.connect(server.url) as mq:
        until(lambda: mq.queue("behind").info().counts.total == 0)
    assert not proxy.cuts
    assert sorted(note["number"] for note in notes(env, "began")) == [1, 2, 3, 4, 5]
