"""Speed of the Spark pipelines: `python -m bench.spark`. The server runs as a separate process on RocksDB with fsync.

Measures ingest (a DataFrame into a queue), drain (a queue into Parquet files) and archive (the history into the lake)
end to end with 200-byte bodies. Ingest and drain use MiniQ's Arrow source and, alternating with it, others: the naive
way, tasks that call the HTTP client in JSON, a thousand messages per call; a toy without a broker, which makes rows up
and writes them to a file with fsync, and so is about what Spark can do; and for ingest a relay, which sends the rows to
a bare process that writes them to a file with fsync (see `spark_toys.py`). Drain is also measured with a single task.

A full run also writes its figures into the sentence of README.md and the tables of bench/README.md that state them.

Every way has one round to warm up. CPU seconds are those of Spark, its Python workers and the broker together: unlike
rates, they can be compared on a machine that does other work.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import miniq
from bench.core import Samples
from bench.cpu import cpu_times
from bench.http import server
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from bench.spark_pages import documented
from bench.spark_toys import BODY, FILL, Toy, relay
from miniq.spark import session
from miniq.spark.pipelines import Run, archive, drain
from miniq.spark.pipelines.runs import follow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGETS = {"ingest": 60_000.0, "drain": 60_000.0, "archive": 100_000.0}
BATCH = 1000
PARTS = 2


def orders(spark: SparkSession, messages: int) -> DataFrame:
    """Rows with a body of 200 bytes: JSON objects with a number and a text."""
    head = "concat('{\"n\":', lpad(id, 10, '1'), ',\"text\":\"')"
    return spark.range(0, messages, 1, PARTS).selectExpr(f"concat({head}, repeat('x', {FILL}), '\"}}') as body")


class Naive:
    """The way without `format("miniq")`: tasks that call the client batch by batch, in JSON."""

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue

    def send(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        with miniq.connect(self._url) as client:
            queue = client.queue(self._queue)
            for batch in batches:
                bodies = batch.column(0).to_pylist()
                for start in range(0, len(bodies), BATCH):
                    chunk = bodies[start : start + BATCH]
                    queue.send_many([miniq.draft(body.encode(), content_type="application/json") for body in chunk])
                    count += len(chunk)
        yield pa.RecordBatch.from_pydict({"count": [count]})

    def receive(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with miniq.connect(self._url) as client:
                queue = client.queue(self._queue)
                while messages := queue.receive(max=BATCH, visibility_timeout=600):
                    yield pa.RecordBatch.from_pydict(
                        {
                            "id": [message.id for message in messages],
                            "body": [message.data.decode() for message in messages],
                            "sent_at": pa.array([message.sent_at for message in messages], pa.timestamp("us", "UTC")),
                        }
                    )
                    queue.ack(messages)


class Cost(float):
    """Seconds that something took, and CPU seconds by kind of process."""

    cpu: dict[str, float]


def timed(work: Callable[[], object]) -> Cost:
    before, began = cpu_times(), time.perf_counter()
    work()
    cost = Cost(time.perf_counter() - began)
    cost.cpu = {kind: seconds - before[kind] for kind, seconds in cpu_times().items()}
    return cost


Way = Callable[[str], tuple[Cost, ...]]
"""Ingests into a queue and, unless it cannot, drains it."""


class Bench:
    """Runs the rounds on one broker and one session; every measurement uses a new queue."""

    def __init__(self, spark: SparkSession, url: str, port: int, folder: str, messages: int) -> None:
        self._spark = spark
        self._url = url
        self._port = port
        self._folder = folder
        self._messages = messages
        self._rounds = 0
        self.samples: Samples = defaultdict(list)

    def round(self, counts: bool) -> None:
        """Measure every figure once; the order of Arrow and the naive way alternates between rounds."""
        self._rounds += 1
        ways: list[tuple[str, Way]] = [
            ("arrow", self._arrow), ("naive", self._naive), ("toy", self._toy), ("single", self._single),
            ("relay", self._relay),
        ]  # fmt: skip
        for name, way in ways if self._rounds % 2 else ways[::-1]:
            costs = zip(("ingest", "drain"), way(f"{name}-{self._rounds}"), strict=False)
            for figure, cost in costs if counts else ():
                self.samples[figure, name].append(self._messages / cost)
                for kind, seconds in cost.cpu.items():
                    self.samples[f"{figure} {kind}", name].append(seconds * 1e6 / self._messages)
                self.samples[f"{figure} cpu", name].append(sum(cost.cpu.values()) * 1e6 / self._messages)
        seconds, records = self._archive()
        if counts:
            self.samples["archive", "arrow"].append(records / seconds)

    def _single(self, queue: str) -> tuple[Cost, ...]:
        return self._arrow(queue, parts=1)

    def _relay(self, queue: str) -> tuple[Cost, ...]:
        rows = orders(self._spark, self._messages)
        return (timed(rows.write.format("toy").option("relay", str(self._port)).mode("append").save),)

    def _toy(self, queue: str) -> tuple[Cost, ...]:
        rows = orders(self._spark, self._messages)
        sent = timed(rows.write.format("toy").option("folder", self._folder).mode("append").save)
        out = os.path.join(self._folder, queue)
        size = {"rows": self._messages, "batch": max(1, self._messages // 4), "parts": PARTS}
        stream = (
            self._spark.readStream.format("toy").options(**{name: str(value) for name, value in size.items()}).load()
        )

        def write(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").parquet(f"{out}/batch={number:06d}")

        writer = stream.writeStream.foreachBatch(write)
        taken = timed(lambda: follow("toy", writer, Run(url=self._url), f"{out}/_checkpoint"))
        assert self._spark.read.parquet(out).count() == self._messages
        return sent, taken

    def _arrow(self, queue: str, parts: int = PARTS) -> tuple[Cost, ...]:
        rows = orders(self._spark, self._messages)
        sent = timed(rows.write.format("miniq").mode("append").options(url=self._url, queue=queue).save)
        self._check(queue, self._messages)
        out = os.path.join(self._folder, queue)
        options = {"maxMessagesPerBatch": str(max(1, self._messages // 4)), "partitions": str(parts)}
        options["maxBytesPerBatch"] = str(2**30)
        run = Run(url=self._url, options=options)
        taken = timed(lambda: drain(self._spark, queue, out, run=run))
        self._check(queue, 0)
        assert self._spark.read.parquet(out).count() == self._messages
        return sent, taken

    def _naive(self, queue: str) -> tuple[Cost, ...]:
        naive = Naive(self._url, queue)
        rows = orders(self._spark, self._messages)
        sent = timed(lambda: rows.mapInArrow(naive.send, "count bigint").collect())
        self._check(queue, self._messages)
        out = os.path.join(self._folder, queue)
        readers = self._spark.range(0, PARTS, 1, PARTS)
        received = readers.mapInArrow(naive.receive, "id string, body string, sent_at timestamp")
        taken = timed(lambda: received.write.parquet(out))
        self._check(queue, 0)
        return sent, taken

    def _archive(self) -> tuple[float, int]:
        """Archive the history of a queue; return the seconds and the number of records."""
        queue = f"history-{self._rounds}"
        with miniq.connect(self._url) as client:
            client.queue(queue).configure(history="events")
            before = client.history(limit=1).last
        rows = orders(self._spark, self._messages)
        rows.write.format("miniq").mode("append").options(url=self._url, queue=queue).save()
        with miniq.connect(self._url) as client:
            records = client.history(limit=1).last - before
            client.queue(queue).purge()
        lake = os.path.join(self._folder, queue)
        # Begin where the history of earlier rounds ends.
        options = {"startingOffset": str(before + 1), "partitions": str(PARTS)}
        return timed(lambda: archive(self._spark, lake, run=Run(url=self._url, options=options))), records

    def _check(self, queue: str, expected: int) -> None:
        with miniq.connect(self._url) as client:
            actual = client.queue(queue).info().counts.total
        assert actual == expected, f"{queue} holds {actual} messages, not {expected}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages per round (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (3)")
    parser.add_argument("--quick", action="store_true", help="smoke test: one round of 50,000 messages")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    messages, rounds = (50_000, 1) if options.quick else (options.messages, options.rounds)
    with scratch(options.dir) as folder, server(folder) as url, relay(folder) as port:
        began = time.perf_counter()
        spark = session("local[2]", config={"spark.driver.memory": "3g"})
        started = time.perf_counter() - began
        spark.dataSource.register(Toy)
        spark.range(1).count()
        first = time.perf_counter() - began
        bench = Bench(spark, url, port, folder, messages)
        progress("Spark: warming up")
        bench.round(counts=False)
        for number in range(rounds):
            progress(f"Spark: round {number + 1} of {rounds}")
            bench.round(counts=True)
        spark.stop()
    rows = figures(bench.samples)
    rows.append(Figure(name="session start", value=spread([started]), unit="s"))
    rows.append(Figure(name="session start and first job", value=spread([first]), unit="s"))
    show(f"{messages:,} messages of {BODY} bytes; value: ratio to the naive way in the same round", rows)
    about = {"bench": "spark", "rounds": rounds, "quick": options.quick, "messages": messages, "body_bytes": BODY}
    about |= {"pyspark": metadata.version("pyspark")}
    save(result_path("spark", options.quick), about, rows)
    if not options.quick:
        for path in ("README.md", "bench/README.md"):
            text = Path(path).read_text()
            Path(path).write_text(documented(text, {figure.name: figure.value.median for figure in rows}))
    if any(figure.verdict == "missed" for figure in rows):
        sys.exit(1)


def figures(samples: Samples) -> list[Figure]:
    rows = []
    for name in ("ingest", "drain"):
        ratios = [ours / theirs for ours, theirs in zip(samples[name, "arrow"], samples[name, "naive"], strict=True)]
        rows.append(
            Figure(name=f"{name}, Arrow", value=spread(ratios), unit="ratio", rate=spread(samples[name, "arrow"]))
        )
        rows.append(
            Figure(name=f"{name}, naive", value=spread([1.0]), unit="ratio", rate=spread(samples[name, "naive"]))
        )
        of_toy = [ours / toy for ours, toy in zip(samples[name, "arrow"], samples[name, "toy"], strict=True)]
        rows.append(
            Figure(
                name=f"{name}, share of the toy",
                value=spread(of_toy),
                unit="ratio",
                rate=spread(samples[name, "toy"]),
                target=0.8,
            )
        )
        for kind in ("cpu", "jvm", "workers", "broker"):
            for way in ("arrow", "toy", "relay"):
                if found := samples.get((f"{name} {kind}", way)):
                    told = {"cpu": "CPU", "jvm": "CPU of Java"}.get(kind, f"CPU of the {kind}")
                    rows.append(Figure(name=f"{name}, {told}, {way}", value=spread(found), unit="s per M"))
    of_relay = [ours / bare for ours, bare in zip(samples["ingest", "arrow"], samples["ingest", "relay"], strict=True)]
    bare_rate = spread(samples["ingest", "relay"])
    rows.append(Figure(name="ingest, share of the relay", value=spread(of_relay), unit="ratio", rate=bare_rate))
    gains = [two / one for two, one in zip(samples["drain", "arrow"], samples["drain", "single"], strict=True)]
    one_task = spread(samples["drain", "single"])
    rows.append(Figure(name="drain, two tasks to one", value=spread(gains), unit="ratio", rate=one_task, target=1.0))
    for name, target in TARGETS.items():
        rows.append(Figure(name=f"{name}, messages/s", value=spread(samples[name, "arrow"]), unit="1/s", target=target))
    return rows


if __name__ == "__main__":
    main()
