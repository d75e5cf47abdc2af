"""Speed of the pipelines on Spark: `python -m bench.spark`. The server is a process of its own, on RocksDB with fsync.

Ingest (a DataFrame into a queue), drain (a queue into Parquet files) and archive (the history into the lake), end to
end with 200-byte bodies, through Arrow as MiniQ does it; and ingest and drain the obvious way beside them, in turns:
partitions that call the HTTP client in JSON, a thousand messages at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

import miniq
from bench.core import Seen
from bench.http import server
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from miniq.spark import session
from miniq.spark.pipelines import Run, archive, drain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY = 200
TARGETS = {"ingest": 60_000.0, "drain": 60_000.0, "archive": 100_000.0}
BATCH = 1000
PARTS = 2


def orders(spark: SparkSession, many: int) -> DataFrame:
    """Bodies of 200 bytes: JSON objects with a number and a text."""
    head = "concat('{\"n\":', lpad(id, 10, '1'), ',\"text\":\"')"
    fill = BODY - len('{"n":1111111111,"text":""}')
    return spark.range(0, many, 1, PARTS).selectExpr(f"concat({head}, repeat('x', {fill}), '\"}}') as body")


class Obvious:
    """What one would write without `format("miniq")`: tasks that call the client, batch by batch, in JSON."""

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue

    def send(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        many = 0
        with miniq.connect(self._url) as client:
            queue = client.queue(self._queue)
            for batch in batches:
                bodies = batch.column(0).to_pylist()
                for start in range(0, len(bodies), BATCH):
                    some = bodies[start : start + BATCH]
                    queue.send_many([miniq.draft(body.encode(), content_type="application/json") for body in some])
                    many += len(some)
        yield pa.RecordBatch.from_pydict({"many": [many]})

    def receive(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with miniq.connect(self._url) as client:
                queue = client.queue(self._queue)
                while some := queue.receive(max=BATCH, visibility_timeout=600):
                    yield pa.RecordBatch.from_pydict(
                        {
                            "id": [message.id for message in some],
                            "body": [message.data.decode() for message in some],
                            "sent_at": pa.array([message.sent_at for message in some], pa.timestamp("us", "UTC")),
                        }
                    )
                    queue.ack(some)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Bench:
    """One broker and one session; each figure on a queue of its own."""

    def __init__(self, spark: SparkSession, url: str, folder: str, many: int) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._many = many
        self._rounds = 0
        self.seen: Seen = defaultdict(list)

    def round(self, counts: bool) -> None:
        """Every figure once, ours and the obvious way in turns, the first one in front every second time."""
        self._rounds += 1
        ways = [("arrow", self._arrow), ("obvious", self._obvious)]
        for name, way in ways if self._rounds % 2 else ways[::-1]:
            sent, taken = way(f"{name}-{self._rounds}")
            if counts:
                self.seen["ingest", name].append(self._many / sent)
                self.seen["drain", name].append(self._many / taken)
        seconds, records = self._archive()
        if counts:
            self.seen["archive", "arrow"].append(records / seconds)

    def _arrow(self, queue: str) -> tuple[float, float]:
        rows = orders(self._spark, self._many)
        sent = timed(rows.write.format("miniq").mode("append").options(url=self._url, queue=queue).save)
        self._check(queue, self._many)
        out = os.path.join(self._folder, queue)
        options = {"maxMessagesPerBatch": str(max(1, self._many // 4)), "partitions": str(PARTS)}
        options["maxBytesPerBatch"] = str(2**30)
        run = Run(url=self._url, options=options)
        taken = timed(lambda: drain(self._spark, queue, out, run=run))
        self._check(queue, 0)
        assert self._spark.read.parquet(out).count() == self._many
        return sent, taken

    def _obvious(self, queue: str) -> tuple[float, float]:
        way = Obvious(self._url, queue)
        rows = orders(self._spark, self._many)
        sent = timed(lambda: rows.mapInArrow(way.send, "many bigint").collect())
        self._check(queue, self._many)
        out = os.path.join(self._folder, queue)
        readers = self._spark.range(0, PARTS, 1, PARTS)
        found = readers.mapInArrow(way.receive, "id string, body string, sent_at timestamp")
        taken = timed(lambda: found.write.parquet(out))
        self._check(queue, 0)
        return sent, taken

    def _archive(self) -> tuple[float, int]:
        """The history of messages that were sent to a queue which keeps it."""
        queue = f"history-{self._rounds}"
        with miniq.connect(self._url) as client:
            client.queue(queue).configure(history="events")
            before = client.history(limit=1).last
        rows = orders(self._spark, self._many)
        rows.write.format("miniq").mode("append").options(url=self._url, queue=queue).save()
        with miniq.connect(self._url) as client:
            records = client.history(limit=1).last - before
            client.queue(queue).purge()
        lake = os.path.join(self._folder, queue)
        # The first run begins where the history of earlier rounds ends.
        options = {"startingOffset": str(before + 1), "partitions": str(PARTS)}
        return timed(lambda: archive(self._spark, lake, run=Run(url=self._url, options=options))), records

    def _check(self, queue: str, wanted: int) -> None:
        with miniq.connect(self._url) as client:
            found = client.queue(queue).info().counts.total
        assert found == wanted, f"{queue} holds {found} messages, not {wanted}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages a round (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (3)")
    parser.add_argument("--quick", action="store_true", help="one round of 50,000, to see that it works")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    many, rounds = (50_000, 1) if options.quick else (options.messages, options.rounds)
    with scratch(options.dir) as folder, server(folder) as url:
        began = time.perf_counter()
        spark = session("local[2]", config={"spark.driver.memory": "3g"})
        started = time.perf_counter() - began
        spark.range(1).count()
        first = time.perf_counter() - began
        bench = Bench(spark, url, folder, many)
        progress("Spark: warming up")
        Bench(spark, url, os.path.join(folder, "warm"), min(many, 200_000)).round(counts=False)
        for number in range(rounds):
            progress(f"Spark: round {number + 1} of {rounds}")
            bench.round(counts=True)
        spark.stop()
    rows = figures(bench.seen)
    rows.append(Figure(name="start of a session", value=spread([started]), unit="s"))
    rows.append(Figure(name="start and a first job", value=spread([first]), unit="s"))
    show(f"{many:,} messages of {BODY} bytes; value: ratio to the obvious way in the same round", rows)
    about = {"bench": "spark", "rounds": rounds, "quick": options.quick, "messages": many, "body_bytes": BODY}
    save(result_path("spark", options.quick), about, rows)
    if any(figure.verdict == "missed" for figure in rows):
        sys.exit(1)


def figures(seen: Seen) -> list[Figure]:
    found = []
    for name in ("ingest", "drain"):
        ratios = [ours / theirs for ours, theirs in zip(seen[name, "arrow"], seen[name, "obvious"], strict=True)]
        found.append(
            Figure(name=f"{name}, Arrow", value=spread(ratios), unit="ratio", rate=spread(seen[name, "arrow"]))
        )
        found.append(
            Figure(
                name=f"{name}, the obvious way", value=spread([1.0]), unit="ratio", rate=spread(seen[name, "obvious"])
            )
        )
    for name, target in TARGETS.items():
        found.append(Figure(name=f"{name}, messages/s", value=spread(seen[name, "arrow"]), unit="1/s", target=target))
    return found


if __name__ == "__main__":
    main()
