"""Ready-made pipelines: plain functions that take a session. Each is also a command, `miniq pipeline NAME`.

| function | from | to |
|---|---|---|
| `ingest` | text, JSON Lines, CSV or Parquet files | a queue |
| `drain` | a queue | Parquet, JSON or text files |
| `copy` | a file | an identical file, through a queue |
| `archive` | the history | a lake of Parquet files |
| `report` | the lake | tables, and a page with charts |
| `replay` | the lake | a queue |
| `reprocess` | dead letters, filtered and fixed | their source queues |
| `transform` | a queue | another queue, through SQL or a function |

Those that run as streams keep their position in a checkpoint. Run again, they continue from there, and process every
message exactly once, whatever failed in between.
"""

from miniq.spark.pipelines.archive import archive
from miniq.spark.pipelines.copy import copy
from miniq.spark.pipelines.drain import drain
from miniq.spark.pipelines.ingest import ingest
from miniq.spark.pipelines.replay import replay
from miniq.spark.pipelines.report import report
from miniq.spark.pipelines.reprocess import reprocess
from miniq.spark.pipelines.runs import Run, Summary
from miniq.spark.pipelines.transform import transform

__all__ = ["Run", "Summary", "archive", "copy", "drain", "ingest", "replay", "report", "reprocess", "transform"]
