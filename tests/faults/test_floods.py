"""No flood costs the broker more than a little memory, or makes others wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.floods import DEAF, FLOODS, MIB, Target, head
from tests.serving import Served, serving

MEMORY = 64 * MIB
WAIT = 1.0
"""CPU seconds of the server; see `floods.py`."""
WRITE_TIMEOUT = 1.0


class Servers:
    """One server for all floods, and a new one after a flood that it did not bear."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._config = folder / "miniq.toml"
        self._config.write_text(f"[limits]\nwrite_timeout = {WRITE_TIMEOUT}\n")
        self._target: Target | None = None

    def target(self) -> Target:
        if self._target is None:
            served: Served = self._stack.enter_context(serving("memory:", 0, "--config", str(self._config)))
            self._target = Target(served)
        return self._target

    def stop(self) -> None:
        self._stack.close()
        self._target = None


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("floods"))
    yield servers
    servers.stop()


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_takes_little_memory_and_lets_others_through(name: str, servers: Servers) -> None:
    try:
        cost = servers.target().measure(FLOODS[name])
        assert cost.grown <= MEMORY, f"{cost.grown / MIB:.0f} MiB more"
        assert cost.wall < DEAF, "/health was not answered"
        assert cost.wait <= WAIT, f"/health waited while the server worked for {cost.wait:.2f} s ({cost.wall:.2f} s)"
    except BaseException:
        servers.stop()
        raise


def test_answers_that_are_not_read_are_dropped_after_a_while(servers: Servers) -> None:
    """Twelve of the largest: they may be kept for as long as `write_timeout`, while they are not read."""
    target = servers.target()
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
