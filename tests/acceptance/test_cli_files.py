"""`miniq import` and `export`: what is in a queue and what is in a file are the same."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from miniq import Client, connect
from miniq.cli import formats
from miniq.cli.output import part_of
from tests.acceptance.shell import Shell, collect, on_folder, serving

BODIES: list[Any] = [{"a": 1, "b": 'ä\n,"'}, {"a": 2.5, "c": [1, {"d": None}]}, {"a": 3}]
FORMATS = ["jsonl", "csv", "parquet"]


def need(format: str) -> None:
    """Skip where pyarrow is absent, fail where nothing may be absent."""
    if format == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip("pyarrow is not installed: pip install '.[parquet]'")


@pytest.fixture
def miniq(tmp_path: Path) -> Shell:
    return on_folder(tmp_path)


def miniq_client(shell: Shell) -> Client:
    return connect(shell.url)


def bodies(miniq: Shell, queue: str) -> list[Any]:
    return [one["body"] for one in miniq("peek", queue, "--max", "100000", "--json").objects]


def test_json_lines_go_in_and_come_out_as_they_were(miniq: Shell, tmp_path: Path) -> None:
    text = '{"a": 1.50,  "b": 12345678901234567890123}\n"text"\nnull\n\n[1, 2]\n-0.0'
    (tmp_path / "in.jsonl").write_text(text)
    assert miniq("import", "in.jsonl", "q").out == "sent 5 messages to q\n"
    assert miniq("export", "q", "out.jsonl").out == "wrote 5 messages to out.jsonl\n"
    assert (tmp_path / "out.jsonl").read_text() == text.replace("\n\n", "\n") + "\n"
    assert miniq("export", "q", "-", "--format", "jsonl").out == (tmp_path / "out.jsonl").read_text()


def test_json_lines_come_from_stdin(miniq: Shell) -> None:
    miniq("import", "-", "q", "--format", "jsonl", stdin=b'{"a": 1}\n')
    assert bodies(miniq, "q") == [{"a": 1}]


def test_csv_rows_are_objects_of_text(miniq: Shell, tmp_path: Path) -> None:
    with open(tmp_path / "in.csv", "w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([["name", "n"], ['ä, "b"\nc', "1"], ["", "2"]])
    miniq("import", "in.csv", "q")
    assert bodies(miniq, "q") == [{"name": 'ä, "b"\nc', "n": "1"}, {"name": "", "n": "2"}]


def test_csv_has_a_column_for_every_name(miniq: Shell, tmp_path: Path) -> None:
    miniq("send", "q", *(json.dumps(body) for body in BODIES), "plain")
    miniq("export", "q", "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["a", "b", "c", "body"],
        ["1", 'ä\n,"', "", ""],
        ["2.5", "", '[1,{"d":null}]', ""],
        ["3", "", "", ""],
        ["", "", "", "plain"],
    ]


def test_parquet_columns_keep_their_types(miniq: Shell, tmp_path: Path) -> None:
    need("parquet")
    import pyarrow.parquet as parquet

    miniq("send", "q", '{"n": 1, "t": "x"}', '{"n": 2.5, "l": [1, 2]}', '{"o": {"p": true}}')
    miniq("export", "q", "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("n").to_pylist() == [1.0, 2.5, None]
    assert {field.name: str(field.type) for field in table.schema}["o"] == "struct<p: bool>"
    miniq("import", "out.parquet", "again")
    assert bodies(miniq, "again") == [{"n": 1, "t": "x"}, {"n": 2.5, "l": [1, 2]}, {"o": {"p": True}}]


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_export_is_imported_with_everything_a_sender_gave(miniq: Shell, tmp_path: Path, format: str) -> None:
    need(format)
    for args in (
        ['{"a": 1.50}', "--priority", "3", "--key", "k", "--group", "g", "--header", "x=ä", "--dedup-id", "d"],
        ["text", "--content-type", "text/plain; charset=utf-8", "--recipient", "r"],
        ["", "--text"],
        ["--file", str(write(tmp_path / "bytes", bytes(range(256))))],
        ["--file", str(write(tmp_path / "none", b""))],
        ["null"],
    ):
        miniq("send", "q", *args)
    miniq("export", "q", f"saved.{format}", "--full")
    miniq("import", f"saved.{format}", "again", "--full")
    kept = ("body", "data", "content_type", "headers", "priority", "key", "group", "recipient", "dedup_id")
    before, after = (miniq("peek", queue, "--json").objects for queue in ("q", "again"))
    assert [{name: one.get(name) for name in kept} for one in before] == [
        {name: one.get(name) for name in kept} for one in after
    ]
    assert b'{"a": 1.50}' in miniq("peek", "again", "--body").raw


def test_an_export_consumes_nothing_unless_told(miniq: Shell, tmp_path: Path) -> None:
    miniq("send", "q", *(str(n) for n in range(2500)))
    miniq("receive", "q")
    assert miniq("export", "q", "all.jsonl", "--json").objects == [{"messages": 2500}]
    assert miniq("export", "q", "ready.jsonl", "--status", "ready", "--max", "1500").out.startswith("wrote 1500 ")
    assert miniq("export", "q", "taken.jsonl", "--consume").out.startswith("wrote 2499 ")
    assert [json.loads(line) for line in (tmp_path / "taken.jsonl").read_text().splitlines()] == list(range(1, 2500))
    counts = miniq("queues", "show", "q", "--json").objects[0]["counts"]
    assert (counts["ready"], counts["leased"]) == (0, 1)


def test_an_export_that_fails_leaves_queue_and_files_as_they_were(miniq: Shell, tmp_path: Path) -> None:
    miniq("send", "q", "1")
    miniq("send", "q", "--file", str(write(tmp_path / "bytes", b"\xff")))
    (tmp_path / "out.jsonl").write_text("old")
    assert "use --full" in miniq("export", "q", "out.jsonl", code=1).err
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert "use --full" in miniq("export", "q", "new.jsonl", "--consume", code=1).err
    assert miniq("queues", "show", "q", "--json").objects[0]["counts"]["ready"] == 2
    assert not list(tmp_path.glob("*.part"))
    assert "no queue" in miniq("export", "nope", "new.jsonl", code=1).err
    assert not (tmp_path / "new.jsonl").exists()


def test_an_export_that_consumes_never_overwrites_a_file(miniq: Shell, tmp_path: Path) -> None:
    miniq("send", "q", "1")
    miniq("export", "q", "out.jsonl", "--consume")
    miniq("send", "q", "2")
    refused = miniq("export", "q", "out.jsonl", "--consume", code=1).err
    assert refused.startswith("miniq: out.jsonl exists")
    assert "name another file" in refused
    assert (tmp_path / "out.jsonl").read_text() == "1\n"
    assert bodies(miniq, "q") == [2]


def test_a_file_that_appears_during_an_export_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("ours")
    (tmp_path / "out").write_text("another's")
    with pytest.raises(FileExistsError), part_of(str(tmp_path / "out"), overwrite=False):
        pass
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out", "part"]
    assert (tmp_path / "out").read_text() == "another's"


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_left_of_delay_and_ttl_is_exported_and_imported(miniq: Shell, tmp_path: Path, format: str) -> None:
    need(format)
    miniq("send", "q", "1", "--delay", "2h", "--ttl", "1d")
    miniq("send", "q", "2", "--ttl", "3h")
    miniq("export", "q", f"saved.{format}", "--full")
    miniq("import", f"saved.{format}", "again", "--full")
    delayed, ready = miniq("peek", "again", "--json").objects
    assert (ready["body"], ready["status"]) == (2, "ready")
    assert (delayed["body"], delayed["status"]) == (1, "delayed")
    seconds = {
        name: (datetime.fromisoformat(one[name]) - datetime.fromisoformat(one["sent_at"])).total_seconds()
        for one, name in ((delayed, "visible_at"), (delayed, "expires_at"))
    }
    assert 7200 - 120 < seconds["visible_at"] <= 7200
    assert 86400 - 120 < seconds["expires_at"] <= 86400
    miniq("export", "q", f"taken.{format}", "--full", "--consume")
    miniq("import", f"taken.{format}", "taken", "--full")
    (taken,) = miniq("peek", "taken", "--json").objects
    assert taken["status"] == "ready", "the lease of the export is not a delay"
    assert "expires_at" in taken


PLAIN: list[list[Any]] = [
    [None, "text", ""],
    [1, "one", True, None, [1, "a"], {"a": 1}],
    [{"a": None}, {"a": 1}, {}],
    [{"body": 1}, {"body": None}, 1],
    [{"a": {"b": 1}}, {"a": {"c": None}}, {"a": {}}],
    [{"a": 1}, {"a": 2.5}, {"a": 12345678901234567890123}],
    [{"_json": "x"}, {"_json": None}],
    [[], {}, [None]],
]


@pytest.mark.parametrize("values", PLAIN, ids=json.dumps)
def test_parquet_gives_every_body_back_exactly(miniq: Shell, values: list[Any]) -> None:
    need("parquet")
    miniq("send", "q", *(json.dumps(value) for value in values))
    miniq("export", "q", "out.parquet")
    miniq("import", "out.parquet", "again")
    assert list(map(json.dumps, bodies(miniq, "again"))) == list(map(json.dumps, values))


def test_a_body_with_line_breaks_is_one_full_line(miniq: Shell, tmp_path: Path) -> None:
    miniq("send", "q", '{"a":\n1}')
    miniq("export", "q", "out.jsonl", "--full")
    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 1
    miniq("import", "out.jsonl", "again", "--full")
    assert bodies(miniq, "again") == [{"a": 1}]


def test_an_import_that_is_repeated_adds_nothing_unless_told(miniq: Shell, tmp_path: Path) -> None:
    rows = [str(n) for n in range(12_000)]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    assert miniq("import", "in.jsonl", "q", "--json").objects == [{"sent": 12_000, "sent_before": 0}]
    miniq("queues", "set", "q", "--dedup-window", "0")
    assert miniq("import", "./in.jsonl", "q").out == (
        "sent 0 messages to q; 12000 were sent by an earlier import of this file (--again sends them again)\n"
    )
    assert bodies(miniq, "q") == list(range(12_000))
    assert miniq("import", "in.jsonl", "q", "--again").out == "sent 12000 messages to q\n"
    assert miniq("import", "in.jsonl", "another").out == "sent 12000 messages to another\n"
    (tmp_path / "copy.jsonl").write_text("\n".join(rows))
    assert miniq("import", "copy.jsonl", "another").out == "sent 12000 messages to another\n"
    (tmp_path / "in.jsonl").write_text("\n".join(rows[:-1]))
    assert miniq("import", "in.jsonl", "another").out == "sent 11999 messages to another\n"
    with miniq_client(miniq) as mq:
        assert mq.queue("q").stages() == []


def test_an_import_that_was_killed_is_completed_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{n}\n" for n in range(100_000)))
    with serving(tmp_path) as shell, miniq_client(shell) as mq:
        process = shell.start("import", "in.jsonl", "q")
        while process.poll() is None and not any(info.name == "q" and info.counts.total for info in mq.queues()):
            pass
        process.kill()
        collect(process)
        before = mq.queue("q").info().counts.total
        assert 0 < before < 100_000
        (told,) = shell("import", "in.jsonl", "q", "--json").objects
        assert told == {"sent": 100_000 - before, "sent_before": before}
        assert mq.queue("q").info().counts.total == 100_000


def test_an_import_with_a_prefix_may_be_repeated(miniq: Shell, tmp_path: Path) -> None:
    rows = "".join(f"{n}\n" for n in range(1500))
    (tmp_path / "in.jsonl").write_text(rows)
    for source, stdin in (("in.jsonl", b""), ("-", rows.encode())):
        args = ("import", source, "q", "--format", "jsonl", "--dedup-prefix", f"{source}-")
        assert miniq(*args, "--json", stdin=stdin).objects == [{"sent": 1500, "sent_before": 0}]
        assert miniq(*args, "--json", stdin=stdin).objects == [{"sent": 0, "sent_before": 1500}]
        assert miniq(*args, stdin=stdin).out == (
            "sent 0 messages to q; 1500 had been sent before with the same dedup ids\n"
        )
    assert bodies(miniq, "q") == [*range(1500), *range(1500)]


@pytest.mark.parametrize(
    ("row", "bad", "said"),
    [
        ("{n}", "{{", "line 10003: '{{' is not JSON"),
        ('{{"body": {n}}}', '{"body": 1, "priority": 12}', "line 10003: priority: 12 is out of range"),
        ('{{"body": {n}}}', '{"body": 1, "prio": 1}', "line 10003: not a message with all its fields: Object contains"),
    ],
)
def test_a_bad_row_anywhere_in_a_file_adds_nothing(miniq: Shell, tmp_path: Path, row: str, bad: str, said: str) -> None:
    rows = [row.format(n=n) for n in range(10_001)]
    args = ("import", "in.jsonl", "q", *["--full"] * ("body" in row))
    (tmp_path / "in.jsonl").write_text("\n".join([rows[0], "", *rows[1:], bad]))  # an empty line is a line, too
    refused = miniq(*args, code=1).err
    assert refused.startswith(f"miniq: {said}")
    assert refused.endswith("; this run added nothing\n")
    with miniq_client(miniq) as mq:
        assert mq.queue("q").info().counts.total == 0
        assert mq.queue("q").stages() == []
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    assert miniq(*args).out == "sent 10001 messages to q\n"


def test_a_bad_row_on_stdin_says_what_was_sent_and_how_to_repeat_it(miniq: Shell) -> None:
    rows = b"".join(b"%d\n" % n for n in range(1500))
    args = ("import", "-", "q", "--format", "jsonl")
    assert miniq(*args, stdin=rows + b"{", code=1).err == (
        "miniq: line 1501: '{' is not JSON; 1000 messages were already sent; omit them if you retry\n"
    )
    refused = miniq(*args, "--dedup-prefix", "p", stdin=rows + b"{", code=1).err
    assert refused.endswith(
        "; 1000 messages were already sent; retry with the same --dedup-prefix, and only the rest is sent\n"
    )
    assert miniq(*args, "--dedup-prefix", "p", "--json", stdin=rows + b"5", code=0).objects == [
        {"sent": 501, "sent_before": 1000}
    ]


def test_an_import_that_is_interrupted_while_it_uploads_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(100_000)))
    with serving(tmp_path) as shell, miniq_client(shell) as mq:
        queue = mq.queue("q")
        queue.configure()
        process = shell.start("import", "in.csv", "q", "--again")
        while not queue.stages():
            pass
        process.send_signal(signal.SIGINT)
        ended = collect(process)
        assert (ended.code, ended.err) == (1, "miniq: interrupted; this run added nothing\n")
        assert (queue.info().counts.total, queue.stages()) == (0, [])


def test_an_import_that_gets_a_signal_while_it_commits_is_completed(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{n}\n" for n in range(100_000)))
    with serving(tmp_path) as shell, miniq_client(shell) as mq:
        queue = mq.queue("q")
        queue.configure()
        process = shell.start("import", "in.jsonl", "q", "--again")
        while not queue.info().counts.total:
            pass
        process.send_signal(signal.SIGTERM)
        assert "interrupted" not in collect(process).err
        assert queue.info().counts.total == 100_000


def test_a_run_with_a_name_is_sent_once(miniq: Shell, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("1\n2\n")
    for args, sent in (((), 2), (("--run", "b"), 2), (("--run", "b"), 0), (("--run", "c"), 2)):
        assert miniq("import", "in.jsonl", "q", *args, "--json").objects == [{"sent": sent, "sent_before": 2 - sent}]
    assert "--run" in miniq("import", "in.jsonl", "q", "--again", "--run", "b", code=2).err


def test_a_csv_file_that_is_closed_ends_its_reader_in_silence() -> None:
    file = io.BytesIO(b"a\n1\n2\n")
    rows = formats.read(file, "csv", full=False)
    next(rows)
    file.close()
    rows.close()


def test_an_export_into_a_folder_that_does_not_exist_names_the_file(miniq: Shell) -> None:
    miniq("send", "q", "1")
    assert miniq("export", "q", "none/x.jsonl", code=1).err == "miniq: No such file or directory: none/x.jsonl\n"


@pytest.mark.parametrize(
    ("name", "text", "full", "said"),
    [
        ("in.jsonl", '1\n{"a":\n', False, "line 2: "),
        ("in.jsonl", '{"priority": 1}\n', True, "line 1: body is required"),
        ("in.jsonl", "5\n", True, "line 1: not a message"),
        ("in.jsonl", '{"body": 1, "priority": "x"}\n', True, "priority"),
        ("in.jsonl", '{"data": "?"}\n', True, "data"),
        ("in.csv", "a,b\n1,2\n3\n", False, "line 3: not as many columns"),
        ("in.csv", 'a\n"x\n', False, "cannot be read as CSV"),
        ("in.csv", "a,b\n1,\udcff\n", False, "line 2: not UTF-8 at byte 2 of the line"),
        (
            "in.csv",
            "a\n" + 4999 * "täglich\n" + "t\udce4glich\n" + 5000 * "1\n",
            False,
            "line 5001: not UTF-8 at byte 1",
        ),
        ("in.jsonl", '1\n{"a":"\udcff"}\n', False, "line 2: not UTF-8 at byte 6 of the line"),
        ("in.jsonl", '{"body":"\udcff"}\n', True, "line 1: not UTF-8 at byte 9 of the line"),
        ("in.csv", "a,b,a\n1,2,3\n", False, "line 1: two columns are named 'a'; rename one of them"),
        ("in.csv", "body,prio\n1,2\n", True, "line 2: unknown column 'prio'"),
        ("in.csv", "body,priority\n1,x\n", True, "priority"),
        ("in.csv", "body\n{\n", True, "line 2: "),
        ("in.parquet", "nothing", False, "not Parquet"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    miniq: Shell, tmp_path: Path, name: str, text: str, full: bool, said: str
) -> None:
    need(name.rpartition(".")[2])
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    result = miniq("import", name, "q", *["--full"] * full, code=1)
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("name", "text"), [("in.jsonl", '{"a": "1"}\n'), ("in.csv", "a\n1\n")])
def test_a_byte_order_mark_is_ignored(miniq: Shell, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text.encode())
    miniq("import", name, "q")
    assert json.loads(miniq("receive", "q", "--body").out) == {"a": "1"}


def test_parquet_with_two_columns_of_one_name_is_refused(miniq: Shell, tmp_path: Path) -> None:
    need("parquet")
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table([[1], [2]], names=["a", "a"]), tmp_path / "in.parquet")
    assert "two columns are named 'a'" in miniq("import", "in.parquet", "q", code=1).err


def test_a_format_that_is_not_clear_is_wrong_usage(miniq: Shell, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1\n")
    assert "--format" in miniq("import", "in.txt", "q", code=2).err
    assert "--format" in miniq("export", "q", "out", code=2).err
    miniq("import", "in.txt", "q", "--format", "jsonl")
    assert "--status" in miniq("export", "q", "x.csv", "--consume", "--status", "leased", code=2).err


def test_without_pyarrow_its_pip_command_is_named(miniq: Shell, tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"")
    hide = "import sys; sys.modules['pyarrow'] = None; from miniq.cli import main; main(sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", hide, "import", "in.parquet", "q"],
        capture_output=True, text=True, cwd=tmp_path, env=miniq.env,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (
        1,
        "miniq: Parquet needs pyarrow: pip install '.[parquet]' in the checkout of MiniQ\n",
    )


def test_it_works_over_http(tmp_path: Path) -> None:
    with serving(tmp_path) as miniq:
        miniq("send", "q", *(json.dumps(body) for body in BODIES))
        miniq("export", "q", "out.jsonl", "--full", "--consume")
        miniq("import", "out.jsonl", "again", "--full")
        assert bodies(miniq, "again") == BODIES


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_file_is_imported_to_a_topic(miniq: Shell, tmp_path: Path) -> None:
    miniq("topics", "subscribe", "shop", "all")
    miniq("topics", "subscribe", "shop", "large", "--filter", '{"size": ["large"]}')
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(2500)))
    assert miniq("import", "rows.jsonl", "--topic", "shop").out == "published 2500 messages to shop\n"
    repeated = miniq("import", "rows.jsonl", "--topic", "shop").out
    assert repeated.startswith("published 0 messages to shop; 2500 were sent by an earlier import of this file")
    full = b'{"body": 1, "headers": {"size": "large"}}\n{"body": 2}\n'
    said = miniq("import", "-", "--topic", "shop", "--full", "--format", "jsonl", "--json", stdin=full)
    assert json.loads(said.out) == {"sent": 2, "sent_before": 0}
    with miniq_client(miniq) as mq:
        assert [mq.queue(name).info().counts.ready for name in ("all", "large")] == [2502, 1]
    assert miniq("import", "rows.jsonl", "--topic", "shop", "--again").out == "published 2500 messages to shop\n"
    (tmp_path / "bad.jsonl").write_text('1\n2\n{"n": \n')
    refused = miniq("import", "bad.jsonl", "--topic", "shop", code=1)
    assert "line 3" in refused.err
    assert "this run added nothing" in refused.err
    for arguments, problem in {
        ("rows.jsonl",): "Give a QUEUE or a --topic.",
        ("rows.jsonl", "q", "--topic", "t"): "Give a QUEUE or a --topic, not both.",
    }.items():
        assert problem in miniq("import", *arguments, code=2).err
