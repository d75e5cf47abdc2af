"""How each call becomes a ZeroMQ request, and what its reply means. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from miniq.api import codec, shapes
from miniq.client import calls, records
from miniq.client.calls import Call
from miniq.client.exchange import Exchange
from miniq.client.keys import CreateKey, ListKeys, RevokeKey
from miniq.client.tables import is_table, only_over_http
from miniq.client.zmq.target import Target
from miniq.errors import BadName, InvalidRequest, MessageNotFound, MiniQError

CANCEL = codec.encode(shapes.Command("CANCEL"), "json")
_GOOD = b'{"ok":true,"data":'
"""How a broker begins a reply; what follows is read as it is."""

Ask = tuple[str, dict[str, Any], codec.Format]
"""The type of a command, its payload, and the format."""


class ZmqExchange(Exchange):
    """One call on its way over ZeroMQ: the body of the request."""

    __slots__ = ("_target", "body", "format")

    def __init__(self, target: Target, call: Call[Any]) -> None:
        self._target = target
        super().__init__(call, target.timeout)

    def write(self) -> None:
        type_, payload, self.format = _ASK[type(self.call)](self.call)
        raw = Raw(records.encoded(payload, self.format))
        self.body = codec.encode(shapes.Command(type_, raw, self._target.api_key, self.name), self.format)

    def cancel(self) -> bytes:
        """The request that takes this one back."""
        return codec.encode(shapes.Command("CANCEL", api_key=self._target.api_key), "json")


class _Reply(Struct):
    ok: bool
    data: Raw = Raw(b"")
    error: shapes.CommandError | None = None


_json_reply = msgspec.json.Decoder(_Reply).decode
_msgpack_reply = msgspec.msgpack.Decoder(_Reply).decode


def judge(exchange: ZmqExchange, body: bytes, target: Target) -> Any:
    """The result that a reply brings, or the error that it is."""
    try:
        if exchange.format == "json" and body.startswith(_GOOD):
            return exchange.result(body[len(_GOOD) : -1])
        reply = _json_reply(body) if exchange.format == "json" else _msgpack_reply(body)
        if reply.ok:
            data = bytes(reply.data)
            return exchange.result(data if exchange.format == "json" else _json_of(data))
        error = reply.error
        if error is None:
            raise ValueError("no error")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        begin = body[:80].decode("utf-8", "replace")
        raise MiniQError(f"{target.url} answered what is not of a MiniQ broker: {begin!r} ({error})") from None
    status = codec.STATUS.get(error.code, 500)
    return exchange.refused(shapes.Problem(error.code, status, error.code, error.text, error.field), target.url)


def _json_of(data: bytes) -> bytes:
    """What came in MessagePack, as it would be in JSON: replies to sends, which are ids."""
    return codec.encode_json(msgspec.msgpack.decode(data))


def _fields(record: Struct) -> dict[str, Any]:
    """The fields of a record that say something else than is said by leaving them out."""
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    usual = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    found = {}
    for name, other in zip(names, usual, strict=True):
        value = getattr(record, name)
        if value is not other and (type(value) is not type(other) or value != other):
            found[name] = value
    return found


def _queue(call: Any) -> dict[str, Any]:
    records.check_text(call.queue, "queue")
    return {"queue": call.queue}


def _message(call: Any) -> dict[str, Any]:
    if not isinstance(call.id, str):
        raise MessageNotFound(f"id: there is no message {call.id!r} in queue {call.queue!r}", field="id")
    return _queue(call) | {"id": call.id}


def _send(call: calls.Send) -> Ask:
    record, format = records.send_body(call)
    return "SEND", _queue(call) | _fields(record), format


def _on_queue(type: str, body: Callable[[Any], Any] | None = None) -> Callable[[Any], Ask]:
    """A call on a queue, with a body if it has one."""

    def ask(call: Any) -> Ask:
        payload = _queue(call)
        if body is not None:
            record = body(call)
            payload |= record if isinstance(record, dict) else _fields(record)
        return type, payload, "json"

    return ask


def _get(call: calls.Get) -> Ask:
    return "GET", _message(call), "json"


def _peek(call: calls.Peek) -> Ask:
    payload = _queue(call) | {"limit": call.limit}
    for field in ("status", "after"):
        value = getattr(call, field)
        records.check_text(value, field)
        if value is not None:
            payload[field] = value
    return "PEEK", payload, "json"


def _edit(call: calls.Edit) -> Ask:
    return "EDIT", _message(call) | _fields(records.wire_edit(call)), "json"


def _remove(call: calls.Remove) -> Ask:
    records.check_text(call.receipt, "receipt")
    payload = _message(call)
    return "REMOVE", payload if call.receipt is None else payload | {"receipt": call.receipt}, "json"


def _group(call: Any) -> dict[str, Any]:
    if not isinstance(call.group, str) or not call.group:
        raise BadName(f"group: {call.group!r:.80} is not a name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="group")
    return _queue(call) | {"group": call.group}


def _open_claims(call: calls.OpenClaims) -> Ask:
    return "OPEN_CLAIMS", _group(call), "json"


def _read_claim(call: calls.ReadClaim) -> Ask:
    return "READ_CLAIM", _group(call) | {"claim": call.claim, "part": call.part, "parts": call.parts}, "json"


def _upload(call: calls.Upload) -> Ask:
    if is_table(call.messages):
        raise only_over_http()
    name = call.stage
    path = {"job": name.job, "batch": name.batch, "partition": name.partition, "attempt": name.attempt}
    messages = records.wire_drafts(call.messages)
    return "UPLOAD", {"queue": call.queue, **path, "part": call.part, "messages": messages}, "json"


def _commit(call: calls.CommitStages) -> Ask:
    stages = [shapes.StageId(partition, attempt) for partition, attempt in call.stages]
    return "COMMIT_STAGES", {"queue": call.queue, "job": call.job, "batch": call.batch, "stages": stages}, "json"


def _discard_stages(call: calls.DiscardStages) -> Ask:
    return "DISCARD_STAGES", {"queue": call.queue, "job": call.job, "batch": call.batch}, "json"


def _list_stages(call: calls.ListStages) -> Ask:
    return "LIST_STAGES", {"queue": call.queue}, "json"


def _no_table(call: Call[Any]) -> Ask:
    raise only_over_http()


def _ack_claims(call: calls.AckClaims) -> Ask:
    return "ACK_CLAIMS", _group(call) | {"upto": call.upto} | _epoch(call), "json"


def _release_claims(call: calls.ReleaseClaims) -> Ask:
    return "RELEASE_CLAIMS", _group(call) | _epoch(call), "json"


def _epoch(call: Any) -> dict[str, Any]:
    return {} if call.epoch is None else {"epoch": call.epoch}


def _list_queues(call: calls.ListQueues) -> Ask:
    return "LIST_QUEUES", {}, "json"


def _history(call: calls.History) -> Ask:
    payload = {"after": call.after, "limit": call.limit}
    return "HISTORY", payload if call.queue is None else payload | _queue(call), "json"


def _backup(call: calls.Backup) -> Ask:
    return "BACKUP", records.backup_body(call), "json"


def _create_key(call: CreateKey) -> Ask:
    return "CREATE_KEY", _fields(records.key_body(call)), "json"


def _list_keys(call: ListKeys) -> Ask:
    return "LIST_KEYS", {}, "json"


def _revoke_key(call: RevokeKey) -> Ask:
    return "REVOKE_KEY", {"id": call.id}, "json"


def _ack_by_id(call: calls.AckById) -> Ask:
    raise InvalidRequest("id: a message is acked with its receipt; receive it first", field="id")


_ASK: dict[type[Call[Any]], Callable[[Any], Ask]] = {
    calls.Send: _send,
    calls.Receive: _on_queue("RECEIVE", records.receive_body),
    calls.Ack: _on_queue("ACK", records.ack_body),
    calls.AckById: _ack_by_id,
    calls.Release: _on_queue("RELEASE", records.release_body),
    calls.Extend: _on_queue("EXTEND", records.extend_body),
    calls.Get: _get,
    calls.Peek: _peek,
    calls.Edit: _edit,
    calls.Remove: _remove,
    calls.OpenClaims: _open_claims,
    calls.NextClaim: _on_queue("CLAIM", records.claim_body),
    calls.ReadClaim: _read_claim,
    calls.SendTable: _no_table,
    calls.Upload: _upload,
    calls.CommitStages: _commit,
    calls.DiscardStages: _discard_stages,
    calls.ListStages: _list_stages,
    calls.ClaimTable: _no_table,
    calls.PeekTable: _no_table,
    calls.HistoryTable: _no_table,
    calls.AckClaims: _ack_claims,
    calls.ReleaseClaims: _release_claims,
    calls.ListClaims: _on_queue("LIST_CLAIMS"),
    calls.Purge: _on_queue("PURGE"),
    calls.Redrive: _on_queue("REDRIVE", records.redrive_body),
    calls.Configure: _on_queue("CONFIGURE", records.configure_body),
    calls.GetQueue: _on_queue("GET_QUEUE"),
    calls.ListQueues: _list_queues,
    calls.DeleteQueue: _on_queue("DELETE_QUEUE"),
    calls.History: _history,
    calls.Backup: _backup,
    CreateKey: _create_key,
    ListKeys: _list_keys,
    RevokeKey: _revoke_key,
}
