"""Whose checkpoint is it: a stream goes on only where its own checkpoint left off, and otherwise says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import miniq
from miniq.message import QueueChanges
from miniq.spark.options import read_options
from miniq.spark.schema import Layout, view_columns
from miniq.spark.stream import HistoryStream
from tests.acceptance.test_spark_read import batches, bodies, drain, forget_commit, stream, table
from tests.faults.checkpoints import Drill, SessionDriver
from tests.serving import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url(server: Served, broker: miniq.Client) -> str:
    """Where the empty broker is."""
    return server.url


def offsets(checkpoint: Path) -> dict[int, dict[str, Any]]:
    """The offset of each batch in Spark's log."""
    logs = [path for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()]
    return {int(path.name): json.loads(path.read_text().splitlines()[-1]) for path in logs}


def age(checkpoint: Path) -> None:
    """Turn the offsets into those of an earlier version."""
    for path in (checkpoint / "offsets").glob("*"):
        if path.name.isdigit():
            *head, last = path.read_text().splitlines()
            path.write_text("\n".join([*head, json.dumps({"claim": json.loads(last)["claim"]})]))
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def test_an_offset_names_store_queue_group_reader_and_claim(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    broker.queue("orders").send_many(range(10))
    drain(stream(spark, url, maxMessagesPerBatch=6), tmp_path)
    logged = offsets(tmp_path / "checkpoint")
    (group,) = broker.queue("orders").claim_groups()
    names = {"store": broker.whoami().store, "queue": "orders", "group": "test", "id": group.id}
    reader = group.claims[0].reader
    assert logged == {n: names | {"reader": reader, "claim": n + 1, "after": n} for n in (0, 1)}
    assert all(logged[1].values())


def test_offsets_of_earlier_versions_are_understood(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send_many(range(10))
    drain(stream(spark, url, maxMessagesPerBatch=6), tmp_path)
    age(tmp_path / "checkpoint")
    forget_commit(tmp_path / "checkpoint", 1)
    orders.send_many(range(10, 15))
    query = drain(stream(spark, url), tmp_path, "again")
    assert batches(query) == [4, 5]
    assert bodies(tmp_path, "again") == list(range(6, 15))


def test_a_checkpoint_of_another_queue_is_refused_and_nothing_is_acked(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    for name in ("orders", "other"):
        broker.queue(name).send_many(range(10))
    drain(stream(spark, url), tmp_path)
    with pytest.raises(Exception, match=r"queue: the checkpoint is of queue 'orders', and this query reads 'other'"):
        drain(stream(spark, url, queue="other", failOnDataLoss="false"), tmp_path)
    with pytest.raises(Exception, match=r"group: the checkpoint is of group 'test', and this query reads 'new'"):
        drain(stream(spark, url, group="new"), tmp_path)
    assert broker.queue("other").info().counts.ready == 10


def test_what_a_sink_has_not_read_is_not_acked(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """A file sink skips batches that it has seen, under whatever checkpoint."""
    orders = broker.queue("orders")
    orders.send_many(range(10))
    drain(stream(spark, url), tmp_path)
    orders.send_many(range(10, 1000))
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception, match=r"the sink has not read a batch, so its messages are not acked .*claim 2 of"):
        drain(stream(spark, url, maxMessagesPerBatch=100), tmp_path)
    assert orders.info().counts.total == 990, "all of them are there"
    shutil.rmtree(tmp_path / "checkpoint")
    drain(stream(spark, url), tmp_path, "new")
    assert bodies(tmp_path, "new") == list(range(10, 1000)), "a claim that was not read is there for any checkpoint"


def test_a_new_checkpoint_does_not_read_what_another_has_read(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """A driver that died after a batch: its claim is acked by the next run, which only its own checkpoint can be."""
    orders = broker.queue("orders")
    orders.send_many(range(10))
    old, new = tmp_path / "old", tmp_path / "new"
    failing = stream(spark, url).writeStream.foreachBatch(lambda rows, number: [rows.count(), 1 / 0])
    with pytest.raises(Exception, match="division by zero"):
        failing.option("checkpointLocation", str(old / "checkpoint")).start().awaitTermination()
    with pytest.raises(Exception, match=r"messages that another checkpoint has read .*\.release\(\) in Python gives"):
        drain(stream(spark, url), new)
    assert orders.info().counts.leased == 10
    drain(stream(spark, url), old)
    assert bodies(old) == list(range(10))
    shutil.rmtree(new)
    orders.send_many(range(10, 20))
    drain(stream(spark, url), new)
    orders.send(20)
    with pytest.raises(Exception, match=r"messages that another checkpoint has read .*failOnDataLoss"):
        drain(stream(spark, url), old)
    drain(stream(spark, url, failOnDataLoss="false"), old)
    assert (bodies(old), bodies(new)) == ([*range(10), 20], list(range(10, 20))), "what the other has acked is skipped"


def test_a_logged_batch_that_another_checkpoint_has_done_is_skipped_if_that_is_allowed(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    old, new = tmp_path / "old", tmp_path / "new"

    def collect(**options: object) -> list[Any]:
        """What the old checkpoint reads."""
        seen: list[Any] = []
        writer = stream(spark, url, **options).writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
        writer = writer.option("checkpointLocation", str(old / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        return sorted(json.loads(row.body) for row in seen)

    orders.send_many(range(5))
    assert collect() == [0, 1, 2, 3, 4]
    orders.send_many(range(5, 10))
    unread = stream(spark, url).writeStream.foreachBatch(lambda rows, number: 1 / 0)
    with pytest.raises(Exception, match="division by zero"):
        unread.option("checkpointLocation", str(old / "checkpoint")).start().awaitTermination()
    assert offsets(old / "checkpoint")[1]["claim"] == 2
    drain(stream(spark, url), new)
    orders.send_many(range(10, 15))
    with pytest.raises(Exception, match="messages that another checkpoint has read"):
        collect()
    assert collect(failOnDataLoss="false") == [10, 11, 12, 13, 14]
    assert bodies(new) == [5, 6, 7, 8, 9]


def test_a_first_batch_is_repeated_though_later_ones_were_done(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    """An older copy of the checkpoint. Spark asks again where it starts, and the group has got on by then."""
    broker.queue("orders").send_many(range(10))
    drain(stream(spark, url, maxMessagesPerBatch=5), tmp_path)
    forget_commit(tmp_path / "checkpoint", 0)
    forget_commit(tmp_path / "checkpoint", 1)
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "offsets" / name).unlink()
    broker.queue("orders").send(10)  # without new messages, only the first batch is repeated
    drain(stream(spark, url, maxMessagesPerBatch=5), tmp_path, "again")
    assert bodies(tmp_path, "again") == list(range(11))


def test_a_first_batch_of_the_latest_history_is_repeated_from_where_it_began(url: str, broker: miniq.Client) -> None:
    broker.queue("orders").configure(history="events")
    options = read_options({"url": url, "view": "history", "startingOffset": "latest"})
    layout = Layout(view_columns("history"), "history", None, None)
    stream = HistoryStream(options, layout)
    start = stream.initialOffset()
    broker.queue("orders").send_many(range(5))
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    broker.queue("orders").send_many(range(5))
    again = HistoryStream(options, layout)
    assert again.partitions(again.initialOffset(), end) == stream.partitions(start, end)
    assert len(stream.partitions(start, end)) == 1


def test_after_a_queue_was_made_again_lost_messages_are_skipped_if_that_is_allowed(
    spark: SparkSession, url: str, broker: miniq.Client, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.send_many(range(10))
    drain(stream(spark, url), tmp_path)
    forget_commit(tmp_path / "checkpoint", 0)
    orders.delete()
    orders.send_many(range(100, 110))
    with pytest.raises(Exception, match=r"the queue was deleted and made again.* Start with a new checkpoint"):
        drain(stream(spark, url), tmp_path, "again")
    for wanted in (range(100, 110), range(100, 120)):
        drain(stream(spark, url, failOnDataLoss="false"), tmp_path, "again")
        assert bodies(tmp_path, "again") == list(wanted)
        orders.send_many(range(wanted.stop, wanted.stop + 10))
    drain(stream(spark, url), tmp_path, "again")
    assert bodies(tmp_path, "again") == list(range(100, 130))


def test_a_restored_broker_is_noticed_and_lost_messages_are_skipped_if_that_is_allowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    backup, lake = tmp_path / "backup", {"view": "history", "queue": None, "group": None}
    settings: QueueChanges = {"history": "events"}
    with serving(f"rocksdb:{tmp_path / 'one'}") as one, miniq.connect(one.url) as mq:
        mq.queue("orders").configure(**settings)
        mq.queue("orders").send_many(range(10))
        drain(stream(spark, one.url), tmp_path / "kept")
        shutil.copytree(tmp_path / "kept", tmp_path / "lost")
        drain(stream(spark, one.url, **lake), tmp_path / "lake")
        mq.backup(str(backup))
        mq.queue("orders").send_many(range(10, 20))
        drain(stream(spark, one.url), tmp_path / "lost")
        store = mq.whoami().store
    from miniq.store.embedded.backup import restore

    with serving(restore(str(backup), str(tmp_path / "two"))) as two, miniq.connect(two.url) as mq:
        assert mq.whoami().store.partition(".")[0] == store, "it can be told where it came from"
        mq.queue("orders").send_many(range(20, 30))
        with pytest.raises(Exception, match=r"its last claim is 1: was the broker restored from a backup\?"):
            drain(stream(spark, two.url), tmp_path / "lost")
        drain(stream(spark, two.url, failOnDataLoss="false"), tmp_path / "lost", "again")
        assert bodies(tmp_path / "lost", "again") == list(range(20, 30))
        mq.queue("orders").send_many(range(30, 40))
        with pytest.raises(Exception, match=r"the checkpoint is of the history of another store"):
            drain(stream(spark, two.url, **lake), tmp_path / "lake")
        drain(stream(spark, two.url, **lake, failOnDataLoss="false"), tmp_path / "lake", "again")
        assert len(list((tmp_path / "lake" / "again").glob("*.parquet"))) > 0


def test_a_key_that_may_only_receive_is_enough_for_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as server, miniq.connect(server.url) as mq:
        mq.queue("orders").send_many(range(10))
        admin = mq.create_key("admin", ["*"]).secret
        with miniq.connect(server.url, api_key=admin) as mq:
            reader = mq.create_key("reader", ["receive:orders"]).secret
            options = {"api_key": reader, "maxMessagesPerBatch": 6}
            drain(stream(spark, server.url, **options), tmp_path)
            forget_commit(tmp_path / "checkpoint", 1)
            mq.queue("orders").send_many(range(10, 15))
            drain(stream(spark, server.url, **options), tmp_path, "again")
            assert bodies(tmp_path, "again") == list(range(6, 15))
            with pytest.raises(Exception, match="reader"):
                table(spark, server.url, queue="orders", api_key=reader).collect()


def test_changed_checkpoints_between_kills_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The short form of `make faults-checkpoints`, which kills processes instead of interrupting queries. Of these
    checkpoints one is deleted, one replaced by that of another pipeline, and one by an older copy."""
    drill = Drill(tmp_path, "drain", 691, SessionDriver(spark), per_round=100, slowest=0.3)
    drill.run(rounds=3)
    assert not drill.wrong
    assert drill.refused
