"""Commands of `miniq` as processes that start in milliseconds: forks of a process that has imported the package.

This module as a program is that process. It reads requests from the socket that is its stdin: arguments, environment
and folder as JSON, with the command's streams as file descriptors; it replies with the command's pid and exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

PATIENCE = 150
PRELOADED = ("miniq.client.http", "miniq.client.embedded", "miniq.store.embedded.store", "rocksdict")
"""What most commands import besides their own module."""


def run(args: tuple[str, ...], stdin: bytes, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """A command, run to its end. Its stdin is a pipe, its outputs are files."""
    line = _line()
    given, feed = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = json.dumps([args, env, str(folder)]).encode()
        socket.send_fds(line, [request], [given, out.fileno(), err.fileno()])
        os.close(given)
        feeder = threading.Thread(target=_feed, args=(feed, stdin))
        feeder.start()
        pid = int(line.recv(100))
        try:
            code = int(line.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            line.recv(100)
            raise
        finally:
            feeder.join()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(args, code, out.read(), err.read())


def _feed(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(pipe, "wb") as file:
        file.write(data)


@cache
def _line() -> socket.socket:
    """The socket of a forking process, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen([sys.executable, "-m", __name__], stdin=theirs)
    ours.settimeout(PATIENCE)
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], line: socket.socket) -> None:
    line.close()
    process.wait(PATIENCE)


def main() -> None:
    from miniq.cli import root

    for name in (*PRELOADED, *(f"miniq.cli.{module}" for module in root.COMMANDS.values())):
        importlib.import_module(name)
    gc.freeze()  # a fork copies only the pages that it writes to
    line = socket.socket(fileno=os.dup(0))
    while True:
        request, streams, _, _ = socket.recv_fds(line, 2**20, 3)
        if not request:
            return
        pid = os.fork()
        if not pid:
            break
        for stream in streams:
            os.close(stream)
        line.send(b"%d" % pid)
        line.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    line.close()
    args, env, folder = json.loads(request)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    root.main(args)


if __name__ == "__main__":
    main()
