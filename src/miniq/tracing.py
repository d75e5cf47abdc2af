"""Traces by OpenTelemetry, if they are asked for: `connect(url, tracing=True)`, `miniq serve --tracing`.

A message carries the context in which it was sent as W3C trace context, in its headers `traceparent` and
`tracestate`. So a trace goes on where the message is received, on whatever wire and in whatever language. Nothing
here is imported while nobody asks for traces.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from miniq.errors import InvalidRequest, MiniQError, MissingExtra

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

PARENT = "traceparent"
STATE = "tracestate"


class Headed(Protocol):
    """A message that was received."""

    @property
    def headers(self) -> Mapping[str, str]: ...


def tracer(provider: TracerProvider | bool = True) -> Tracer:
    """A tracer of the given provider, or of the one that this process has set."""
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
    """A provider that exports over OTLP, as the variables OTEL_* say; the caller shuts it down."""
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
    return MissingExtra("tracing: OpenTelemetry is not installed; pip install 'miniq[otel]'", field="tracing")


def context(message: Headed) -> Context:
    """The context in which a message was sent, for the span in which it is worked on."""
    return context_of(message.headers)


def context_of(headers: Mapping[str, str] | None) -> Context:
    """The context that headers carry; an empty one if they carry none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers or {}, Context())


def carried() -> dict[str, str]:
    """The headers that carry the current context."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


def links(headers: Iterable[Mapping[str, str] | None]) -> list[Link]:
    """Links to the contexts in which messages were sent."""
    from opentelemetry.trace import Link, get_current_span

    found = [get_current_span(context_of(one)).get_span_context() for one in headers if one and PARENT in one]
    return [Link(one) for one in found if one.is_valid]


def attributes(operation: str, queue: str, count: int | None = None) -> dict[str, Any]:
    """What a span says, in the words of the semantic conventions."""
    said: dict[str, Any] = {
        "messaging.system": "miniq",
        "messaging.operation.name": operation,
        "messaging.operation.type": "settle" if operation == "ack" else operation,
        "messaging.destination.name": queue,
    }
    if count is not None:
        said["messaging.batch.message_count"] = count
    return said


def failed(span: Span, error: BaseException) -> None:
    """Mark a span as failed, by the error's code alone: its text may show what was sent."""
    from opentelemetry.trace import StatusCode

    code = error.code if isinstance(error, MiniQError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(StatusCode.ERROR, code)
