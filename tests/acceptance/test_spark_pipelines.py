"""The pipelines as functions, on a real broker and a real Spark."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import random
import re
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyarrow import parquet

import miniq
from miniq.errors import InvalidRequest
from miniq.spark import pipelines
from miniq.spark.pipelines import Run
from miniq.spark.pipelines.copy import BLOCK, _read, _verify, _write
from tests.acceptance.test_cli_copy import CASES
from tests.serving import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def run(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """How to run against the broker; what the user did not choose a place for is kept apart from other tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Run(url=server.url)


def all_bodies(queue: miniq.Queue) -> list[Any]:
    return [message.body for message in queue.peek(limit=1000)]


def rows(folder: Path, pattern: str = "**/*.parquet") -> list[dict[str, Any]]:
    """The rows of all Parquet files, read without Spark."""
    found = [parquet.read_table(path, partitioning=None) for path in sorted(folder.glob(pattern))]
    return [row for table in found for row in table.to_pylist()]


def dead_letters(broker: miniq.Client, bodies: list[Any], queue: str = "orders") -> None:
    """Let messages fail until they are set aside."""
    orders = broker.queue(queue)
    orders.configure(max_receives=1)
    orders.send_many(bodies)
    orders.release(orders.receive(max=1000))
    assert broker.queue(f"{queue}.dead").info().counts.ready == len(bodies)


# Ingest


