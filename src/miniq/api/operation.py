"""A row of the table of operations, and what is derived from it: where each field of a request is sent.

A request is a record. Fields named in the path are sent in the path; the others in the query of a GET or DELETE, and in
the body of all other methods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import FieldInfo

from miniq.api import checks, codec, messages, shapes, tables
from miniq.api.codec import Format
from miniq.api.replies import Reply
from miniq.errors import InvalidRequest
from miniq.message import JSON, AckedLease, PlainDrafts

T = TypeVar("T")

Repeat = Literal["freely", "named", "once"]
"""What a client does when a call got no reply and may have been carried out: repeat it; repeat it with the same
idempotency key; do not repeat it."""


class Call(Struct, Generic[T], frozen=True, gc=False):
    """The request of an operation; `T` is the type of its result."""


class AsTable(Call[T], frozen=True):
    """A call whose result is to be a `pyarrow.Table`."""

    call: Call[Any]


class Body(Struct, frozen=True):
    """How the fields of a request that belong in its body are sent."""

    shape: Any
    """The record of the body, or `dict[str, Any]`."""
    pack: Callable[[Any], Any]
    """Checks a call and returns its body; an Arrow stream is `bytes`."""
    unpack: Callable[[Any, Format], Sequence[Any]]
    """Returns the values of the fields from a body in some format."""
    optional: bool = False
    """Whether it may be omitted."""


@dataclass(eq=False)
class Operation(Generic[T]):
    """One operation of the API: a row of the table, and what is derived from it."""

    request: type[Call[T]]
    name: str
    method: str
    path: str
    right: str
    """The permission it requires (see `keyring.py`)."""
    summary: str
    reply: Reply[T]
    _: KW_ONLY
    status: int = 200
    hot: bool = False
    """Whether HTTP serves it in the fast lane."""
    body: Body | None = None
    """For bodies that are more than a record of the fields."""
    query: Sequence[str] = ()
    """Fields that are sent in the query though the method has a body."""
    arrow: bool = False
    """Whether its body may be an Arrow stream."""
    table: Callable[[bytes], Any] | None = None
    """Reads the reply to `AsTable`, if that is supported."""
    long_poll: bool = False
    """Whether the call may wait for messages."""
    own: bool = False
    """Whether any key may call it, and sees only what it may read."""
    alternative: str = ""
    """A permission that suffices as well as `right`."""
    sends_to: str = ""
    """The field, or `field.entry`, that names a queue on which the caller needs `send` as well."""
    unread: Callable[[Any], None] | None = None
    """Removes from a reply what only a caller with `read` on the queue may see."""
    repeat: Repeat = "freely"
    done: Collection[str] = ()
    """Error codes and outcomes that mean success if an earlier attempt, which got no reply, was carried out."""

    def __post_init__(self) -> None:
        request, path, method = self.request, self.path, self.method
        self.command = self.name.upper()
        """Its name over ZeroMQ."""
        infos = {info.name: info for info in msgspec.structs.fields(request)}
        named = re.findall(r"{(\w+)}", path)
        in_query = [name for name in infos if name not in named and (method in ("GET", "DELETE") or name in self.query)]
        in_body = [name for name in infos if name not in named and name not in in_query]
        if [*named, *in_query, *in_body] != [*infos]:
            raise TypeError(f"{request.__name__}: order the fields by path, query and body")
        self.in_path = {name: _wire_type(infos[name].type) for name in named}
        self.in_query = {name: infos[name] for name in in_query}
        if self.body is None and method in _BODIES:
            self.body = _derived(request, [infos[name] for name in in_body])
        self.subject = "topic" if "topic" in named else "queue"
        """The field that names what the caller needs the permission on."""
        self.path_values = _values(named)
        """Returns the values of a call for its path."""
        self._texts_in_path = [name if str in _members(kind) else None for name, kind in self.in_path.items()]
        self._checks = [(name, check) for name in in_query if (check := _check(infos[name])) is not None]
        kinds: list[Any] = [(name, _wire_type(infos[name].type)) for name in (*in_query, *in_body)]
        self._types = msgspec.defstruct(
            f"{request.__name__}Types",
            [(name, kind, UNSET) if UnsetType in _members(kind) else (name, kind) for name, kind in kinds],
            kw_only=True,
        )

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    def check_path(self, values: Sequence[Any]) -> None:
        """Refuse values that cannot be part of a path."""
        for value, name in zip(values, self._texts_in_path, strict=True):
            if name is not None:
                checks.check_name(value, name, "message id" if "queue" in self.in_path else "key id")

    def checked(self, call: Any) -> Call[T]:
        """A call as a server would read it from a wire; refuses values of the wrong type."""
        names = self.path_values(call)
        self.check_path(names)
        given = ((name, getattr(call, name)) for name in self._types.__struct_fields__)
        fields = {name: value for name, value in given if value is not UNSET}
        try:
            return self.request(*names, *msgspec.structs.astuple(msgspec.convert(fields, self._types)))
        except msgspec.ValidationError as error:
            raise codec.invalid(error, fields, kind=self._types) from None

    def query_of(self, call: Any) -> dict[str, Any]:
        """The query of a call, checked and without defaults."""
        for name, check in self._checks:
            check(getattr(call, name), name)
        query = {}
        for name, info in self.in_query.items():
            value = getattr(call, name)
            if value is not None and (info.required or value != info.default):
                query[name] = value.isoformat() if isinstance(value, datetime) else value
        return query


_BODIES = ("POST", "PUT", "PATCH")


# Derived from the types of fields


def _wire_type(kind: Any) -> Any:
    """The type of a field on the wire: the broker validates literals, and sequences are lists."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return str
    if origin in (Union, UnionType):
        return Union[tuple(_wire_type(member) for member in inner)]  # noqa: UP007  not written out
    if origin is not None and origin is not dict and issubclass(origin, Sequence):
        return list[inner]  # type: ignore[valid-type]
    return kind


