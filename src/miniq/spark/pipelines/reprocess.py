"""Dead letters as a table: choose some, fix them, send them back where they came from, each once.

A dead letter is not sent anew: it is edited where it lies and then redriven, which moves it. So it keeps its id,
it can be lost or doubled at no moment, and others who work on the same dead letters do no harm. The edit leaves a
header that says by which fix it was made; run again after a crash, a letter is not fixed twice.
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
"""Dead letters that are sent back at once."""
PAUSE = 10.0
"""Seconds between two rounds of a continuous run, if nothing else is said."""

Fix = Callable[[Any], Any]
"""From a body to a better one; None leaves the letter where it is."""


def reprocess(
    spark: SparkSession,
    queue: str,
    *,
    where: str | None = None,
    fix: str | Fix | None = None,
    to: str | None = None,
    run: Run | None = None,
) -> Summary:
    """Send dead letters back: those of `queue` (a dead-letter queue) that a condition of SQL holds for.

    `fix` makes the new body: an expression of SQL over the columns of the message (`body` is JSON text), a function
    from the body to another one, or `module:function` that names such a function; None leaves the letter there.
    Without it letters go back as they are. `to` is another queue than the one they came from.
    """
    run = run or Run()
    began = time.perf_counter()
    total = {"found": 0, "fixed": 0, "sent_back": 0, "left": 0}
    rounds = 0
    while True:
        done = _round(spark, queue, where, fix, to, run)
        rounds += 1
        total = {name: total[name] + done[name] for name in total}
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
    chosen = letters.where(where or "true")
    function: Fix | None = None
    name = ""
    if isinstance(fix, str) and not is_name(fix):
        name = f"sql-{digest(fix)}"
        chosen = chosen.selectExpr("*", f"cast(({fix}) as string) as fixed")
    elif fix is not None:
        function = function_of(fix) if isinstance(fix, str) else fix
        name = f"{function.__module__}:{function.__qualname__}"
    worker = _Worker(run.broker(), queue, to, name, function)
    rows = chosen.repartition(max(1, int(run.options.get("partitions", "2")))).mapInArrow(
        worker, "found bigint, fixed bigint, sent_back bigint, `left` bigint"
    )
    done = rows.groupBy().sum().collect()[0]
    return {name: int(done[place] or 0) for place, name in enumerate(("found", "fixed", "sent_back", "left"))}


class _Worker:
    """Edits and redrives the letters of one task; plain data, so that it travels to executors."""

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
                        changed = None  # somebody else is at it
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
        """Give a letter its new body, unless this fix has done so before. None: it is to stay."""
        headers = dict(letter["headers"] or [])
        if not self._name or headers.get(MARK) == self._name:
            return False
        body, kind = self._better(letter)
        if body is None:
            return None
        headers[MARK] = self._name
        queue.edit(letter["id"], body=body, content_type=kind, headers=headers)
        return True

    def _better(self, letter: dict[str, Any]) -> tuple[Any, str | None]:
        """The new body with its content type."""
        import msgspec

        kind = letter["content_type"] or JSON
        is_json = letter["body"] is not None and kind.partition(";")[0].strip().endswith("json")
        if self._function is None:
            text = letter["fixed"]
            if text is None or not is_json:
                return text, kind
            try:
                msgspec.json.decode(text)
            except msgspec.DecodeError:
                raise InvalidRequest(
                    f"fix: it makes {text[:80]!r} of letter {letter['id']}, which is not JSON as the body before",
                    field="fix",
                ) from None
            return text.encode(), kind
        before = msgspec.json.decode(letter["body"]) if is_json else letter["body"]
        after = self._function(letter["data"] if before is None and letter["data"] is not None else before)
        return after, None if is_json else kind
