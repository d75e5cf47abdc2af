"""Several URLs in `url`: tasks are spread over brokers, and go on with another when theirs is unreachable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

import miniq
from miniq.errors import StoreUnavailable
from miniq.spark import options
from miniq.spark.lag import LagReport
from miniq.spark.options import read_options
from miniq.spark.schema import view_columns
from miniq.spark.source import MiniQ
from tests.acceptance.client_wires import Cut, Proxy
from tests.acceptance.test_spark_read import bodies, drain, stream, table
from tests.acceptance.test_spark_write import numbers, write
from tests.serving import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def proxies(server: Served, broker: miniq.Client) -> Iterator[tuple[Proxy, Proxy]]:
    """Two ways to one empty broker, as two brokers on one database would be."""
    first, second = Proxy(server.url), Proxy(server.url)
    with first, second:
        yield first, second


def test_a_client_goes_on_with_the_next_broker_and_stays_there(proxies: tuple[Proxy, Proxy]) -> None:
    first, second = proxies
    with read_options({"url": f"{first.url}, {second.url}"}).connect() as client:
        client.queue("q").configure()
        assert (len(first.asked), len(second.asked)) == (1, 0)
        first.cuts += [Cut(answer=0)] * 3
        first.drop_all()
        for _ in range(2):
            assert "q" in {queue.name for queue in client.queues()}
        assert len(second.asked) == 2


def test_each_task_begins_with_its_own_broker(proxies: tuple[Proxy, Proxy]) -> None:
    first, second = proxies
    options = read_options({"url": f"{first.url},{second.url}"})
    for turn in range(5):
        with options.connect(turn=turn) as client:
            client.queues()
    assert (len(first.asked), len(second.asked)) == (3, 2)


def test_a_call_fails_when_no_broker_is_reachable() -> None:
    options = read_options({"url": f"{NOBODY},http://127.0.0.1:2", "retry": "0.1"})
    with options.connect() as client, pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:\d cannot be reached"):
        client.queues()
    assert LagReport(options).queue() is None, "a report never fails"


def test_a_send_that_may_have_arrived_is_not_repeated_elsewhere(proxies: tuple[Proxy, Proxy]) -> None:
    first, second = proxies
    first.cuts.append(Cut(answer=0))
    with read_options({"url": f"{first.url},{second.url}"}).connect() as client:
        with pytest.raises(StoreUnavailable):
            client.queue("q").send(1)
        assert second.asked == []


def test_a_stream_waits_for_a_broker_that_it_has_reached_before(
    proxies: tuple[Proxy, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first call gives up soon, because the address may be wrong; later the broker may just be restarting."""
    monkeypatch.setattr(options, "FIRST_RETRY", 0.0)
    proxy, _ = proxies
    history, queue = ({"url": proxy.url, **more} for more in ({"view": "history"}, {"queue": "q", "group": "g"}))
    readers = [MiniQ(given).streamReader(view_columns(given.get("view", "messages"))) for given in (history, queue)]
    starts = [reader.initialOffset() for reader in readers]
    for reader, start in zip(readers, starts, strict=True):
        proxy.cuts += [Cut(answer=0)] * 3
        proxy.drop_all()
        assert reader.latestOffset(start, ReadMaxRows(10))["store"] == start["store"]
        assert proxy.cuts == []
    with pytest.raises(StoreUnavailable):
        MiniQ({"url": NOBODY, "view": "history"}).streamReader(view_columns("history")).initialOffset()


def test_only_the_tasks_of_a_streaming_write_need_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark plans each batch anew, also while a broker restarts."""
    monkeypatch.setattr(options, "FIRST_RETRY", 0.0)
    sink = MiniQ({"url": NOBODY, "queue": "q"})
    sink.streamWriter(view_columns("messages"), overwrite=False)
    with pytest.raises(StoreUnavailable):
        sink.writer(view_columns("messages"), overwrite=False)


def test_streams_and_writes_work_while_one_broker_is_gone(
    spark: SparkSession, server: Served, broker: miniq.Client, tmp_path: Path
) -> None:
    url = f"{NOBODY},{server.url}"
    write(numbers(spark, 100), url)
    assert table(spark, url, queue="orders").count() == 100
    drain(stream(spark, url, partitions=3), tmp_path)
    assert bodies(tmp_path) == list(range(100))
    assert broker.queue("orders").info().counts.total == 0
