"""Found by Spark itself: every module `pyspark_*` with a `DefaultSource` is registered when a session starts, so that
`format("miniq")` works wherever MiniQ is installed with `miniq[spark]`."""

from miniq.spark.source import MiniQ as DefaultSource

__all__ = ["DefaultSource"]