def plain_type(info: FieldInfo) -> type:
    """The type of a field in a query."""
    kind: type = next(kind for kind in _members(_wire_type(info.type)) if kind is not NoneType)
    return kind


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _check(info: FieldInfo) -> Callable[[Any, str], None] | None:
    kinds = _members(info.type)
    if str in kinds or any(get_origin(kind) is Literal for kind in kinds):
        return checks.check_text
    if float in kinds:
        return checks.check_number
    if int in kinds:
        return checks.check_whole_number
    return checks.check_texts if any(get_args(kind) == (str,) for kind in kinds) else None


def _derived(request: type[Struct], infos: Sequence[FieldInfo]) -> Body:
    """The body of most operations: a record of fields of the request."""
    fields: list[Any] = [
        (info.name, _wire_type(info.type)) if info.required else (info.name, _wire_type(info.type), info.default)
        for info in infos
    ]
    shape = msgspec.defstruct(
        f"{request.__name__}Body",
        fields,
        namespace={"__doc__": request.__doc__},
        forbid_unknown_fields=True,
        omit_defaults=True,
        gc=False,
    )
    values = _values([info.name for info in infos])
    checked = [
        (index, int if check in (checks.check_number, checks.check_whole_number) else str, info.name, check)
        for index, info in enumerate(infos)
        if (check := _check(info)) is not None
    ]

    def pack(call: Any) -> Any:
        body = values(call)
        for index, usual, name, check in checked:
            value = body[index]
            if value is not None and type(value) is not usual:  # values of the usual type are valid
                check(value, name)
        return shape(*body)

    optional = not any(info.required for info in infos)
    return Body(shape, pack, lambda body, format: values(body), optional)


def _values(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Returns a function that reads some attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda record: ()
    get = attrgetter(*names)
    return lambda record: (get(record),)


# Bodies that are more than a record of fields


def _pack_send(call: Any) -> Any:
    if tables.is_table(call.drafts):
        return tables.to_stream(call.drafts)
    drafts = messages.wire_drafts(call.drafts)
    return drafts[0] if len(drafts) == 1 else shapes.SendBody(messages=drafts)


def _unpack_send(body: Any, format: Format) -> Sequence[Any]:
    if type(body) is PlainDrafts or not isinstance(body, shapes.SendBody):  # or an Arrow stream
        return (body,)
    if body.messages is UNSET:
        return ([messages.draft_of(body, format)],)
    if body.body is not UNSET or body.data is not UNSET:
        raise InvalidRequest("messages: given beside body; send one message or several", field="messages")
    return (messages.drafts_of(body.messages, format),)


def _pack_ack(call: Any) -> shapes.AckBody:
    return shapes.AckBody(list(call.leases))


def _unpack_ack(body: Any, format: Format) -> Sequence[Any]:
    leases: list[AckedLease] = body.leases
    if format == "msgpack":
        for number, lease in enumerate(leases):
            if lease.result is not UNSET:
                result = codec.json_of(bytes(lease.result), f"leases[{number}].result")
                leases[number] = AckedLease(lease.id, lease.receipt, Raw(result))
    return (leases,)


_put = attrgetter("final", "ttl", "replaces", "new")


def _pack_result(call: Any) -> shapes.ResultBody:
    checks.check_number(call.ttl, "ttl")
    checks.check_moment(call.replaces, "replaces")
    return shapes.ResultBody(call.result, *_put(call))


def _unpack_result(body: Any, format: Format) -> Sequence[Any]:
    result = body.result
    if format == "msgpack" and result is not UNSET:
        result = Raw(codec.json_of(bytes(result), "result"))
    return (result, *_put(body))


def _pack_upload(call: Any) -> Any:
    if tables.is_table(call.drafts):
        return tables.to_stream(call.drafts)
    return shapes.UploadBody(messages.wire_drafts(call.drafts))


def _unpack_upload(body: Any, format: Format) -> Sequence[Any]:
    return (messages.drafts_of(body.messages, format) if isinstance(body, shapes.UploadBody) else body,)


_edited = attrgetter("headers", "priority", "delay", "receipt")


def _pack_edit(call: Any) -> shapes.EditBody:
    for field in ("content_type", "receipt"):
        checks.check_text(getattr(call, field), field)
    checks.check_number(call.delay, "delay")
    checks.check_whole_number(call.priority, "priority")
    checks.check_headers(call.headers)
    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    if call.body is not None:
        body, data = codec.wire_body(call.body, call.content_type or JSON, "json")
    return shapes.EditBody(body, data, call.content_type, *_edited(call))


def _unpack_edit(edit: Any, format: Format) -> Sequence[Any]:
    body, content_type = None, edit.content_type
    if edit.body is not UNSET or edit.data is not UNSET:
        body, content_type = codec.body_of(edit.body, edit.data, content_type, format)
    elif content_type is not None:
        raise InvalidRequest("content_type: needs a new body", field="content_type")
    return (body, content_type, *_edited(edit))


def _pack_changes(call: Any) -> Any:
    checks.check_map(call.changes)
    return call.changes


SEND = Body(shapes.SendBody, _pack_send, _unpack_send)
RESULT = Body(shapes.ResultBody, _pack_result, _unpack_result, optional=True)
ACK = Body(shapes.AckBody, _pack_ack, _unpack_ack)
UPLOAD = Body(shapes.UploadBody, _pack_upload, _unpack_upload)
EDIT = Body(shapes.EditBody, _pack_edit, _unpack_edit)
CHANGES = Body(dict[str, Any], _pack_changes, lambda changes, format: (changes,), optional=True)
