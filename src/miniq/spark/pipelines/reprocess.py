"""`reprocess`: select dead letters, fix them, and send each back to its source queue, exactly once.

A dead letter is not sent as a new message: it is edited in place and then redriven, which moves it. So it keeps its id,
cannot be lost or duplicated, and tolerates other consumers of the same dead-letter queue. The edit adds a header that
names the fix, so that another run after a crash does not apply it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from miniq.errors import InvalidRequest, MessageLeased, MessageNotFound, StaleReceipt
from miniq.message import JSON
from miniq.spark.options import Options
from miniq.spark.pipelines.runs import Progress, Run, Summary, digest
from miniq.spark.pipelines.transform import function_of, is_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "miniq-fixed-by"
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
    began = time.perf_counter()
    total = {"found": 0, "fixed": 0, "sent_back": 0, "left": 0}
    rounds = 0
    while True:
        counts = _round(spark, queue, where, fix, to, run)
        rounds += 1
        total = {name: total[name] + counts[name] for name in total}
        if run.progress is not None:
            run.progress(Progress(rounds, total["sent_back"], time.perf_counter() - began))
        if not run.continuous or run.pause(PAUSE):
            break
    seconds = round(time.perf_counter() - began, 3)
    return Summary(
        "reprocess", total["sent_back"], seconds, rounds, stopped=run.stopped(), details={"queue": queue, **total}
    )


def _round(
    spark: SparkSession, queue: str, where: str | None, fix: str | Fix | None, to: str | None, run: Run
) -> dict[str, int]:
    letters = spark.read.format("miniq").options(**run.source(queue=queue, status="ready")).load()
    selected = letters.where(where or "true")
    function: Fix | None = None
    name = ""
    if isinstance(fix, str) and not is_name(fix):
        name = f"sql-{digest(fix)}"
        selected = selected.selectExpr("*", f"cast(({fix}) as string) as fixed")
    elif fix is not None:
        function = function_of(fix) if isinstance(fix, str) else fix
        name = f"{function.__module__}:{function.__qualname__}"
    worker = _Worker(run.broker(), queue, to, name, function)
    counts = selected.repartition(max(1, int(run.options.get("partitions", "2")))).mapInArrow(
        worker, "found bigint, fixed bigint, sent_back bigint, `left` bigint"
    )
    sums = counts.groupBy().sum().collect()[0]
    return {name: int(sums[column] or 0) for column, name in enumerate(("found", "fixed", "sent_back", "left"))}


class _Worker:
    """Edits and redrives the dead letters of one task. Pickled to executors, so it holds plain data only."""

    def __init__(self, broker: Options, queue: str, to: str | None, name: str, function: Fix | None) -> None:
        self._broker = broker
        self._queue = queue
        self._to = to
        self._name = name
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = fixed = sent = left = 0
        with self._broker.connect() as client:
            queue = client.queue(self._queue)
            ready: list[str] = []
            for batch in batches:
                for letter in batch.to_pylist():
                    found += 1
                    try:
                        changed = self._fix(queue, letter)
                    except (MessageLeased, MessageNotFound, StaleReceipt):
                        changed = None  # another consumer has it
                    if changed is None:
                        left += 1
                        continue
                    fixed += changed
                    ready.append(letter["id"])
                    if len(ready) == BATCH:
                        sent += queue.redrive(ready, to=self._to).moved
                        ready = []
            if ready:
                sent += queue.redrive(ready, to=self._to).moved
        counts = {"found": found, "fixed": fixed, "sent_back": sent, "left": left}
        yield pa.RecordBatch.from_pylist([counts], schema=pa.schema([(name, pa.int64()) for name in counts]))

    def _fix(self, queue: Any, letter: dict[str, Any]) -> bool | None:
        """Apply the fix, unless it was applied before. True if the letter was changed, None if it must stay."""
        headers = dict(letter["headers"] or [])
        if not self._name or headers.get(MARK) == self._name:
            return False
        body, content_type = self._fixed(letter)
        if body is None:
            return None
        headers[MARK] = self._name
        queue.edit(letter["id"], body=body, content_type=content_type, headers=headers)
        return True

    def _fixed(self, letter: dict[str, Any]) -> tuple[Any, str | None]:
        """The fixed body with its content type."""
        import msgspec

        content_type = letter["content_type"] or JSON
        is_json = letter["body"] is not None and content_type.partition(";")[0].strip().endswith("json")
        if self._function is None:
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
        after = self._function(letter["data"] if before is None and letter["data"] is not None else before)
        return after, None if is_json else content_type
