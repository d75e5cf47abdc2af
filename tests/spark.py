"""One Spark session for all tests of a run that need one: starting it takes seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, with `format("miniq")`; skip where Spark is absent, fail where nothing may be."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("pyspark is not installed: pip install '.[spark]'")
    from miniq.spark import session

    found = session("local[2]", config={"spark.sql.shuffle.partitions": "2"})
    # Spark takes Ctrl-C for itself, and asyncio then no longer cancels on it: later tests have it as it was.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield found
    found.stop()
