"""Ten thousand connections that say nothing, or as many as the system allows: the server goes on answering, and they
cost little."""

from __future__ import annotations

import contextlib
import resource
import socket
from pathlib import Path

import miniq
from tests.serving import serving

IDLE = 10_000
OTHERS = 500
"""Files that the tests and the server may have open besides."""


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


def test_idle_connections_hold_up_nobody(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    idle = IDLE if hard == resource.RLIM_INFINITY else min(IDLE, hard - OTHERS)
    assert idle > 0, f"{hard} open files are too few for anything"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, idle + OTHERS), hard))
    try:
        with serving(f"rocksdb:{tmp_path / 'data'}") as served, contextlib.ExitStack() as stack:
            before = resident(served.process.pid)
            for number in range(idle):
                # From several addresses: one has not so many ports to give.
                source = (f"127.0.0.{2 + number // 5000}", 0)
                stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 20, source))
            with miniq.connect(served.url) as mq:
                queue = mq.queue("jobs")
                ids = queue.send_many(range(100))
                assert [m.id for m in queue.receive(max=100)] == ids, f"with {idle} idle connections"
            more = resident(served.process.pid) - before
            assert more < (4 << 20) + idle * (20 << 10), f"{more} bytes more for {idle} idle connections"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
