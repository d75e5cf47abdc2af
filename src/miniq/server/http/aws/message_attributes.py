"""Message attributes: how they are kept as headers, their checks, and the MD5 digests that SDKs compare.

An attribute is the header of its name, so that consumers of every protocol see it. Its type, if it is not `String`, is
in a header `AWS.DataType.NAME`; a binary value is base64. Other names that begin with `AWS.` hold what SQS keeps beside
the attributes of a message: no attribute can have such a name.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5
from struct import pack

from msgspec.structs import replace

from miniq.broker.envelopes import DATA_TYPE, RESERVED
from miniq.options import Limits
from miniq.server.http.aws.errors import INVALID_CONTENTS, AwsError, invalid
from miniq.server.http.aws.shape import AttributeValue

TRACE = "AWS.TraceHeader"
GROUP = "AWS.MessageGroupId"
"""The group of a message in a standard queue, where groups are not ordered."""
TRACE_ATTRIBUTE = "AWSTraceHeader"
MOST = 10
SYSTEM_TAG = "aws:"
"""How no key of a tag begins that is not AWS's own."""
TRACE_LENGTH = 4096
"""Maximum length of a trace header, which does not count for the size of a message."""
INVALID_CHARACTERS = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What a text must not contain: what XML cannot express."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def check_text(text: str) -> None:
    """Raise if a text has characters that XML cannot express."""
    if INVALID_CHARACTERS.search(text) is not None:
        raise AwsError(
            INVALID_CONTENTS,
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to "
            "#xFFFD | #x10000 to #x10FFFF",
        )


def shown_in_xml(text: str) -> str:
    """A text with U+FFFD for each character that XML cannot express. Other programs may send such characters."""
    return INVALID_CHARACTERS.sub("\ufffd", text)


def shown(attributes: Mapping[str, AttributeValue], show: Callable[[str], str]) -> dict[str, AttributeValue]:
    """Attributes as a protocol shows them."""
    return {
        show(name): AttributeValue(
            show(value.data_type), None if value.string_value is None else show(value.string_value), value.binary_value
        )
        for name, value in attributes.items()
    }


def check(attributes: Mapping[str, AttributeValue], most: int = MOST) -> None:
    """Raise unless these are valid attributes of a message."""
    if len(attributes) > most:
        raise invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{most}].")
    for name, value in attributes.items():
        _check_name(name)
        check_value(name, value)


def _check_name(name: str) -> None:
    is_reserved = name.lower().startswith(("aws.", "amazon."))
    if _NAME.fullmatch(name) is None or is_reserved or name[0] == "." or name[-1] == "." or ".." in name:
        raise invalid(
            f"The message attribute name '{name[:256]}' is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters, must not start or end with a period or have "
            "successive periods, and must not start with AWS. or Amazon."
        )


def check_value(name: str, value: AttributeValue) -> None:
    """Raise unless an attribute has a value of its type."""
    kind, type_ = _TYPE.fullmatch(value.data_type), value.data_type[:256]
    if kind is None or len(value.data_type) > 256 or not value.data_type.isascii() or not value.data_type.isprintable():
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes "
            "is Binary, Number, and String."
        )
    if value.string_list_values or value.binary_list_values:
        raise invalid(f"Message (user) attribute '{name}' has a list of values, which are not supported.")
    given, other = value.string_value, value.binary_value
    if kind[1] == "Binary":
        given, other = other, given  # type: ignore[assignment]
    if not given:
        raise invalid(f"Message (user) attribute '{name}' must contain a non-empty value of type '{type_}'.")
    if other:
        raise invalid(f"Message (user) attribute '{name}' has a value that does not belong to its type '{type_}'.")
    if isinstance(given, str):
        check_text(given)
        if kind[1] == "Number" and _NUMBER.fullmatch(given) is None:
            raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")


def trace_header(trace: str | None) -> dict[str, str]:
    """The header with a trace, if there is one."""
    if trace is not None and len(trace) > TRACE_LENGTH:
        raise invalid(f"The trace header has {len(trace)} characters; at most {TRACE_LENGTH} are allowed.")
    return {TRACE: trace} if trace else {}


def to_headers(attributes: Mapping[str, AttributeValue]) -> dict[str, str]:
    """Attributes as headers."""
    headers: dict[str, str] = {}
    for name, value in attributes.items():
        binary = value.binary_value
        headers[name] = (value.string_value or "") if binary is None else b64encode(binary).decode()
        if value.data_type != "String":
            headers[DATA_TYPE + name] = value.data_type
    return headers


def limits_of(limits: Limits) -> Limits:
    """The limits of messages that have attributes. These count for the size of a message, which SQS and SNS limit; so a
    header may be as long as all of it in base64."""
    return replace(limits, header_bytes=max(limits.header_bytes, 2 * limits.body_bytes))


def from_headers(headers: Mapping[str, str]) -> dict[str, AttributeValue]:
    """Headers as attributes. One whose value does not fit its type, which another program has set, is a string."""
    attributes: dict[str, AttributeValue] = {}
    for name, text in headers.items():
        if name.startswith(RESERVED):
            continue
        data_type = headers.get(DATA_TYPE + name, "String")
        if data_type.startswith("Binary"):
            try:
                attributes[name] = AttributeValue(data_type, None, b64decode(text, validate=True))
                continue
            except ValueError:
                data_type = "String"
        attributes[name] = AttributeValue(data_type, text)
    return attributes


def select(attributes: dict[str, AttributeValue], names: Sequence[str]) -> dict[str, AttributeValue]:
    """The attributes that a consumer asks for: by name, by the beginning of names (`foo.*`), or all."""
    if "All" in names or ".*" in names or "*" in names:
        return attributes
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in names or name.startswith(prefixes)}


def size(attributes: Mapping[str, AttributeValue] | None) -> int:
    """The bytes of attributes, which count for the size of a message."""
    if not attributes:
        return 0
    return sum(len(name.encode()) + len(value.data_type) + len(_raw(value)) for name, value in attributes.items())


def digest(attributes: Mapping[str, AttributeValue]) -> str:
    """The MD5 digest of attributes as SQS defines it."""
    parts: list[bytes] = []
    for name in sorted(attributes):
        value = attributes[name]
        raw = _raw(value)
        parts += (_sized(name.encode()), _sized(value.data_type.encode()))
        parts += (b"\1" if value.binary_value is None else b"\2", _sized(raw))
    return md5(b"".join(parts), usedforsecurity=False).hexdigest()


def _raw(value: AttributeValue) -> bytes:
    return (value.string_value or "").encode() if value.binary_value is None else value.binary_value


def _sized(raw: bytes) -> bytes:
    return pack(">I", len(raw)) + raw
