"""The pytest plugin: the fixture `miniq_app`. It is outside the package, so that pytest does not import MiniQ for tests
that do not use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from miniq.worker.app import App


@pytest.fixture
def miniq_app() -> Iterator[App]:
    """An app on a broker in memory, closed after the test."""
    from miniq.worker.app import App

    with App("memory:") as app:
        yield app
