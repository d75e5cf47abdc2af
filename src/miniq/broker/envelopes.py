"""Envelopes of subscriptions: a copy whose body is the JSON notification of Amazon SNS, which holds the message.

    {"Type": "Notification", "MessageId": …, "Message": …, "Timestamp": …, "Subject": …, "MessageAttributes": {…}}

The fields that a subscription gives as its `envelope` are added to it. Headers of the message are its
`MessageAttributes`, and not those of the copy. Names that begin with `AWS.` hold what Amazon's protocols keep beside
the attributes: their types, the subject, and what the copy keeps.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from miniq.errors import InvalidRequest, TooLarge, show
from miniq.ids import sequence_number
from miniq.message import JSON, SECOND, Message

RESERVED = "AWS."
DATA_TYPE = "AWS.DataType."
"""Before the name of a header: the header with its type, which is `String` if there is none."""
SUBJECT = "AWS.Subject"
ARRAY, BINARY = "String.Array", "Binary"
FIELDS, ENVELOPE_BYTES = 16, 8 * 1024
"""How many fields a subscription may add, and their size as JSON."""

Envelope = dict[str, str]


def check_envelope(envelope: object) -> Envelope:
    """Raise unless these are fields that a subscription may add to its envelope."""
    if not isinstance(envelope, dict):
        raise InvalidRequest(f"envelope: {show(envelope)} is not an object of texts by name", field="envelope")
    for name, text in envelope.items():
        if not isinstance(name, str) or not name or not isinstance(text, str):
            known = f"envelope: {show(name)}: {show(text)} is invalid"
            raise InvalidRequest(f"{known}; use a name of at least one character, and a text", field="envelope")
    if len(envelope) > FIELDS:
        raise TooLarge(f"envelope: {len(envelope)} fields; at most {FIELDS}", field="envelope")
    try:
        size = len(msgspec.json.encode(envelope))
    except UnicodeEncodeError:
        raise InvalidRequest("envelope: is not valid Unicode", field="envelope") from None
    if size > ENVELOPE_BYTES:
        raise TooLarge(f"envelope: {size} bytes as JSON; at most {ENVELOPE_BYTES}", field="envelope")
    return envelope


def wrapped(messages: Sequence[Message], envelope: Envelope) -> list[Message]:
    """Messages in an envelope, under the same ids."""
    return [
        replace(message, body=_notification(message, envelope), content_type=JSON, headers=_kept(message.headers))
        for message in messages
    ]


def _kept(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of a copy in an envelope."""
    inside = (DATA_TYPE, SUBJECT)
    kept = {name: text for name, text in (headers or {}).items() if name.startswith(RESERVED)}
    return {name: text for name, text in kept.items() if not name.startswith(inside)} or None


def _notification(message: Message, envelope: Envelope) -> bytes:
    headers = message.headers or {}
    moment = datetime.fromtimestamp(message.sent_at / SECOND, UTC)
    fields: dict[str, object] = {"Type": "Notification", "MessageId": message.id}
    if message.group is not None:
        fields["SequenceNumber"] = sequence_number(message.id)
    if SUBJECT in headers:
        fields["Subject"] = headers[SUBJECT]
    fields |= {
        "Message": _text(message.body),
        "Timestamp": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z",
    }
    fields |= envelope
    if attributes := _attributes(headers):
        fields["MessageAttributes"] = attributes
    return msgspec.json.encode(fields)


def _attributes(headers: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {
        name: {"Type": headers.get(DATA_TYPE + name, "String"), "Value": text}
        for name, text in headers.items()
        if not name.startswith(RESERVED)
    }


def _text(body: bytes) -> str:
    """A body as text. Bytes that are not text become base64."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return b64encode(body).decode()
