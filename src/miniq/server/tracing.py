"""The server's spans: one per send, publication, receive and ack, over any protocol.

Their parent is the trace context of the request (`traceparent`, HTTP only), else that of the first message. A message
without a context gets that of the server's span, so that its consumer can continue the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miniq import tracing
from miniq.api import shapes
from miniq.broker import Broker
from miniq.message import PlainDrafts
from miniq.server.operations import Operation, Request, perform

NAMES = frozenset({"send", "publish", "receive", "ack"})


class ServerTracer:
    """Records the spans of a broker."""

    def __init__(self, provider: Any) -> None:
        self._tracer = tracing.tracer(provider)
        self.close = provider.shutdown
        """Exports the remaining spans."""

    async def run(self, operation: Operation, broker: Broker, request: Request) -> Any:
        """Run an operation within its span."""
        if operation.name not in NAMES:
            return await perform(broker, operation, request)
        from opentelemetry.trace import SpanKind

        queue = request.path[operation.subject]
        with self._tracer.start_as_current_span(
            f"{operation.name} {queue}",
            tracing.context_of(request.trace or _first_headers(request.body)),
            SpanKind.SERVER,
            tracing.attributes(operation.name, queue, _count(request.body)),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if operation.name in ("send", "publish"):
                request.trace_headers = tracing.current_headers()
            try:
                reply = await perform(broker, operation, request)
            except BaseException as error:
                tracing.failed(span, error)
                raise
            if isinstance(reply, shapes.MessagesReply):
                span.set_attribute("messaging.batch.message_count", len(reply.messages))
                for link in tracing.links(message.headers for message in reply.messages):
                    span.add_link(link.context, link.attributes)
            return reply


def _first_headers(body: Any) -> Mapping[str, str] | None:
    """The headers of the first message of a send."""
    if not isinstance(body, shapes.SendBody):
        return None
    if isinstance(body.messages, list):
        return body.messages[0].headers if body.messages else None
    return body.headers


def _count(body: Any) -> int | None:
    if isinstance(body, PlainDrafts):
        return len(body.bodies)
    if isinstance(body, shapes.SendBody):
        return len(body.messages) if isinstance(body.messages, list) else 1
    return len(body.leases) if hasattr(body, "leases") else None
