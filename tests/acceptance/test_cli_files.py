"""`miniq import` and `export`: what is in a queue and what is in a file are the same."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.shell import Shell, on_folder, serving

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
            pytest.skip("pyarrow is not installed: pip install 'miniq[parquet]'")


@pytest.fixture
def miniq(tmp_path: Path) -> Shell:
    return on_folder(tmp_path)


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
    assert "use --full" in miniq("export", "q", "out.jsonl", "--consume", code=1).err
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert miniq("queues", "show", "q", "--json").objects[0]["counts"]["ready"] == 2
    assert not list(tmp_path.glob("*.part"))
    assert "no queue" in miniq("export", "nope", "new.jsonl", code=1).err
    assert not (tmp_path / "new.jsonl").exists()


def test_an_import_with_a_prefix_may_be_repeated(miniq: Shell, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{n}\n" for n in range(1500)))
    for _ in range(2):
        miniq("import", "in.jsonl", "q", "--dedup-prefix", "monday-")
    assert bodies(miniq, "q") == list(range(1500))


@pytest.mark.parametrize(
    ("name", "text", "full", "said"),
    [
        ("in.jsonl", '1\n{"a":\n', False, "line 2: "),
        ("in.jsonl", '{"a": 1}\n', True, "line 1: body: is required"),
        ("in.jsonl", "5\n", True, "line 1: not a message"),
        ("in.jsonl", '{"body": 1, "priority": "x"}\n', True, "priority"),
        ("in.jsonl", '{"data": "?"}\n', True, "data"),
        ("in.csv", "a,b\n1,2\n3\n", False, "line 3: not as many columns"),
        ("in.csv", 'a\n"x\n', False, "cannot be read as CSV"),
        ("in.csv", "body,priority\n1,x\n", True, "priority"),
        ("in.csv", "body\n{\n", True, "line 2: "),
        ("in.parquet", "nothing", False, "not Parquet"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    miniq: Shell, tmp_path: Path, name: str, text: str, full: bool, said: str
) -> None:
    need(name.rpartition(".")[2])
    (tmp_path / name).write_text(text)
    result = miniq("import", name, "q", *["--full"] * full, code=1)
    assert said in result.err
    assert result.err.count("\n") == 1


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
    assert (ended.returncode, ended.stderr) == (1, "miniq: Parquet needs pyarrow: pip install 'miniq[parquet]'\n")


def test_it_works_over_http(tmp_path: Path) -> None:
    with serving(tmp_path) as miniq:
        miniq("send", "q", *(json.dumps(body) for body in BODIES))
        miniq("export", "q", "out.jsonl", "--full", "--consume")
        miniq("import", "out.jsonl", "again", "--full")
        assert bodies(miniq, "again") == BODIES


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
