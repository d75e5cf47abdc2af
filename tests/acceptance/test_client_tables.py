"""Tables instead of objects: claims, peek and history as Arrow, in process and over HTTP."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

import miniq
from tests.server import clear
from tests.serving import Served


@pytest.fixture(params=["memory", "http"])
def place(request: pytest.FixtureRequest) -> str:
    """An empty broker where tables are given."""
    if request.param == "memory":
        return "memory:"
    served: Served = request.getfixturevalue("server")
    clear(served.url)
    return served.url


def test_a_claim_can_be_read_as_a_table_in_parts(place: str) -> None:
    with miniq.connect(place) as mq:
        queue = mq.queue("orders")
        queue.send_many([{"n": n} for n in range(1000)])
        queue.send(b"\xff", key="raw", headers={"a": "b"}, priority=1)
        claims = queue.claims("readers")
        claims.open()
        assert claims.next(0) is not None
        messages = claims.fetch(1)
        parts = [claims.table(1, part, 3) for part in range(3)]
        table = pa.concat_tables(parts)
        assert [part.num_rows for part in parts] == [333, 334, 334]
        assert table["id"].to_pylist() == [message.id for message in messages]
        assert table["data"].to_pylist()[0] == b"\xff"
        assert table["headers"].to_pylist()[0] == [("a", "b")]
        assert table["body"].to_pylist()[1:] == [message.data.decode() for message in messages[1:]]
        assert set(table["receives"].to_pylist()) == {1}
        assert claims.table(1).equals(pa.concat_tables([claims.table(1)])), "the same each time"
        with pytest.raises(miniq.ClaimUnknown):
            claims.table(2)


def test_a_queue_can_be_browsed_as_tables(place: str) -> None:
    with miniq.connect(place) as mq:
        queue = mq.queue("orders")
        for start in range(0, 2500, 500):
            queue.send_many(range(start, start + 500))
        queue.send("later", delay=60)
        first = queue.peek_table(limit=2000)
        second = queue.peek_table(after=first.next, limit=2000)
        assert (first.table.num_rows, second.table.num_rows, second.next) == (2000, 501, None)
        ids = first.table["id"].to_pylist() + second.table["id"].to_pylist()
        assert len(set(ids)) == 2501
        assert queue.peek_table("delayed").table["body"].to_pylist() == ['"later"']
        assert first.table.schema.metadata is None
        queue.purge()
        assert queue.peek_table().table.num_rows == 0
        with pytest.raises(miniq.InvalidRequest, match="limit: 100001 is out of range; use 1 to 100000"):
            queue.peek_table(limit=100_001)


def test_history_can_be_read_as_tables(place: str) -> None:
    with miniq.connect(place) as mq:
        before = mq.history(limit=1).last
        mq.queue("told").configure(history="full")
        mq.queue("told").send_many(range(750))
        mq.queue("told").send_many(range(750, 1500))
        mq.queue("told").ack(mq.queue("told").receive(max=10, consumer="ann"))
        page = mq.history_table(after=before, limit=2000)
        assert (page.next, page.last) == (before + 1520, before + 1520)
        assert page.table["offset"].to_pylist() == list(range(before + 1, before + 1521))
        assert page.table["event"].to_pylist() == ["sent"] * 1500 + ["received"] * 10 + ["acked"] * 10
        assert page.table["body"].to_pylist()[:3] == ["0", "1", "2"]
        assert page.table["consumer"].to_pylist()[-1] == "ann"
        assert mq.history_table(after=page.next).table.num_rows == 0
        some = mq.history_table(after=before, limit=2000, queue="told", event="received", consumer="ann")
        assert some.table["offset"].to_pylist() == list(range(before + 1501, before + 1511))
        early = mq.history_table(after=before, limit=2000, before=before + 6)
        assert (early.table.num_rows, early.next) == (5, before + 5)
        middle = page.table["at"][750].as_py()
        late = mq.history_table(after=before, limit=2000, since=middle)
        assert late.table["offset"].to_pylist()[0] == before + 751


def test_tables_are_not_given_over_zeromq(server: Served) -> None:
    with miniq.connect(server.tcp) as mq, pytest.raises(miniq.InvalidRequest, match="tables need HTTP"):
        mq.queue("default").peek_table()


def test_what_only_json_can_filter_is_told(server: Served) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    path = "/v1/queues/default/messages?find=x"
    connection.request("GET", path, headers={"accept": "application/vnd.apache.arrow.stream"})
    answer = connection.getresponse()
    assert answer.status == 400
    assert b"find: not supported for replies in Arrow" in answer.read()
    connection.request("GET", "/v1/history", headers={"accept": "application/vnd.apache.arrow.stream"})
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert set(answer.headers) >= {"miniq-next", "miniq-first", "miniq-last"}
    connection.close()


async def test_tables_with_asyncio(place: str) -> None:
    async with miniq.connect_async(place) as mq:
        queue = mq.queue("orders")
        await queue.send_many([1, 2, 3])
        assert (await queue.peek_table()).table["body"].to_pylist() == ["1", "2", "3"]
        claims = queue.claims("readers")
        await claims.open()
        await claims.next(0)
        assert (await claims.table(1)).num_rows == 3
        assert (await mq.history_table()).table.num_rows >= 0
