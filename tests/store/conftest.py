"""The embedded store on each engine, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import store_url


@pytest.fixture(params=["rocksdb", "leveldb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    store_url(request.param, tmp_path)  # skips where the driver is absent
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def url(engine: str, folder: Path) -> str:
    return f"{engine}:{folder}"
