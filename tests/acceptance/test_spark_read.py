"""`format("miniq")` out of a broker: snapshots that consume nothing, streams of claims that count once, history."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

import miniq
from tests.serving import Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def url(server: Served, broker: miniq.Client) -> str:
    """Where the empty broker is."""
    return server.url


def table(spark: SparkSession, url: str, **options: object) -> DataFrame:
    return spark.read.format("miniq").options(url=url, **{name: str(value) for name, value in options.items()}).load()


def stream(spark: SparkSession, url: str, **options: object) -> DataFrame:
    given = {"queue": "orders", "group": "test"} | options
    reader = spark.readStream.format("miniq").options(url=url)
    return reader.options(**{name: str(value) for name, value in given.items() if value is not None}).load()


def drain(rows: DataFrame, folder: Path, out: str = "out") -> Any:
    """Run a stream to the end of what is there; its query."""
    writer = rows.writeStream.format("parquet").option("path", str(folder / out))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def bodies(folder: Path, out: str = "out") -> list[Any]:
    """What is in the files that a stream wrote, read without Spark."""
    found = [body for path in (folder / out).glob("*.parquet") for body in parquet.read_table(path)["body"].to_pylist()]
    return sorted(json.loads(body) for body in found)


def batches(query: Any) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


# Snapshots


def test_a_snapshot_has_every_column_and_consumes_nothing(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    orders = broker.queue("orders")
    before = datetime.now(UTC)
    first = orders.send({"n": 1}, headers={"trace": "t"}, priority=7, key="k", recipient="r", group="g", dedup_id="d")
    second = orders.send(b"\xff\x00")
    third = orders.send("grüße", content_type="text/plain; charset=utf-8")
    rows = {row.id: row for row in table(spark, url, queue="orders").collect()}
    assert set(rows) == {first, second, third}
    row = rows[first]
    assert (row.queue, row.body, row.data, row.content_type) == ("orders", '{"n":1}', None, "application/json")
    assert (row.headers, row.priority, row.key, row.recipient) == ({"trace": "t"}, 7, "k", "r")
    assert (row.group, row.dedup_id, row.receives) == ("g", "d", 0)
    assert before <= row.sent_at.astimezone(UTC) <= datetime.now(UTC)
    assert (rows[second].body, bytes(rows[second].data)) == (None, b"\xff\x00")
    assert (rows[third].body, rows[third].data) == ("grüße", None)
    assert orders.info().counts.ready == 3


def test_a_snapshot_can_be_limited_to_one_status(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    orders = broker.queue("orders")
    orders.send_many([1, 2, 3])
    orders.send("later", delay=600)
    (message,) = orders.receive()
    message.fail("no such address", delay=600)
    orders.receive()
    rows = table(spark, url, queue="orders").orderBy("sent_at", "id").collect()
    assert [row.status for row in rows] == ["delayed", "leased", "ready", "delayed"]
    assert [row.error for row in rows] == ["no such address", None, None, None]
    assert rows[3].visible_at.timestamp() == pytest.approx(rows[3].sent_at.timestamp() + 600)
    found = {
        status: table(spark, url, queue="orders", status=status).count() for status in ("ready", "delayed", "leased")
    }
    assert found == {"ready": 1, "delayed": 2, "leased": 1}
    assert table(spark, url, queue="orders").count() == 4


def test_a_snapshot_can_be_limited_by_priority_and_number(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    orders = broker.queue("orders")
    orders.send_many([miniq.draft(n, priority=n % 3) for n in range(30)])
    assert table(spark, url, queue="orders", priority=2).count() == 10
    assert table(spark, url, queue="orders", priority=2, limit=4).count() == 4
    assert table(spark, url, queue="orders", limit=25).count() == 25


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_are_pushed_down_where_spark_allows_it(
    spark: SparkSession, url: str, broker: miniq.Client, pushdown: str
) -> None:
    before = told(broker, 10)
    broker.queue("orders").receive(max=3)
    own = spark.newSession()
    own.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    history = table(own, url, view="history", startingOffset=before + 1, partitions=3)
    one = history.where(f"offset = {before + 5}")
    assert one.rdd.getNumPartitions() == (1 if pushdown == "true" else 3), "only with pushdown the range is known"
    assert [row.offset for row in one.collect()] == [before + 5]
    assert history.where("queue = 'orders' and event = 'received'").count() == 3
    assert history.where("queue in ('orders', 'other') and event != 'received'").count() == 20
    last = history.where("event = 'received'").agg({"at": "max"}).collect()[0][0]
    assert history.where("at > timestamp '2026-01-01' and event = 'sent'").count() == 20
    assert history.where(f"at > timestamp '{last}'").count() == 0
    assert history.where(f"at >= timestamp '{last}'").count() == 3
    messages = table(own, url, queue="orders")
    assert messages.where("status = 'leased'").count() == 3
    assert messages.where("status = 'ready' and priority = 0").count() == 7
    assert messages.where("priority >= 1").count() == 0


def test_a_long_queue_is_read_page_by_page(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    orders = broker.queue("orders")
    for start in range(0, 5000, 1000):
        orders.send_many(range(start, start + 1000))
    found = table(spark, url, queue="orders").selectExpr("count(distinct body)", "sum(cast(body as int))").collect()[0]
    assert list(found) == [5000, sum(range(5000))]


def test_a_missing_queue_is_an_error(spark: SparkSession, url: str) -> None:
    with pytest.raises(Exception, match="there is no queue 'nothing'"):
        table(spark, url, queue="nothing").collect()


def test_an_unreachable_broker_is_reported_soon(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        table(spark, "http://127.0.0.1:1", queue="orders", retry=0.1).collect()


def test_invalid_options_are_reported_before_any_work(spark: SparkSession, url: str) -> None:
    with pytest.raises(Exception, match="queues: no such option; did you mean 'queue'"):
        table(spark, url, queues="orders")
    with pytest.raises(Exception, match="queue: is missing; set it with"):
        table(spark, url)
    with pytest.raises(Exception, match="group: is missing; set it with"):
        stream(spark, url, group=None).writeStream.format("noop").start().awaitTermination()
    with pytest.raises(Exception, match="'amount' is not a column of view=messages, which are id, queue, body"):
        spark.read.format("miniq").schema("body string, amount int").options(url=url, queue="orders").load().collect()


def test_the_format_is_known_without_being_registered(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    from pyspark_miniq import DefaultSource

    assert DefaultSource.name() == "miniq"
    broker.queue("orders").send(1)
    fresh = spark.newSession()
    assert table(fresh, url, queue="orders").count() == 1


# Streams of claims


def test_a_stream_processes_each_message_once_and_acks_it(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send_many(range(1000))
    query = drain(stream(spark, url, maxMessagesPerBatch=400, partitions=3), tmp_path)
    assert batches(query) == [400, 400, 200]
    assert bodies(tmp_path) == list(range(1000))
    assert orders.info().counts.total == 0, "the last batch is acked too"
    orders.send_many(range(1000, 1010))
    drain(stream(spark, url), tmp_path)
    assert bodies(tmp_path) == list(range(1010))


def test_progress_tells_how_much_is_waiting_and_for_how_long(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    from miniq.spark.lag import lag_of

    broker.queue("orders").send_many(range(1000))
    query = drain(stream(spark, url, maxMessagesPerBatch=400), tmp_path)
    lags = [lag_of(report) for report in query.recentProgress if report.numInputRows]
    assert [lag and lag.waiting for lag in lags] == [600, 200, 0]
    assert [lag and lag.oldest_seconds is not None for lag in lags] == [True, True, False]
    before = told(broker, 50)
    options = {"view": "history", "queue": None, "group": None, "startingOffset": before + 1}
    rows = stream(spark, url, **options, maxMessagesPerBatch=60)
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "history"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    lags = [lag_of(report) for report in query.recentProgress if report.numInputRows]
    assert [lag and lag.waiting for lag in lags] == [40, 0]
    assert json.loads(query.recentProgress[-1].sources[0].latestOffset)["offset"] == before + 100


def test_ordinary_consumers_and_a_stream_share_a_queue(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send_many(range(100))
    held = orders.receive(max=30, visibility_timeout=600)
    drain(stream(spark, url), tmp_path)
    assert bodies(tmp_path) == list(range(30, 100))
    assert orders.ack(held) == ["done"] * 30


def test_an_orphaned_claim_is_the_next_batch(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """A driver that died after its claim and before its log entry: the claim waits for the next one."""
    orders = broker.queue("orders")
    orders.send_many(range(10))
    claims = orders.claims("test")
    claims.open()
    orphan = claims.next(0, max_messages=6)
    assert orphan is not None
    assert orders.receive(max=100, visibility_timeout=0) != [], "only four can be had"
    query = drain(stream(spark, url), tmp_path)
    assert batches(query)[0] == 6
    assert bodies(tmp_path) == list(range(10))
    assert orders.info().counts.total == 0


def test_a_batch_that_spark_repeats_reads_the_same_messages(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """A driver that died after its log entry and before the end of the batch: the same claim is read again."""
    orders = broker.queue("orders")
    orders.send_many(range(100))
    drain(stream(spark, url, maxMessagesPerBatch=60), tmp_path)
    forget_commit(tmp_path / "checkpoint", 1)
    orders.send_many(range(100, 110))
    query = drain(stream(spark, url), tmp_path, "again")
    assert batches(query) == [40, 10]
    assert bodies(tmp_path, "again") == list(range(60, 110))


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Let Spark believe that a batch was not finished."""
    for name in (str(batch), f".{batch}.crc"):
        path = checkpoint / "commits" / name
        if path.exists():
            os.unlink(path)


