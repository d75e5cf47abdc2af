"""`kill -9` of a broker while consumers ack with results: a message has left exactly if its result is there."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import miniq
from tests.conftest import ENGINES, store_url
from tests.faults.rig import Server

ROUNDS = 3
CONSUMERS = 4


class Consumer(threading.Thread):
    """Acks with results, until the broker dies."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self._url = url
        self._name = name
        self.acked: dict[str, str] = {}
        """Confirmed, with the result."""
        self.doubtful: dict[str, str] = {}
        """Asked for, and not answered."""

    def run(self) -> None:
        try:
            with miniq.connect(self._url, retry=0) as mq:
                queue = mq.queue("work")
                while True:
                    messages = queue.receive(max=5, wait=1, visibility_timeout=600)
                    results = {message.id: f"{self._name} {message.id}" for message in messages}
                    self.doubtful = results
                    outcomes = queue.ack(messages, results=list(results.values())) if messages else []
                    assert set(outcomes) <= {"done"}
                    self.acked |= results
                    self.doubtful = {}
        except (miniq.StoreUnavailable, miniq.Closed):
            pass


@pytest.mark.parametrize("kind", [*ENGINES, "postgresql", "mongodb"])
def test_an_ack_and_its_result_are_there_together_or_not_at_all(kind: str, tmp_path: Path) -> None:
    server = Server(store_url(kind, tmp_path))
    try:
        assert sum(killed(server, number) for number in range(ROUNDS)) >= 50 * ROUNDS
    finally:
        server.stop()


def killed(server: Server, number: int) -> int:
    """Kill the broker under load, start it again, and look at all that was asked for; how many acks were confirmed."""
    server.start()
    with miniq.connect(server.url) as mq:
        queue = mq.queue("work")
        queue.configure(results=3600)
        sent = [id for _ in range(20) for id in queue.send_many(range(100))]
        consumers = [Consumer(server.url, f"{number}-{place}") for place in range(CONSUMERS)]
        for consumer in consumers:
            consumer.start()
        while sum(len(consumer.acked) for consumer in consumers) < 50:
            time.sleep(0.001)
        time.sleep(random.Random(number).uniform(0, 0.1))
    server.stop()
    for consumer in consumers:
        consumer.join()
    server.start()
    with miniq.connect(server.url) as mq:
        queue = mq.queue("work")
        for consumer in consumers:
            for id, result in consumer.acked.items():
                assert queue.result(id)[1:3] == ("done", result)
            for id, result in consumer.doubtful.items():
                found = queue.result(id)
                assert (found.status, found.result) in (("done", result), ("running", None))
        known = {id for consumer in consumers for id in (*consumer.acked, *consumer.doubtful)}
        for id in [id for id in sent if id not in known][:50]:
            assert queue.result(id).status in ("waiting", "running")
        queue.purge()
    server.stop()
    return sum(len(consumer.acked) for consumer in consumers)
