"""`miniq worker` as processes: signals, timeouts, replacement, reload, metrics, logs and spans."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import miniq
from tests.acceptance.forks import PATIENCE
from tests.acceptance.shell import Shell, on_folder
from tests.server import clear
from tests.serving import Served, free_ports

APP = """
import asyncio
import os
import time

import miniq

app = miniq.App()
seen = app.queue("seen").send


@app.task(queue="tasks", timeout=30)
def echo(text: str) -> None:
    seen([text, os.getpid()])


@app.task(queue="tasks", timeout=30)
def sleep(seconds: float) -> None:
    seen(["begins", os.getpid()])
    time.sleep(seconds)
    seen(["ends", os.getpid()])


@app.task(queue="tasks", timeout=30)
def fork() -> None:
    if (child := os.fork()) == 0:
        time.sleep(120)
        os._exit(0)
    seen([child, os.getpid()])


@app.task(queue="slow", timeout=0.5)
def hang() -> None:
    seen(["hangs", os.getpid()])
    time.sleep(60)


@app.task(queue="once", max_receives=1)
def once(n: int) -> None:
    time.sleep(4 if n == 25 else 0.01)
    seen([n, miniq.current_message().receives])


@app.handler("orders", timeout=0.5)
async def on_order(order: dict[str, int], message: miniq.AsyncMessage) -> None:
    try:
        await asyncio.sleep(order["seconds"])
        seen(["order", message.receives])
    except asyncio.CancelledError:
        seen(["cancelled", message.receives])
        raise


@app.handler("events", batch=3, linger=30)
def on_events(events: list[int]) -> None:
    seen(events)


@app.task(queue="settled", timeout=30)
def settle(how: str) -> None:
    message = miniq.current_message()
    if how == "fail":
        message.fail("by hand", delay=60)
    elif how == "release":
        message.release(60)
    else:
        message.ack()
        raise ValueError("too late")


@app.handler("parts", batch=4, linger=30)
async def on_parts(parts: list[int], messages: list[miniq.AsyncMessage]) -> None:
    await messages[0].fail("by hand", delay=60)


@app.task(queue="stubborn", timeout=0.2, max_receives=1)
async def stubborn() -> None:
    seen(["stubborn", os.getpid()])
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


@app.task(queue="stubborn")
async def polite() -> None:
    seen(["polite", os.getpid()])


@app.task(queue="blocked", timeout=30)
async def block() -> None:
    seen(["blocks", os.getpid()])
    time.sleep(120)
"""


class Worker:
    """A worker process, what it says, and the broker that it works for."""

    def __init__(self, shell: Shell, *args: str) -> None:
        self.mq = miniq.connect(shell.url)
        self.process = shell.start("worker", "shop:app", *args)
        self._lines: list[str] = []

    def send(self, queue: str, body: Any, **headers: str) -> str:
        return self.mq.queue(queue).send(body, headers=headers)

    def seen(self) -> Any:
        """What a handler said next."""
        [message] = self.mq.queue("seen").receive(wait=30)
        with message:
            return message.body

    def line(self, pattern: str) -> re.Match[str]:
        """The next line of its log that matches."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline().decode():
            self._lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in {''.join(self._lines)}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        _, err = self.process.communicate(timeout=PATIENCE)
        self._lines.append(err.decode())
        return self.process.returncode

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def counts(self, queue: str) -> tuple[int, int]:
        """How many messages are left, and how many of them are leased."""
        counts = self.mq.queue(queue).info().counts
        return counts.total, counts.leased

    def close(self) -> None:
        self.mq.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def shell(server: Served, tmp_path: Path) -> Shell:
    clear(server.url)
    (tmp_path / "shop.py").write_text(APP)
    return Shell(server.url, tmp_path)


