"""One real server for all tests of a run that need no server of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import miniq
from tests.serving import Served, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on RocksDB, as a process of its own."""
    with serving(f"rocksdb:{tmp_path_factory.mktemp('server') / 'data'}") as served:
        yield served


def clear(url: str) -> None:
    """Remove everything that an earlier test left in a broker."""
    with miniq.connect(url) as mq:
        for topic in mq.topics():
            mq.topic(topic.name).delete()
        for info in mq.queues():
            if info.name == "default":
                mq.queue("default").purge()
            else:
                mq.queue(info.name).delete()
