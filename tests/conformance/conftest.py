"""The server of the wire suites, and every wire to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.wires import WIRES, Caller
from tests.server import server
from tests.serving import Served

__all__ = ["server"]


@pytest.fixture(params=list(WIRES))
def wire(request: pytest.FixtureRequest, server: Served) -> Iterator[Caller]:
    """Every way to a server, which is empty afterwards."""
    opened = WIRES[request.param](server)
    one = Caller(opened)
    yield one
    one.clear()
    opened.close()
