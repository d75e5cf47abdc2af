"""Fixtures for every suite: one store of each kind, a broker on it, a clock that stands still."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

from miniq.broker import Broker
from miniq.options import Options
from miniq.store import open_store
from miniq.store.contract import Store
from tests import mongod, postgresql
from tests.clock import FrozenClock

# Who runs the tests in the background may have Ctrl-C ignored; the programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A Java of the tests lives for seconds: its optimising compiler would cost more than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
# No timing asserts: on a busy machine an example may take any time.
hypothesis.settings.register_profile("miniq", deadline=None)
hypothesis.settings.load_profile("miniq")

ENGINES = ("rocksdb", "leveldb") if sys.version_info < (3, 13) else ("rocksdb",)
"""Those of the embedded store. There is no driver of LevelDB for a later Python."""
STORES = ("memory", *ENGINES, "postgresql", "mongodb")


def store_url(kind: str, folder: Path) -> str:
    """The URL of a store of a kind; skip where its driver is absent, fail where nothing may be absent."""
    if kind == "leveldb":
        try:
            import plyvel  # noqa: F401
        except ImportError:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip("plyvel is not installed: pip install '.[leveldb]'")
    if kind == "postgresql":
        return postgresql.url(folder)
    if kind == "mongodb":
        return mongod.databases().url(folder)
    return "memory:" if kind == "memory" else f"{kind}:{folder / kind}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stores",
        default=",".join(STORES),
        metavar="KINDS",
        help="run the tests that are parametrised over stores only on these, separated by commas (default: all)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if unknown := chosen_stores(config) - set(STORES):
        raise pytest.UsageError(f"--stores: {', '.join(sorted(unknown))!r}; use some of {', '.join(STORES)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of stores that were not chosen, whatever the parameter is called that names the store."""
    left_out = set(STORES) - chosen_stores(config)
    deselected = [item for item in items if left_out & stores_of(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not left_out & stores_of(item)]


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no garbage collection has to walk through it again."""
    gc.freeze()


def chosen_stores(config: pytest.Config) -> set[str]:
    return {kind.strip() for kind in str(config.getoption("stores")).split(",")}


def stores_of(item: pytest.Item) -> set[str]:
    """The stores among the parameters of a test."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec is not None else ()
    return {value for value in values if isinstance(value, str)} & set(STORES)


@pytest.fixture(autouse=True)
def lent_databases() -> Iterator[None]:
    """What a test had of a server's databases is the next one's."""
    yield
    mongod.give_back()
    postgresql.give_back()


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Where nothing may be absent, nothing may be skipped either, by whatever means.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") == "true" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    mongod.stop()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request.param, tmp_path)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store of each kind, opened."""
    opened = open_store(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def broker(url: str, clock: FrozenClock) -> AsyncIterator[Broker]:
    """A broker on a store of each kind, whose clock stands still and whose upkeep is called by hand."""
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as opened:
        yield opened
