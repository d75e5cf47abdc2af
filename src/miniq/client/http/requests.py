"""How each call becomes an HTTP request. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote, urlencode

from miniq.api import shapes
from miniq.client import calls, records, tables
from miniq.client.calls import Call
from miniq.client.exchange import Exchange
from miniq.client.http.target import Target
from miniq.client.keys import CreateKey, ListKeys, RevokeKey
from miniq.errors import BadName, InvalidRequest, MessageNotFound

_JSON_HEAD = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
_ARROW_HEAD = b"accept: application/vnd.apache.arrow.stream\r\n"
_STREAM_HEAD = b"content-type: application/vnd.apache.arrow.stream\r\ncontent-length: %d\r\n\r\n"
_MSGPACK_HEAD = b"content-type: application/msgpack\r\naccept: application/json\r\ncontent-length: %d\r\n\r\n"

Media = Literal["json", "msgpack", "arrow"]
Pieces = tuple[str, str, bytes | None, Media]
"""Method, path, and the body with its format."""
_HEADS: dict[Media, bytes] = {"json": _JSON_HEAD, "msgpack": _MSGPACK_HEAD, "arrow": _STREAM_HEAD}


class HttpExchange(Exchange):
    """One call on its way over HTTP: the bytes to send."""

    __slots__ = ("_target", "body", "head")

    def __init__(self, target: Target, call: Call[Any]) -> None:
        self._target = target
        super().__init__(call, target.timeout)

    def write(self) -> None:
        target = self._target
        method, path, body, format = _ASK[type(self.call)](self.call)
        head = b"%b %b HTTP/1.1\r\n%b" % (method.encode(), (target.prefix + path).encode(), target.headers)
        if target.lines is not None:
            head += target.lines()
        if self.name is not None:
            head = b"%bidempotency-key: %b\r\n" % (head, self.name.encode())
        if type(self.call) in _TABLES:
            head += _ARROW_HEAD
        if body is not None:
            self.head = head + _HEADS[format] % len(body)
            self.body = body
        else:
            self.head = head + (b"content-length: 0\r\n\r\n" if method == "POST" else b"\r\n")
            self.body = b""


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


def _group(queue: str, group: object) -> str:
    """The path of a group of readers. What a path cannot carry is no group's name."""
    if not isinstance(group, str) or not group or "/" in group:
        raise BadName(f"group: {group!r:.80} is not a name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="group")
    return f"{_queue(queue)}/claims/{_quoted(group)}"


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _query(**parameters: Any) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given, errors='replace')}" if given else ""


# Bodies


def _post(path: str, record: Any, method: str = "POST") -> Pieces:
    return method, path, records.encoded(record), "json"


def _send(call: calls.Send) -> Pieces:
    record, format = records.send_body(call)
    return "POST", f"{_queue(call.queue)}/messages", records.encoded(record, format), format


def _send_table(call: calls.SendTable) -> Pieces:
    return "POST", f"{_queue(call.queue)}/messages", tables.to_stream(call.table), "arrow"


def _receive(call: calls.Receive) -> Pieces:
    return _post(f"{_queue(call.queue)}/receive", records.receive_body(call))


def _ack(call: calls.Ack) -> Pieces:
    return _post(f"{_queue(call.queue)}/ack", records.ack_body(call))


def _release(call: calls.Release) -> Pieces:
    return _post(f"{_queue(call.queue)}/release", records.release_body(call))


def _extend(call: calls.Extend) -> Pieces:
    return _post(f"{_queue(call.queue)}/extend", records.extend_body(call))


def _get(call: calls.Get) -> Pieces:
    return "GET", _message(call.queue, call.id), None, "json"


def _peek(call: calls.Peek | calls.PeekTable) -> Pieces:
    query = _query(status=call.status, after=call.after, limit=str(call.limit))
    return "GET", f"{_queue(call.queue)}/messages{query}", None, "json"


def _edit(call: calls.Edit) -> Pieces:
    return _post(_message(call.queue, call.id), records.wire_edit(call), "PATCH")


def _remove(call: calls.Remove) -> Pieces:
    return "DELETE", _message(call.queue, call.id) + _query(receipt=call.receipt), None, "json"


def _open_claims(call: calls.OpenClaims) -> Pieces:
    return "POST", f"{_group(call.queue, call.group)}/open", None, "json"


def _next_claim(call: calls.NextClaim) -> Pieces:
    return _post(f"{_queue(call.queue)}/claims", records.claim_body(call))


def _read_claim(call: calls.ReadClaim | calls.ClaimTable) -> Pieces:
    query = _query(part=str(call.part), parts=str(call.parts))
    return "GET", f"{_group(call.queue, call.group)}/{_quoted(str(call.claim))}{query}", None, "json"


def _ack_claims(call: calls.AckClaims) -> Pieces:
    query = _query(upto=str(call.upto), epoch=call.epoch)
    return "DELETE", f"{_group(call.queue, call.group)}{query}", None, "json"


