"""A broker on MongoDB over HTTP, against one on PostgreSQL and a plain collection: `python -m bench.mongodb`.

The collection is the usual hand-written queue: one document per job, `insert_many`, then `find_one_and_update` by a
visibility timestamp and `delete_many`, through pymongo, acknowledged by a majority and the journal. All three alternate
on the same machine with the same bodies of 1 KB, in batches of 100; MiniQ through its broker and the Python client.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pymongo import MongoClient, ReturnDocument
from pymongo.write_concern import WriteConcern

import miniq
from bench.core import Samples, receive_sync, send_sync
from bench.postgres import BATCH, TEXT, broker
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from tests import postgresql
from tests.mongod import Mongod

SLICES, BATCHES = 4, 4
TARGETS = {("send", "PostgreSQL"): 0.3, ("receive + ack", "PostgreSQL"): 0.3}
TARGETS |= {("send", "a collection"): 1.0, ("receive + ack", "a collection"): 1.0}
VERBS = ("send", "receive + ack")


class Collection:
    """A hand-written queue."""

    def __init__(self, url: str) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(url)
        sure = WriteConcern("majority", j=True)
        self._jobs = self._client.bench.get_collection("jobs", write_concern=sure)
        self._jobs.create_index({"visible_at": 1, "_id": 1})
        self._body = f'"{TEXT}"'.encode()

    def send(self, batches: int) -> float:
        started = time.perf_counter()
        for _ in range(batches):
            self._jobs.insert_many([{"body": self._body, "visible_at": 0.0, "receives": 0} for _ in range(BATCH)])
        return time.perf_counter() - started

    def receive(self, batches: int) -> float:
        started = time.perf_counter()
        for _ in range(batches):
            jobs = []
            for _ in range(BATCH):
                now = time.time()
                job = self._jobs.find_one_and_update(
                    {"visible_at": {"$lte": now}},
                    {"$set": {"visible_at": now + 30}, "$inc": {"receives": 1}},
                    sort=[("visible_at", 1), ("_id", 1)],
                    return_document=ReturnDocument.AFTER,
                )
                assert job is not None
                jobs.append(job["_id"])
            self._jobs.delete_many({"_id": {"$in": jobs}})
        return time.perf_counter() - started

    def close(self) -> None:
        self._client.close()


def one_client(mongodb: str, postgres: str, rounds: int) -> Samples:
    """One client of each, alternating."""
    samples: Samples = defaultdict(list)
    collection = Collection(mongodb)
    with (
        broker(f"{mongodb}/miniq") as ours,
        broker(f"{postgres}?schema=bench") as theirs,
        miniq.connect(ours) as mq,
        miniq.connect(theirs) as other,
    ):
        queues = {"ours": mq.queue("bench"), "PostgreSQL": other.queue("bench")}
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}" if number else "warming up")
            seconds: dict[tuple[str, str], float] = defaultdict(float)
            for _ in range(SLICES):
                seconds["send", "a collection"] += collection.send(BATCHES)
                for name, queue in queues.items():
                    seconds["send", name] += send_sync(queue, BATCH, BATCHES, 1, TEXT)
                seconds["receive + ack", "a collection"] += collection.receive(BATCHES)
                for name, queue in queues.items():
                    seconds["receive + ack", name] += receive_sync(queue, BATCH, BATCHES, 1)
            for verb in VERBS:
                messages = SLICES * BATCHES * BATCH
                for name in ("ours", "PostgreSQL", "a collection"):
                    samples["rate", verb, name].append(messages / seconds[verb, name])
                    samples["ratio", verb, name].append(seconds[verb, name] / seconds[verb, "ours"])
            if not number:
                samples.clear()
    collection.close()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mongodb", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds (10)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    with scratch(options.dir) as folder, postgresql.running("shared_buffers = '256MB'", Path(folder)) as server:
        mongod = Mongod(folder=Path(folder))
        try:
            samples = one_client(mongod.url, server.uri, rounds)
        finally:
            mongod.remove()
    rows = [
        Figure(
            name=f"{verb} x{BATCH} against {name}",
            value=spread(samples["ratio", verb, name]),
            unit="ratio",
            rate=spread(samples["rate", verb, "ours"]),
            target=target,
        )
        for (verb, name), target in TARGETS.items()
    ]
    rows += [
        Figure(name=f"{name}: {verb}", value=spread([1.0]), unit="ratio", rate=spread(samples["rate", verb, name]))
        for verb, name in TARGETS
    ]
    show("One Python client over HTTP; value: ratio of a broker on MongoDB to the others", rows)
    about = {"bench": "mongodb", "rounds": rounds, "quick": options.quick, "body_bytes": 1024}
    save(result_path("mongodb", options.quick), about, rows)


if __name__ == "__main__":
    main()
