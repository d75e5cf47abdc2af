"""The demo scenario: a producer and workers, a broker crash, dead letters, then Spark: archive, reprocess, report."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import miniq
from miniq.demo.crew import BAD, DEAD, MESSAGES, PATIENCE, QUEUE, RECEIVES, Server, read_notes, start
from miniq.demo.promises import Lake, Promise, archive, dead_letters, delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CRASH_AT = 1000
"""Confirmed sends after which the broker is killed."""
RESULT = "miniq-demo"
"""The folder for the report, in the current folder."""


class Scenario:
    """Runs the steps of the demo in order, and holds their state."""

    def __init__(self, folder: str) -> None:
        self._began = time.monotonic()
        self._lake = os.path.join(RESULT, "lake")
        self._sessions: list[SparkSession] = []
        self._server = Server(os.path.join(folder, "data"))
        self._producer_notes = os.path.join(folder, "producer")
        self._worker_notes = [os.path.join(folder, name) for name in ("worker-1", "worker-2", "worker-3")]
        self._crew: list[subprocess.Popen[str]] = []

    def _log(self, part: str, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {part:<10}{text}", flush=True)

    def run(self) -> list[Promise]:
        """Run all steps; return every promise and whether it was kept."""
        self._log("broker", f"started at {self._server.url}")
        spark = threading.Thread(target=self._start_spark)
        spark.start()
        try:
            with miniq.connect(self._server.url, retry=PATIENCE) as client:
                client.queue(QUEUE).configure(max_receives=RECEIVES, history="full")
                client.queue(DEAD).configure(history="full")
                self._run_crew(client)
                spark.join()
                if not self._sessions:
                    raise SystemExit("Spark did not start")
                return self._run_pipelines(client, self._sessions[0])
        finally:
            for process in self._crew:
                process.kill()
                process.wait()
            self._server.stop()
            spark.join()
            for session in self._sessions:
                session.stop()

    def _start_spark(self) -> None:
        """Runs in a thread: Spark takes some seconds to start."""
        from miniq.spark import session

        self._sessions.append(session("local[2]"))

    def _run_crew(self, client: miniq.Client) -> None:
        self._start("produce", self._producer_notes)
        for path in self._worker_notes:
            self._start("work", path, os.path.basename(path))
        self._log("crew", f"one producer with {MESSAGES} orders, and three workers that sometimes fail")
        self._wait(lambda: len(read_notes(self._producer_notes)) >= CRASH_AT)
        self._server.stop(signal.SIGKILL)
        self._log("broker", f"killed with -9 after {len(read_notes(self._producer_notes))} confirmed sends")
        self._server.start()
        self._log("broker", "restarted on the same folder")
        queue = client.queue(QUEUE)
        self._wait(lambda: self._crew[0].poll() is not None and queue.info().counts.total == 0)
        self._log("crew", f"the queue is empty; {client.queue(DEAD).info().counts.total} dead letters")

    def _start(self, role: str, *args: str) -> None:
        self._crew.append(start("miniq.demo.crew", role, self._server.url, *args))

    def _run_pipelines(self, client: miniq.Client, spark: SparkSession) -> list[Promise]:
        from miniq.spark.pipelines import Run, report, reprocess
        from miniq.spark.pipelines import archive as archive_history

        run = Run(url=self._server.url)
        first = archive_history(spark, self._lake, run=run)
        self._log("archive", f"{first.messages} history records in {first.seconds:.1f} s")
        dead = {message.id for message in client.queue(DEAD).peek(limit=1000)}
        fix = "replace(body, '\"twelve\"', '12')"
        fixed = reprocess(spark, DEAD, fix=fix, run=run)
        self._log("reprocess", f"{fixed.messages} dead letters fixed and sent back in {fixed.seconds:.1f} s")
        repeated = reprocess(spark, DEAD, fix=fix, run=run)
        queue = client.queue(QUEUE)
        self._wait(lambda: queue.info().counts.total == 0)
        left = client.queue(DEAD).info().counts.total
        second = archive_history(spark, self._lake, run=run)
        self._log("archive", f"{second.messages} more records; those of the first run are not read again")
        summary = report(spark, self._lake, RESULT, title="MiniQ demo", run=run)
        self._log("report", f"{summary.messages} records in {summary.seconds:.1f} s")
        return self._check(spark, dead, fixed.messages, repeated.messages, left)

    def _check(self, spark: SparkSession, dead: set[str], sent_back: int, repeated: int, left: int) -> list[Promise]:
        sent = read_notes(self._producer_notes)
        worked = [note for path in self._worker_notes for note in read_notes(path)]
        acked = {note.id for note in worked if note.event == "acked"}
        bad = {note.id for number, note in enumerate(sent) if number % BAD == BAD - 1}
        spark.read.parquet(self._lake).createOrReplaceTempView("lake")
        row = spark.sql(
            "select count(*) as records, min(offset) as first, max(offset) as last, "
            "count(distinct offset) as different, count_if(event = 'acked') as acked from lake"
        ).collect()[0]
        promises = delivery(sent, worked, left, dead) + dead_letters(len(dead), sent_back, repeated, len(bad & acked))
        return promises + archive(Lake(**row.asDict()), len(acked))

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done()` is true; exit if a process fails or it takes too long."""
        deadline = time.monotonic() + 4 * PATIENCE
        while not done():
            if time.monotonic() > deadline or any(process.poll() for process in self._crew):
                raise SystemExit("the demo cannot continue: a process failed or took too long")
            time.sleep(0.05)


def main() -> int:
    """Run the demo; 0 if every promise was kept."""
    began = time.monotonic()
    shutil.rmtree(RESULT, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="miniq-demo-") as folder:
        results = Scenario(folder).run()
    for promise in results:
        print(f"{'kept' if promise.kept else 'BROKEN':<8}  {promise.text}")
    print(f"in {time.monotonic() - began:.0f} s")
    print(f"report: {os.path.abspath(os.path.join(RESULT, 'report.html'))}")
    return 0 if all(promise.kept for promise in results) else 1


if __name__ == "__main__":
    sys.exit(main())
