"""`miniq top`: on a real terminal, through a pipe, and for programs."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

import miniq
from miniq.cli.screen import FRAME
from miniq.cli.top import COLUMNS
from tests.acceptance.shell import MINIQ, Shell, on_folder
from tests.acceptance.staged import gone, graded, staged, trouble
from tests.acceptance.terminal import terminal
from tests.server import clear
from tests.serving import Served, serving


@pytest.fixture
def shell(server: Served, tmp_path: Path) -> Shell:
    clear(server.url)
    with miniq.connect(server.url) as mq:
        mq.queue("emails").send_many(range(30))
        mq.queue("orders").send_many(range(500))
        mq.queue("orders").receive(max=7, visibility_timeout=600)
        mq.queue("zebra").send(1, delay=600)
    return Shell(server.url, tmp_path)


def names(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines[4:-1] if line]


def test_a_terminal_shows_queues_sorts_filters_and_is_left_as_it_was(shell: Shell) -> None:
    with terminal(shell.url, "--interval", "0.3") as tty:
        lines = tty.wait(lambda lines: "orders" in names(lines))
        assert names(lines) == ["default", "emails", "orders", "zebra"]
        assert lines[3].split()[:5] == ["QUEUE^", "READY", "LEASED", "DELAYED", "DEAD"]
        assert re.match(r"^emails: 30 ready( for \d+s)?, no consumer yet$", lines[2])
        assert next(line for line in lines if line.startswith("orders")).split()[1:4] == ["493", "7", "0"]
        tty.type(b">")
        tty.wait(lambda lines: names(lines)[:2] == ["orders", "emails"] and "READYv" in lines[3])
        tty.type(b"r")
        tty.wait(lambda lines: names(lines)[-1:] == ["orders"])
        tty.type(b"/ema")
        tty.wait(lambda lines: names(lines) == ["emails"] and lines[2] == "filter: ema_")
        tty.type(b"\x7f\x7f\x7fxyz\r")
        tty.wait(lambda lines: "no queue has that in its name" in lines[4])
        tty.type(b"\x1b")
        tty.wait(lambda lines: len(names(lines)) == 4)
        with miniq.connect(shell.url) as mq:
            mq.queue("emails").send_many(range(70))
        tty.wait(lambda lines: any(line.startswith("emails") and line.split()[1] == "100" for line in lines))
        tty.resize(8, 40)
        tty.wait(lambda lines: len(lines) == 8 and any(line.startswith("emails") for line in lines))
        tty.type(b"q")
        assert tty.end() == 0
        assert b"\x1b[?1049l" in tty.raw, "the screen before is shown again"
        begin, end = FRAME
        assert tty.raw.count(begin) == tty.raw.count(end) > 1
        frames = re.findall(rb"(?s)\x1b\[\?2026h(.*?)\x1b\[\?2026l", tty.raw)
        assert any(b"orders" in frame for frame in frames), "a frame is shown as a whole"


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (60, ["QUEUE^", "READY", "LEASED", "DEAD", "SENT/S", "ACKED/S"]),
        (80, ["QUEUE^", "READY", "LEASED", "DELAYED", "DEAD", "OLDEST", "SENT/S", "ACKED/S"]),
        (100, ["QUEUE^", "READY", "LEASED", "DELAYED", "DEAD", "CONSUMERS", "BYTES", "OLDEST", "SENT/S", "ACKED/S"]),
        (130, [*map(str.upper, ("queue^", *COLUMNS[1:]))]),
    ],
)
def test_a_narrow_terminal_shows_what_matters_most(shell: Shell, columns: int, heads: list[str]) -> None:
    with miniq.connect(shell.url) as mq:
        mq.queue("a-queue-with-a-name-that-is-too-long").send_many(range(1000))
    with terminal(shell.url, columns=columns) as tty:
        lines = tty.wait(lambda lines: "orders" in names(lines) and lines[-1])
        assert lines[3].split() == heads
        assert len(lines) == 24
        assert all(lines[row] == "" for row in range(9, 23)), "no line is wrapped"
        name, ready = next(line for line in lines if line.startswith("a-queue-with")).split()[:2]
        assert ready == "1000"
        assert name == "a-queue-with-a-name-that-is-too-long" or (name.endswith("…") and len(name) >= 16)
        assert lines[-1].startswith("q quit")
        tty.type(b"<<<")
        tty.wait(lambda lines: "OLDESTv" in lines[3].split())
        tty.type(b"q")
        assert tty.end() == 0
    with terminal(shell.url, "--once", columns=columns) as tty:
        lines = tty.wait(lambda lines: any("UTC, 5 queues" in line for line in lines))
        assert {head.removesuffix("^") for head in heads} <= set(lines[0].split())
        assert sum(line != "" for line in lines) == 9, "no line is wrapped: five queues, of which two have no consumer"


@pytest.mark.parametrize("term", ["dumb", "no-such-terminal"])
def test_a_terminal_that_cannot_show_it_is_told_what_to_use(shell: Shell, term: str) -> None:
    with terminal(shell.url, term=term, columns=200) as tty:
        assert tty.end() == 2
        said = " ".join(tty.screen.display)
        assert f"TERM is {term}" in said
        assert "--once" in said
        assert "Traceback" not in said
    with terminal(shell.url, "--once", term=term) as tty:
        assert tty.end() == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(shell: Shell, how: signal.Signals) -> None:
    with terminal(shell.url) as tty:
        tty.wait(lambda lines: "orders" in names(lines))
        tty.process.send_signal(how)
        assert tty.end() == 0
        assert b"Traceback" not in tty.raw


def test_a_broker_that_goes_away_is_told_and_comes_back(tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path / 'data'}"
    with serving(store) as served, terminal(served.url, "--interval", "0.2") as tty:
        tty.wait(lambda lines: "default" in names(lines))
        served.stop(signal.SIGKILL)
        tty.wait(
            lambda lines: (
                lines[1].startswith(f"NOT UPDATED: {served.url} cannot be reached") and "default" in names(lines)
            )
        )
        with serving(store, served.port):
            tty.wait(lambda lines: lines[1].startswith("0 ready"))
            tty.type(b"q")
            assert tty.end() == 0


def test_programs_get_json_and_pipes_get_tables(shell: Shell) -> None:
    (found,) = shell("top", "--once", "--json", "--sort", "ready", "--filter", "E").objects
    assert [queue["name"] for queue in found["queues"]] == ["orders", "emails", "default", "zebra"]
    assert found["queues"][0]["leased"] == 7
    lines = shell("top", "--once", "--sort", "delayed").lines
    assert lines[0].split()[:3] == ["QUEUE", "READY", "LEASED"]
    assert lines[1].startswith("zebra")
    piped = subprocess.run(
        ["bash", "-c", f"{' '.join(MINIQ)} top --interval 0.1 | head -n 12"],
        env=shell.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert piped.stdout.count("QUEUE") >= 2
    assert "Traceback" not in piped.stderr


def test_the_consumers_of_one_queue(shell: Shell) -> None:
    with miniq.connect(shell.url) as mq:
        [message] = mq.queue("orders").receive(consumer="web-1:77")
        mq.queue("orders").ack([message])
    with terminal(shell.url, "orders", "--interval", "0.2") as tty:
        lines = tty.wait(lambda lines: any(line.startswith("(unnamed)") for line in lines))
        assert lines[1].startswith("492 ready, 7 in flight, 0 delayed")
        assert lines[2].startswith("wait p50 ")
        assert "processing p50 " in lines[2]
        assert lines[3].split() == ["CONSUMER", "IN", "FLIGHT", "RECEIVED", "ACKED", "FAILED", "LAST", "SEEN"]
        assert lines[4].split()[:5] == ["web-1:77", "0", "1", "1", "0"]
        assert lines[5].split()[:5] == ["(unnamed)", "7", "7", "0", "0"]
        tty.type(b"q")
        assert tty.end() == 0
    lines = shell("top", "orders", "--once").lines
    assert lines[0] == "orders"
    assert lines[5].split()[:2] == ["web-1:77", "0"]
    (found,) = shell("top", "orders", "--once", "--json").objects
    assert (found["queue"]["name"], len(found["consumers"])) == ("orders", 2)
    assert "no consumer in the last five minutes" in shell("top", "emails", "--once").lines
    assert "there is no queue 'none'" in shell("top", "none", "--once", code=1).err


def test_consumers_that_have_died_are_not_counted_where_there_is_no_consumer(shell: Shell) -> None:
    with staged(gone, goes_on=False) as url:
        lines = shell("top", "--url", url, "--once").lines
        place = lines[0].split().index("CONSUMERS")
        assert next(line for line in lines if line.startswith("jobs ")).split()[place] == "0"
        assert any(line.startswith("jobs: 2 ready") and "no consumer for" in line for line in lines)


def test_dead_letters_are_not_ready_and_what_is_wrong_with_queues_is_said(shell: Shell) -> None:
    with staged(trouble, goes_on=False) as url:
        (found,) = shell("top", "--url", url, "--once", "--json").objects
        dead = next(queue for queue in found["queues"] if queue["name"] == "mail.dead")
        assert dead["ready"] == 3
        ready = sum(queue["ready"] for queue in found["queues"]) - 3
        wrong = [
            r"orders: 447 ready, no consumer for 1\d(\.\d)?m",
            r"payments: failing: \d+ of the last \d+ attempts: ValueError: no such card",
            r"etl: claim of group nightly stuck for 1\d(\.\d)?m: 25 messages",
        ]
        lines = shell("top", "--url", url, "--once").lines
        for line in wrong:
            assert [re.fullmatch(line, one) is not None for one in lines].count(True) == 1, line
        assert [one for one in lines if one.startswith("paused: ")] == [], (
            "nothing is wrong with a queue that is paused"
        )
        assert any(
            re.search(r"447 ready, no consumer for", one)
            for one in shell("top", "orders", "--url", url, "--once").lines
        )
        with terminal(url, columns=200) as tty:
            lines = tty.wait(lambda lines: "orders" in names(lines))
            assert lines[1].startswith(f"{ready} ready, 25 leased, 3 dead ")
            assert lines[2].startswith(("etl: ", "orders: "))  # sent in the same millisecond, or not
            assert "orders: 447 ready, no consumer for 1" in lines[2]
            tty.type(b"q")
            assert tty.end() == 0
    with staged(graded, goes_on=False) as url:
        lines = shell("top", "--url", url, "--once").lines
        told = [line.partition(":")[0] for line in lines if line.startswith(("late:", "often:", "seldom:"))]
        assert told == ["late", "often", "seldom"], "what stands still comes first"
        assert "seldom: some fail: 5 of the last 40 attempts: KeyError: 'country'" in lines
        assert any(re.fullmatch(r"late: 40 ready for 12(\.\d)?m, no consumer for 55(\.\d)?m", line) for line in lines)


def test_what_is_wrong_is_said(shell: Shell, tmp_path: Path) -> None:
    assert "not a broker's address" in shell("top", "--url", on_folder(tmp_path).url, code=2).err
    assert "cannot be reached" in shell("top", "--once", "--url", "http://127.0.0.1:9", code=1).err
    assert "interval: 0.01 s is too short" in shell("top", "--interval", "10ms", code=2).err
    with terminal(shell.url, rows=3, columns=12) as tiny:
        tiny.type(b"q")
        assert tiny.end() == 0
