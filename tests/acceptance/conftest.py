"""Fixtures of the acceptance tests: both clients, in process and on a server over HTTP and ZeroMQ.

What a broker promises is tested on every store in `tests/conformance`; here one store is enough, RocksDB, on which the
server works too. `test_client_stores.py` has a look at the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import miniq
from tests.acceptance.client_wires import WIRES, Proxy, Wire
from tests.acceptance.faces import Opener
from tests.conftest import store_url
from tests.server import clear, server
from tests.serving import Served
from tests.spark import spark

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["server", "spark"]


@pytest.fixture(params=["sync", "async"])
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    opener = Opener(request.param)
    yield opener
    opener.close()


@pytest.fixture(params=["rocksdb", *WIRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty broker that keeps what it was sent, on every way to one."""
    return served(request) if request.param in WIRES else store_url(request.param, tmp_path)


@pytest.fixture(params=["memory", *WIRES])
def place(request: pytest.FixtureRequest) -> str:
    """An empty broker in process and on a server, where the store does not matter."""
    return served(request) if request.param in WIRES else "memory:"


def served(request: pytest.FixtureRequest) -> str:
    """An empty broker behind the wire that a test asks for."""
    server: Served = request.getfixturevalue("server")
    clear(server.url)
    return WIRES[request.param].of(server)


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each way to a server. A file on one of them has a fixture of this name, which gives that one."""
    return WIRES[request.param]


@pytest.fixture
def server_url(server: Served, wire: Wire) -> str:
    """An empty broker behind a wire."""
    clear(server.url)
    return wire.of(server)


@pytest.fixture
def proxy(server_url: str) -> Iterator[Proxy]:
    """An empty broker behind a wire that can be watched and cut."""
    with Proxy(server_url) as proxy:
        yield proxy


@pytest.fixture
def broker(server: Served) -> Iterator[miniq.Client]:
    """An empty broker on a server, as a client sees it."""
    clear(server.url)
    with miniq.connect(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.acceptance.browser import browsing

    with browsing() as opened:
        yield opened


@pytest.fixture
def size() -> str:
    """Of the browser's window, unless a test names others."""
    return "desk"
