"""`python -m tests.faults.health PORT PID`: asks a server for `/health` every 50 ms, on a connection that it keeps and
on a new one, until its input ends. For each round it prints how long the answers took, and how much CPU time the
process of the server used meanwhile. As root it runs before other processes, so that its own waiting does not count."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

EVERY = 0.05
DEAF = 30.0
"""Seconds after which a server that does not answer is considered dead, however busy the machine is."""
TICK = 0.01
"""The unit of CPU times in /proc."""


def cpu_of(pid: int) -> float:
    """The CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def head(
    method: bytes, path: bytes, *lines: bytes, secret: str = "", size: int | None = None, host: bytes = b"x"
) -> bytes:
    """A request line and headers."""
    fields = [b"host: " + host, *lines]
    if secret:
        fields.append(b"authorization: Bearer " + secret.encode())
    if size is not None:
        fields.append(b"content-length: %d" % size)
    return b"%b %b HTTP/1.1\r\n%b\r\n\r\n" % (method, path, b"\r\n".join(fields))


def ask(connection: socket.socket, pid: int, report: dict[str, Any]) -> None:
    """Ask once, and note how long it took."""
    cpu, began = cpu_of(pid), time.monotonic()
    connection.settimeout(DEAF)
    connection.sendall(head(b"GET", b"/health"))
    answer = b""
    try:
        while not answer.endswith(b"}"):
            answer += (piece := connection.recv(4096))
            if not piece:
                raise ConnectionError("the connection was closed")
    finally:
        report["wall"] = max(report["wall"], time.monotonic() - began)
        report["wait"] = max(report["wait"], cpu_of(pid) - cpu)


def main(port: int, pid: int) -> None:
    with suppress(OSError):  # not root, or not Linux
        os.nice(-15)
        Path("/proc/self/autogroup").write_text("-15")  # of the session, which has no other process
    address = ("127.0.0.1", port)
    with socket.create_connection(address, DEAF) as kept:
        while True:
            report: dict[str, Any] = {"wait": 0.0, "wall": 0.0}
            try:
                ask(kept, pid, report)
                with socket.create_connection(address, DEAF) as new:
                    ask(new, pid, report)
            except TimeoutError:
                break  # as `wall` tells
            except OSError as error:
                report["error"] = repr(error)
                break
            finally:
                print(json.dumps(report), flush=True)
            if select.select([sys.stdin], [], [], EVERY)[0]:
                break


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