@pytest.fixture
def start(shell: Shell) -> Iterator[Any]:
    workers: list[Worker] = []

    def start(*args: str) -> Worker:
        workers.append(Worker(shell, *args))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def test_it_runs_tasks_and_handlers_and_ends_with_0_when_told(start: Any) -> None:
    worker = start()
    worker.send("tasks", {"text": "a"}, task="echo")
    assert worker.seen() == ["a", worker.process.pid]
    worker.send("orders", {"seconds": 0})
    assert worker.seen() == ["order", 1]
    for n in range(3):
        worker.send("events", n)
    assert worker.seen() == [0, 1, 2]
    assert worker.stop() == 0
    assert (
        "working on queues blocked, events, once, orders, parts, settled, slow, stubborn, tasks (concurrency 8)"
        in worker.log
    )
    assert "SIGTERM: finishing running jobs, up to 30 s" in worker.log
    assert [worker.counts(queue) for queue in ("tasks", "orders", "events")] == [(0, 0)] * 3


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=["alone", "process"])
def test_it_finishes_what_runs_and_gives_back_the_rest(start: Any, processes: list[str]) -> None:
    worker = start("--concurrency", "1", "--queues", "tasks", *processes)
    worker.send("tasks", {"seconds": 1}, task="sleep")
    worker.send("tasks", {"text": "later"}, task="echo")
    assert worker.seen()[0] == "begins"
    assert worker.stop(signal.SIGINT) == 0
    assert worker.seen()[0] == "ends"
    assert worker.counts("tasks") == (1, 0)


def test_what_it_fetched_ahead_and_gave_back_was_no_attempt(start: Any, shell: Shell) -> None:
    with miniq.connect(shell.url) as mq:
        tasks = [miniq.draft({"n": n}, headers={"task": "once"}) for n in range(60)]
        mq.queue("once").send_many(tasks)
    worker = start("--concurrency", "1", "--queues", "once")
    assert sorted(worker.seen() for _ in tasks) == [[n, 1] for n in range(60)]
    assert worker.stop() == 0
    assert [worker.counts(queue) for queue in ("once", "once.dead")] == [(0, 0)] * 2


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=["alone", "process"])
def test_what_does_not_end_within_the_grace_time_is_given_back(start: Any, processes: list[str]) -> None:
    worker = start("--grace", "200ms", *processes)
    worker.send("tasks", {"seconds": 60}, task="sleep")
    assert worker.seen()[0] == "begins"
    assert worker.stop() == 0
    assert worker.counts("tasks") == (1, 0)


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=["alone", "process"])
def test_a_second_signal_ends_it_at_once(start: Any, processes: list[str]) -> None:
    worker = start("--grace", "1h", *processes)
    worker.send("tasks", {"seconds": 60}, task="sleep")
    assert worker.seen()[0] == "begins"
    worker.process.send_signal(signal.SIGTERM)
    worker.line("SIGTERM")
    assert worker.stop() == 1


def test_a_coroutine_that_takes_too_long_is_cancelled_and_its_message_fails(start: Any) -> None:
    worker = start("--queues", "orders", "--log-format", "json")
    id = worker.send("orders", {"seconds": 60})
    assert worker.seen() == ["cancelled", 1]
    assert worker.seen() == ["cancelled", 2]
    assert worker.mq.queue("orders").get(id).receives == 2
    assert worker.stop() == 0
    line = next(line for line in map(json.loads, worker.log.splitlines()) if "timed out" in line["message"])
    assert line["message"] == f"on_order timed out after 0.5 s on message {id} of orders; the message fails"
    assert (line["queue"], line["task"], line["id"], line["attempt"]) == ("orders", "on_order", id, 1)


def test_the_outcome_of_a_thread_that_takes_too_long_is_ignored(start: Any) -> None:
    worker = start("--queues", "slow", "--concurrency", "1")
    worker.send("slow", {})
    first, second = worker.seen(), worker.seen()
    assert first == second == ["hangs", worker.process.pid]
    assert worker.stop() == 0


def test_a_process_with_a_thread_that_takes_too_long_is_replaced(start: Any) -> None:
    worker = start("--queues", "slow,tasks", "--processes", "1")
    worker.send("slow", {})
    (_, first), (_, second) = worker.seen(), worker.seen()
    assert first != second
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert worker.stop() == 0
    assert f"process {first} was replaced because a task hung" in worker.log
    assert f"process {first} ended" in worker.log


def test_a_signal_while_a_process_is_replaced_ends_the_worker_with_0(start: Any) -> None:
    worker = start("--queues", "slow", "--processes", "1")
    worker.send("slow", {})
    _, pid = worker.seen()
    worker.process.send_signal(signal.SIGSTOP)  # it sees the signal and the end of its process together
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.stop(signal.SIGCONT) == 0


def test_a_process_that_was_killed_is_replaced_and_its_message_comes_again(start: Any) -> None:
    worker = start("--queues", "tasks", "--processes", "1")
    worker.mq.queue("tasks").configure(visibility_timeout=1)
    worker.send("tasks", {"seconds": 1}, task="sleep")
    begins, victim = worker.seen()
    os.kill(victim, signal.SIGKILL)
    assert (begins, worker.seen()[0], worker.seen()[0]) == ("begins", "begins", "ends")
    assert worker.stop() == 0
    assert f"process {victim} was killed by signal 9; restarting in 0.5 s" in worker.log


