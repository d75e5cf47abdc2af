"""`format("miniq")`: the data source registered with Spark. It checks options and creates readers and writers.

Readers and writers are pickled to executors, and Spark creates several of each in different processes; so they hold
only options, and connect on use.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from miniq.errors import InvalidRequest
from miniq.spark.options import Use, check_use, read_options
from miniq.spark.schema import Layout, check_written_schema, spark_schema
from miniq.spark.sink import BatchWriter, StreamWriter
from miniq.spark.snapshot import HistoryReader, MessagesReader
from miniq.spark.stream import ClaimStream, HistoryStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MiniQ(DataSource):
    """Queues and history as tables and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = read_options(options)

    @classmethod
    def name(cls) -> str:
        return "miniq"

    def schema(self) -> StructType | str:
        if self._options.view == "messages" and self._options.queue is None:
            raise InvalidRequest("queue: is missing; set it with .option('queue', NAME)", field="queue")
        return spark_schema(self._options.view, self._options.bodySchema)

    def reader(self, schema: StructType) -> DataSourceReader:
        layout = self._layout(schema, "read")
        if self._options.view == "history":
            return HistoryReader(self._options, layout)
        return MessagesReader(self._options, layout)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        layout = self._layout(schema, "readStream")
        if self._options.view == "history":
            return HistoryStream(self._options, layout)
        return ClaimStream(self._options, layout)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        self._check_write(schema, overwrite, "write")
        self._options.connect(probe=True).close()
        return BatchWriter(self._options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Spark calls this for every batch, so there is no probe: a broker may restart while a stream runs.
        self._check_write(schema, overwrite, "writeStream")
        return StreamWriter(self._options)

    def _layout(self, schema: StructType, use: Use) -> Layout:
        options = self._options
        check_use(options, self.options, use)
        return Layout(schema, options.view, options.bodySchema, options.mode)

    def _check_write(self, schema: StructType, overwrite: bool, use: Use) -> None:
        check_use(self._options, self.options, use)
        if overwrite:
            what = "queue cannot be overwritten; use append, or purge it first"
            if self._options.topic is not None:
                what = "topic cannot be overwritten; use append"
            raise InvalidRequest(f"mode: a {what}", field="mode")
        check_written_schema(schema, self._options.contentType)


def register(spark: SparkSession) -> None:
    """Register `format("miniq")` with a session."""
    spark.dataSource.register(MiniQ)
