"""Lets Spark discover `format("miniq")`: it registers the `DefaultSource` of every installed module `pyspark_*` when a
session starts."""

from miniq.spark.source import MiniQ as DefaultSource

__all__ = ["DefaultSource"]