def test_a_process_that_a_handler_has_forked_does_not_stop_the_supervisor(start: Any) -> None:
    worker = start("--processes", "1", "--grace", "2")
    worker.mq.queue("tasks").configure(visibility_timeout=1)  # the forked process keeps the connection, too
    worker.send("tasks", {}, task="fork")
    child, pid = worker.seen()
    try:
        while worker.counts("tasks") != (0, 0):  # or it comes again
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        worker.send("tasks", {"text": "hello"}, task="echo")
        text, other = worker.seen()
        assert text == "hello"
        assert other != pid
        worker.process.terminate()
        assert worker.process.wait(PATIENCE) == 0  # not `stop`: the forked process keeps stderr open
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_processes_end_with_their_supervisor(start: Any) -> None:
    worker = start("--queues", "tasks", "--processes", "2")
    worker.send("tasks", {"text": "a"}, task="echo")
    _, pid = worker.seen()
    worker.process.kill()
    worker.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the process lives on")


def test_reload_starts_the_changed_program_and_waits_while_it_is_broken(start: Any, tmp_path: Path) -> None:
    worker = start("--reload", "--queues", "tasks")
    worker.send("tasks", {"text": "a"}, task="echo")
    assert worker.seen()[0] == "a"
    (tmp_path / "shop.py").write_text(APP.replace("import miniq", "import miniqqq"))
    worker.line("No module named 'miniqqq'")
    (tmp_path / "shop.py").write_text(APP.replace("seen([text,", "seen([text * 2,"))
    worker.send("tasks", {"text": "a"}, task="echo")
    assert worker.seen()[0] == "aa"
    assert worker.stop() == 0


