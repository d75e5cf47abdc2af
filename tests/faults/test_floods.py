"""No flood costs the broker more than a little memory, or makes others wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.floods import FLOODS, MIB, Target, send_rows
from tests.faults.health import DEAF, head
from tests.serving import serving

MEMORY = 64 * MIB
WAIT = 1.0
"""CPU seconds of the server; see `floods.py`."""
WRITE_TIMEOUT = 1.0


@contextmanager
def flooded(tmp_path: Path) -> Iterator[Target]:
    """A server of its own for each flood: memory that an earlier flood has left would hide what this one takes."""
    config = tmp_path / "miniq.toml"
    config.write_text(f"max_buffered_bytes = {MEMORY // 2}\n[limits]\nwrite_timeout = {WRITE_TIMEOUT}\n")
    with serving("memory:", 0, "--config", str(config)) as served:
        yield Target(served)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with flooded(tmp_path) as target:
        yield target


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_takes_little_memory_and_lets_others_through(name: str, tmp_path: Path) -> None:
    with flooded(tmp_path) as target:
        if name.startswith("Arrow"):
            with ExitStack() as stack:
                send_rows(target, stack, 1)  # pyarrow itself takes up to 68 MiB, once
        cost = target.measure(FLOODS[name])
    assert cost.wall < DEAF, "/health was not answered"
    assert cost.wait <= WAIT, f"/health waited while the server worked for {cost.wait:.2f} s ({cost.wall:.2f} s)"
    assert cost.grown <= MEMORY, f"the server took {cost.grown / MIB:.0f} MiB more"


def test_answers_that_are_not_read_are_dropped_after_a_while(target: Target) -> None:
    """Twelve of the largest: they may be kept for as long as `write_timeout`, while they are not read."""
    path = b"/v1/queues/large/messages"
    for _ in range(15):
        body = b'{"body":"%b"}' % (b"x" * (MIB - 100))
        assert target.ask(b"POST", path, body, target.all).startswith(b"HTTP/1.1 201")
    before = target.memory()
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(target.connect()).sendall(head(b"GET", path, secret=target.all))
        while target.memory() - before < MEMORY:
            time.sleep(0.01)
        deadline = time.monotonic() + 30 * WRITE_TIMEOUT
        while target.memory() - before > MEMORY:
            assert time.monotonic() < deadline, f"{(target.memory() - before) / MIB:.0f} MiB are kept"
            time.sleep(0.05)
