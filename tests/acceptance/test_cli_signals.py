"""Ctrl-C and SIGTERM at exact moments: right after a line was printed, during a copy, and while workers start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import miniq
from tests.acceptance.shell import Result, Shell, collect
from tests.server import clear
from tests.serving import Served

SIGNALLED = """
import io, signal, sys
number = int(sys.argv.pop(1))

class Signalling(io.FileIO):
    left = 1

    def write(self, data):
        written = super().write(data)
        if self.left:
            self.left -= 1
            signal.raise_signal(number)
        return written

sys.stdout = io.TextIOWrapper(io.BufferedWriter(Signalling(1, "wb", closefd=False)))
import miniq_command
miniq_command.main()
"""
"""What the installed script does; its first argument is the number of a signal that it gets after its first line."""
INTERRUPTED_IMPORT = """
import signal, sys, miniq_command

class Finder:
    def find_spec(name, path, target=None):
        if name == "miniq.cli":
            signal.raise_signal({})

sys.meta_path.insert(0, Finder)
miniq_command.main()
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(params=["http", "folder"])
def shell(request: pytest.FixtureRequest, server: Served, tmp_path: Path) -> Shell:
    """Three messages, on a broker and in a folder."""
    url = server.url
    if request.param == "http":
        clear(url)
    else:
        url = str(tmp_path / "data")
    with miniq.connect(url) as mq:
        mq.queue("q").send_many(range(3))
    return Shell(url, tmp_path)


def signalled(shell: Shell, number: int, *args: str) -> Result:
    return Result(
        subprocess.run(
            [sys.executable, "-c", SIGNALLED, str(number), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=shell.env,
            cwd=shell.folder,
            timeout=60,
        )
    )


def statuses(shell: Shell) -> dict[object, str]:
    with miniq.connect(shell.url) as mq:
        return {message.body: message.status for message in mq.queue("q").peek(limit=1000)}


@pytest.mark.parametrize(
    ("number", "flags", "code", "printed", "left"),
    [
        (signal.SIGINT, "", 0, 1, ["leased", "ready", "ready"]),
        (signal.SIGTERM, "--max 3", 1, 1, ["leased", "ready", "ready"]),
        (signal.SIGINT, "--max 3 --follow", 0, 1, ["leased", "ready", "ready"]),
        (signal.SIGTERM, "--ack", 0, 1, ["ready", "ready"]),
        (signal.SIGINT, "--max 3 --ack --body", 1, 1, ["ready", "ready"]),
        (signal.SIGTERM, "--max 3 --follow --ack", 0, 1, ["ready", "ready"]),
        (signal.SIGINT, "--max 3 --at-most-once", 0, 3, []),
        (signal.SIGTERM, "--max 4 --wait 9 --at-most-once", 1, 3, []),
        (signal.SIGINT, "--max 2 --follow --at-most-once", 0, 2, ["ready"]),
    ],
)
def test_what_receive_has_printed_stays_leased_or_is_acked_and_what_it_has_not_is_released(
    shell: Shell, number: int, flags: str, code: int, printed: int, left: list[str]
) -> None:
    ended = signalled(shell, number, "receive", "q", *flags.split())
    assert (ended.code, ended.err) == (code, "miniq: interrupted\n" * code)
    assert len(ended.lines) == printed
    assert list(statuses(shell).values()) == left


@pytest.mark.parametrize(
    ("number", "command"),
    [
        (signal.SIGINT, "send q 3 4 5"),
        (signal.SIGTERM, "purge q --yes"),
        (signal.SIGTERM, "export q out.jsonl --consume"),
    ],
)
def test_a_signal_after_the_work_is_done_and_reported_changes_nothing(shell: Shell, number: int, command: str) -> None:
    ended = signalled(shell, number, *command.split())
    assert (ended.code, ended.err) == (0, "")
    if command.startswith("send"):
        assert len(ended.lines) == 3


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_that_is_interrupted_before_it_has_begun_says_so(tmp_path: Path, number: int) -> None:
    program = INTERRUPTED_IMPORT.format(number)
    ended = subprocess.run([sys.executable, "-c", program, "queues"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "miniq: interrupted\n")


def test_a_slow_reader_does_not_keep_receive_from_ending(shell: Shell) -> None:
    with miniq.connect(shell.url) as mq:
        mq.queue("q").purge()
        mq.queue("q").send_many([f"{number}{'x' * 3000}" for number in range(100)])
    process = shell.start("receive", "q", "--max", "100", "--ack", "--body")
    assert process.stdout is not None
    assert process.stdout.read(1) == b"0"
    time.sleep(0.5)  # until the pipe is full
    process.send_signal(signal.SIGINT)
    ended = collect(process)
    assert ended.code == 1
    assert 0 < len(ended.lines) < 100
    assert ended.out.endswith("\n")
    assert len(statuses(shell)) == 100 - len(ended.lines)