def test_files_of_every_format_become_messages(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\r\n\n[2, "\xc3\xa4"]\n3')
    (tmp_path / "b.csv").write_text('name,note\nann,"x, y"\nbob,\n')
    (tmp_path / "c.log").write_bytes(b"one\r\n\ntwo")
    parquet.write_table(pa.table({"n": [1, None], "tags": [["a"], []]}), tmp_path / "d.parquet")
    done = pipelines.ingest(spark, str(tmp_path / "a.jsonl"), "a", run=run)
    assert (done.messages, done.details["format"]) == (3, "jsonl")
    pipelines.ingest(spark, str(tmp_path / "b.csv"), "b", run=run)
    pipelines.ingest(spark, str(tmp_path / "c.log"), "c", format="text", run=run)
    pipelines.ingest(spark, str(tmp_path / "d.parquet"), "d", run=run)
    assert all_bodies(broker.queue("a")) == [{"n": 1}, [2, "ä"], 3]
    assert all_bodies(broker.queue("b")) == [{"name": "ann", "note": "x, y"}, {"name": "bob"}]
    assert all_bodies(broker.queue("c")) == ["one\r", "", "two"]
    assert all_bodies(broker.queue("d")) == [{"n": 1, "tags": ["a"]}, {"tags": []}]


def test_a_file_is_sent_once_and_new_ones_are_sent(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text("1\n2\n")
    files = str(tmp_path / "in" / "*.jsonl")
    assert pipelines.ingest(spark, files, "q", run=run).messages == 2
    assert pipelines.ingest(spark, files, "q", run=run).messages == 0
    (tmp_path / "in" / "2.jsonl").write_text("3\n")
    assert pipelines.ingest(spark, files, "q", run=run).messages == 1
    assert all_bodies(broker.queue("q")) == [1, 2, 3]


def test_a_file_with_a_line_of_invalid_json_sends_nothing(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"n": 1}\nnot json\n')
    with pytest.raises(Exception, match="body"):
        pipelines.ingest(spark, str(tmp_path / "bad.jsonl"), "q", run=run)
    assert "q" not in [info.name for info in broker.queues()] or broker.queue("q").info().counts.total == 0


def test_missing_files_and_unknown_formats_are_rejected(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"format: cannot be guessed from .*things\.xyz'; use one of text, jsonl"):
        pipelines.ingest(spark, str(tmp_path / "things.xyz"), "q", run=run)
    with pytest.raises(InvalidRequest, match=r"files: no file matches .*none\.jsonl'"):
        pipelines.ingest(spark, str(tmp_path / "none.jsonl"), "q", run=run)


# Drain


@pytest.mark.parametrize("format", ["parquet", "json", "text"])
def test_a_queue_is_drained_into_files(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path, format: str
) -> None:
    orders = broker.queue("orders")
    orders.send_many([{"n": n} for n in range(10)])
    orders.send(b"\x00\xff", key="bytes")
    done = pipelines.drain(spark, "orders", str(tmp_path / "out"), format=format, run=run)
    assert (done.messages, done.checkpoint) == (11, str(tmp_path / "out" / "_checkpoint"))
    assert orders.info().counts.total == 0
    if format == "parquet":
        found = rows(tmp_path / "out", "batch=*/*.parquet")
        bodies, data = [row["body"] for row in found if row["body"]], [row["data"] for row in found if row["data"]]
    else:
        lines = [
            line for path in (tmp_path / "out").glob("batch=*/part-*") for line in path.read_text().splitlines() if line
        ]
        if format == "json":
            lines = [json.loads(line).get("body") or json.loads(line)["data"] for line in lines]
        bodies, data = (
            [line for line in lines if line.startswith("{")],
            [b"\x00\xff" for line in lines if line == "AP8="],
        )
    assert sorted(bodies, key=len) == [f'{{"n":{n}}}' for n in range(10)]
    assert data == [b"\x00\xff"]


@pytest.mark.parametrize("format", ["parquet", "text"])
def test_files_of_a_batch_that_is_complete_are_not_replaced_when_spark_repeats_it(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path, format: str
) -> None:
    """While they were replaced, a kill and a newer copy of the checkpoint lost them."""
    orders, out = broker.queue("orders"), tmp_path / "out"
    orders.send_many(miniq.draft(b"%d\nline" % n, content_type="text/plain") for n in range(12))
    few = Run(url=run.url, options={"maxMessagesPerBatch": "4", "partitions": "2"})
    pipelines.drain(spark, "orders", str(out), format=format, run=few)
    before = {path: path.read_bytes() for path in sorted(out.glob("batch=*/part-*"))}
    assert len(before) == 6
    removed = next(path for path in before if path.parent.name == "batch=000002")
    removed.unlink()
    for number in (1, 2):
        for log in ("commits", "offsets"):
            (out / "_checkpoint" / log / str(number)).unlink()
            (out / "_checkpoint" / log / f".{number}.crc").unlink()
    orders.send("more")  # without new messages, nothing is repeated
    pipelines.drain(spark, "orders", str(out), format=format, run=few)
    shutil.rmtree(out / "batch=000003")
    after = {path: path.read_bytes() for path in sorted(out.glob("batch=*/part-*"))}
    complete, partial = ({path.name for path in after if path.parent.name == f"batch=00000{n}"} for n in (1, 2))
    assert complete == {path.name for path in before if path.parent.name == "batch=000001"}
    assert not partial & {path.name for path in before}
    assert sorted(map(len, after.values())) == sorted(map(len, before.values()))
    if format == "text":
        assert sorted(b"".join(after.values()).split()) == sorted(b"".join(before.values()).split())


def test_drains_into_two_folders_do_not_disturb_each_other(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    for place in ("one", "two"):
        orders.send(place)
        assert pipelines.drain(spark, "orders", str(tmp_path / place), run=run).messages == 1
        assert [row["body"] for row in rows(tmp_path / place, "batch=*/*.parquet")] == [f'"{place}"']


def test_a_continuous_run_processes_new_messages_until_stopped(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    orders = broker.queue("orders")
    orders.configure()
    seen: list[int] = []
    until = time.monotonic() + 60

    def stop() -> bool:
        assert time.monotonic() < until
        return bool(seen) and seen[-1] >= 20

    threading.Timer(0.5, orders.send_many, [range(20)]).start()
    how = Run(
        url=run.url, continuous=True, stop=stop, progress=lambda progress: seen.append(progress.messages),
        options={"pollTimeout": "0.2"},
    )  # fmt: skip
    done = pipelines.drain(spark, "orders", str(tmp_path / "out"), run=how)
    assert (done.messages, done.stopped) == (20, True)
    assert len(rows(tmp_path / "out", "batch=*/*.parquet")) == 20


def test_a_folder_that_another_checkpoint_writes_to_is_refused_and_not_changed(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    orders, out = broker.queue("orders"), tmp_path / "out"
    orders.send_many(range(10))
    pipelines.drain(spark, "orders", str(out), run=run)
    orders.send_many(range(10, 20))
    other = Run(url=run.url, checkpoint=str(tmp_path / "other"))
    with pytest.raises(
        InvalidRequest, match=r"out' is written by another checkpoint: '.*/out/_checkpoint', by `drain`"
    ):
        pipelines.drain(spark, "orders", str(out), run=other)
    os.rename(out / "_checkpoint", tmp_path / "moved")
    with pytest.raises(
        InvalidRequest, match=r"out' was written with an earlier checkpoint at '.*/out/_checkpoint', which is gone"
    ):
        pipelines.drain(spark, "orders", str(out), run=run)
    assert len(rows(out, "batch=*/*.parquet")) == 10
    moved = Run(url=run.url, checkpoint=str(tmp_path / "moved"))
    assert pipelines.drain(spark, "orders", str(out), run=moved).messages == 10
    assert sorted(int(row["body"]) for row in rows(out, "batch=*/*.parquet")) == list(range(20))


def test_only_its_own_checkpoint_goes_on_in_a_folder_of_an_earlier_version(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    broker.queue("orders").configure(history="events")
    broker.queue("orders").send_many(range(10))
    pipelines.archive(spark, str(lake), run=run)
    for folder in (lake, lake / "_checkpoint"):
        shutil.rmtree(folder / "_miniq")
    with pytest.raises(
        InvalidRequest, match=r"lake' holds files of an earlier run, and '.*/new' is not its checkpoint"
    ):
        pipelines.archive(spark, str(lake), run=Run(url=run.url, checkpoint=str(tmp_path / "new")))
    broker.queue("orders").send(10)
    assert pipelines.archive(spark, str(lake), run=run).messages == 1
    with pytest.raises(InvalidRequest, match=r"lake' is written by another checkpoint"):
        pipelines.archive(spark, str(lake), run=Run(url=run.url, checkpoint=str(tmp_path / "new")))


def test_a_run_that_is_stopped_ends_after_its_batch(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    broker.queue("orders").send_many(range(50))
    begun = tmp_path / "out" / "_checkpoint" / "offsets" / "1"
    how = Run(url=run.url, stop=begun.exists, options={"maxMessagesPerBatch": "10"})
    done = pipelines.drain(spark, "orders", str(tmp_path / "out"), run=how)
    assert done.stopped
    assert (tmp_path / "out" / "_checkpoint" / "commits" / "1").exists(), (
        "the batch during which it was stopped is done"
    )
    assert 20 <= done.messages < 50
    assert pipelines.drain(spark, "orders", str(tmp_path / "out"), run=run).messages == 50 - done.messages
    assert sorted(int(row["body"]) for row in rows(tmp_path / "out", "batch=*/*.parquet")) == list(range(50))


# Rights

RIGHTS = {
    "ingest": ["send:target"],
    "drain": ["receive:orders"],
    "transform": ["receive:orders", "send:target"],
    "archive": ["read"],
    "replay": ["send:target"],
    "reprocess": ["read:orders.dead", "manage:orders.dead", "send:orders"],
    "copy": ["manage:copy-*", "send:copy-*", "receive:copy-*"],
}
"""What the key of each pipeline needs, as in docs/howto/pipelines.md."""


def test_each_pipeline_needs_only_the_rights_that_the_how_to_lists(spark: SparkSession, tmp_path: Path) -> None:
    howto = Path("docs/howto/pipelines.md").read_text()
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')

    def perform(name: str, run: Run) -> int:
        return {
            "ingest": lambda: pipelines.ingest(spark, str(tmp_path / "in.jsonl"), "target", run=run),
            "drain": lambda: pipelines.drain(spark, "orders", str(tmp_path / "out"), run=run),
            "transform": lambda: pipelines.transform(
                spark, "orders", "target", "select body from messages", group="t", run=run
            ),
            "archive": lambda: pipelines.archive(spark, str(tmp_path / "lake"), run=run),
            "replay": lambda: pipelines.replay(spark, str(tmp_path / "lake"), "target", run=run),
            "reprocess": lambda: pipelines.reprocess(spark, "orders.dead", run=run),
            "copy": lambda: pipelines.copy(spark, str(tmp_path / "in.jsonl"), str(tmp_path / "copied"), run=run),
        }[name]().messages  # type: ignore[no-untyped-call]

    with serving(f"rocksdb:{tmp_path / 'data'}") as server, miniq.connect(server.url) as mq:
        mq.queue("orders").configure(history="full", max_receives=1)
        mq.queue("target").configure()
        secret = mq.create_key("admin", ["*"]).secret
        with miniq.connect(server.url, api_key=secret) as admin:
            for name, allow in RIGHTS.items():
                assert f"| `{name}` | {', '.join(f'`{right}`' for right in _listed(allow))} |" in howto
                if name == "reprocess":
                    admin.queue("orders").purge()
                    dead_letters(admin, [1])
                else:
                    admin.queue("orders").send(name)
                key = admin.create_key(name, allow).secret
                checkpoint = None if name == "copy" else str(tmp_path / f"checkpoint-{name}")
                assert perform(name, Run(url=server.url, api_key=key, checkpoint=checkpoint)), name


def _listed(rights: list[str]) -> list[str]:
    """Rights in the words of the how-to."""
    names = {"orders.dead": "QUEUE", "orders": "SOURCE", "target": "TARGET"}
    return [re.sub(r":(.*)", lambda match: ":" + names.get(match[1], match[1]), right) for right in rights]


# Copy


@pytest.mark.parametrize("name", CASES)
def test_the_pieces_of_any_file_put_together_are_that_file(tmp_path: Path, name: str) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(CASES[name])
    copy.touch()
    blocks = pa.RecordBatch.from_pydict({"id": pa.array(range(0, len(CASES[name]), BLOCK), pa.int64())})
    list(_write(str(copy), _read(str(source), iter([blocks]))))
    assert copy.read_bytes() == CASES[name]
    lines = CASES[name].count(b"\n") + (not CASES[name].endswith(b"\n") and bool(CASES[name]))
    assert _verify(str(source), str(copy)) == (len(CASES[name]), lines)


@pytest.mark.parametrize("name", ["empty file", "every byte", "a line of 5 MiB"])
def test_the_copy_is_byte_identical(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path, name: str
) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(CASES[name])
    done = pipelines.copy(spark, str(source), str(copy), run=run)
    assert copy.read_bytes() == CASES[name]
    assert done.details["bytes"] == len(CASES[name])
    assert done.details["lines"] == CASES[name].count(b"\n") + (not CASES[name].endswith(b"\n") and bool(CASES[name]))
    assert [info.name for info in broker.queues()] == ["default"]
    assert sorted(path for path in tmp_path.iterdir() if path.name != "state") == [source, copy]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_copy_is_refused_before_it_begins_if_its_name_is_taken(tmp_path: Path, kind: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text("ours")
    if kind == "file":
        out.write_text("another's")
    else:
        out.mkdir()
    no_spark: Any = None
    with pytest.raises(InvalidRequest, match="exists; name a new file, or remove that one"):
        pipelines.copy(no_spark, str(source), str(out), run=Run(url="http://127.0.0.1:1"))
    assert out.is_dir() if kind == "folder" else out.read_text() == "another's"
    assert sorted(tmp_path.iterdir()) == [source, out]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_during_a_copy_is_not_overwritten(
    broker: miniq.Client, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Also on a file system without links, where the copy is renamed."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text("ours")

    def transfer(spark: object, source: str, part: str, *rest: object) -> int:
        Path(part).write_text("ours")
        out.write_text("another's")
        return 1

    def no_links(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    module = sys.modules["miniq.spark.pipelines.copy"]  # the package has a function of this name
    monkeypatch.setattr(module, "_transfer", transfer)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    no_spark: Any = None
    with pytest.raises(InvalidRequest, match="exists by now; name a new file"):
        pipelines.copy(no_spark, str(source), str(out), run=run)
    assert out.read_text() == "another's"
    assert sorted(path for path in tmp_path.iterdir() if path.name != "state") == [source, out]
    out.unlink()
    monkeypatch.setattr(module, "_transfer", lambda spark, source, part, *rest: Path(part).write_text("ours"))
    pipelines.copy(no_spark, str(source), str(out), run=run)
    assert out.read_text() == "ours"


def test_a_large_file_is_copied_by_two_tasks(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    """`make copy-large` does it with 1 GiB."""
    size = int(os.environ.get("MINIQ_COPY_MIB", "10")) * 1024 * 1024
    source, copy = tmp_path / "in", tmp_path / "out"
    chance = random.Random(1)
    with open(source, "wb") as file:
        while file.tell() < size:
            lines = [chance.randbytes(chance.choice([0, 20, 200, 1000])).replace(b"\n", b"") for _ in range(5000)]
            file.write(b"\n".join(lines))
        file.truncate(size)
    done = pipelines.copy(spark, str(source), str(copy), partitions=2, run=run)
    assert (done.details["bytes"], filecmp.cmp(source, copy, shallow=False)) == (size, True)
    print(f"{size} bytes as {done.messages} messages in {done.seconds} s")


# Archive, report, replay


def story(broker: miniq.Client) -> None:
    """Some history: 20 orders, of which 2 die and the rest are acked, 4 of them at the second try."""
    orders = broker.queue("orders")
    orders.configure(history="full", max_receives=2)
    broker.queue("other").configure(history="events")
    orders.send_many([{"n": n} for n in range(20)])
    broker.queue("other").send("x")
    first = orders.receive(max=20, consumer="ann")
    orders.ack(first[:14])
    orders.release(first[14:])
    second = orders.receive(max=20, consumer="bob")
    orders.ack(second[:4])
    orders.release(second[4:])
    assert broker.queue("orders.dead").info().counts.total == 2


def test_the_archive_has_every_record_once_by_date_and_queue(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    begin = broker.history(limit=1).last
    story(broker)
    broker.queue("other").receive()[0].fail("no such order")
    lake = tmp_path / "lake"
    first = pipelines.archive(spark, str(lake), run=run)
    assert {"queue=orders", "queue=other"} <= {path.name for path in lake.glob("date=*/queue=*")}
    assert pipelines.archive(spark, str(lake), run=run).messages == 0
    broker.queue("other").send("y")
    assert pipelines.archive(spark, str(lake), run=run).messages == 1
    found = [row for row in spark.read.parquet(str(lake)).collect() if row.offset > begin]
    page = broker.history(after=begin, limit=1000)
    assert sorted(row.offset for row in found) == [record.offset for record in page.records]
    by_offset = {row.offset: row for row in found}
    for record in page.records:
        row, event = by_offset[record.offset], record.event
        assert (row.event, row.queue, row.id, row.consumer) == (event.event, event.queue, event.id, event.consumer)
        assert (row.receives, row.wait_ms, row.held_ms, row.bytes, row.error) == (
            event.receives, event.wait_ms, event.held_ms, event.size, event.error
        )  # fmt: skip
        assert (row.body or None) == (event.body.decode() if event.body is not None else None)
    assert "no such order" in {row.error for row in found if row.event == "failed"}
    assert first.messages >= len(page.records) - 1


def test_the_report_counts_the_archived_events(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    begin = broker.history(limit=1).last
    story(broker)
    copies = broker.queue("copies")
    copies.configure(history="events")
    broker.topic("news").subscribe("copies")
    broker.topic("news").publish_many([1, 2])
    broker.schedule("nightly", queue="copies", cron="0 3 * * *", body=3)
    broker.run_schedule("nightly")
    broker.delete_schedule("nightly")
    copies.receive(consumer="eve")[0].fail("no", delay=60)
    pipelines.archive(spark, str(tmp_path / "lake"), run=run)
    done = pipelines.report(spark, str(tmp_path / "lake"), str(tmp_path / "out"), where=f"offset > {begin}", run=run)
    assert done.messages == broker.history(limit=1).last - begin
    tables = {path.stem: rows(path.parent, path.name) for path in (tmp_path / "out" / "tables").glob("*.parquet")}
    orders = next(row for row in tables["queues"] if row["queue"] == "orders")
    counts = [orders[name] for name in ("sent", "received", "redelivered", "acked", "released", "dead", "lost_leases")]
    assert counts == [20, 26, 6, 18, 6, 2, 0]
    assert {(row["receives"], row["messages"]) for row in tables["receives"]} == {(1, 14), (2, 4)}
    assert [(row["queue"], row["reason"], row["messages"]) for row in tables["dead_letters"]] == [
        ("orders", "max_receives", 2)
    ]
    assert {(row["consumer"], row["received"], row["acked"], row["released"]) for row in tables["consumers"]} == {
        ("ann", 20, 14, 6),
        ("bob", 6, 4, 0),
        ("eve", 1, 0, 0),
    }
    published = next(row for row in tables["queues"] if row["queue"] == "copies")
    assert [published[name] for name in ("sent", "received", "failed", "acked")] == [3, 1, 1, 0]
    assert {row["queue"] for row in tables["queues"]} == {"orders", "other", "copies"}, "a topic is not a queue"
    assert sum(row["acked"] for row in tables["overall"]) == tables["total"][0]["acked"] == 18
    assert 0 <= orders["latency_p50_ms"] <= orders["latency_p99_ms"] < 600_000
    assert orders["latency_p99_ms"] + 2 >= orders["held_p50_ms"], "an id tells milliseconds"
    last = {row["queue"]: row["messages"] for row in sorted(tables["backlog"], key=lambda row: row["at"])}
    assert last == {"orders": 0, "other": 1, "copies": 3}
    page = (tmp_path / "out" / "report.html").read_text()
    assert ">Throughput<" in page
    assert ">orders: max_receives<" in page


def test_a_missing_lake_is_an_error(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"lake: .* cannot be read; archive to it first"):
        pipelines.report(spark, str(tmp_path / "nothing"), str(tmp_path / "out"), run=run)


def test_archived_messages_are_replayed_once(
    spark: SparkSession, broker: miniq.Client, run: Run, tmp_path: Path
) -> None:
    begin = broker.history(limit=1).last
    story(broker)
    broker.queue("copies").configure(history="full")
    broker.topic("news").subscribe("copies")
    broker.topic("news").publish({"n": -1})
    broker.schedule("nightly", queue="copies", cron="0 3 * * *", body={"n": -2})
    broker.run_schedule("nightly")
    broker.delete_schedule("nightly")
    pipelines.archive(spark, str(tmp_path / "lake"), run=run)
    where = f"offset > {begin} and get_json_object(body, '$.n') < 5"
    done = pipelines.replay(spark, str(tmp_path / "lake"), "again", where=where, run=run)
    assert done.messages == 7
    assert pipelines.replay(spark, str(tmp_path / "lake"), "again", where=where, run=run).messages == 0
    assert sorted(body["n"] for body in all_bodies(broker.queue("again"))) == [-2, -1, 0, 1, 2, 3, 4]
    assert {message.content_type for message in broker.queue("again").peek()} == {"application/json"}


# Reprocess


def test_dead_letters_are_selected_fixed_and_sent_back_once(
    spark: SparkSession, broker: miniq.Client, run: Run
) -> None:
    dead_letters(broker, [{"n": 1, "amount": "twelve"}, {"n": 2, "amount": "twelve"}, {"n": 3, "amount": "many"}])
    fix = "replace(body, '\"twelve\"', '12')"
    done = pipelines.reprocess(spark, "orders.dead", where="body like '%twelve%'", fix=fix, run=run)
    assert (done.messages, done.details["fixed"], done.details["found"]) == (2, 2, 2)
    assert sorted(body["n"] for body in all_bodies(broker.queue("orders"))) == [1, 2]
    assert {body["amount"] for body in all_bodies(broker.queue("orders"))} == {12}
    assert all_bodies(broker.queue("orders.dead")) == [{"n": 3, "amount": "many"}]
    assert pipelines.reprocess(spark, "orders.dead", where="body like '%twelve%'", fix=fix, run=run).messages == 0


def better(body: Any) -> Any:
    return None if body["n"] == 3 else body | {"tries": body.get("tries", 0) + 1}


def test_a_fix_function_leaves_letters_for_which_it_returns_none(
    spark: SparkSession, broker: miniq.Client, run: Run
) -> None:
    dead_letters(broker, [{"n": 1}, {"n": 2}, {"n": 3}])
    done = pipelines.reprocess(spark, "orders.dead", fix=better, to="fixed", run=run)
    assert (done.messages, done.details["left"]) == (2, 1)
    assert sorted(body["n"] for body in all_bodies(broker.queue("fixed"))) == [1, 2]
    assert all_bodies(broker.queue("orders.dead")) == [{"n": 3}]


def test_a_letter_fixed_before_a_crash_is_not_fixed_again(spark: SparkSession, broker: miniq.Client, run: Run) -> None:
    dead_letters(broker, [{"n": 1}])
    dead = broker.queue("orders.dead")
    (letter,) = dead.peek()
    dead.edit(letter.id, body={"n": 1, "tries": 1}, headers={"miniq-fixed-by": f"{__name__}:better"})
    done = pipelines.reprocess(spark, "orders.dead", fix=better, run=run)
    assert (done.messages, done.details["fixed"]) == (1, 0)
    assert all_bodies(broker.queue("orders")) == [{"n": 1, "tries": 1}]


def test_a_leased_letter_is_left_alone(spark: SparkSession, broker: miniq.Client, run: Run) -> None:
    dead_letters(broker, [{"n": 1}, {"n": 2}])
    held = broker.queue("orders.dead").receive()
    done = pipelines.reprocess(spark, "orders.dead", run=run)
    assert done.messages == 1
    assert held[0].ack()


def test_a_fix_that_returns_invalid_json_is_an_error_and_changes_nothing(
    spark: SparkSession, broker: miniq.Client, run: Run
) -> None:
    dead_letters(broker, [{"n": 1}])
    with pytest.raises(Exception, match=r"fix: the result 'oops' for dead letter .* is not JSON"):
        pipelines.reprocess(spark, "orders.dead", fix="'oops'", run=run)
    assert all_bodies(broker.queue("orders.dead")) == [{"n": 1}]


# Transform


def test_messages_go_through_sql_into_another_queue(spark: SparkSession, broker: miniq.Client, run: Run) -> None:
    broker.queue("orders").send_many([{"amount": n} for n in range(10)])
    sql = "select body, 9 as priority, id as key from messages where get_json_object(body, '$.amount') >= 7"
    done = pipelines.transform(spark, "orders", "big", sql, run=run)
    assert done.messages == 3
    assert Counter(body["amount"] for body in all_bodies(broker.queue("big"))) == Counter([7, 8, 9])
    assert {message.priority for message in broker.queue("big").peek()} == {9}
    assert broker.queue("orders").info().counts.total == 0
    assert pipelines.transform(spark, "orders", "big", sql, run=run).messages == 0


def doubled(messages: DataFrame) -> DataFrame:
    return messages.selectExpr("named_struct('double', 2 * cast(body as int)) as body")


def test_a_function_may_transform(spark: SparkSession, broker: miniq.Client, run: Run) -> None:
    broker.queue("numbers").send_many([1, 2, 3])
    pipelines.transform(spark, "numbers", "doubles", doubled, run=run)
    assert sorted(body["double"] for body in all_bodies(broker.queue("doubles"))) == [2, 4, 6]


def test_invalid_transforms_are_rejected(spark: SparkSession, run: Run) -> None:
    with pytest.raises(InvalidRequest, match="target: 'q' is also the source"):
        pipelines.transform(spark, "q", "q", "select 1 as body", run=run)
    with pytest.raises(InvalidRequest, match="function: 'nothing:here' cannot be imported"):
        pipelines.transform(spark, "a", "b", "nothing:here", run=run)
    with pytest.raises(InvalidRequest, match="function: there is no 'here' in 'json'"):
        pipelines.transform(spark, "a", "b", "json:here", run=run)
