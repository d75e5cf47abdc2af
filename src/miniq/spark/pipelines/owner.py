"""The owner of a destination: a marker in a folder says which checkpoint writes there, and every other one is refused.

Batches are numbered from 0 by each checkpoint, so a second one would overwrite the files of the first, or have its own
skipped by Spark's file sink. The same marker is in the checkpoint, whose copies are the same writer. Folders on this
machine are read and written directly, all others (`s3a://…`, or through Spark Connect) by Spark.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from glob import escape, glob
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from miniq.errors import InvalidRequest
from miniq.spark.pipelines.runs import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER = "_miniq"
"""The folder that holds the marker; readers of data skip names that begin with an underscore."""


class Owner(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who writes to a destination."""

    pipeline: str
    checkpoint: str
    queue: str | None = None
    group: str | None = None
    store: str = ""
    writer: str = ""
    """Made with the checkpoint."""


def own(spark: SparkSession, run: Run, folder: str, data: Sequence[str], owner: Owner) -> None:
    """Make a checkpoint the owner of a folder, or raise if another one is. `data` are patterns of what it writes."""
    folders = _Folders(spark)
    here, known = (folders.marker(path) for path in (folder, owner.checkpoint))
    if here is not None and (known is None or known.writer != here.writer):
        if here.checkpoint == owner.checkpoint:
            raise InvalidRequest(
                f"{folder!r} was written with an earlier checkpoint at {owner.checkpoint!r}, which is gone. Nothing "
                "was changed. Restore that checkpoint, or write to another folder",
                field="checkpoint",
            )
        queue = "all queues" if here.queue is None else f"queue {here.queue!r}"
        raise InvalidRequest(
            f"{folder!r} is written by another checkpoint: {here.checkpoint!r}, by `{here.pipeline}` of {queue}. "
            f"Nothing was changed. Go on with that checkpoint, or write to another folder",
            field="checkpoint",
        )
    if here is not None:
        return
    # A checkpoint without a marker that has done batches is one of an earlier version.
    if known is None and folders.holds(folder, data) and not folders.holds(owner.checkpoint, ["commits/*"]):
        raise InvalidRequest(
            f"{folder!r} holds files of an earlier run, and {owner.checkpoint!r} is not its checkpoint. Nothing was "
            "changed. Go on with the checkpoint of that run, or write to another folder",
            field="checkpoint",
        )
    with run.broker().connect(probe=True) as client:
        store = client.whoami().store
    writer = secrets.token_hex(8) if known is None else known.writer
    owner = replace(owner, store=store, writer=writer)
    if known is None:
        folders.mark(owner.checkpoint, owner)
    folders.mark(folder, owner)


class _Folders:
    """Folders on this machine, or where Spark is."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._remote = type(spark).__module__.startswith("pyspark.sql.connect")

    def marker(self, folder: str) -> Owner | None:
        """The marker of a folder, None if there is none."""
        place = f"{folder}/{MARKER}"
        if self._local(folder):
            try:
                with open(f"{place}/owner.json", "rb") as file:
                    return msgspec.json.decode(file.read(), type=Owner)
            except FileNotFoundError:
                return None
        if not self._found(place):
            return None
        return msgspec.json.decode(self._spark.read.text(place).collect()[0][0], type=Owner)

    def mark(self, folder: str, owner: Owner) -> None:
        """Write the marker of a folder that has none."""
        place, text = f"{folder}/{MARKER}", msgspec.json.encode(owner)
        if not self._local(folder):
            rows = self._spark.createDataFrame([(text.decode(),)], "value string")
            rows.coalesce(1).write.mode("error").text(place)
            return
        os.makedirs(place, exist_ok=True)
        part = f"{place}/.owner.json.{secrets.token_hex(4)}"
        with open(part, "xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, f"{place}/owner.json")

    def holds(self, folder: str, patterns: Sequence[str]) -> bool:
        """Whether there is anything in a folder that matches a pattern."""
        if self._local(folder):
            return any(glob(f"{escape(folder)}/{pattern}") for pattern in patterns)
        return any(self._found(f"{folder}/{pattern}") for pattern in patterns)

    def _local(self, folder: str) -> bool:
        return not self._remote and "://" not in folder

    def _found(self, pattern: str) -> bool:
        from pyspark.errors import AnalysisException

        try:
            return bool(self._spark.read.text(pattern).schema)
        except AnalysisException:
            return False
