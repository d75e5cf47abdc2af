"""MiniQ for Apache Spark: `format("miniq")`, a preconfigured session, and ready-made pipelines.

    from miniq.spark import session
    spark = session()
    spark.read.format("miniq").option("queue", "orders").load().show()

`sessions.py` starts Spark, `source.py` implements `format("miniq")`, `pipelines/` holds the pipelines. The driver and
the executors talk to the broker over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miniq.spark.sessions import session
    from miniq.spark.source import register

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use: without Spark, the error names the pip command."""
    if name == "session":
        from miniq.spark.sessions import session

        return session
    if name == "register":
        from miniq.spark.sessions import check_spark

        check_spark()
        from miniq.spark.source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
