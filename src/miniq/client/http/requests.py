"""How each call becomes an HTTP request, and what reads its answer. No I/O.

An `Exchange` is one call on its way. It may be sent again as it is, so that a repeated send bears the name of
the first one and adds nothing; only a receive waits the less, the longer it was on its way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from miniq.client import calls, records
from miniq.client.calls import Call
from miniq.client.http.target import Target
from miniq.errors import BadName, InvalidRequest, MessageNotFound
from miniq.message import JSON, Bodies, Outcome
from miniq.wire import codec, shapes

PATIENT = 3600.0
"""Seconds that a call may take which copies everything there is."""
_JSON_HEAD = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
_MSGPACK_HEAD = b"content-type: application/msgpack\r\naccept: application/json\r\ncontent-length: %d\r\n\r\n"

Pieces = tuple[str, str, bytes | None, codec.Format]
"""Method, path, and the body with its format."""


class Kind(NamedTuple):
    """One kind of call: how it is asked, how its answer is read, and what it means to ask again."""

    ask: Callable[[Any], Pieces]
    read: Callable[[bytes], Any]
    gone: tuple[str, ...] = ()
    """Codes and outcomes that mean success to one whose first answer was lost: it had been done by then."""
    once: bool = False
    """It is not asked again if it may have been heard."""


class Exchange:
    """One call on its way: the bytes to send, and how to read what comes back."""

    __slots__ = ("_name", "_target", "body", "call", "doubtful", "head", "kind", "patience")

    def __init__(self, target: Target, call: Call[Any]) -> None:
        self._target = target
        self._name = os.urandom(16).hex().encode() if type(call) is calls.Send else b""
        self.call = call
        self.kind = _KINDS[type(call)]
        self.doubtful = False
        """Whether an earlier attempt may have been carried out without its answer having arrived."""
        self._write()

    def _write(self) -> None:
        call, target = self.call, self._target
        self.patience = target.timeout
        """Seconds to wait for the answer."""
        method, path, body, format = self.kind.ask(call)
        head = b"%b %b HTTP/1.1\r\n%b" % (method.encode(), (target.prefix + path).encode(), target.headers)
        if self._name:
            head = b"%bidempotency-key: %b\r\n" % (head, self._name)
        if body is not None:
            self.head = head + (_JSON_HEAD if format == "json" else _MSGPACK_HEAD) % len(body)
            self.body = body
        else:
            self.head = head + (b"content-length: 0\r\n\r\n" if method == "POST" else b"\r\n")
            self.body = b""
        if isinstance(call, calls.Receive | calls.NextClaim):
            if isinstance(call.wait, int | float) and call.wait > 0:
                self.patience = target.timeout + min(call.wait, PATIENT)
        elif self.kind.once:
            self.patience = max(target.timeout, PATIENT)

    def shorten(self, call: Call[Any], seconds: float) -> None:
        """It is `seconds` since `call` was first sent: a long poll need not wait for those again."""
        if isinstance(call, calls.Receive | calls.NextClaim) and isinstance(call.wait, int | float) and call.wait:
            self.call = replace(call, wait=max(0.0, call.wait - seconds))
            self._write()

    def result(self, body: bytes) -> Any:
        """What an answer says; raises `ValueError` or its kin if it cannot be read."""
        kind = self.kind
        found = kind.read(body)
        if self.doubtful and kind.gone and isinstance(found, list):
            done: Outcome = "done"
            return [done if outcome in kind.gone else outcome for outcome in found]
        return found


# Paths


@lru_cache(1024)
def _queue(name: str) -> str:
    """The path of a queue. What a path cannot carry is no queue name."""
    if not name or "/" in name:
        raise BadName(f"queue: {name!r} is not a queue name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="queue")
    return f"/v1/queues/{_quoted(name)}"


def _message(queue: str, id: object) -> str:
    """The path of a message. What a path cannot carry is no message's id."""
    if not isinstance(id, str) or not id or "/" in id:
        raise MessageNotFound(f"id: there is no message {id!r} in queue {queue!r}", field="id")
    return f"{_queue(queue)}/messages/{_quoted(id)}"


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _query(**parameters: Any) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given, errors='replace')}" if given else ""


