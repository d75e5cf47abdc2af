"""Fixtures of the acceptance tests: both clients, on every store in process and on a server over HTTP and ZeroMQ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.faces import Opener
from tests.conftest import STORES, store_url
from tests.server import clear, server
from tests.serving import Served
from tests.spark import spark

__all__ = ["server", "spark"]


@pytest.fixture(params=["sync", "async"])
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    opener = Opener(request.param)
    yield opener
    opener.close()


WIRES = ("http", "zmq")


@pytest.fixture(params=[*STORES, *WIRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty broker on every way to one."""
    return served(request) if request.param in WIRES else store_url(request.param, tmp_path)


@pytest.fixture(params=["memory", *WIRES])
def place(request: pytest.FixtureRequest) -> str:
    """An empty broker in process and on a server, where the store does not matter."""
    return served(request) if request.param in WIRES else "memory:"


def served(request: pytest.FixtureRequest) -> str:
    """An empty broker behind the wire that a test asks for."""
    server: Served = request.getfixturevalue("server")
    clear(server.url)
    return server.tcp if request.param == "zmq" else server.url
