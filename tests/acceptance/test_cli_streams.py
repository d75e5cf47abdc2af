"""What becomes of a command when a stream is closed, full or no terminal, and when it is interrupted early."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import time
from pathlib import Path

import pytest

import miniq
from tests.acceptance.shell import MINIQ, Shell, environment, interrupted
from tests.server import clear
from tests.serving import Served

HERE = shlex.join(MINIQ)


@pytest.fixture
def shell(server: Served, tmp_path: Path) -> Shell:
    clear(server.url)
    with miniq.connect(server.url) as mq:
        mq.queue("q").send_many({"n": n, "text": "x" * 1000} for n in range(500))
    return Shell(server.url, tmp_path)


def run(shell: Shell, script: str) -> tuple[int, str, str]:
    """The exit code of the first command of a pipe, and all that was said."""
    ended = subprocess.run(
        ["bash", "-c", f'{script}; exit "${{PIPESTATUS[0]}}"'],
        env=shell.env,
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        "export q - --format jsonl",
        "export q - --format csv",
        "export q - --full --format jsonl",
        "peek q --max 500",
        "peek q --max 500 --json",
        "peek q --max 500 --body",
    ],
)
def test_a_reader_that_ends_early_ends_the_command_quietly(shell: Shell, command: str) -> None:
    assert run(shell, f"{HERE} {command} | head -0") == (1, "", "")


@pytest.mark.parametrize("command", ["queues", "--help", "--version", "send q 1", "history", "completion bash"])
def test_a_short_output_without_a_reader_gives_no_traceback(shell: Shell, command: str) -> None:
    code, _, said = run(shell, f"{HERE} {command} | true")
    assert code in (0, 1), "0 if all was written before the reader ended"
    assert said == ""


@pytest.mark.parametrize(
    "command", ["queues", "--help", "--version", "send q 1", "export q - --format jsonl", "peek q --body", "top --once"]
)
@pytest.mark.parametrize(
    ("where", "reason"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_output_that_cannot_be_written_is_an_error(shell: Shell, command: str, where: str, reason: str) -> None:
    assert run(shell, f"{HERE} {command} {where}") == (1, "", f"miniq: cannot write the output: {reason}\n")


def test_a_closed_stream_is_not_taken_by_another_file(shell: Shell) -> None:
    for closed in ("<&- >&- 2>&-", "2>&-"):
        assert run(shell, f"{HERE} send q 1 {closed}")[0] in (0, 1)
    assert run(shell, f"{HERE} nonsense 2>&-") == (2, "", "")
    with miniq.connect(shell.url) as mq:
        assert mq.queue("q").info().counts.total == 502


@pytest.mark.parametrize("command", ["queues", "receive default --wait 30", "send q", "top"])
def test_ctrl_c_in_the_first_moments_gives_no_traceback(shell: Shell, command: str) -> None:
    for step in range(5):
        ended = interrupted(step * 0.08, shell.folder, *command.split(), MINIQ_URL=shell.url)
        assert ended.err.strip() in ("", "miniq: interrupted"), (step, ended.err)
        assert ended.code in (0, 1)


def test_nothing_is_removed_unless_a_person_says_so(shell: Shell) -> None:
    said = shell("purge", "q", code=2).err
    assert "Remove 500 messages of queue q? Not a terminal; use --yes." in said
    for reply, code, told in ((b"n\n", 1, "Cancelled, nothing removed"), (b"\x03", 1, "miniq: interrupted")):
        assert answered(shell, ["purge", "q"], reply) == (code, told)
        assert answered(shell, ["queues", "delete", "q"], reply) == (code, told)
    with miniq.connect(shell.url) as mq:
        assert mq.queue("q").info().counts.total == 500
    assert answered(shell, ["purge", "q"], b"y\n") == (0, "purged 500 messages")


def answered(shell: Shell, args: list[str], reply: bytes) -> tuple[int, str]:
    """How a command ends when a person on a terminal replies to its question, and the last line it prints."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(MINIQ[0], [*MINIQ, *args], environment(MINIQ_URL=shell.url))  # noqa: S606
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(terminal, 4096)
    time.sleep(0.5)  # Python misses Ctrl-C between its prompt and its read, and no person is that quick
    os.write(terminal, reply)
    try:
        while data := os.read(terminal, 4096):
            seen += data
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, seen.decode().strip().splitlines()[-1]