def _release_claims(call: calls.ReleaseClaims) -> Pieces:
    return _post(f"{_group(call.queue, call.group)}/release", shapes.ReleaseClaimsBody(call.epoch))


def _list_claims(call: calls.ListClaims) -> Pieces:
    return "GET", f"{_queue(call.queue)}/claims", None, "json"


def _stage(queue: str, **names: str) -> str:
    """The path of the stages of a batch, or of one. What a path cannot carry is no name."""
    for field, name in names.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise BadName(f"{field}: {name!r:.80} is not a name; use 1 to 128 of A-Z a-z 0-9 . _ -", field=field)
    return "/".join([f"{_queue(queue)}/stages", *map(_quoted, names.values())])


def _upload(call: calls.Upload) -> Pieces:
    name = call.stage
    path = _stage(call.queue, job=name.job, batch=name.batch, partition=name.partition, attempt=name.attempt)
    path += _query(part=str(call.part))
    if tables.is_table(call.messages):
        return "POST", path, tables.to_stream(call.messages), "arrow"
    return _post(path, shapes.UploadBody(records.wire_drafts(call.messages)))


def _commit(call: calls.CommitStages) -> Pieces:
    stages = [shapes.StageId(partition, attempt) for partition, attempt in call.stages]
    return _post(f"{_stage(call.queue, job=call.job, batch=call.batch)}/commit", shapes.CommitStagesBody(stages))


def _discard_stages(call: calls.DiscardStages) -> Pieces:
    return "DELETE", _stage(call.queue, job=call.job, batch=call.batch), None, "json"


def _list_stages(call: calls.ListStages) -> Pieces:
    return "GET", f"{_queue(call.queue)}/stages", None, "json"


def _purge(call: calls.Purge) -> Pieces:
    return "POST", f"{_queue(call.queue)}/purge", None, "json"


def _redrive(call: calls.Redrive) -> Pieces:
    return _post(f"{_queue(call.queue)}/redrive", records.redrive_body(call))


def _configure(call: calls.Configure) -> Pieces:
    return _post(_queue(call.queue), records.configure_body(call), "PUT")


def _get_queue(call: calls.GetQueue) -> Pieces:
    return "GET", _queue(call.queue), None, "json"


def _list_queues(call: calls.ListQueues) -> Pieces:
    return "GET", "/v1/queues", None, "json"


def _delete_queue(call: calls.DeleteQueue) -> Pieces:
    return "DELETE", _queue(call.queue), None, "json"


def _history(call: calls.History | calls.HistoryTable) -> Pieces:
    query = _query(after=str(call.after), limit=str(call.limit), queue=call.queue)
    return "GET", f"/v1/history{query}", None, "json"


def _backup(call: calls.Backup) -> Pieces:
    return _post("/v1/backup", records.backup_body(call))


def _create_key(call: CreateKey) -> Pieces:
    return _post("/v1/keys", records.key_body(call))


def _list_keys(call: ListKeys) -> Pieces:
    return "GET", "/v1/keys", None, "json"


def _revoke_key(call: RevokeKey) -> Pieces:
    return "DELETE", f"/v1/keys/{_quoted(call.id)}", None, "json"


def _ack_by_id(call: calls.AckById) -> Pieces:
    raise InvalidRequest("id: a message is acked with its receipt; receive it first", field="id")


_ASK: dict[type[Call[Any]], Callable[[Any], Pieces]] = {
    calls.Send: _send,
    calls.SendTable: _send_table,
    calls.Receive: _receive,
    calls.Ack: _ack,
    calls.AckById: _ack_by_id,
    calls.Release: _release,
    calls.Extend: _extend,
    calls.Get: _get,
    calls.Peek: _peek,
    calls.PeekTable: _peek,
    calls.Edit: _edit,
    calls.Remove: _remove,
    calls.OpenClaims: _open_claims,
    calls.NextClaim: _next_claim,
    calls.ReadClaim: _read_claim,
    calls.ClaimTable: _read_claim,
    calls.AckClaims: _ack_claims,
    calls.ReleaseClaims: _release_claims,
    calls.ListClaims: _list_claims,
    calls.Upload: _upload,
    calls.CommitStages: _commit,
    calls.DiscardStages: _discard_stages,
    calls.ListStages: _list_stages,
    calls.Purge: _purge,
    calls.Redrive: _redrive,
    calls.Configure: _configure,
    calls.GetQueue: _get_queue,
    calls.ListQueues: _list_queues,
    calls.DeleteQueue: _delete_queue,
    calls.History: _history,
    calls.HistoryTable: _history,
    calls.Backup: _backup,
    CreateKey: _create_key,
    ListKeys: _list_keys,
    RevokeKey: _revoke_key,
}
_TABLES = (calls.ClaimTable, calls.PeekTable, calls.HistoryTable)
"""Calls that are answered in Arrow."""