def test_a_newer_query_fences_an_older_one(spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path) -> None:
    broker.queue("orders").send(1)
    older = stream(spark, url).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "older")).start()
    older.processAllAvailable()
    newer = stream(spark, url).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "newer")).start()
    newer.processAllAvailable()
    with pytest.raises(Exception, match=r"group: 'test' of queue 'orders' is now read by a newer query"):
        older.awaitTermination(30)
    newer.stop()


def test_lost_claims_fail_the_query_unless_data_loss_is_allowed(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send_many(range(10))
    drain(stream(spark, url), tmp_path)
    claims = orders.claims("test")
    claims.open()
    orders.send_many(range(10, 20))
    assert claims.next(1) is not None
    assert claims.release() == 10
    with pytest.raises(Exception, match=r"claim 2 of group 'test' can no longer be read .*failOnDataLoss"):
        drain(stream(spark, url), tmp_path)
    drain(stream(spark, url, failOnDataLoss="false"), tmp_path)
    assert bodies(tmp_path) == list(range(20))


def test_a_checkpoint_of_a_deleted_queue_is_rejected(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send_many(range(10))
    drain(stream(spark, url), tmp_path)
    orders.delete()
    orders.send(1)
    with pytest.raises(Exception, match=r"can no longer be read .* Start with a new checkpoint"):
        drain(stream(spark, url), tmp_path)


def test_a_running_stream_processes_new_messages(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send(0)
    writer = stream(spark, url, pollTimeout="0.2").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for number in range(1, 4):
            query.processAllAvailable()
            orders.send(number)
        query.processAllAvailable()
        assert bodies(tmp_path) == [0, 1, 2, 3]
    finally:
        query.stop()


# History


def told(broker: miniq.Client, many: int = 100) -> int:
    """Some history in two queues; the offset before it."""
    before = broker.history(limit=1).last
    for name in ("orders", "other"):
        broker.queue(name).configure(history="full")
        broker.queue(name).send_many([{"n": n} for n in range(many)])
    return before


def test_where_there_is_no_history_a_table_and_a_stream_of_it_are_empty(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    after = {"view": "history", "startingOffset": broker.history(limit=1).last + 1}
    assert table(spark, url, **after).count() == 0
    drain(stream(spark, url, queue=None, group=None, **after), tmp_path)
    assert bodies(tmp_path) == []


def test_history_is_a_table_by_offset_time_and_queue(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    before = told(broker)
    whole = table(spark, url, view="history", startingOffset=before + 1, partitions=3)
    assert whole.rdd.getNumPartitions() == 3
    rows = whole.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(before + 1, before + 201))
    assert (rows[0].event, rows[0].queue, rows[0].body, rows[0].bytes) == ("sent", "orders", '{"n":0}', 7)
    some = table(spark, url, view="history", startingOffset=before + 11, endingOffset=before + 20)
    assert some.count() == 10
    assert table(spark, url, view="history", startingOffset=before + 1, queue="other").count() == 100
    assert table(spark, url, view="history", startingOffset=before + 1, event="acked").count() == 0
    assert (
        table(spark, url, view="history", startingOffset=before + 1, event="sent", limit=7, partitions=3).count() == 7
    )
    middle = rows[100].at.astimezone(UTC)
    late = table(spark, url, view="history", startingOffset=before + 1, startingTime=middle.isoformat())
    early = table(spark, url, view="history", startingOffset=before + 1, endingTime=middle.isoformat())
    assert late.count() + early.count() == 200
    assert late.where("queue = 'other'").count() == 100


def test_history_is_a_stream_by_offset(spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path) -> None:
    before = told(broker)
    options = {"view": "history", "queue": "other", "group": None, "startingOffset": before + 1}
    query = drain(stream(spark, url, **options, maxMessagesPerBatch=60, partitions=2), tmp_path)
    assert sum(batches(query)) == 100
    broker.queue("other").send({"n": 100})
    drain(stream(spark, url, **options), tmp_path)
    assert sorted(body["n"] for body in plain(tmp_path)) == list(range(101))


def plain(folder: Path) -> list[Any]:
    found = [row for path in (folder / "out").glob("*.parquet") for row in parquet.read_table(path)["body"].to_pylist()]
    return [json.loads(body) for body in found]


def test_a_checkpoint_from_another_broker_is_rejected(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    last = broker.history(limit=1).last
    options = {"view": "history", "queue": None, "group": None, "startingOffset": last + 1000}
    with pytest.raises(Exception, match=r"the history ends with record \d+, but the checkpoint is at record \d+"):
        stream(spark, url, **options).writeStream.format("noop").start().awaitTermination(60)