def test_reload_waits_for_a_change_when_the_program_cannot_be_imported(start: Any, tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text("def (")
    worker = start("--reload", "--queues", "tasks")
    worker.send("tasks", {"text": "a"}, task="echo")
    worker.line("SyntaxError")
    worker.line("could not start; waiting for a Python file to change")
    program.write_text(APP)
    assert worker.seen()[0] == "a"
    program.write_text(f"{APP}\ndef (")
    worker.line("could not start; waiting for a Python file to change")
    assert worker.stop() == 0


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["alone", "processes"])
def test_metrics_count_what_was_done(start: Any, processes: list[str]) -> None:
    [port] = free_ports(1)
    worker = start("--metrics-port", str(port), *processes)
    for _ in range(4):
        worker.send("tasks", {"text": "a"}, task="echo")
        worker.seen()
    worker.send("tasks", {"text": 5}, task="echo")
    samples: dict[Any, float] = {}
    deadline = time.monotonic() + 30
    while sum(v for k, v in samples.items() if k[0] == "miniq_worker_jobs_total") < 5 and time.monotonic() < deadline:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        samples = {
            (sample.name, sample.labels.get("outcome")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    assert samples["miniq_worker_jobs_total", "done"] == 4
    assert samples["miniq_worker_jobs_total", "failed"] >= 1
    assert samples["miniq_worker_concurrency", None] == 8 * (2 if processes else 1)
    assert worker.stop() == 0


def outcomes(port: int) -> dict[str, float]:
    """How many messages came to what."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    [family] = [each for each in text_string_to_metric_families(text) if each.name == "miniq_worker_jobs"]
    counts: Counter[str] = Counter()
    for sample in family.samples:
        counts[sample.labels["outcome"]] += sample.value
    return dict(counts)


def test_a_message_that_its_handler_settled_is_counted_and_logged_as_what_became_of_it(start: Any) -> None:
    [port] = free_ports(1)
    worker = start("--metrics-port", str(port), "--queues", "settled", "--concurrency", "1")
    failed = worker.send("settled", {"how": "fail"})
    worker.line(f"WARNING miniq.worker: failed by its handler .*task=settle id={failed}")
    released = worker.send("settled", {"how": "release"})
    worker.line(f"INFO miniq.worker: released by its handler .*task=settle id={released}")
    acked = worker.send("settled", {"how": "ack"})
    worker.line(f"ERROR miniq.worker: handler failed on message {acked}")
    worker.send("settled", {"how": 5})
    worker.line("ERROR miniq.worker: message .* failed for good: moved to settled.dead")
    assert outcomes(port) == {"failed": 2, "released": 1, "done": 1}
    assert worker.stop() == 0


def test_each_message_of_a_batch_is_counted_and_logged_as_what_became_of_it(start: Any) -> None:
    [port] = free_ports(1)
    worker = start("--metrics-port", str(port), "--queues", "parts", "--log-format", "json")
    first, second, third, _ = worker.mq.queue("parts").send_many([1, 2, "three", 4])
    lines = []
    while len(lines) < 3:
        worker.line(r'"(failed|done|handler)')
        lines.append(json.loads(worker.log.splitlines()[-1]))
    said = [(line["level"], line["message"], line["id"], line.get("messages")) for line in lines]
    text = f"handler failed on message {third} of parts: parts: Expected `int`, got `str`"
    assert said == [
        ("error", text, third, None),
        ("warning", "failed by its handler", first, 1),
        ("info", "done", second, 2),
    ]
    assert outcomes(port) == {"failed": 2, "done": 2}
    assert worker.stop() == 0
    assert worker.counts("parts") == (1, 0)


def test_a_traceback_begins_in_the_program(start: Any) -> None:
    worker = start("--queues", "settled")
    worker.send("settled", {"how": "ack"})
    worker.line("^Traceback")
    assert "shop.py" in worker.line("File").string
    worker.stop()


def test_a_coroutine_that_ignores_its_cancellation_gives_up_its_place_and_does_not_keep_the_worker(start: Any) -> None:
    worker = start("--queues", "stubborn", "--concurrency", "1")
    worker.send("stubborn", {}, task="stubborn")
    assert worker.seen()[0] == "stubborn"
    worker.send("stubborn", {}, task="polite")
    assert worker.seen()[0] == "polite"
    assert worker.stop() == 0
    assert worker.mq.queue("stubborn.dead").peek()[0].dead.error == "timeout: not done after 0.2 s"


def test_a_process_with_a_coroutine_that_ignores_its_cancellation_is_replaced(start: Any) -> None:
    worker = start("--queues", "stubborn", "--processes", "1")
    worker.send("stubborn", {}, task="stubborn")
    _, first = worker.seen()
    worker.line("stubborn hangs: this process finishes what else runs, and is replaced")
    worker.line("process 0 is")
    worker.send("stubborn", {}, task="polite")
    _, second = worker.seen()
    assert first != second
    assert worker.stop() == 0


def test_signals_end_a_worker_whose_event_loop_is_blocked(start: Any) -> None:
    worker = start("--queues", "blocked")
    worker.send("blocked", {})
    worker.seen()
    worker.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # two signals at once would be one
    assert worker.stop() == 1


def test_a_blocked_event_loop_does_not_outlive_the_grace_time(start: Any) -> None:
    worker = start("--queues", "blocked", "--grace", "0")
    worker.send("blocked", {})
    worker.seen()
    assert worker.stop() == 1


def test_a_port_that_is_taken_is_named(shell: Shell, server: Served) -> None:
    port = server.url.rpartition(":")[2]
    said = shell("worker", "shop:app", "--metrics-port", port, code=1).err
    assert f"metrics-port: cannot listen on 127.0.0.1:{port}" in said


def test_logs_name_the_task_the_message_the_attempt_and_the_duration(start: Any) -> None:
    worker = start("--log-format", "json", "--queues", "tasks")
    id = worker.send("tasks", {"text": "a"}, task="echo")
    worker.line('"done"')
    line = json.loads(worker.log.splitlines()[-1])
    assert (line["task"], line["id"], line["attempt"], line["queue"]) == ("echo", id, 1, "tasks")
    assert isinstance(line["ms"], float)
    worker.stop()


def test_a_task_is_a_span_below_the_one_in_which_it_was_sent(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("""
import miniq, os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=open("spans", "w", buffering=1))))
app = miniq.App(tracing=provider)

@app.task(queue="tasks")
def echo(text: str) -> None:
    app.queue("seen").send(text)
    raise miniq.Reject("no")
