"""Arrow: columns out with exact schemas, drafts in with every mistake named."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from hypothesis import example, given
from hypothesis.strategies import lists, text

from miniq.api import arrow
from miniq.api.operations import ReadClaim
from miniq.batch import Portion
from miniq.broker import Broker
from miniq.dispatch import OWNER
from miniq.errors import BadRequest, InvalidRequest, MissingExtra, TooLarge
from miniq.ids import IdSource, RunIds
from miniq.message import NEVER, DeadLetter, Draft, Event, HistoryRecord, Message, PlainBatch, PlainDrafts, Stored
from miniq.packed import pack
from miniq.server import streams


def stream(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def read_back(batches: list[Any], schema: Any) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(arrow.encode(batches, schema)) as reader:
        assert reader.schema.equals(schema)
        found: list[dict[str, Any]] = reader.read_all().to_pylist()
    return found


MESSAGES = [
    Message(
        "1", "q", 7, 7, b'{"a": 1}', headers={"h": "v"}, priority=3, key="k", recipient="r", group="g", dedup_id="d"
    ),
    Message("2", "q", 8, 8, b"\xff", "application/octet-stream"),
    Message("3", "q", 9, 9, "grüße".encode(), "text/plain"),
    Message("4", "q", 9, 9, b"\xff", "text/plain"),
    Message("5", "q", 9, 9, b"[]", "application/ld+json; x=1"),
]


def test_messages_of_every_kind_keep_everything() -> None:
    rows = read_back([arrow.stored([Stored(message, 0, 2) for message in MESSAGES], 1)], arrow.messages_schema())
    assert [(row["body"], row["data"]) for row in rows] == [
        ('{"a": 1}', None),
        (None, b"\xff"),
        ("grüße", None),
        (None, b"\xff"),
        ("[]", None),
    ]
    first = rows[0]
    assert [first[name] for name in ("id", "queue", "content_type", "priority", "key", "recipient", "group")] == [
        "1", "q", "application/json", 3, "k", "r", "g"
    ]  # fmt: skip
    assert (first["headers"], first["dedup_id"], first["receives"]) == ([("h", "v")], "d", 2)
    assert first["sent_at"].timestamp() == 7e-6
    assert rows[1]["headers"] is None


def test_messages_have_their_state_and_dead_letters_where_they_came_from() -> None:
    dead = Message("6", "q.dead", 9, 9, b"1", dead=DeadLetter("q", "max_receives", 3, 8))
    leases = [
        Stored(MESSAGES[0], 50, 1, "receipt"),
        Stored(MESSAGES[1], 50),
        Stored(dead, 9),
        Stored(dead, NEVER, 1, "c"),
        Stored(MESSAGES[2], 30, 2, error="boom"),
        Stored(MESSAGES[2], 15, 2, "receipt", error="boom"),
    ]
    rows = read_back([arrow.stored(leases, 20)], arrow.messages_schema())
    assert [row["status"] for row in rows] == ["leased", "delayed", "ready", "leased", "delayed", "ready"]
    assert [row["visible_at"] and row["visible_at"].microsecond for row in rows] == [50, 50, 9, None, 30, 15]
    assert [row["error"] for row in rows] == [None, None, None, None, "boom", "lease expired"]
    letter = {name: rows[2][name] for name in arrow.DEAD}
    assert letter.pop("dead_at").microsecond == 8
    assert letter == {"dead_origin": "q", "dead_reason": "max_receives", "dead_error": None, "dead_receives": 3}
    assert {rows[0][name] for name in arrow.DEAD} == {None}
    claimed = read_back([arrow.portions([Portion([dead], 1)])], arrow.messages_schema())[0]
    assert (claimed["dead_origin"], *(claimed[name] for name in arrow.STATES)) == ("q", None, None, None)


def test_a_plain_batch_gives_the_same_as_its_messages() -> None:
    batch = PlainBatch(["1", "2"], "q", 5, 5, [b"1", b'"x"'], priority=4, topic="t")
    whole = read_back([arrow.portions([Portion(batch, 3)])], arrow.messages_schema())
    single = read_back([arrow.portions([Portion(list(batch), 3)])], arrow.messages_schema())
    assert whole == single
    assert [row["topic"] for row in whole] == ["t", "t"]
    other = PlainBatch(["3"], "q", 6, 6, [b"text"], "text/plain", 4)
    mixed = [Portion(batch, 3), Portion(other, 1)]
    each = [Portion(list(one.messages), one.receives) for one in mixed]
    assert read_back([arrow.portions(mixed)], arrow.messages_schema()) == read_back(
        [arrow.portions(each)], arrow.messages_schema()
    )
    raw = PlainBatch(["1"], "q", 5, 5, [b"\x00\xff"], "application/octet-stream")
    assert read_back([arrow.portions([Portion(raw, 1)])], arrow.messages_schema())[0]["data"] == b"\x00\xff"


def test_a_packed_batch_gives_the_same_as_its_messages() -> None:
    ids = IdSource().run(6, 1_000_000)
    texts = [b"1", b'"x"', '["grüße"]'.encode(), b"{}", b"null", b'""']
    parts = [
        Portion(PlainBatch(RunIds(ids[0], 4), "q", 5, 5, pack(texts[:4])), 1),
        Portion(PlainBatch(RunIds(ids[4], 2), "q", 6, 6, pack(texts[4:])), 2),
    ]
    each = [Portion(list(one.messages), one.receives) for one in parts]
    found = read_back([arrow.portions(parts)], arrow.messages_schema())
    assert found == read_back([arrow.portions(each)], arrow.messages_schema())
    assert [row["id"] for row in found] == ids
    mixed = [*parts, Portion(PlainBatch(["a"], "q", 6, 6, [b"\xff"], "text/plain"), 1)]
    each = [Portion(list(one.messages), one.receives) for one in mixed]
    assert read_back([arrow.portions(mixed)], arrow.messages_schema()) == read_back(
        [arrow.portions(each)], arrow.messages_schema()
    )


def test_no_messages_are_an_empty_table() -> None:
    assert read_back([arrow.stored([], 0)], arrow.messages_schema()) == []


def test_history_keeps_everything() -> None:
    records = [
        HistoryRecord(5, Event(1_000_000, "sent", "q", "1", 0, 3, body=b"[1]", content_type="application/json")),
        HistoryRecord(6, Event(2_000_000, "received", "q", "1", 1, 3, "ann", 12.5)),
        HistoryRecord(7, Event(3_000_000, "purged", "q", "", 0, 9, count=4)),
        HistoryRecord(8, Event(4_000_000, "failed", "q", "1", 1, 3, "ann", held_ms=2.5, error="no such order")),
    ]
    rows = read_back([arrow.history(records)], arrow.history_schema())
    assert [row["offset"] for row in rows] == [5, 6, 7, 8]
    assert [row["body"] for row in rows] == ["[1]", None, None, None]
    assert [row["error"] for row in rows] == [None, None, None, "no such order"]
    assert (rows[1]["consumer"], rows[1]["wait_ms"], rows[1]["held_ms"], rows[1]["receives"]) == ("ann", 12.5, None, 1)
    assert (rows[2]["bytes"], rows[2]["count"], rows[2]["id"]) == (9, 4, "")
    assert read_back([arrow.history([])], arrow.history_schema()) == []


def test_a_stream_comes_in_pieces() -> None:
    encoder = arrow.Encoder(arrow.history_schema())
    batch = arrow.history([HistoryRecord(1, Event(1, "sent", "q", "1"))])
    pieces = [encoder.batch(batch), encoder.batch(batch), encoder.end()]
    with pa.ipc.open_stream(b"".join(pieces)) as reader:
        assert reader.read_all().num_rows == 2
    assert len(pieces[1]) < len(pieces[0])


def drafts_of(body: bytes, most: int = 1000) -> Sequence[Draft]:
    return arrow.drafts_of(body, most)


def test_plain_bodies_are_taken_as_they_are() -> None:
    found = drafts_of(stream({"body": ["1", '{"a": [1, 2]}', ' "spaces" ']}))
    assert isinstance(found, PlainDrafts)
    assert list(found.bodies) == [b"1", b'{"a": [1, 2]}', b' "spaces" ']
    found = drafts_of(stream({"data": [b"\xff", b""]}))
    assert isinstance(found, PlainDrafts)
    assert (list(found.bodies), found.content_type) == ([b"\xff", b""], "application/octet-stream")
    assert list(drafts_of(stream({"body": pa.array([], pa.string())}))) == []


def test_bodies_in_several_batches_and_in_part_of_one_are_taken_as_they_are() -> None:
    texts = [f'"{"x" * n}"' for n in range(20)]
    table = pa.concat_tables([pa.table({"body": texts[:7]}), pa.table({"body": texts[7:]})])
    for some in (table, table.slice(3, 3), table.slice(5, 9), table.slice(10)):
        found = arrow.drafts_of_table(some)
        assert isinstance(found, PlainDrafts)
        assert list(found.bodies) == [text.encode() for text in some["body"].to_pylist()]
        assert list(found.bodies[2:]) == list(found.bodies)[2:]


@given(lists(text('[]{}",:1 \n', max_size=4), min_size=1, max_size=4))
@example(["[1,", "2]"])
@example(["1\n2", "[3,", "4]"])
@example(['"a', 'b"'])
@example(["1 2"])
@example(["", "1"])
@example(["[1]", " 2 "])
def test_bodies_are_json_each_for_itself_and_not_only_together(bodies: list[str]) -> None:
    def refused(some: list[str]) -> str | None:
        try:
            assert list(cast(PlainDrafts, drafts_of(stream({"body": some}))).bodies) == [body.encode() for body in some]
        except InvalidRequest as error:
            return error.field
        return None

    wrong = [row for row, body in enumerate(bodies) if refused([body]) is not None]
    assert refused(bodies) == (f"messages[{wrong[0]}].body" if wrong else None)


def test_every_field_may_be_given() -> None:
    found = drafts_of(
        stream(
            {
                "body": ["1", "hello", None],
                "data": [None, None, b"\x01"],
                "content_type": [None, "text/plain", None],
                "headers": pa.array([[("a", "b")], None, None], pa.map_(pa.string(), pa.string())),
                "priority": pa.array([9, None, 0], pa.int64()),
                "delay": [1, None, 2],
                "ttl": [1.5, None, None],
                "key": pa.array(["k", None, None], pa.large_string()),
                "recipient": pa.nulls(3),
            }
        )
    )
    assert [(draft.body, draft.content_type) for draft in found] == [
        (b"1", "application/json"),
        (b"hello", "text/plain"),
        (b"\x01", "application/octet-stream"),
    ]
    assert (found[0].headers, found[0].priority, found[0].delay, found[0].ttl, found[0].key) == (
        {"a": "b"},
        9,
        1.0,
        1.5,
        "k",
    )
    assert (found[1].headers, found[1].priority, found[1].delay) == (None, 0, None)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"body": ["1"], "colour": ["x"]}, "colour: no such column; there are body, data"),
        ({"key": ["1"]}, "body: is missing, and so is data"),
        ({"body": [1]}, "body: is a column of int64; use string"),
        ({"body": ["1"], "priority": ["high"]}, "priority: is a column of string; use int32"),
        ({"body": ["1"], "priority": [2**40]}, "priority: is a column of int64; use int32"),
        ({"body": ["1"], "headers": ["x"]}, "headers: is a column of string; use map<string, string>"),
        ({"body": ["1", "nope"]}, r"messages[1].body: 'nope' is not JSON; for text set content_type"),
        ({"body": ["[1", "2]", "3,4"]}, "messages[0].body: '[1' is not JSON"),
        ({"body": ["1", None], "key": ["a", "b"]}, "messages[1].body: is missing, and so is data"),
        ({"body": ["1"], "data": [b"2"]}, "messages[0].body: there is data too"),
        ({"body": ["x"], "content_type": ["application/json"]}, "messages[0].body: 'x' is not JSON"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        drafts_of(stream(columns))
    assert caught.value.text.startswith(told)


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff" * 100, stream({"body": ["1"]})[:-40]])
def test_what_is_no_arrow_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not an Arrow stream"):
        drafts_of(body)


def stream_of(schema: pa.Schema, *batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_rows_are_counted_before_anything_is_decoded() -> None:
    schema = pa.schema([("body", pa.null())])
    for rows in ([2_000_000_000], [1001], [600, 401]):
        batches = [pa.RecordBatch.from_arrays([pa.nulls(count)], schema=schema) for count in rows]
        with pytest.raises(TooLarge, match=f"messages: {sum(rows)} in one call; at most 1000"):
            drafts_of(stream_of(schema, *batches))
    assert len(drafts_of(stream({"body": ["1"] * 1000}))) == 1000


def test_batches_without_rows_are_counted_too() -> None:
    schema = pa.schema([("body", pa.string())])
    empty = pa.RecordBatch.from_arrays([pa.array([], pa.string())], schema=schema)
    with pytest.raises(TooLarge, match="more than 4096 record batches"):
        drafts_of(stream_of(schema, *[empty] * 4097))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null(), 2**31 - 1),
        pa.struct([]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.map_(pa.string(), pa.list_(pa.null(), 2**31 - 1)),
    ],
    ids=str,
)
def test_a_column_of_a_type_that_could_grow_is_refused_by_its_schema(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"headers: is a column of .*; use map<string, string>"):
        drafts_of(stream_of(pa.schema([("body", pa.string()), ("headers", kind)])))


def test_large_metadata_are_refused() -> None:
    with pytest.raises(TooLarge, match="bytes of Arrow metadata; at most 262144"):
        drafts_of(stream_of(pa.schema([(f"column {number}", pa.null()) for number in range(10_000)])))


def test_the_name_of_a_column_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the name of a column is not UTF-8; use body, data"):
        drafts_of(stream({"body": ["1"]}).replace(b"body", b"b\xffdy"))


def test_a_claim_as_arrow_without_pyarrow_is_refused_before_the_reply_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent() -> None:
        raise MissingExtra("Arrow needs pyarrow")

    monkeypatch.setattr(arrow, "arrow", absent)
    with pytest.raises(MissingExtra):
        asyncio.run(streams.arrow_claim(cast(Broker, None), ReadClaim("q", "g", 1), OWNER))