# Bodies


def _post(path: str, record: Any, method: str = "POST") -> Pieces:
    return method, path, _encoded(record), "json"


def _encoded(record: Any, format: codec.Format = "json") -> bytes:
    """A record as bytes; what cannot be one is named."""
    try:
        return codec.encode(record, format)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unspeakable(record, format, "", error) from None


def _unspeakable(record: Any, format: codec.Format, place: str, error: Exception) -> InvalidRequest:
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


def _send(call: calls.Send) -> Pieces:
    if isinstance(call.drafts, Bodies) and call.drafts.content_type == JSON:
        # They are JSON text already.
        text = b'{"messages":[{"body":%b}]}' % b'},{"body":'.join(call.drafts.bodies)
        return "POST", f"{_queue(call.queue)}/messages", text, "json"
    drafts = records.wire_drafts(call.drafts)
    format: codec.Format = "msgpack" if records.all_data(drafts) else "json"
    record = drafts[0] if len(drafts) == 1 else shapes.SendBody(messages=drafts)
    return "POST", f"{_queue(call.queue)}/messages", _encoded(record, format), format


def _receive(call: calls.Receive) -> Pieces:
    records.check_text(call.consumer, "consumer")
    records.check_number(call.visibility_timeout, "visibility_timeout")
    records.check_number(call.wait, "wait")
    record = shapes.ReceiveBody(call.max, call.visibility_timeout, call.wait, call.consumer, call.mode)
    return _post(f"{_queue(call.queue)}/receive", record)


def _ack(call: calls.Ack) -> Pieces:
    return _post(f"{_queue(call.queue)}/ack", shapes.LeasesBody(list(call.leases)))


def _release(call: calls.Release) -> Pieces:
    records.check_number(call.delay, "delay")
    return _post(f"{_queue(call.queue)}/release", shapes.ReleaseBody(list(call.leases), call.delay))


def _extend(call: calls.Extend) -> Pieces:
    records.check_number(call.seconds, "visibility_timeout")
    return _post(f"{_queue(call.queue)}/extend", shapes.ExtendBody(list(call.leases), call.seconds))


def _get(call: calls.Get) -> Pieces:
    return "GET", _message(call.queue, call.id), None, "json"


def _peek(call: calls.Peek) -> Pieces:
    query = _query(status=call.status, after=call.after, limit=str(call.limit))
    return "GET", f"{_queue(call.queue)}/messages{query}", None, "json"


def _edit(call: calls.Edit) -> Pieces:
    return _post(_message(call.queue, call.id), records.wire_edit(call), "PATCH")


def _remove(call: calls.Remove) -> Pieces:
    return "DELETE", _message(call.queue, call.id) + _query(receipt=call.receipt), None, "json"


