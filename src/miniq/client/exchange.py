"""One call on its way to a server, whatever the wire: what reads its answer, and what it means to ask again. No I/O.

An `Exchange` may be sent again as it is, so that a repeated send bears the name of the first one and adds nothing;
only a long poll waits the less, the longer it was on its way. `Retryable` is what may pass if a call is repeated; all
other errors are raised as they are.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from copy import copy
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from miniq.api import codec, shapes
from miniq.api.codec import Format
from miniq.api.operation import AsTable, Call, Operation
from miniq.api.operations import BY_REQUEST
from miniq.errors import Closed, InvalidRequest, MiniQError, StoreUnavailable
from miniq.message import Outcome

PATIENT = 3600.0
"""Seconds that a call may take which copies everything there is."""


class Exchange(ABC):
    """One call on its way; a wire's own writes the bytes to send."""

    __slots__ = ("_timeout", "call", "doubtful", "is_table", "name", "operation", "patience")

    def __init__(self, call: Call[Any], timeout: float) -> None:
        self._timeout = timeout
        self.is_table = type(call) is AsTable
        """Whether it is to be answered in Arrow."""
        self.call: Any = call.call if isinstance(call, AsTable) else call
        operation = BY_REQUEST.get(type(self.call))
        if operation is None:
            raise InvalidRequest("id: a message is acked with its receipt; receive it first", field="id")
        self.operation: Operation[Any] = operation
        self.name = os.urandom(16).hex() if operation.repeat == "named" else None
        """By which the broker knows a send again."""
        self.doubtful = False
        """Whether an earlier attempt may have been carried out without its answer having arrived."""
        self._prepare()

    @abstractmethod
    def write(self) -> None:
        """Write the call down, as the wire has it."""

    def _prepare(self) -> None:
        self.patience = self._timeout
        """Seconds to wait for the answer."""
        if self.operation.long_poll:
            wait = self.call.wait
            if isinstance(wait, int | float) and wait > 0:
                self.patience = self._timeout + min(wait, PATIENT)
        elif self.operation.repeat == "once":
            self.patience = max(self._timeout, PATIENT)
        self.write()

    def shorten(self, call: Any, seconds: float) -> None:
        """It is `seconds` since `call` was first sent: a long poll need not wait for those again."""
        if self.operation.long_poll and isinstance(call.wait, int | float) and call.wait:
            self.call = replace(call, wait=max(0.0, call.wait - seconds))
            self._prepare()

    @property
    def nothing(self) -> Any:
        """The result of a long poll that ends without an answer."""
        return copy(self.operation.reply.nothing)

    def result(self, body: bytes) -> Any:
        """What an answer says; raises `ValueError` or its kin if it cannot be read."""
        operation = self.operation
        if self.is_table and operation.table is not None:
            return operation.table(body)
        found = operation.reply.read(body)
        if self.doubtful and operation.done and isinstance(found, list):
            done: Outcome = "done"
            return [done if outcome in operation.done else outcome for outcome in found]
        return found

    def refused(self, problem: shapes.Problem, url: str) -> None:
        """Raise the broker's error; return if it says that this had been done by then."""
        if self.doubtful and problem.code in self.operation.done:
            return
        told = codec.raised(problem)
        if isinstance(told, Closed):  # the broker, not this client
            told = StoreUnavailable(f"{url} is shutting down: {problem.detail}")
        if isinstance(told, StoreUnavailable):
            raise Retryable(told, heard=True)
        raise told


class Retryable(Exception):
    """A call did not come through. `error` is what its caller is told if that does not pass."""

    def __init__(self, error: MiniQError, *, stale: bool = False, heard: bool = False, final: bool = False) -> None:
        super().__init__(error.text)
        self.error = error
        self.stale = stale
        """A kept connection turned out to be closed: the next attempt needs no pause."""
        self.heard = heard
        """The broker may have carried it out."""
        self.final = final
        """It is of no use to try again."""


def lost(url: str, problem: object, *, stale: bool = False) -> Retryable:
    """The connection broke while a call was on it."""
    text = str(problem) or type(problem).__name__
    error = StoreUnavailable(f"{url}: the connection broke before the answer was complete: {text}")
    return Retryable(error, stale=stale, heard=True)


def unreachable(url: str, problem: object, timeout: float) -> Retryable:
    """No connection could be made."""
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    if isinstance(problem, TimeoutError):
        text = f"no connection within {timeout:g} s"
    return Retryable(StoreUnavailable(f"{url} cannot be reached: {text}"))


def unanswered(url: str, exchange: Exchange) -> Retryable:
    """The caller's patience is at its end."""
    error = StoreUnavailable(f"{url} did not answer within {exchange.patience:g} s; see `timeout`")
    return Retryable(error, heard=True, final=True)


# Bytes


def encoded(record: Any, format: Format = "json") -> bytes:
    """A record as bytes; what cannot be one is named."""
    try:
        return codec.encode(record, format)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unspeakable(record, format, "", error) from None


def _unspeakable(record: Any, format: Format, place: str, error: Exception) -> InvalidRequest:
    """The first field of a record that cannot be written."""
    fields = record if isinstance(record, dict) else msgspec.structs.asdict(record)
    for field, value in fields.items():
        if value is UNSET:
            continue
        if field == "messages":
            for number, draft in enumerate(value):
                try:
                    codec.encode(draft, format)
                except Exception as problem:
                    return _unspeakable(draft, format, f"messages[{number}].", problem)
        try:
            codec.encode(value, format)
        except Exception as problem:
            return InvalidRequest(f"{place}{field}: {value!r:.80} cannot be sent: {problem}", field=place + field)
    return InvalidRequest(f"request: cannot be sent: {error}", field="request")
