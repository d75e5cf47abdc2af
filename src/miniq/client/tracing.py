"""A transport around another one that writes down spans of send, receive and ack, for callers and for event loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from miniq import tracing
from miniq.client.calls import Ack, AsyncTransport, Call, Receive, Send, Transport

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

T = TypeVar("T")


class Spans:
    """The spans of calls."""

    def __init__(self, inner: Any, provider: TracerProvider | bool) -> None:
        self._tracer = tracing.tracer(provider)
        if hasattr(inner, "carry"):
            inner.carry(_header_lines)

    @contextmanager
    def around(self, call: Send | Receive | Ack) -> Iterator[Span]:
        """The span in which a call is made."""
        from opentelemetry.trace import SpanKind

        name = type(call).__name__.lower()
        kind = {"send": SpanKind.PRODUCER, "receive": SpanKind.CONSUMER}.get(name, SpanKind.CLIENT)
        count = len(call.drafts) if isinstance(call, Send) else len(call.leases) if isinstance(call, Ack) else None
        with self._tracer.start_as_current_span(
            f"{name} {call.queue}",
            kind=kind,
            attributes=tracing.attributes(name, call.queue, count),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                tracing.failed(span, error)
                raise

    def prepared(self, call: Call[Any]) -> Call[Any]:
        """The call as it goes out: messages carry the context, unless they carry one of their own."""
        if not isinstance(call, Send):
            return call
        carried = tracing.carried()
        if not carried:
            return call
        drafts = [
            draft
            if draft.headers and tracing.PARENT in draft.headers
            else replace(draft, headers=_with(draft, carried))
            for draft in call.drafts
        ]
        return Send(call.queue, drafts)

    def told(self, span: Span, call: Call[Any], reply: Any) -> None:
        """What the reply adds to the span."""
        if isinstance(call, Receive):
            span.set_attribute("messaging.batch.message_count", len(reply))
            for link in tracing.links(stored.message.headers for stored in reply):
                span.add_link(link.context, link.attributes)


class TracedTransport:
    """Carries calls by another transport."""

    def __init__(self, inner: Transport, provider: TracerProvider | bool) -> None:
        self._inner = inner
        self._spans = Spans(inner, provider)

    def perform(self, call: Call[T]) -> T:
        if not isinstance(call, Send | Receive | Ack):
            return self._inner.perform(call)
        with self._spans.around(call) as span:
            reply = self._inner.perform(self._spans.prepared(call))
            self._spans.told(span, call, reply)
            return cast(T, reply)

    def close(self) -> None:
        self._inner.close()


class TracedAsyncTransport:
    """The same within an event loop."""

    def __init__(self, inner: AsyncTransport, provider: TracerProvider | bool) -> None:
        self._inner = inner
        self._spans = Spans(inner, provider)

    async def perform(self, call: Call[T]) -> T:
        if not isinstance(call, Send | Receive | Ack):
            return await self._inner.perform(call)
        with self._spans.around(call) as span:
            reply = await self._inner.perform(self._spans.prepared(call))
            self._spans.told(span, call, reply)
            return cast(T, reply)

    async def close(self) -> None:
        await self._inner.close()


def _with(draft: Any, carried: dict[str, str]) -> dict[str, str]:
    return {**(draft.headers or {}), **carried}


def _header_lines() -> bytes:
    """The context of the call as lines of an HTTP request."""
    return "".join(f"{name}: {value}\r\n" for name, value in tracing.carried().items()).encode()
