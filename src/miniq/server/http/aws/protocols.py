"""The protocols of SQS and SNS: JSON 1.0, which names the action in a header and only SQS has, and Query, a form that
is answered in XML."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin, get_type_hints
from xml.sax.saxutils import escape

import msgspec
from msgspec import Struct

from miniq.json_values import is_deep
from miniq.server.http.aws.errors import (
    QUEUE_DOES_NOT_EXIST,
    SERIALIZATION,
    AwsError,
    missing,
)
from miniq.server.http.aws.forms import read_form
from miniq.server.http.aws.message_attributes import shown_in_xml
from miniq.server.http.aws.shape import Shape, Xml

TARGET = "AmazonSQS."
"""How the header `X-Amz-Target` begins; the name of the action follows."""
Service = Literal["sqs", "sns"]
VERSIONS: dict[str, Service] = {"2012-11-05": "sqs", "2010-03-31": "sns"}
"""The services by the version of their Query protocol."""
_NAMESPACES: dict[Service, str] = {
    "sqs": "http://queue.amazonaws.com/doc/2012-11-05/",
    "sns": "http://sns.amazonaws.com/doc/2010-03-31/",
}
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_ELEMENTS = {"\r": "&#xD;"}
_encode = msgspec.json.Encoder().encode


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class Answer(Struct, frozen=True):
    """The body of a reply, and its headers beside the usual ones."""

    body: bytes
    media: str
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


class AwsProtocol(Protocol):
    """Reads requests and writes replies."""

    service: Service

    def read(self, kind: type[Any]) -> Any:
        """The request, of the given type; raises `AwsError`."""

    def shown(self, text: str) -> str:
        """What the caller reads where a reply has this text. Digests are those of what is read."""

    def answer(self, action: str, reply: Shape | None, request: str) -> Answer:
        """A reply. `request` is the id of the request."""

    def failure(self, error: AwsError, request: str) -> Answer:
        """The reply to a request that failed."""


class JsonProtocol:
    """JSON 1.0."""

    service: Service = "sqs"
    MEDIA = "application/x-amz-json-1.0"

    def __init__(self, body: bytes) -> None:
        self._body = body

    def read(self, kind: type[Any]) -> Any:
        try:
            decoder = _decoders.get(kind)
            if decoder is None:
                decoder = _decoders[kind] = msgspec.json.Decoder(kind)
            if is_deep(self._body):
                raise RecursionError
            return decoder.decode(self._body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unreadable(error) from None
        except RecursionError:
            raise AwsError(SERIALIZATION, "The request is invalid: it is nested too deep") from None

    def shown(self, text: str) -> str:
        return text

    def answer(self, action: str, reply: Shape | None, request: str) -> Answer:
        return Answer(b"{}" if reply is None else _encode(reply), self.MEDIA)

    def failure(self, error: AwsError, request: str) -> Answer:
        kind = error.kind
        body = _encode({"__type": f"com.amazonaws.sqs#{kind.name}", "message": error.text})
        fault = f"{kind.code};{'Sender' if kind.is_sender else 'Receiver'}"
        return Answer(body, self.MEDIA, kind.status, ((b"x-amzn-query-error", fault.encode()),))


class QueryProtocol:
    """A form, answered in XML."""

    MEDIA = "text/xml"

    def __init__(self, body: bytes, query: bytes, service: Service = "sqs") -> None:
        self.service = service
        """Whose namespace the answers have."""
        try:
            self.fields = read_form(query, body)
        except ValueError as error:
            raise AwsError(SERIALIZATION, f"The request is not a valid form: {error}") from None

    def read(self, kind: type[Any]) -> Any:
        try:
            return msgspec.convert(_value(_tree(self.fields), kind), kind, strict=False)
        except msgspec.ValidationError as error:
            raise _unreadable(error) from None

    def shown(self, text: str) -> str:
        return shown_in_xml(text)

    def answer(self, action: str, reply: Shape | None, request: str) -> Answer:
        result = "" if reply is None else f"<{action}Result>{_elements(reply)}</{action}Result>"
        metadata = f"<ResponseMetadata><RequestId>{request}</RequestId></ResponseMetadata>"
        return self._xml(f'<{action}Response xmlns="{_NAMESPACES[self.service]}">{result}{metadata}</{action}Response>')

    def failure(self, error: AwsError, request: str) -> Answer:
        kind, text = error.kind, error.text
        if kind is QUEUE_DOES_NOT_EXIST:
            text = "The specified queue does not exist for this wsdl version."
        fault = "Sender" if kind.is_sender else "Receiver"
        shown = f"<Type>{fault}</Type><Code>{kind.code}</Code><Message>{_text(text)}</Message><Detail/>"
        body = f"<Error>{shown}</Error><RequestId>{request}</RequestId>"
        return self._xml(f'<ErrorResponse xmlns="{_NAMESPACES[self.service]}">{body}</ErrorResponse>', kind.status)

    def _xml(self, text: str, status: int = 200) -> Answer:
        return Answer(f'<?xml version="1.0"?>{text}'.encode("utf-8", "replace"), self.MEDIA, status)


def _unreadable(error: Exception) -> AwsError:
    """The error for a request that is not of the type of its action."""
    absent = _MISSING.match(str(error))
    return missing(absent[1]) if absent is not None else AwsError(SERIALIZATION, f"The request is invalid: {error}")


# Forms and XML, by the types of requests and replies


class _Field(Struct, frozen=True):
    """A field of a shape: its attribute, its name in JSON, its type, and its name in XML if it is a list or map."""

    name: str
    wire: str
    kind: Any
    xml: Xml | None


@cache
def _fields(shape: type[Shape]) -> list[_Field]:
    hints = get_type_hints(shape, include_extras=True)
    wires = dict(zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True))
    return [_Field(name, wire, *_unwrapped(hints[name])) for name, wire in wires.items()]


def _unwrapped(hint: Any) -> tuple[Any, Xml | None]:
    """A type without what is optional about it, and its name in XML."""
    xml: Xml | None = None
    while True:
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            xml = next((note for note in notes if isinstance(note, Xml)), xml)
        elif type(None) in get_args(hint):
            hint = next(kind for kind in get_args(hint) if kind is not type(None))
        else:
            return hint, xml


def _tree(fields: dict[str, str]) -> dict[str, Any]:
    """Fields with dots in their names as a tree."""
    tree: dict[str, Any] = {}
    for name, text in fields.items():
        *path, last = name.split(".")
        node = tree
        for step in path[:8]:
            inner = node.get(step)
            if not isinstance(inner, dict):
                inner = node[step] = {}
            node = inner
        node.setdefault(last, text)
    return tree


def _items(node: Any) -> list[Any]:
    """The elements of a list: numbered, or a single one without a number; an empty text is an empty list."""
    if not isinstance(node, dict):
        return [node] if node else []
    numbered = [(int(key), item) for key, item in node.items() if key.isascii() and key.isdigit() and len(key) < 9]
    return [item for _, item in sorted(numbered, key=lambda pair: pair[0])] if numbered else [node]


def _value(node: Any, kind: Any, xml: Xml | None = None) -> Any:
    """A part of the tree as a value of a type, as far as msgspec needs it."""
    origin = get_origin(kind)
    if origin is list:
        return [_value(item, *_unwrapped(get_args(kind)[0])) for item in _items(node)]
    if origin is dict and xml is not None:
        entries = [item for item in _items(node) if isinstance(item, dict)]
        inner = _unwrapped(get_args(kind)[1])
        return {str(item.get(xml.key, "")): _value(item.get(xml.value, ""), *inner) for item in entries}
    if isinstance(kind, type) and issubclass(kind, Struct):
        if not isinstance(node, dict):
            return node
        values: dict[str, Any] = {}
        for field in _fields(kind):
            xml, own = field.xml, node.get(field.wire)
            if xml is not None and xml.is_wrapped:
                given = own.get(xml.element) if isinstance(own, dict) else own
            else:
                given = None if xml is None else node.get(xml.element)
                given = own if given is None else given  # some SDKs call elements as their list is called
            if given is not None:
                values[field.wire] = _value(given, field.kind, field.xml)
        return values
    return node


def _elements(shape: Shape) -> str:
    """The fields of a shape as XML; what is empty is left out."""
    parts: list[str] = []
    for field in _fields(type(shape)):
        value = getattr(shape, field.name)
        if value is None:
            continue
        xml = field.xml
        if xml is None:
            parts.append(_element(field.wire, value))
            continue
        if isinstance(value, dict):
            inner = [_entry(xml, key, item) for key, item in value.items()]
        else:
            inner = [_element(xml.element, item) for item in value]
        parts += [f"<{field.wire}>{''.join(inner)}</{field.wire}>"] if xml.is_wrapped else inner
    return "".join(parts)


def _entry(xml: Xml, key: str, value: Any) -> str:
    return f"<{xml.element}>{_element(xml.key, key)}{_element(xml.value, value)}</{xml.element}>"


def _element(name: str, value: Any) -> str:
    if isinstance(value, Shape):
        inner = _elements(value)
    elif isinstance(value, bool):
        inner = "true" if value else "false"
    else:
        inner = _text(str(msgspec.to_builtins(value)))  # bytes are base64
    return f"<{name}>{inner}</{name}>"


def _text(text: str) -> str:
    return escape(shown_in_xml(text), _ELEMENTS)
