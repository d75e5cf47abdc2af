"""Ten thousand connections that say nothing: the server goes on answering, and they cost little."""

from __future__ import annotations

import contextlib
import resource
import socket
from pathlib import Path

import pytest

import miniq
from tests.serving import serving

IDLE = 10_000


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


def test_ten_thousand_idle_connections_hold_up_nobody(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this system allows {hard} open files, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        with serving(f"rocksdb:{tmp_path / 'data'}") as served, contextlib.ExitStack() as stack:
            before = resident(served.process.pid)
            for number in range(IDLE):
                # From several addresses: one has not so many ports to give.
                source = (f"127.0.0.{2 + number // 5000}", 0)
                stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 20, source))
            with miniq.connect(served.url) as mq:
                queue = mq.queue("jobs")
                ids = queue.send_many(range(100))
                assert [m.id for m in queue.receive(max=100)] == ids
            assert resident(served.process.pid) - before < 200 * 1024 * 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
