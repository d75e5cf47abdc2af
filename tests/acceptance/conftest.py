"""Fixtures of the acceptance tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.faces import Opener


@pytest.fixture(params=["sync", "async"])
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    opener = Opener(request.param)
    yield opener
    opener.close()
