# Generated from ../_async/http.py by `make generate`: change that file.
"""The HTTP transport: requests on connections in a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from miniq.api.operation import Call
from miniq.client._sync.pool import Pool
from miniq.client.exchange import Retryable, lost, unanswered
from miniq.client.give_back import LAST_WORDS
from miniq.client.http.answers import Answer, broken, garbled, judge
from miniq.client.http.requests import HttpExchange
from miniq.client.http.streams import Stream
from miniq.client.http.target import Target
from miniq.errors import StoreUnavailable


class Http(Pool):
    """Performs calls over HTTP."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.retry)
        self._target = target

    def _prepare(self, call: Call[Any]) -> HttpExchange:
        return HttpExchange(self._target, call)

    def carry(self, lines: Callable[[], bytes]) -> None:
        """Add header lines to every request, computed for each."""
        self._target = replace(self._target, lines=lines)

    def _connect(self) -> HttpConnection:
        return HttpConnection(self._target, Stream.open(self._target))


class HttpConnection:
    """One connection, for one call at a time."""

    __slots__ = ("_answer", "_stream", "_target", "cut", "drop", "used")

    def __init__(self, target: Target, stream: Stream) -> None:
        self.used = 0.0
        self._target = target
        self._answer = Answer()
        self._stream = stream
        self.cut = stream.cut
        self.drop = stream.drop

    @property
    def reusable(self) -> bool:
        return self._answer.reusable

    def carry(self, exchange: HttpExchange, reused: bool) -> object:
        return judge(exchange, self._exchange(exchange, reused), self._target)

    def _exchange(self, exchange: HttpExchange, reused: bool) -> Answer:
        """Send a call and read its reply."""
        answer, stream, url = self._answer, self._stream, self._target.url
        answer.begin()
        if reused and stream.is_stale():
            raise Retryable(StoreUnavailable(f"{url}: an idle connection was closed"), stale=True)
        try:
            stream.send(exchange.head, exchange.body, exchange.patience)
            while data := stream.read():
                if answer.feed(data):
                    answer.more = answer.more or stream.is_unsent()
                    return answer
        except TimeoutError:
            raise unanswered(url, exchange) from None
        except OSError as error:
            raise broken(self._target, error, stale=reused and not answer.begun) from error
        except ValueError as error:
            raise garbled(self._target, error) from None
        if answer.end():
            return answer
        raise lost(url, "it was closed", stale=reused and not answer.begun)

    def last_words(self, exchange: HttpExchange) -> object:
        """Read the reply that is under way. Closing the sending side cancels a long poll."""
        answer, stream = self._answer, self._stream
        stream.begin_shutdown(LAST_WORDS, end=exchange.operation.long_poll)
        while not answer.done and (data := stream.read()):
            answer.feed(data)
        return judge(exchange, answer, self._target) if answer.done else None
