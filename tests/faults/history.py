"""What clients asked and were told, as JSON Lines: the only thing that the checker believes.

A line is one `Event`. An operation begins with `invoke` and ends with `ok` (it was confirmed), `fail` (it was
refused and had no effect) or `unknown` (nobody knows: the answer was lost). One without an end counts as unknown.
Moments are microseconds of the machine's wall clock, as the client saw them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

Type = Literal["invoke", "ok", "fail", "unknown"]
Verb = Literal["send", "receive", "ack", "release", "extend", "claim", "ack_claims", "commit", "sink"]


class Event(Struct, omit_defaults=True):
    """One line. `value` depends on the verb; see `Recorder`'s methods for what stands in it."""

    at: int
    client: str
    op: int
    type: Type
    verb: Verb
    value: Any = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Recorder:
    """Writes the history of one process. Each line is one write, made before the client goes on.

    invoke send       [[token, group], …]                  token is unique in the whole history
    ok send           [id, …]
    invoke receive    {"max", "once"}                      once: at most once, no ack will come
    ok receive        [[id, token, group, receives, receipt, from, until], …]   the lease, by the broker's clock
    invoke ack        [[id, receipt], …]                   likewise release, extend
    ok ack            [outcome, …]                         done, stale or missing; extend: [[outcome, until], …]
    invoke claim      {"group", "after"}
    ok claim          {"claim", "messages": [[id, token], …]}    a claim as it was read
    invoke ack_claims {"group", "upto"}
    ok sink           [token, …]                           what an outside reader holds at the end, effectively once
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._ops = 0

    def invoke(self, client: str, verb: Verb, value: Any = None) -> Operation:
        self._ops += 1
        operation = Operation(self, client, self._ops, verb)
        self.write(operation, "invoke", value)
        return operation

    def write(self, operation: Operation, type: Type, value: Any) -> None:
        event = Event(time.time_ns() // 1000, operation.client, operation.op, type, operation.verb, value)
        os.write(self._file, _encode(event) + b"\n")


class Operation:
    """An operation that was begun; say how it ended, once."""

    def __init__(self, recorder: Recorder, client: str, op: int, verb: Verb) -> None:
        self._recorder = recorder
        self.client = client
        self.op = op
        self.verb: Verb = verb

    def ok(self, value: Any = None) -> None:
        self._recorder.write(self, "ok", value)

    def fail(self, value: Any = None) -> None:
        self._recorder.write(self, "fail", value)

    def unknown(self, value: Any = None) -> None:
        self._recorder.write(self, "unknown", value)


def read(text: bytes) -> Iterator[Event]:
    """The events of a history. Its last line may be torn: the process was killed while it wrote."""
    whole, _, _ = text.rpartition(b"\n")
    return (_decode(line) for line in whole.splitlines() if line)
