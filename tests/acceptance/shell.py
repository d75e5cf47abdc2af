"""The command line as a person has it: real processes, an environment without our variables, a broker of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import miniq
from tests.acceptance import forks
from tests.acceptance.forks import PATIENCE

MINIQ = [sys.executable, "-m", "miniq"]
STARTING = """
import os, signal, miniq_command
real = signal.signal

def once(*args):
    real(*args)
    signal.signal = real
    os.write(2, b".")

signal.signal = once
miniq_command.main()
"""
"""What the installed script does, with a sign on stderr when the first line of ours has run."""


def interrupted(after: float, folder: Path, *args: str, **env: str) -> Result:
    """A command that gets Ctrl-C so many seconds after its start."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**env),
        cwd=folder,
    )
    assert process.stderr is not None
    assert process.stderr.read(1) == b"."
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    return collect(process)


class Result:
    """How a command ended and what it said."""

    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.raw = process.stdout
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        """What `--json` printed."""
        return [json.loads(line) for line in self.lines]


class Shell:
    """Runs commands against one URL in one folder."""

    def __init__(self, url: str, folder: Path, **env: str) -> None:
        self.url = url
        self.tcp = ""
        """The broker's ZeroMQ address, where a test started it."""
        self.folder = folder
        self.env = environment(MINIQ_URL=url, **env)

    def __call__(self, *args: str, stdin: bytes = b"", code: int = 0) -> Result:
        """Run a command; it must end with `code`, without a traceback."""
        result = Result(forks.run(args, stdin, self.env, self.folder))
        assert "Traceback" not in result.err, result.err
        assert result.code == code, f"{args}: {result.code}\n{result.out}{result.err}"
        return result

    def start(self, *args: str, start_new_session: bool = False) -> subprocess.Popen[bytes]:
        """A command in the background, to be ended by the caller."""
        return subprocess.Popen(
            [*MINIQ, *args],
            bufsize=0,  # a line that is read must not take others with it, which nobody would see again
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
            start_new_session=start_new_session,
        )


def on_folder(folder: Path) -> Shell:
    """A shell for the empty store in the folder `data`, which a client command would not create."""
    miniq.connect(folder / "data").close()
    return Shell(str(folder / "data"), folder)


def environment(**more: str) -> dict[str, str]:
    """This environment without our variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


@contextmanager
def serving(folder: Path, *args: str, **env: str) -> Iterator[Shell]:
    """A broker, and a shell that talks to it."""
    process = subprocess.Popen(
        [*MINIQ, "serve", "--store", f"rocksdb:{folder / 'data'}", "--port", "0", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(**env),
        cwd=folder,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("miniq ready: "), line
        url, tcp = line.split()[2:4]
        shell = Shell(url, folder)
        shell.tcp = tcp
        yield shell
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
        process.stdout.close()
    assert code == 0


def collect(process: subprocess.Popen[bytes]) -> Result:
    """Wait for a command in the background."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Result(subprocess.CompletedProcess(process.args, process.returncode, out, err))


def complaints(stderr: str) -> str:
    """What a program in Python's development mode complained about, but for being slow on a busy machine."""
    return "".join(line for line in stderr.splitlines(True) if not line.startswith("Executing <"))