def _group(queue: str, group: object) -> str:
    """The path of a group of readers. What a path cannot carry is no group's name."""
    if not isinstance(group, str) or not group or "/" in group:
        raise BadName(f"group: {group!r:.80} is not a name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="group")
    return f"{_queue(queue)}/claims/{_quoted(group)}"


def _open_claims(call: calls.OpenClaims) -> Pieces:
    return "POST", f"{_group(call.queue, call.group)}/open", None, "json"


def _next_claim(call: calls.NextClaim) -> Pieces:
    records.check_text(call.group, "group")
    records.check_text(call.consumer, "consumer")
    records.check_number(call.wait, "wait")
    record = shapes.ClaimBody(
        call.group, call.after, call.epoch, call.max_messages, call.max_bytes, call.wait, call.consumer
    )
    return _post(f"{_queue(call.queue)}/claims", record)


def _read_claim(call: calls.ReadClaim) -> Pieces:
    query = _query(part=str(call.part), parts=str(call.parts))
    return "GET", f"{_group(call.queue, call.group)}/{_quoted(str(call.claim))}{query}", None, "json"


def _ack_claims(call: calls.AckClaims) -> Pieces:
    query = _query(upto=str(call.upto), epoch=call.epoch)
    return "DELETE", f"{_group(call.queue, call.group)}{query}", None, "json"


def _release_claims(call: calls.ReleaseClaims) -> Pieces:
    return _post(f"{_group(call.queue, call.group)}/release", shapes.ReleaseClaimsBody(call.epoch))


def _list_claims(call: calls.ListClaims) -> Pieces:
    return "GET", f"{_queue(call.queue)}/claims", None, "json"


def _purge(call: calls.Purge) -> Pieces:
    return "POST", f"{_queue(call.queue)}/purge", None, "json"


def _redrive(call: calls.Redrive) -> Pieces:
    for id in call.ids or ():
        records.check_text(id, "ids")
    records.check_text(call.to, "to")
    records.check_number(call.rate, "rate")
    ids = None if call.ids is None else list(call.ids)
    return _post(f"{_queue(call.queue)}/redrive", shapes.RedriveBody(ids, call.to, call.rate))


def _configure(call: calls.Configure) -> Pieces:
    for field, value in call.changes.items():
        records.check_number(value, field)
        if isinstance(value, bytes | bytearray):
            records.check_text(value, field)
    return _post(_queue(call.queue), call.changes, "PUT")


def _get_queue(call: calls.GetQueue) -> Pieces:
    return "GET", _queue(call.queue), None, "json"


def _list_queues(call: calls.ListQueues) -> Pieces:
    return "GET", "/v1/queues", None, "json"


def _delete_queue(call: calls.DeleteQueue) -> Pieces:
    return "DELETE", _queue(call.queue), None, "json"


def _history(call: calls.History) -> Pieces:
    query = _query(after=str(call.after), limit=str(call.limit), queue=call.queue)
    return "GET", f"/v1/history{query}", None, "json"


def _backup(call: calls.Backup) -> Pieces:
    records.check_text(call.path, "path")
    return _post("/v1/backup", {"path": call.path})


def _ack_by_id(call: calls.AckById) -> Pieces:
    raise InvalidRequest("id: a message is acked with its receipt; receive it first", field="id")


def _nothing(body: bytes) -> None:
    """There is nothing to read."""


_KINDS: dict[type[Call[Any]], Kind] = {
    calls.Send: Kind(_send, records.read_ids),
    calls.Receive: Kind(_receive, records.read_received),
    calls.Ack: Kind(_ack, records.read_outcomes, ("missing",)),
    calls.AckById: Kind(_ack_by_id, _nothing),
    calls.Release: Kind(_release, records.read_outcomes, ("stale", "missing")),
    calls.Extend: Kind(_extend, records.read_extended),
    calls.Get: Kind(_get, records.read_message),
    calls.Peek: Kind(_peek, records.read_page),
    calls.Edit: Kind(_edit, records.read_message),
    calls.Remove: Kind(_remove, _nothing, ("message_not_found",)),
    calls.OpenClaims: Kind(_open_claims, records.read_opened),
    calls.NextClaim: Kind(_next_claim, records.read_claim),
    calls.ReadClaim: Kind(_read_claim, records.read_claimed),
    calls.AckClaims: Kind(_ack_claims, _nothing),
    calls.ReleaseClaims: Kind(_release_claims, records.read_released),
    calls.ListClaims: Kind(_list_claims, records.read_groups),
    calls.Purge: Kind(_purge, records.read_purged),
    calls.Redrive: Kind(_redrive, records.read_redrive),
    calls.Configure: Kind(_configure, records.read_queue),
    calls.GetQueue: Kind(_get_queue, records.read_queue),
    calls.ListQueues: Kind(_list_queues, records.read_queues),
    calls.DeleteQueue: Kind(_delete_queue, _nothing, ("queue_not_found",)),
    calls.History: Kind(_history, records.read_history),
    calls.Backup: Kind(_backup, _nothing, once=True),
}
