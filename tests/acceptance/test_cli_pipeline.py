"""`miniq pipeline …` as a person has it: processes, exit codes, Ctrl-C, words for what went wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import miniq as miniq_library
from tests.acceptance.shell import MINIQ, Result, Shell, collect, environment, serving

MASTER = ("--master", "local[2]")


@pytest.fixture(scope="module")
def miniq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        shell.env["XDG_STATE_HOME"] = str(shell.folder / "state")
        yield shell


def test_files_are_ingested_transformed_by_a_function_and_drained(miniq: Shell, tmp_path: Path) -> None:
    """One after the other, each a process of its own: three of the pipelines, and their summaries."""
    (miniq.folder / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    (miniq.folder / "changes.py").write_text(
        "import json\nfrom pyspark.sql.functions import udf\n"
        "@udf('string')\ndef double(body):\n    return json.dumps({'n': 2 * json.loads(body)['n']})\n"
        "def doubled(messages):\n    return messages.select(double('body').alias('body'))\n"
    )
    (done,) = miniq("pipeline", "ingest", "in.jsonl", "numbers", "--json", *MASTER).objects
    assert (done["pipeline"], done["messages"], done["format"]) == ("ingest", 50, "jsonl")
    (done,) = miniq(
        "pipeline", "transform", "numbers", "doubles", "--function", "changes:doubled", "--json", *MASTER
    ).objects  # fmt: skip
    assert (done["messages"], done["source"], done["target"]) == (50, "numbers", "doubles")
    said = miniq("pipeline", "drain", "doubles", "out", "--format", "text", *MASTER).lines
    assert said[0].startswith("drain: 50 messages in ")
    lines = [line for path in (miniq.folder / "out").glob("batch=*/part-*") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(0, 100, 2))


def test_ctrl_c_ends_a_continuous_run_cleanly(miniq: Shell) -> None:
    with miniq_library.connect(miniq.url) as client:
        client.queue("endless").send_many(range(10))
        process = miniq.start("pipeline", "drain", "endless", "endless-out", "--continuous", "--json", *MASTER)
        until = time.monotonic() + 60
        while client.queue("endless").info().counts.total:
            assert process.poll() is None, collect(process).err
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        ended = collect(process)
    assert (ended.code, ended.err) == (0, "")
    assert ended.objects[0]["messages"] == 10
    assert ended.objects[0]["stopped"]


def test_usage_errors_take_one_line(miniq: Shell) -> None:
    """All that can be told before Spark starts."""
    assert "Missing argument 'QUEUE'" in miniq("pipeline", "drain", code=2).err
    assert (
        "'partitions' is not NAME=VALUE" in miniq("pipeline", "drain", "q", "o", "--option", "partitions", code=2).err
    )
    assert "Give either --sql or --function" in miniq("pipeline", "transform", "a", "b", code=2).err
    assert "does not exist" in miniq("pipeline", "report", "no-lake", "out", code=2).err
    assert "Invalid value for '--format'" in miniq("pipeline", "drain", "q", "o", "--format", "x", code=2).err
    said = miniq("pipeline", "drain", "q", "o", "--url", "http://127.0.0.1:1", code=1).err
    assert said.startswith("miniq: http://127.0.0.1:1 cannot be reached")
    assert said.count("\n") == 1


def test_errors_from_spark_take_one_line(miniq: Shell) -> None:
    said = miniq("pipeline", "drain", "nothing", "o", "--option", "partitons=2", *MASTER, code=1).err
    assert said.startswith("miniq: partitons: no such option; use one of url, queue")
    assert said.count("\n") == 1


def test_without_spark_the_extra_is_named(miniq: Shell, tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError")
    run = subprocess.run(
        [*MINIQ, "pipeline", "drain", "default", "out"],
        env=environment(MINIQ_URL=miniq.url, PYTHONPATH=str(tmp_path)),
        capture_output=True,
        cwd=tmp_path,
    )
    result = Result(run)
    assert (result.code, result.err) == (1, "miniq: Spark is not installed: pip install 'miniq[spark]'\n")


def test_every_pipeline_has_help_and_starts_no_spark_for_it(miniq: Shell) -> None:
    names = ("ingest", "drain", "copy", "archive", "report", "replay", "reprocess", "transform")
    listed = miniq("pipeline", "--help").out
    for name in names:
        assert f"\n  {name} " in listed
        assert "--master" in miniq("pipeline", name, "--help").out