""")
    worker = Worker(shell)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    worker.send("tasks", {"text": "a"}, task="echo", traceparent=parent)
    assert worker.seen() == "a"
    assert worker.stop() == 0
    worker.close()
    text = (tmp_path / "spans").read_text()
    spans = json.loads("[" + text.replace("}\n{", "},{") + "]")
    [span] = [span for span in spans if span["name"] == "process echo"]
    assert span["context"]["trace_id"] == "0x0af7651916cd43dd8448eb211c80319c"
    assert span["parent_id"] == "0xb7ad6b7169203331"
    assert span["attributes"]["error.type"] == "Reject"
    assert span["attributes"]["miniq.task"] == "echo"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["./shop.py"], "'./shop.py' is not MODULE:NAME, such as shop.tasks:app; use shop:app"),
        (["tasks/shop.py"], "use tasks.shop:app"),
        (["shop:nothing"], "module 'shop' has no 'nothing'; its apps: app"),
        (["shop:app.nothing"], "'shop:app' has no 'nothing'"),
        (["shop:seen"], "shop:seen is <bound method"),
        (
            ["shop:app", "--queues", "other"],
            "no task or handler for 'other', only for: blocked, events, once, orders, parts, settled, slow, stubborn, "
            "tasks",
        ),
        (["shop:app", "--concurrency", "0"], "concurrency"),
    ],
)
def test_a_wrong_app_or_option_is_wrong_usage(shell: Shell, args: list[str], says: str) -> None:
    assert says in shell("worker", *args, code=2).err


def test_a_folder_is_for_one_process_and_memory_for_none(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    shell = on_folder(tmp_path)
    assert "only one process can open a folder" in shell("worker", "shop:app", "--processes", "2", code=2).err
    memory = Shell("memory:", tmp_path)
    assert "a broker in memory" in memory("worker", "shop:app", code=2).err


def test_a_worker_on_a_folder_is_a_broker_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    shell = on_folder(tmp_path)
    with miniq.connect(shell.url) as mq:
        mq.queue("tasks").send({"text": "a"}, headers={"task": "echo"})
    process = shell.start("worker", "shop:app")
    assert process.stderr is not None
    while b"done" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    with miniq.connect(shell.url) as mq:
        [message] = mq.queue("seen").receive()
        assert message.body[0] == "a"
        assert mq.queue("tasks").info().counts.total == 0


def test_a_broker_that_is_away_is_reported_at_once_and_waited_for(shell: Shell) -> None:
    shell.env["MINIQ_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    process = shell.start("worker", "shop:app", "--queues", "tasks")
    assert process.stderr is not None
    log, answer = "", f"no answer from {shell.env['MINIQ_URL']} yet"
    while log.count("cannot connect, next attempt in") < 2 or answer not in log:
        line = process.stderr.readline().decode()
        assert line, log
        log += line
    assert (
        log.splitlines()[0].partition("WARNING ")[2].startswith("miniq.worker: cannot connect, next attempt in 0.1 s")
    )
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert b"SIGTERM: ending" in err
    assert "working on queues" not in log + err.decode()
    assert process.returncode == 0


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=["alone", "process"])
def test_an_error_in_the_program_is_shown_from_its_own_lines_on(shell: Shell, processes: list[str]) -> None:
    (shell.folder / "shop.py").write_text("import parts\n")
    (shell.folder / "parts.py").write_text("def part():\n    return 1 / 0\n\npart()\n")
    err = shell("worker", "shop:app", *processes, code=1).err
    assert "app: 'shop' cannot be imported" in err
    assert "ZeroDivisionError: division by zero" in err
    assert [re.sub(".*/", "", name) for name in re.findall(r'File "(.*?)"', err)] == ["shop.py", "parts.py", "parts.py"]


def test_a_module_that_cannot_be_parsed_is_shown_with_its_line(shell: Shell) -> None:
    (shell.folder / "shop.py").write_text("import miniq\napp = = 5\n")
    err = shell("worker", "shop:app", code=1).err
    assert "SyntaxError" in err
    assert re.findall(r'File ".*?(\w+\.py)", line (\d+)', err) == [("shop.py", "2")]


def test_a_coroutine_that_interrupts_the_worker_is_logged_and_the_exit_code_tells(shell: Shell) -> None:
    program = "\n@app.handler('bad')\nasync def bad(body: int) -> None:\n    raise KeyboardInterrupt\n"
    (shell.folder / "shop.py").write_text(APP + program)
    worker = Worker(shell, "--queues", "bad")
    id = worker.send("bad", 1)
    assert worker.wait() == 1
    assert f"handler failed on message {id} of bad" in worker.log
    assert worker.mq.queue("bad").get(id).error.startswith("KeyboardInterrupt")
    worker.close()


def test_a_folder_that_another_process_uses_is_reported_without_flags_that_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.replace('app.queue("seen").send', "print"))
    shell = on_folder(tmp_path)
    with miniq.connect(shell.url):
        err = shell("worker", "shop:app", code=1).err
    assert "give the app the address of its broker, with miniq.App(...) or MINIQ_URL" in err
    assert "--url" not in err
