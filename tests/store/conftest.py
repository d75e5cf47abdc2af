"""The embedded store on each engine, in a folder of its own; a MongoDB behind its store's back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ENGINES, store_url

if TYPE_CHECKING:
    from pymongo.asynchronous.database import AsyncDatabase


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    store_url(request.param, tmp_path)  # skips where the driver is absent
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def url(engine: str, folder: Path) -> str:
    return f"{engine}:{folder}"


@pytest.fixture
async def database(url: str) -> AsyncIterator[AsyncDatabase[dict[str, Any]]]:
    """The database behind the store's back."""
    from pymongo import AsyncMongoClient

    async with AsyncMongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()
