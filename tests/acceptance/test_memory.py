"""What a server keeps of the memory that large requests needed."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

import miniq
from tests.serving import Served, serving

MIB = 1 << 20


def resident(served: Served) -> int:
    """The server's memory in bytes."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the memory of glibc")
def test_large_requests_leave_no_holes_in_the_memory(tmp_path: Path) -> None:
    with (
        serving(f"rocksdb:{tmp_path / 'data'}", 0, "--durability=relaxed") as served,
        miniq.connect(f"http://127.0.0.1:{served.port}") as mq,
    ):
        queue, before = mq.queue("large"), resident(served)
        for _ in range(8):
            queue.send_many(["x" * 1_000_000] * 15)
        queue.purge()
        deadline = time.monotonic() + 20
        while (grown := resident(served) - before) > 200 * MIB:  # soon about 150, most of it the engine's; before 240
            assert time.monotonic() < deadline, f"{grown // MIB} MiB are kept"
            time.sleep(0.1)
