"""Opt-in OpenTelemetry tracing: `connect(url, tracing=True)`, `miniq serve --tracing`.

A message carries its sender's W3C trace context in the headers `traceparent` and `tracestate`, so a trace continues
where the message is received, over any protocol and in any language. OpenTelemetry is imported only while tracing is
on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from miniq.errors import InvalidRequest, MiniQError, MissingExtra, install

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

PARENT = "traceparent"
STATE = "tracestate"


class HasHeaders(Protocol):
    """A received message."""

    @property
    def headers(self) -> Mapping[str, str]: ...


def tracer(provider: TracerProvider | bool = True) -> Tracer:
    """A tracer of the given provider, or of the process-wide one."""
    try:
        from opentelemetry import trace
    except ImportError:
        raise missing() from None
    if isinstance(provider, bool):
        return trace.get_tracer("miniq")
    if not hasattr(provider, "get_tracer"):
        raise InvalidRequest(f"tracing: {provider!r:.80} is not True or a TracerProvider", field="tracing")
    return provider.get_tracer("miniq")


def exporting_provider() -> Any:
    """A provider that exports over OTLP as the OTEL_* variables configure; the caller shuts it down."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise missing() from None
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "miniq"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def missing() -> MissingExtra:
    return MissingExtra(f"tracing: OpenTelemetry is not installed; {install('otel')}", field="tracing")


def context(message: HasHeaders) -> Context:
    """The context in which a message was sent, as parent of the span that processes it."""
    return context_of(message.headers)


def context_of(headers: Mapping[str, str] | None) -> Context:
    """The trace context in message headers, empty if there is none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers or {}, Context())


def current_headers() -> dict[str, str]:
    """Message headers that carry the current trace context."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


def links(headers: Iterable[Mapping[str, str] | None]) -> list[Link]:
    """Links to the contexts in which messages were sent."""
    from opentelemetry.trace import Link, get_current_span

    contexts = [get_current_span(context_of(each)).get_span_context() for each in headers if each and PARENT in each]
    return [Link(span_context) for span_context in contexts if span_context.is_valid]


def attributes(operation: str, queue: str, count: int | None = None) -> dict[str, Any]:
    """The attributes of a span, named by the OpenTelemetry messaging conventions."""
    attributes: dict[str, Any] = {
        "messaging.system": "miniq",
        "messaging.operation.name": operation,
        "messaging.operation.type": "settle" if operation == "ack" else operation,
        "messaging.destination.name": queue,
    }
    if count is not None:
        attributes["messaging.batch.message_count"] = count
    return attributes


def failed(span: Span, error: BaseException) -> None:
    """Mark a span as failed with the error's code only: the text may contain message content."""
    from opentelemetry.trace import StatusCode

    code = error.code if isinstance(error, MiniQError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(StatusCode.ERROR, code)
