"""The actions that publish messages, alone and in batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from miniq.broker import rules
from miniq.broker.envelopes import SUBJECT
from miniq.errors import MiniQError
from miniq.ids import sequence_number
from miniq.message import Draft
from miniq.server.http.aws import message_attributes
from miniq.server.http.aws.actions import Call
from miniq.server.http.aws.errors import AwsError
from miniq.server.http.aws.json_text import read_json
from miniq.server.http.aws.message_attributes import GROUP, INVALID_CHARACTERS
from miniq.server.http.aws.shape import AttributeValue
from miniq.server.http.aws.sns import attributes, shapes
from miniq.server.http.aws.sns.errors import (
    BATCH_TOO_LONG,
    EMPTY_BATCH,
    IDS_NOT_DISTINCT,
    INVALID_ENTRY_ID,
    INVALID_VALUE,
    TOO_MANY_ENTRIES,
    invalid,
    translated,
)
from miniq.server.http.aws.sns.topics import sns
from miniq.server.http.aws.sqs.sending import TEXT, scope_of

MAX_SIZE = 262_144
ENTRIES = 10
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_SUPPORTED = re.compile(r"(String|Number|Binary)(\.|$)")
NAME_BYTES = 256
_SUBJECT = re.compile(r"[!-~][ -~]{0,99}")


@sns(shapes.PublishRequest, "publish", "topic")
async def publish(call: Call) -> shapes.PublishReply:
    kept = (await call.broker.topics.get(call.topic)).settings.sns
    published = await call.broker.publish(call.topic, [_draft(call, kept, call.request)], limits=call.limits)
    (id,) = published.ids
    return shapes.PublishReply(id, _sequence_number(call, id))


@sns(shapes.PublishBatchRequest, "publish", "topic")
async def publish_batch(call: Call) -> shapes.PublishBatchReply:
    kept, entries = (await call.broker.topics.get(call.topic)).settings.sns, call.request.entries
    _check_entries(entries)
    drafts = [_draft(call, kept, entry) for entry in entries]  # as at AWS, one that is invalid fails the batch
    published = await call.broker.publish(call.topic, drafts, limits=call.limits)
    each = zip(entries, published.ids, strict=True)
    return shapes.PublishBatchReply(
        [shapes.PublishedEntry(entry.id, id, _sequence_number(call, id)) for entry, id in each]
    )


def _sequence_number(call: Call, id: str) -> str | None:
    return sequence_number(id) if attributes.is_fifo(call.topic) else None


def _check_entries(entries: Sequence[shapes.PublishEntry]) -> None:
    """Raise unless these can be the entries of a batch."""
    if not entries:
        raise AwsError(EMPTY_BATCH, "The batch request doesn't contain any entries.")
    if len(entries) > ENTRIES:
        raise AwsError(TOO_MANY_ENTRIES, "The batch request contains more entries than permissible.")
    if len({entry.id for entry in entries}) < len(entries):
        raise AwsError(IDS_NOT_DISTINCT, "Two or more batch entries in the request have the same Id.")
    for entry in entries:
        if _ENTRY_ID.fullmatch(entry.id) is None:
            text = "The Id of a batch entry in a batch request doesn't abide by the specification."
            raise AwsError(INVALID_ENTRY_ID, text)
    if sum(map(_size, entries)) > MAX_SIZE:
        raise AwsError(BATCH_TOO_LONG, "The length of all the batch messages put together is more than the limit.")


def _draft(call: Call, kept: dict[str, str], message: shapes.NewMessage) -> Draft:
    """A message to publish; raises if it is invalid. `kept` is what SNS keeps of the topic."""
    if not message.message:
        raise invalid("Empty message")
    if _size(message) > MAX_SIZE:
        raise invalid("Message too long")
    text = _text(message)
    if INVALID_CHARACTERS.search(text) is not None:
        raise invalid("Message Reason: It has characters that XML cannot express")
    headers = _headers(call, message)
    group = dedup_id = None
    if attributes.is_fifo(call.topic):
        group, dedup_id = _fifo_ids(kept, message)
    elif message.message_deduplication_id is not None:
        raise invalid(
            "MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter that is not valid "
            "for this topic type"
        )
    elif message.message_group_id is not None:
        headers[GROUP] = _fifo_id(message.message_group_id, "MessageGroupId")
    draft = Draft(text.encode(), TEXT, headers or None, group=group, dedup_id=dedup_id)
    try:
        rules.check_draft(draft, call.limits)
    except MiniQError as error:
        raise translated(error) from None
    return draft


def _text(message: shapes.NewMessage) -> str:
    """What queues get of a message: with a structure, that which is for them."""
    if message.message_structure is None:
        return message.message
    if message.message_structure != "json":
        raise invalid("MessageStructure")
    try:
        structure = read_json(message.message)
    except ValueError:
        structure = None
    if not isinstance(structure, dict):
        raise invalid("Message Structure - JSON message body failed to parse")
    if not isinstance(structure.get("default"), str):
        raise invalid("Message Structure - No default entry in JSON message body")
    text = structure.get("sqs", structure["default"])
    if not isinstance(text, str) or not text:
        raise invalid("Message Structure - The message for sqs is not a text")
    return text


def _headers(call: Call, message: shapes.NewMessage) -> dict[str, str]:
    headers: dict[str, str] = {}
    if message.message_attributes:
        given = {
            name: AttributeValue(value.data_type, value.string_value, value.binary_value)
            for name, value in message.message_attributes.items()
        }
        for name, value in given.items():
            _check_attribute(name, value)
        message_attributes.check(given, call.limits.headers)
        headers = message_attributes.to_headers(given)
    if message.subject is not None:
        if _SUBJECT.fullmatch(message.subject) is None:
            raise invalid("Subject")
        headers[SUBJECT] = message.subject
    return headers | message_attributes.trace_header(call.trace)


def _check_attribute(name: str, value: AttributeValue) -> None:
    """Raise, in the words of SNS, if the name of an attribute is invalid, or its value is not where its type has it."""
    other = _NOT_IN_NAMES.search(name)
    if len(name.encode("utf-8", "replace")) >= NAME_BYTES:
        problem = f"Length of message attribute name must be less than {NAME_BYTES} bytes."
    elif other is not None:
        problem = (
            f"Invalid non-alphanumeric character '#x{ord(other[0]):X}' was found in the message attribute name. Can "
            "only include alphanumeric characters, hyphens, underscores, or dots."
        )
    elif name[:1] == ".":
        problem = "Invalid message attribute name starting with character '.' was found."
    elif name[-1:] == ".":
        problem = "Invalid message attribute name ending with character '.' was found."
    elif ".." in name:
        problem = "Message attribute name can not have successive '.' character."
    else:
        is_binary, kind = value.data_type.partition(".")[0] == "Binary", value.data_type[:256]
        given, wrong = value.binary_value, value.string_value
        if not is_binary:
            given, wrong = wrong, given  # type: ignore[assignment]
        if given:
            return
        subject = f"The message attribute '{name}'"
        problem = f"{subject} must contain non-empty message attribute value for message attribute type '{kind}'."
        if wrong:
            problem = f"{subject} with type '{kind}' must use field '{'Binary' if is_binary else 'String'}'."
        if not _SUPPORTED.match(value.data_type):
            return
    raise AwsError(INVALID_VALUE, problem)


def _fifo_ids(kept: dict[str, str], message: shapes.NewMessage) -> tuple[str, str]:
    """The group and the dedup id of a message."""
    if not message.message_group_id:
        raise invalid("The MessageGroupId parameter is required for FIFO topics")
    group = _fifo_id(message.message_group_id, "MessageGroupId")
    if message.message_deduplication_id:
        dedup_id = _fifo_id(message.message_deduplication_id, "MessageDeduplicationId")
    elif kept.get("ContentBasedDeduplication") == "true":
        dedup_id = sha256(message.message.encode()).hexdigest()
    else:
        raise invalid(
            "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly"
        )
    if kept.get("FifoThroughputScope") == "MessageGroup":
        dedup_id = f"{scope_of(group)} {dedup_id}"
    return group, dedup_id


def _fifo_id(id: str, parameter: str) -> str:
    if _FIFO_ID.fullmatch(id) is None:
        reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length"
        raise invalid(f"{parameter} Reason: {reason}")
    return id


def _size(message: shapes.NewMessage) -> int:
    size = len(message.message.encode("utf-8", "surrogatepass"))
    for name, value in (message.message_attributes or {}).items():
        size += len(name.encode()) + len(value.data_type)
        size += len((value.string_value or "").encode()) + len(value.binary_value or b"")
    return size
