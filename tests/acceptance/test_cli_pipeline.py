"""`miniq pipeline …` as a person has it: processes, exit codes, Ctrl-C, words for what went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import miniq as miniq_library
from miniq.cli.pipeline import ECHO, behind, progress_line, waiting_line
from miniq.spark.lag import Lag
from miniq.spark.pipelines.runs import Progress
from tests.acceptance.shell import MINIQ, Result, Shell, collect, environment, serving

MASTER = ("--master", "local[2]")
STOPPING = "miniq: stopping after this batch; Ctrl-C again ends at once\n"


@pytest.fixture(scope="module")
def miniq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        shell.env["XDG_STATE_HOME"] = str(shell.folder / "state")
        yield shell


def test_a_queue_is_transformed_by_a_function_of_the_current_folder(miniq: Shell) -> None:
    """With the summary for programs; the how-to on pipelines, which a test runs, has a command of each kind."""
    (miniq.folder / "changes.py").write_text(
        "import json\nfrom pyspark.sql.functions import udf\n"
        "@udf('string')\ndef double(body):\n    return json.dumps({'n': 2 * json.loads(body)['n']})\n"
        "def doubled(messages):\n    return messages.select(double('body').alias('body'))\n"
    )
    with miniq_library.connect(miniq.url) as client:
        client.queue("numbers").send_many([{"n": n} for n in range(50)])
        function = ("--function", "changes:doubled")
        (done,) = miniq("pipeline", "transform", "numbers", "doubles", *function, "--json", *MASTER).objects
        assert (done["pipeline"], done["messages"]) == ("transform", 50)
        assert (done["source"], done["target"]) == ("numbers", "doubles")
        assert sorted(message.body["n"] for message in client.queue("doubles").peek(limit=100)) == list(
            range(0, 100, 2)
        )


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
    assert (ended.code, ended.err) == (0, STOPPING)
    assert ended.objects[0]["messages"] == 10
    assert ended.objects[0]["stopped"]


def test_ctrl_c_within_a_batch_lets_it_end_and_a_second_one_does_not(miniq: Shell) -> None:
    """As a terminal does it: all processes get the signal. A batch says when it runs, and ends when it is let go."""
    running, let_go = miniq.folder / "running", miniq.folder / "let-go"
    (miniq.folder / "slowly.py").write_text(
        "import os, time\nfrom pyspark.sql.functions import udf\n"
        f"@udf('string')\ndef slow(body):\n    open({str(running)!r}, 'w').close()\n"
        f"    while not os.path.exists({str(let_go)!r}):\n        time.sleep(0.02)\n    return body\n"
        "def slowly(messages):\n    return messages.select(slow('body').alias('body'))\n"
    )
    checkpoint = miniq.folder / "slow-checkpoint"
    command = ["pipeline", "transform", "slow", "slow-target", "--function", "slowly:slowly", "--json", *MASTER]
    command += ["--option", "maxMessagesPerBatch=1", "--checkpoint", str(checkpoint)]
    with miniq_library.connect(miniq.url) as client:
        client.queue("slow").send_many(range(10))
        for batch, text in enumerate(("interrupted; run it again to continue", "interrupted")):
            process = miniq.start(*command, start_new_session=True)
            assert process.stderr is not None
            appears(running, process)
            os.killpg(process.pid, signal.SIGINT)
            assert process.stderr.readline().decode() == STOPPING
            if batch == 0:
                let_go.touch()
            else:
                time.sleep(ECHO + 0.1)  # a sooner one is taken for the same key press
                os.killpg(process.pid, signal.SIGINT)
            ended = collect(process)
            done = (checkpoint / "commits" / str(batch)).exists()
            assert (ended.code, ended.err, done) == (1, f"miniq: {text}\n", batch == 0)
            running.unlink()
            let_go.unlink(missing_ok=True)
        assert client.queue("slow-target").info().counts.ready == 1


def appears(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for a file that the process makes."""
    until = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, collect(process).err
        assert time.monotonic() < until
        time.sleep(0.02)


INTERRUPTED_AT_START = """
import os, signal
from miniq.cli import main
from miniq.spark import source

register = source.register

def interrupted(spark):
    os.killpg(0, signal.SIGINT)
    register(spark)

source.register = interrupted
main()
"""


