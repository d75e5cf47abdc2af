"""Traces through client, server and messages, seen by a collector that speaks OTLP."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import miniq
from miniq import tracing
from tests.serving import Served, serving

HIDDEN = "s3cret-body"


class Collector:
    """Takes spans over OTLP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.raw = b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.raw += body
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.spans += [span for scope in group.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def served(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that exports its spans there, at the latest when it stops."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    with serving("memory:", 0, "--tracing") as one:
        yield one


@pytest.fixture
def ours() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    provider = TracerProvider()
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def by_name(spans: Any) -> dict[str, Any]:
    return {span.name: span for span in spans}


def hex_id(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_one_trace_leads_from_the_sender_to_the_server_and_on_to_the_receiver(
    served: Served, collector: Collector, ours: tuple[TracerProvider, InMemorySpanExporter], kind: str
) -> None:
    provider, exporter = ours
    headers: dict[str, str] = {}
    if kind == "sync":
        with miniq.connect(served.url, tracing=provider) as mq:
            queue = mq.queue("emails")
            queue.send_many([HIDDEN, miniq.draft(2, headers={"tenant": "acme"})])
            messages = queue.receive(max=2)
            headers = messages[1].headers
            queue.ack(messages)
            parent = tracing.context(messages[0])
    else:

        async def work() -> Any:
            async with miniq.connect_async(served.url, tracing=provider) as mq:
                queue = mq.queue("emails")
                await queue.send_many([HIDDEN, miniq.draft(2, headers={"tenant": "acme"})])
                messages = await queue.receive(max=2)
                await queue.ack(messages)
                return messages

        messages = asyncio.run(work())
        headers = messages[1].headers
        parent = tracing.context(messages[0])
    with provider.get_tracer("work").start_as_current_span("process", parent):
        pass
    mine = by_name(exporter.get_finished_spans())
    assert set(mine) == {"send emails", "receive emails", "ack emails", "process"}
    trace = mine["send emails"].context.trace_id
    assert headers["tenant"] == "acme"
    assert headers["traceparent"].startswith(f"00-{trace:032x}-{hex_id(mine['send emails'])}-")
    assert mine["process"].context.trace_id == trace
    assert [link.context.trace_id for link in mine["receive emails"].links] == [trace, trace]
    assert mine["receive emails"].attributes["messaging.batch.message_count"] == 2
    served.stop()
    theirs = by_name(collector.spans)
    assert set(theirs) == {"send emails", "receive emails", "ack emails"}
    for name, span in theirs.items():
        assert span.parent_span_id.hex() == hex_id(mine[name])
        assert span.trace_id.hex() == f"{mine[name].context.trace_id:032x}"
    assert len(theirs["receive emails"].links) == 2
    assert HIDDEN.encode() not in collector.raw


def test_a_message_of_a_sender_without_traces_is_given_the_servers(served: Served, collector: Collector) -> None:
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with miniq.connect(served.url) as mq:
        queue = mq.queue("q")
        queue.send("plain")
        queue.send("own", headers={"traceparent": given})
        plain, own = queue.receive(max=2)
    assert own.headers == {"traceparent": given}
    with miniq.connect(served.tcp) as mq:
        mq.queue("q").send("over ZeroMQ")
    with pytest.raises(miniq.InvalidRequest), miniq.connect(served.url) as mq:
        mq.queue("q").send(HIDDEN, priority=99)
    served.stop()
    sends = [span for span in collector.spans if span.name == "send q"]
    assert len(sends) == 4
    assert plain.headers["traceparent"].split("-")[1:3] == [sends[0].trace_id.hex(), sends[0].span_id.hex()]
    assert (sends[1].trace_id.hex(), sends[1].parent_span_id.hex()) == tuple(given.split("-")[1:3])
    (failed,) = [span for span in sends if span.status.code == 2]
    assert failed.status.message == "invalid"
    assert HIDDEN.encode() not in collector.raw


def test_nothing_of_it_is_imported_while_it_is_off(tmp_path: Path) -> None:
    code = (
        "import sys, miniq, miniq.server.server\n"
        f"with miniq.connect({str(tmp_path / 'data')!r}) as mq: mq.queue('q').send(1)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_the_extra_the_command_to_install_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not installed')\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "miniq", "serve", "--store", "memory:", "--port", "0", "--tracing"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert (
        run.stderr == "miniq: tracing: OpenTelemetry is not installed; pip install '.[otel]' in the checkout of MiniQ\n"
    )
    with pytest.raises(miniq.InvalidRequest, match="tracing: 'yes' is not True or a TracerProvider"):
        miniq.connect("http://127.0.0.1:1", tracing="yes")


def test_a_collector_that_is_away_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with serving("memory:", 0, "--tracing") as served:
        with miniq.connect(served.url) as mq:
            assert mq.queue("q").send(1)
        assert served.stop(signal.SIGTERM) == 0
