"""The numbers of a worker, and `--metrics-port`: in Prometheus text format, the sum over its processes."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

from msgspec import Struct, field

from miniq.errors import MiniQError
from miniq.worker.jobs import Job

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Series(Struct):
    """The jobs of one task or handler. A batch is one job of several messages."""

    queue: str
    task: str
    outcomes: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0


class Numbers(Struct):
    """The numbers of one process."""

    series: dict[str, Series] = field(default_factory=dict)
    """By queue and task."""
    running: int = 0
    waiting: int = 0
    concurrency: int = 0
    replaced: int = 0
    """Processes that ended and were started again."""

    def record(self, job: Job[Any]) -> None:
        """Count a job that ended."""
        queue, task = job.source.queue.name, job.handler.name
        key = f"{queue} {task}"
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = Series(queue, task)
        for outcome, messages in job.results().items():
            series.outcomes[outcome] = series.outcomes.get(outcome, 0) + len(messages)
        if job.apart:
            series.outcomes["failed"] = series.outcomes.get("failed", 0) + len(job.apart)
        series.buckets[bisect_left(BUCKETS, job.seconds)] += 1
        series.seconds += job.seconds

    def add(self, other: Numbers) -> None:
        """Add the numbers of another process; of a process that has ended, what it counted."""
        for key, theirs in other.series.items():
            mine = self.series.setdefault(key, Series(theirs.queue, theirs.task))
            for outcome, count in theirs.outcomes.items():
                mine.outcomes[outcome] = mine.outcomes.get(outcome, 0) + count
            mine.buckets = [a + b for a, b in zip(mine.buckets, theirs.buckets, strict=True)]
            mine.seconds += theirs.seconds
        self.running += other.running
        self.waiting += other.waiting
        self.concurrency += other.concurrency


def render(numbers: Numbers) -> str:
    """All metrics."""
    lines = [*_head("miniq_worker_jobs_total", "Messages by queue, task and outcome", "counter")]
    every = sorted(numbers.series.items())
    for _, series in every:
        labels = f'queue="{_text(series.queue)}",task="{_text(series.task)}"'
        for outcome, count in sorted(series.outcomes.items()):
            lines.append(f'miniq_worker_jobs_total{{outcome="{outcome}",{labels}}} {float(count)}')
    lines += _head("miniq_worker_job_seconds", "Duration of calls of tasks and handlers", "histogram")
    for _, series in every:
        labels = f'queue="{_text(series.queue)}",task="{_text(series.task)}"'
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], accumulate(series.buckets), strict=True):
            lines.append(f'miniq_worker_job_seconds_bucket{{le="{bound}",{labels}}} {float(count)}')
        lines.append(f"miniq_worker_job_seconds_count{{{labels}}} {float(sum(series.buckets))}")
        lines.append(f"miniq_worker_job_seconds_sum{{{labels}}} {series.seconds}")
    for name, text, value in (
        ("running", "Jobs that run", numbers.running),
        ("waiting", "Messages that were received and wait for a handler", numbers.waiting),
        ("concurrency", "Jobs that may run at the same time", numbers.concurrency),
    ):
        lines += [*_head(f"miniq_worker_{name}", text, "gauge"), f"miniq_worker_{name} {float(value)}"]
    lines += _head("miniq_worker_processes_replaced_total", "Processes that ended and were replaced", "counter")
    lines.append(f"miniq_worker_processes_replaced_total {float(numbers.replaced)}")
    return "\n".join(lines) + "\n"


def _head(name: str, text: str, kind: str) -> Iterable[str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Answers `GET /metrics` on a port of 127.0.0.1, or of another address, in a thread."""

    def __init__(self, host: str, port: int, numbers: Callable[[], Numbers]) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = render(numbers()).encode() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((host, port), Answer)
        except OSError as error:
            raise MiniQError(
                f"metrics-port: cannot listen on {host}:{port}: {error.strerror or error}", field="metrics-port"
            ) from None
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="miniq-metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
