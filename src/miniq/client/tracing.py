"""Spans of send, publish, receive and ack, as recorded by a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from miniq import tracing
from miniq.api.operation import Call
from miniq.api.operations import Ack, Publish, Receive, Send
from miniq.api.tables import is_table

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider


class Spans:
    """The spans of calls."""

    def __init__(self, inner: Any, provider: TracerProvider | bool) -> None:
        self._tracer = tracing.tracer(provider)
        if hasattr(inner, "carry"):
            inner.carry(_header_lines)

    @contextmanager
    def around(self, call: Send | Publish | Receive | Ack) -> Iterator[Span]:
        """The span of a call."""
        from opentelemetry.trace import SpanKind

        name = type(call).__name__.lower()
        kinds = {"send": SpanKind.PRODUCER, "publish": SpanKind.PRODUCER, "receive": SpanKind.CONSUMER}
        subject = call.topic if isinstance(call, Publish) else call.queue
        count = None
        if isinstance(call, Send | Publish):
            count = len(call.drafts)
        elif isinstance(call, Ack):
            count = len(call.leases)
        with self._tracer.start_as_current_span(
            f"{name} {subject}",
            kind=kinds.get(name, SpanKind.CLIENT),
            attributes=tracing.attributes(name, subject, count),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                tracing.failed(span, error)
                raise

    def prepared(self, call: Call[Any]) -> Call[Any]:
        """The call with the trace context in the headers of its messages, unless they have one already."""
        if not isinstance(call, Send | Publish) or is_table(call.drafts):
            return call
        carried = tracing.current_headers()
        if not carried:
            return call
        drafts = [
            draft
            if draft.headers and tracing.PARENT in draft.headers
            else replace(draft, headers=_with(draft, carried))
            for draft in call.drafts
        ]
        return replace(call, drafts=drafts)

    def record(self, span: Span, call: Call[Any], reply: Any) -> None:
        """Add the reply to the span."""
        if isinstance(call, Receive):
            span.set_attribute("messaging.batch.message_count", len(reply))
            for link in tracing.links(stored.message.headers for stored in reply):
                span.add_link(link.context, link.attributes)


def _with(draft: Any, carried: dict[str, str]) -> dict[str, str]:
    return {**(draft.headers or {}), **carried}


def _header_lines() -> bytes:
    """The trace context as header lines of an HTTP request."""
    return "".join(f"{name}: {value}\r\n" for name, value in tracing.current_headers().items()).encode()
