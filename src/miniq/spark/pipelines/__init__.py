"""Ready pipelines: plain functions that take a session. Each is also a command, `miniq pipeline NAME`.

| function | from | to |
|---|---|---|
| `ingest` | text, JSON Lines, CSV, Parquet files | a queue |
| `drain` | a queue | Parquet, JSON or text files |
| `copy` | a file | through a queue to an identical file |
| `archive` | the history | a lake of Parquet files |
| `report` | the lake | tables, and a page with plots |
| `replay` | the lake | a queue |
| `reprocess` | dead letters, filtered and fixed | where they came from |
| `transform` | a queue | SQL or a function, and another queue |

Those that run as streams keep in their checkpoint how far they are. Run again, they go on there, and whatever
happened in between, every message counts once.
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
