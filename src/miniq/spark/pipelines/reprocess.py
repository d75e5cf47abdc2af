"""`reprocess`: select dead letters, fix them, and send each back to its source queue, exactly once.

A dead letter is not sent as a new message: it is edited in place and then redriven, which moves it. So it keeps its id,
cannot be lost or duplicated, and tolerates other consumers of the same dead-letter queue. The edit adds a header that
names the fix, so that another run after a crash does not apply it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from miniq.errors import InvalidRequest, MessageLeased, MessageNotFound, StaleReceipt
from miniq.message import JSON
from miniq.spark.options import Options
from miniq.spark.pipelines.runs import Run, Summary, digest, repeat
from miniq.spark.pipelines.transform import function_of, is_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from miniq.client._sync.queue import Queue

MARK = "miniq-fixed-by"
COUNTS = ("found", "fixed", "sent_back", "left")
BATCH = 1000
"""Dead letters per redrive call."""
PAUSE = 10.0
"""Default seconds between the rounds of a continuous run."""

Fix = Callable[[Any], Any]
"""Maps a body to the fixed body; None leaves the dead letter where it is."""


def reprocess(
    spark: SparkSession,
    queue: str,
    *,
    where: str | None = None,
    fix: str | Fix | None = None,
    to: str | None = None,
    run: Run | None = None,
) -> Summary:
    """Send the dead letters of `queue`, a dead-letter queue, back; `where` is an SQL condition that selects some.

    `fix` computes the new body: an SQL expression on the columns of the message (`body` is JSON text), a function from
    the old body to the new one, or the name of such a function as `module:function`. If it returns None, the letter
    stays. Without `fix`, bodies do not change. `to` overrides the queue they go to, by default their source queue.
    """
    run = run or Run()
    function: Fix | None = None
    name, columns = "", ["*"]
    if isinstance(fix, str) and not is_name(fix):
        name = f"sql-{digest(fix)}"
        columns.append(f"cast(({fix}) as string) as fixed")
    elif fix is not None:
        function = function_of(fix) if isinstance(fix, str) else fix
        name = f"{function.__module__}:{function.__qualname__}"
    worker = _Worker(run.broker(), queue, to, name, function)
    partitions = max(1, int(run.options.get("partitions", "2")))
    total = dict.fromkeys(COUNTS, 0)

    def work() -> tuple[int, dict[str, Any]]:
        letters = spark.read.format("miniq").options(**run.source(queue=queue, status="ready")).load()
        selected = letters.where(where or "true").selectExpr(*columns).repartition(partitions)
        counts = selected.mapInArrow(worker, ", ".join(f"`{name}` bigint" for name in COUNTS))
        for name, count in zip(COUNTS, counts.groupBy().sum().collect()[0], strict=True):
            total[name] += count or 0
        return total["sent_back"], {"queue": queue, **total}

    return repeat("reprocess", run, PAUSE, work)


class _Worker(Struct, frozen=True):
    """Edits and redrives the dead letters of one task; pickled to executors."""

    broker: Options
    queue: str
    to: str | None
    fix: str
    """The name of the fix, empty if there is none."""
    function: Fix | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = fixed = sent = left = 0
        with self.broker.connect() as client:
            queue = client.queue(self.queue)
            ready: list[str] = []
            for letter in (letter for batch in batches for letter in batch.to_pylist()):
                found += 1
                try:
                    changed = self._edit(queue, letter)
                except (MessageLeased, MessageNotFound, StaleReceipt):
                    changed = None  # another consumer has it
                if changed is None:
                    left += 1
                    continue
                fixed += changed
                ready.append(letter["id"])
                if len(ready) == BATCH:
                    sent += queue.redrive(ready, to=self.to).moved
                    ready = []
            if ready:
                sent += queue.redrive(ready, to=self.to).moved
        yield pa.RecordBatch.from_pydict(dict(zip(COUNTS, ([found], [fixed], [sent], [left]), strict=True)))

    def _edit(self, queue: Queue, letter: dict[str, Any]) -> bool | None:
        """Apply the fix, unless it was applied before. True if the letter was changed, None if it must stay."""
        headers = dict(letter["headers"] or [])
        if not self.fix or headers.get(MARK) == self.fix:
            return False
        body, content_type = self._fixed(letter)
        if body is None:
            return None
        headers[MARK] = self.fix
        queue.edit(letter["id"], body=body, content_type=content_type, headers=headers)
        return True

    def _fixed(self, letter: dict[str, Any]) -> tuple[Any, str | None]:
        """The fixed body with its content type."""
        content_type = letter["content_type"] or JSON
        is_json = letter["body"] is not None and content_type.partition(";")[0].strip().endswith("json")
        if self.function is None:
            text = letter["fixed"]
            if text is None or not is_json:
                return text, content_type
            try:
                msgspec.json.decode(text)
            except msgspec.DecodeError:
                raise InvalidRequest(
                    f"fix: the result {text[:80]!r} for dead letter {letter['id']} is not JSON, as its body was",
                    field="fix",
                ) from None
            return text.encode(), content_type
        before = msgspec.json.decode(letter["body"]) if is_json else letter["body"]
        after = self.function(letter["data"] if before is None and letter["data"] is not None else before)
        return after, None if is_json else content_type
