"""`format("miniq")` into a broker: all or nothing, once, and what is no message is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import miniq
from tests.acceptance.test_spark_read import forget_commit
from tests.serving import Served
from tests.sqs import client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def url(server: Served, broker: miniq.Client) -> str:
    """Where the empty broker is."""
    return server.url


def write(rows: DataFrame, url: str, queue: str = "orders", **options: str) -> None:
    rows.write.format("miniq").mode("append").options(url=url, queue=queue, **options).save()


def numbers(spark: SparkSession, many: int, parts: int = 2) -> DataFrame:
    return spark.range(0, many, 1, parts).selectExpr("cast(id as string) as body")


def bodies(broker: miniq.Client, queue: str = "orders") -> list[Any]:
    found: list[Any] = []
    after: str | None = None
    while True:
        page = broker.queue(queue).peek(after=after, limit=1000)
        found += [message.body for message in page]
        after = page.next
        if after is None:
            return found


def test_rows_become_messages_with_all_their_fields(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    rows = spark.sql(
        "select named_struct('n', 1, 'none', cast(null as int)) as body, map('a', 'b') as headers, 7 as priority, "
        "'k' as key, 'r' as recipient, 'g' as `group`, 'd' as dedup_id, 60 as ttl, 'id' as id, 5 as receives"
    )
    write(rows, url)
    (message,) = broker.queue("orders").peek()
    assert (message.body, message.headers, message.priority, message.key) == ({"n": 1}, {"a": "b"}, 7, "k")
    assert (message.recipient, message.group, message.dedup_id) == ("r", "g", "d")
    assert (message.receives, message.id != "id") == (0, True)
    write(spark.sql("select binary('\u00ff') as data"), url, "raw")
    assert broker.queue("raw").peek()[0].data == "\u00ff".encode()
    write(spark.sql("select 'hello' as body"), url, "text", contentType="text/plain")
    assert broker.queue("text").peek()[0].body == "hello"
    write(spark.sql("select 'later' as body, 'text/plain' as content_type, 60.0 as delay"), url, "later")
    assert broker.queue("later").info().counts.delayed == 1


def test_many_rows_of_many_tasks_arrive_once(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    write(numbers(spark, 3000, 4), url)
    assert sorted(bodies(broker)) == list(range(3000))
    assert broker.queue("orders").stages() == []


def test_rows_that_were_read_can_be_written_to_another_queue(
    spark: SparkSession, url: str, broker: miniq.Client
) -> None:
    broker.queue("orders").send({"n": 1}, headers={"a": "b"}, key="k", priority=3)
    broker.queue("orders").send(b"\xff")
    write(spark.read.format("miniq").options(url=url, queue="orders").load(), url, "copy")
    found = sorted(broker.queue("copy").peek(), key=lambda message: message.priority)
    assert [message.data for message in found] == [b"\xff", b'{"n":1}']
    assert (found[1].headers, found[1].key) == ({"a": "b"}, "k")


def test_messages_of_sqs_pass_through_spark_with_their_attributes_and_back(
    spark: SparkSession, url: str, broker: miniq.Client
) -> None:
    sqs = client(url)
    queue = sqs.create_queue(QueueName="orders")["QueueUrl"]
    attributes = {
        "color": {"DataType": "String", "StringValue": "red"},
        "total": {"DataType": "Number", "StringValue": "7.5"},
        "mark": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sqs.send_message(QueueUrl=queue, MessageBody='{"n": 1}', MessageAttributes=attributes)
    rows = spark.read.format("miniq").options(url=url, queue="orders").load()
    (row,) = rows.collect()
    assert (row.body, row.content_type, row.headers["color"]) == ('{"n": 1}', "text/plain", "red")
    write(rows, url, "copy")
    (message,) = sqs.receive_message(QueueUrl="copy", MessageAttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageAttributes"]) == ('{"n": 1}', attributes)


def test_a_write_that_fails_in_one_task_leaves_nothing(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    rows = spark.range(0, 100, 1, 4).selectExpr("if(id = 77, 'not json', cast(id as string)) as body")
    with pytest.raises(Exception, match=r"messages\[\d+\]\.body: 'not json' is not JSON; for text set content_type"):
        write(rows, url)
    assert bodies(broker) == []
    # The task beside the one that failed may still have been writing when the rest was dropped; that expires.
    assert sum(stage.messages for stage in broker.queue("orders").stages()) <= 25


def test_a_named_write_is_idempotent(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    for _ in range(2):
        write(numbers(spark, 100), url, job="monday")
    assert sorted(bodies(broker)) == list(range(100))
    write(numbers(spark, 100), url, job="tuesday")
    assert broker.queue("orders").info().counts.total == 200


def test_a_write_without_rows_sends_nothing(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    broker.queue("orders").configure()
    write(numbers(spark, 10).where("body = 'x'"), url)
    assert bodies(broker) == []


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("select 1 as n", "n: not a column of a message; use body, data"),
        ("select 'k' as key", "body: both body and data are missing"),
        ("select '1' as body, 'high' as priority", "priority: the column has type string; use tinyint"),
    ],
)
def test_invalid_columns_are_reported_before_any_work(spark: SparkSession, url: str, sql: str, told: str) -> None:
    with pytest.raises(Exception, match=told):
        write(spark.sql(sql), url)


def test_a_queue_is_not_overwritten(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    with pytest.raises(Exception, match="mode: a queue cannot be overwritten"):
        numbers(spark, 1).write.format("miniq").mode("overwrite").options(url=url, queue="orders").save()
    with pytest.raises(Exception, match="mode: a topic cannot be overwritten"):
        numbers(spark, 1).write.format("miniq").mode("overwrite").options(url=url, topic="orders").save()


def test_a_repeated_stream_batch_adds_nothing(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """A driver that died after it had committed and before it noted so: the same batch is committed again."""
    (tmp_path / "in").mkdir()

    def run() -> None:
        rows = spark.readStream.text(str(tmp_path / "in")).selectExpr("value as body")
        writer = rows.writeStream.format("miniq").options(url=url, queue="orders")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    for batch in range(2):
        (tmp_path / "in" / f"{batch}.txt").write_text("".join(f"{batch * 100 + n}\n" for n in range(100)))
        run()
    assert sorted(bodies(broker)) == list(range(200))
    forget_commit(tmp_path / "checkpoint", 1)
    (tmp_path / "in" / "2.txt").write_text(json.dumps(200) + "\n")
    run()
    assert sorted(bodies(broker)) == list(range(201))


def test_rows_are_published_to_a_topic_where_they_match(spark: SparkSession, url: str, broker: miniq.Client) -> None:
    topic = broker.topic("orders")
    topic.subscribe("all")
    topic.subscribe("german", pattern="orders.#", filter={"country": ["de"]})
    rows = spark.range(0, 1000, 1, 4).selectExpr(
        "cast(id as string) as body", "'orders.' || id as key", "map('country', if(id % 10 = 0, 'de', 'fr')) as headers"
    )
    for _ in range(2):
        rows.write.format("miniq").mode("append").options(url=url, topic="orders", job="monday").save()
    assert sorted(bodies(broker, "all")) == list(range(1000))
    assert sorted(bodies(broker, "german")) == list(range(0, 1000, 10))
    assert broker.queue("german").peek()[0].topic == "orders"
    assert topic.stages() == []
    both = rows.write.format("miniq").mode("append").options(url=url, topic="orders", queue="all")
    with pytest.raises(Exception, match="topic: given together with queue"):
        both.save()
    failing = spark.range(0, 100, 1, 4).selectExpr("if(id = 77, 'not json', cast(id as string)) as body")
    with pytest.raises(Exception, match="'not json' is not JSON"):
        failing.write.format("miniq").mode("append").options(url=url, topic="orders").save()
    assert broker.queue("all").info().counts.total == 1000


def test_a_repeated_stream_batch_publishes_nothing(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """A driver that died after it had committed and before it noted so: the same batch is committed again."""
    for queue in ("a", "b"):
        broker.topic("orders").subscribe(queue)
    (tmp_path / "in").mkdir()

    def run() -> None:
        rows = spark.readStream.text(str(tmp_path / "in")).selectExpr("value as body")
        writer = rows.writeStream.format("miniq").options(url=url, topic="orders")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    for batch in range(2):
        (tmp_path / "in" / f"{batch}.txt").write_text("".join(f"{batch * 100 + n}\n" for n in range(100)))
        run()
    forget_commit(tmp_path / "checkpoint", 1)
    (tmp_path / "in" / "2.txt").write_text("200\n")
    run()
    for queue in ("a", "b"):
        assert sorted(bodies(broker, queue)) == list(range(201))
    forget_commit(tmp_path / "checkpoint", 2)
    (tmp_path / "in" / "2.txt").write_text("201\n")
    with pytest.raises(Exception, match=r"topic: batch 2 of query .* was committed to topic 'orders' before, with"):
        run()
    assert broker.queue("a").info().counts.total == 201


def test_a_repeated_stream_batch_with_other_rows_is_refused(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()

    def run(rows: str, **options: str) -> None:
        (tmp_path / "in" / "0.txt").write_text(rows)
        read = spark.readStream.text(str(tmp_path / "in")).selectExpr("value as body").where("body != '0'")
        writer = read.writeStream.format("miniq").options(url=url, queue="orders", **options)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    run("1\n2\n3\n")
    forget_commit(tmp_path / "checkpoint", 0)
    run("3\n1\n2\n")
    for rows in ("1\n2\n4\n", "1\n2\n", "0\n"):
        forget_commit(tmp_path / "checkpoint", 0)
        with pytest.raises(Exception, match=r"batch 0 of query .* was committed to queue 'orders' before, with other"):
            run(rows)
    run("1\n2\n4\n", failOnMismatch="false")
    assert sorted(bodies(broker)) == [1, 2, 3]
