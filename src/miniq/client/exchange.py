"""One call on its way to a server, whatever the wire: what reads its answer, and what it means to ask again. No I/O.

An `Exchange` may be sent again as it is, so that a repeated send bears the name of the first one and adds nothing;
only a long poll waits the less, the longer it was on its way. `Retryable` is what may pass if a call is repeated; all
other errors are raised as they are.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from miniq.api import codec, shapes
from miniq.client import calls, records, tables
from miniq.client.calls import Call
from miniq.client.keys import CreateKey, ListKeys, RevokeKey
from miniq.errors import Closed, MiniQError, StoreUnavailable
from miniq.message import Outcome

PATIENT = 3600.0
"""Seconds that a call may take which copies everything there is."""


class Kind(NamedTuple):
    """One kind of call: how its answer is read, and what it means to ask again."""

    read: Callable[[bytes], Any]
    gone: tuple[str, ...] = ()
    """Codes and outcomes that mean success to one whose first answer was lost: it had been done by then."""
    once: bool = False
    """It is not asked again if it may have been heard."""


class Exchange(ABC):
    """One call on its way; a wire's own writes the bytes to send."""

    __slots__ = ("_timeout", "call", "doubtful", "kind", "name", "patience")

    def __init__(self, call: Call[Any], timeout: float) -> None:
        self._timeout = timeout
        self.call = call
        self.kind = KINDS[type(call)]
        self.name = os.urandom(16).hex() if type(call) in (calls.Send, calls.SendTable) else None
        """By which the broker knows a send again."""
        self.doubtful = False
        """Whether an earlier attempt may have been carried out without its answer having arrived."""
        self._prepare()

    @abstractmethod
    def write(self) -> None:
        """Write the call down, as the wire has it."""

    def _prepare(self) -> None:
        call = self.call
        self.patience = self._timeout
        """Seconds to wait for the answer."""
        if isinstance(call, calls.Receive | calls.NextClaim):
            if isinstance(call.wait, int | float) and call.wait > 0:
                self.patience = self._timeout + min(call.wait, PATIENT)
        elif self.kind.once:
            self.patience = max(self._timeout, PATIENT)
        self.write()

    def shorten(self, call: Call[Any], seconds: float) -> None:
        """It is `seconds` since `call` was first sent: a long poll need not wait for those again."""
        if isinstance(call, calls.Receive | calls.NextClaim) and isinstance(call.wait, int | float) and call.wait:
            self.call = replace(call, wait=max(0.0, call.wait - seconds))
            self._prepare()

    def result(self, body: bytes) -> Any:
        """What an answer says; raises `ValueError` or its kin if it cannot be read."""
        kind = self.kind
        found = kind.read(body)
        if self.doubtful and kind.gone and isinstance(found, list):
            done: Outcome = "done"
            return [done if outcome in kind.gone else outcome for outcome in found]
        return found

    def refused(self, problem: shapes.Problem, url: str) -> None:
        """Raise the broker's error; return if it says that this had been done by then."""
        if self.doubtful and problem.code in self.kind.gone:
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


def nothing(body: bytes) -> None:
    """There is nothing to read."""


KINDS: dict[type[Call[Any]], Kind] = {
    calls.Send: Kind(records.read_ids),
    calls.SendTable: Kind(records.read_ids),
    calls.Receive: Kind(records.read_received),
    calls.Ack: Kind(records.read_outcomes, ("missing",)),
    calls.AckById: Kind(nothing),
    calls.Release: Kind(records.read_outcomes, ("stale", "missing")),
    calls.Extend: Kind(records.read_extended),
    calls.Get: Kind(records.read_message),
    calls.Peek: Kind(records.read_page),
    calls.PeekTable: Kind(tables.read_messages_page),
    calls.Edit: Kind(records.read_message),
    calls.Remove: Kind(nothing, ("message_not_found",)),
    calls.OpenClaims: Kind(records.read_opened),
    calls.NextClaim: Kind(records.read_claim),
    calls.ReadClaim: Kind(records.read_claimed),
    calls.ClaimTable: Kind(tables.read_table),
    calls.AckClaims: Kind(nothing),
    calls.ReleaseClaims: Kind(records.read_released),
    calls.ListClaims: Kind(records.read_groups),
    calls.Upload: Kind(records.read_uploaded),
    calls.CommitStages: Kind(records.read_committed),
    calls.DiscardStages: Kind(records.read_discarded),
    calls.ListStages: Kind(records.read_stages),
    calls.Purge: Kind(records.read_purged),
    calls.Redrive: Kind(records.read_redrive),
    calls.Configure: Kind(records.read_queue),
    calls.GetQueue: Kind(records.read_queue),
    calls.ListQueues: Kind(records.read_queues),
    calls.DeleteQueue: Kind(nothing, ("queue_not_found",)),
    calls.History: Kind(records.read_history),
    calls.HistoryTable: Kind(tables.read_history_page),
    calls.Backup: Kind(nothing, once=True),
    CreateKey: Kind(records.read_key, once=True),
    ListKeys: Kind(records.read_keys),
    RevokeKey: Kind(nothing, ("not_found",)),
}
