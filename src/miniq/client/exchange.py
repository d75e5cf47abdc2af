"""One call to a server over any wire: how its reply is read, and how it is repeated. No I/O.

An `Exchange` may be sent again unchanged: a repeated send has the idempotency key of the first one and adds nothing.
Only the `wait` of a long poll is shortened by the time that has passed. `Retryable` is a failure after which the call
may be repeated; all other errors are raised.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from copy import copy
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from miniq.api import codec, shapes
from miniq.api.codec import Format
from miniq.api.operation import AsTable, Call
from miniq.api.operations import operation_of
from miniq.errors import Closed, InvalidRequest, MiniQError, StoreUnavailable
from miniq.message import Failed, Outcome

LONGEST_CALL = 3600.0
"""Timeout in seconds of calls that may copy the whole store."""


class Exchange(ABC):
    """One call; the subclass of each wire encodes it."""

    __slots__ = ("_timeout", "call", "doubtful", "is_table", "name", "operation", "patience")

    def __init__(self, call: Call[Any], timeout: float) -> None:
        self._timeout = timeout
        self.is_table = type(call) is AsTable
        """Whether the reply is to be Arrow."""
        self.call: Any = call.call if isinstance(call, AsTable) else call
        self.operation = operation = operation_of(self.call)
        self.name = os.urandom(16).hex() if operation.repeat == "named" else None
        """The idempotency key, by which the broker recognises a repeated send."""
        self.doubtful = False
        """Whether an earlier attempt, which got no reply, may have been carried out."""
        self._prepare()

    @abstractmethod
    def write(self) -> None:
        """Encode the call."""

    def _prepare(self) -> None:
        self.patience = self._timeout
        """Seconds to wait for the reply."""
        if self.operation.long_poll:
            wait = self.call.wait
            if isinstance(wait, int | float) and wait > 0:
                self.patience = self._timeout + min(wait, LONGEST_CALL)
        elif self.operation.repeat == "once":
            self.patience = max(self._timeout, LONGEST_CALL)
        self.write()

    def shorten(self, call: Any, seconds: float) -> None:
        """Shorten the wait of a long poll by the seconds since `call` was first sent."""
        if self.operation.long_poll and isinstance(call.wait, int | float) and call.wait:
            self.call = replace(call, wait=max(0.0, call.wait - seconds))
            self._prepare()

    @property
    def nothing(self) -> Any:
        """The result of a long poll that ends without a reply."""
        return copy(self.operation.reply.nothing)

    def result(self, body: bytes) -> Any:
        """The result in a reply; raises what `Reply.read` raises if it is invalid."""
        operation = self.operation
        if self.is_table and operation.table is not None:
            return operation.table(body)
        result = operation.reply.read(body)
        if self.doubtful and operation.done and isinstance(result, list):
            return [_carried_out(outcome, operation.done) for outcome in result]
        return result

    def refused(self, problem: shapes.Problem, url: str) -> None:
        """Raise the broker's error; return if it means that an earlier attempt was carried out."""
        if self.doubtful and problem.code in self.operation.done:
            return
        error = codec.raised(problem)
        if isinstance(error, Closed):  # the broker, not this client
            error = StoreUnavailable(f"{url} is shutting down: {problem.detail}")
        if isinstance(error, StoreUnavailable):
            raise Retryable(error, heard=True)
        raise error


_FAILED = {"stale": Failed("retried"), "missing": Failed("dead")}


def _carried_out(outcome: Outcome | Failed, done: Collection[str]) -> Outcome | Failed:
    """The outcome of the first attempt of a call, by that of a later one."""
    if isinstance(outcome, Failed):
        return _FAILED.get(outcome.outcome, outcome)
    return "done" if outcome in done else outcome


class Retryable(Exception):
    """An attempt failed, and another may succeed. `error` is raised if none does."""

    def __init__(self, error: MiniQError, *, stale: bool = False, heard: bool = False, final: bool = False) -> None:
        super().__init__(error.text)
        self.error = error
        self.stale = stale
        """A reused connection turned out to be closed: the next attempt needs no pause."""
        self.heard = heard
        """The broker may have carried out the call."""
        self.final = final
        """Another attempt would be of no use."""


def lost(url: str, problem: object, *, stale: bool = False) -> Retryable:
    """The connection broke during a call."""
    text = str(problem) or type(problem).__name__
    if url.startswith("http:") and not stale:  # a server with TLS closes the connection without a reply
        text += f"; if the broker uses TLS, its URL is https{url.removeprefix('http')}"
    error = StoreUnavailable(f"{url}: the connection broke before the reply was complete: {text}")
    return Retryable(error, stale=stale, heard=True)


def unreachable(url: str, problem: object, timeout: float) -> Retryable:
    """No connection could be established."""
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    if isinstance(problem, TimeoutError):
        text = f"no connection within {timeout:g} s"
    return Retryable(StoreUnavailable(f"{url} cannot be reached: {text}"))


def unanswered(url: str, exchange: Exchange) -> Retryable:
    """The reply did not arrive in time."""
    error = StoreUnavailable(f"{url} did not reply within {exchange.patience:g} s; see `timeout`")
    return Retryable(error, heard=True, final=True)


# Bytes


def encoded(record: Any, format: Format = "json") -> bytes:
    """A record as bytes; the error names the field that cannot be encoded."""
    try:
        return codec.encode(record, format)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unencodable(record, format, "", error) from None


def _unencodable(record: Any, format: Format, place: str, error: Exception) -> InvalidRequest:
    """The error for the first field of a record that cannot be encoded."""
    fields = record if isinstance(record, dict) else msgspec.structs.asdict(record)
    for field, value in fields.items():
        if value is UNSET:
            continue
        if field == "messages":
            for number, draft in enumerate(value):
                try:
                    codec.encode(draft, format)
                except Exception as problem:
                    return _unencodable(draft, format, f"messages[{number}].", problem)
        try:
            codec.encode(value, format)
        except Exception as problem:
            return InvalidRequest(f"{place}{field}: {value!r:.80} cannot be sent: {problem}", field=place + field)
    return InvalidRequest(f"request: cannot be sent: {error}", field="request")
