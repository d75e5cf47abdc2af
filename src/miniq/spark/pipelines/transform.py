"""`transform`: a queue through SQL or a function into another queue, each message exactly once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from miniq.errors import InvalidRequest
from miniq.spark.pipelines.runs import Run, Summary, digest, follow, read_stream, state_folder, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def transform(
    spark: SparkSession,
    source: str,
    target: str,
    change: str | Callable[[DataFrame], DataFrame],
    *,
    group: str | None = None,
    run: Run | None = None,
) -> Summary:
    """Transform the messages of `source`, and send the result to `target`.

    `change` is SQL over the table `messages`, a function from DataFrame to DataFrame, or the name of one as
    `module:function`. Its result has the columns of messages: `body` or `data`, others optional. A batch is committed
    exactly once, and acked after that.
    """
    run = run or Run()
    if source == target:
        raise InvalidRequest(f"target: {target!r} is also the source; the stream would never end", field="target")
    name = change if isinstance(change, str) else f"{change.__module__}:{change.__qualname__}"
    group = group or f"transform-{digest(target, name)}"
    checkpoint = run.checkpoint or state_folder("transform", run.url, source, target, name)
    rows = changed(spark, read_stream(spark, run, queue=source, group=group), change)
    return follow(
        "transform", write_stream(rows, run, queue=target), run, checkpoint, source=source, target=target, group=group
    )


def changed(spark: SparkSession, rows: DataFrame, change: str | Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Apply a change: SQL, a function, or the name of one."""
    if not isinstance(change, str):
        return change(rows)
    if is_name(change):
        return function_of(change)(rows)
    rows.createOrReplaceTempView("messages")
    return spark.sql(change)


def is_name(text: str) -> bool:
    """Whether a text is `module:function` rather than SQL."""
    module, colon, function = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def function_of(name: str) -> Callable[..., DataFrame]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    try:
        named: Callable[..., DataFrame] = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise InvalidRequest(f"function: {name!r} cannot be imported: {error}", field="function") from None
    except AttributeError:
        raise InvalidRequest(f"function: there is no {function!r} in {module!r}", field="function") from None
    if not callable(named):
        raise InvalidRequest(f"function: {name!r} is not callable", field="function")
    return named
