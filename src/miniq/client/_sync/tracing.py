# Generated from ../_async/tracing.py by `make generate`: change that file.
"""A transport that wraps another one and records spans of send, publish, receive and ack."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from miniq.api.operation import Call
from miniq.api.operations import Ack, Publish, Receive, Send
from miniq.client._sync.transport import Transport
from miniq.client.tracing import Spans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")


class TracedTransport:
    """Performs calls by another transport, and records spans."""

    def __init__(self, inner: Transport, provider: TracerProvider | bool) -> None:
        self._inner = inner
        self._provider = provider
        self._spans = Spans(inner, provider)

    def perform(self, call: Call[T]) -> T:
        if not isinstance(call, Send | Publish | Receive | Ack):
            return self._inner.perform(call)
        with self._spans.around(call) as span:
            reply = self._inner.perform(self._spans.prepared(call))
            self._spans.record(span, call, reply)
            return cast(T, reply)

    def close(self) -> None:
        self._inner.close()
