"""`miniq pipeline …` without a start of Spark for each: the commands of a page run one after the other in one Python,
with one Spark. `test_cli_pipeline.py` has them as processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.acceptance.shell import MINIQ

COMMAND = f"""#!{sys.executable} -SE
import json, os, socket, sys
if sys.argv[1:2] != ["pipeline"]:
    os.execv(MINIQ[0], [*MINIQ, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect(ADDRESS)
    warm.sendall(json.dumps([sys.argv[1:], os.getcwd()]).encode() + b"\\n")
    out, err, code = json.load(warm.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
"""The program `miniq` of a page, which imports little."""


@contextlib.contextmanager
def warm_spark(folder: Path, environ: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment in which `miniq` is such a program."""
    folder.mkdir()
    address = str(folder / "s")
    program = folder / "miniq"
    program.write_text(COMMAND.replace("MINIQ", repr(list(MINIQ))).replace("ADDRESS", repr(address)))
    program.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-W", "error", "-m", __name__, address], env=environ)
    try:
        while not os.path.exists(address):
            assert process.poll() is None
            time.sleep(0.01)
        yield environ | {"PATH": f"{folder}{os.pathsep}{environ['PATH']}"}
    finally:
        with socket.socket(socket.AF_UNIX) as warm:
            warm.connect(address)
            warm.sendall(b"null\n")
        process.wait(60)


def main(address: str) -> None:
    """Run the commands that come."""
    from pyspark.sql import SparkSession

    stop = SparkSession.stop
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]  # the next command goes on with it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                asked = json.loads(connection.makefile().readline())
                if asked is None:
                    break
                arguments, folder = asked
                os.chdir(folder)
                connection.sendall(json.dumps(run(arguments)).encode())
    if (session := SparkSession.getActiveSession()) is not None:
        stop(session)


def run(arguments: list[str]) -> tuple[str, str, Any]:
    """What a command prints, and its exit code."""
    from miniq.cli import main

    sys.argv = ["miniq", *arguments]
    code: Any = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return out.getvalue(), err.getvalue(), code


if __name__ == "__main__":
    main(sys.argv[1])