def test_ctrl_c_while_spark_starts_ends_cleanly(miniq: Shell) -> None:
    """At a moment when Spark has its own handler of Ctrl-C in place, if it may, and Java gets the signal too."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_AT_START, "pipeline", "drain", "q", "never", "--json", *MASTER],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=miniq.env, cwd=miniq.folder, start_new_session=True,
    )  # fmt: skip
    ended = collect(process)
    assert ended.err == ("miniq: stopping; Ctrl-C again ends at once\nminiq: interrupted; run it again to continue\n")
    assert (ended.code, ended.objects) == (1, [{"pipeline": "drain", "messages": 0, "seconds": 0.0, "stopped": True}])
    assert not (miniq.folder / "never").exists()


def test_a_second_ctrl_c_while_spark_starts_ends_at_once(miniq: Shell) -> None:
    process = miniq.start("pipeline", "drain", "q", "never", *MASTER, start_new_session=True)
    assert process.stderr is not None
    until = time.monotonic() + 60
    while not has_java(process.pid):
        assert process.poll() is None, collect(process).err
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr.readline() == b"miniq: stopping; Ctrl-C again ends at once\n"
    time.sleep(ECHO + 0.1)  # a sooner one is taken for the same key press
    os.killpg(process.pid, signal.SIGINT)
    ended = collect(process)
    assert (ended.code, ended.err, ended.out) == (1, "miniq: interrupted\n", "")


def has_java(pid: int) -> bool:
    """Whether a process has started Java, or the script that becomes it."""
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())


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
    said = miniq("pipeline", "drain", "nothing", "o", "--option", "bodySchema=order intt", *MASTER, code=2).err
    assert said.startswith("miniq: bodySchema: 'order intt' is not a schema: ")
    assert 'Unsupported data type "INTT"' in said
    assert said.count("\n") == 1
    miniq("send", "words", '"seven"')
    sql = ("--sql", "select cast(body as bigint) as body from messages")
    said = miniq("pipeline", "transform", "words", "numbers", *sql, *MASTER, code=1).err
    assert said.startswith('miniq: [CAST_INVALID_INPUT] The value \'"seven"\' of the type "STRING" cannot be cast')
    assert said.count("\n") == 1


def test_options_are_checked_before_spark_starts(miniq: Shell) -> None:
    for command, option, text in (
        (["drain", "q", "o"], "bodyShema=a int", "bodyShema: no such option; did you mean 'bodySchema'?"),
        (["archive", "o"], "group=g", "group: is for view=messages, but the view is history"),
        (["drain", "q", "o"], "contentType=text/plain", "contentType: has no effect on readStream; it is for"),
        (["drain", "q", "o"], "partitions=0", "partitions: '0' is invalid; use a whole number"),
        (["ingest", ".", "q"], "partitions=2", "partitions: has no effect on ingest; it has only maxFilesPerTrigger"),
        (["reprocess", "q"], "partitons=2", "partitons: no such option; did you mean 'partitions'?"),
    ):
        said = miniq("pipeline", *command, "--option", option, "--master", "local[no]", code=2).err
        assert said.startswith(f"miniq: {text}"), said
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
    assert (result.code, result.err) == (
        1,
        "miniq: Spark is not installed: pip install '.[spark]' in the checkout of MiniQ\n",
    )


def test_every_pipeline_has_help_and_starts_no_spark_for_it(miniq: Shell) -> None:
    names = ("ingest", "drain", "copy", "archive", "report", "replay", "reprocess", "transform")
    listed = miniq("pipeline", "--help").out
    for name in names:
        assert f"\n  {name} " in listed
        assert "--master" in miniq("pipeline", name, "--help").out


def test_people_see_what_is_happening_while_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting_line("starting Spark", visible=True) as say_more:
        say_more(" for the first time")
    assert capsys.readouterr().err.startswith("\rstarting Spark")
    with waiting_line("starting Spark", visible=False):
        pass
    assert capsys.readouterr().err == ""


def test_people_see_that_a_first_batch_is_being_read(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line(visible=True) as show:
        assert show is not None
        show(Progress(0, 0, 3.0))
        show(Progress(1, 1234, 4.0, Lag(0)))
    told = capsys.readouterr().err.split("\r")
    assert "reading… 3 s" in told
    assert "1,234 in 1 batch, 308 per second; 0 waiting" in told


def test_people_see_how_far_a_stream_is_behind() -> None:
    assert behind(None) == ""
    assert behind(Lag(1234, 60)) == "; 1,234 waiting, the oldest for 60 s"
    assert behind(Lag(0)) == "; 0 waiting"


def test_a_child_that_has_not_begun_its_program_says_nothing_at_ctrl_c(tmp_path: Path) -> None:
    """As Java, which is started by a function that runs in the child first."""
    code = """
import os, signal
from miniq.cli.pipeline import Stop
stop = Stop()
stop.listen()
if os.fork() == 0:
    signal.raise_signal(signal.SIGINT)
    os._exit(int(stop()))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
signal.raise_signal(signal.SIGINT)
assert stop()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "miniq: stopping; Ctrl-C again ends at once\n")
