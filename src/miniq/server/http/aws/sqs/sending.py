"""The actions that send messages, alone and in batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import md5, sha256

from miniq.broker import rules
from miniq.errors import MiniQError
from miniq.ids import sequence_number
from miniq.message import Draft, PlainDrafts, QueueSettings
from miniq.server.http.aws import message_attributes
from miniq.server.http.aws.actions import Call, action
from miniq.server.http.aws.errors import BATCH_TOO_LONG, AwsError, bad_value, invalid, missing, translated
from miniq.server.http.aws.message_attributes import GROUP, INVALID_CHARACTERS, TRACE_ATTRIBUTE, check_text
from miniq.server.http.aws.sqs import queue_attributes, shapes
from miniq.server.http.aws.sqs.batches import check_entries, failure

TEXT = "text/plain"
"""The content type of messages that arrive by SQS."""
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_NOT_THIS_TYPE = "The request include parameter that is not valid for this queue type."
_NO_DEDUP_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


@action(shapes.SendMessageRequest, "send")
async def send_message(call: Call) -> shapes.SentMessage:
    settings, message = await call.settings(), call.request
    draft = _draft(call, settings, message)
    (id,) = await call.broker.send(call.queue, _drafts([draft]), limits=call.limits)
    return shapes.SentMessage(message_id=id, **_digests(call.queue, message, id))


@action(shapes.SendMessageBatchRequest, "send")
async def send_message_batch(call: Call) -> shapes.SendMessageBatchReply:
    settings, entries = await call.settings(), call.request.entries
    check_entries(entries, "SendMessageBatchRequestEntry")
    total = 0
    for entry in entries:
        if queue_attributes.is_fifo(call.queue):
            _check_fifo_entry(settings, entry)
        total += _size(entry)
    if total > queue_attributes.MAX_SIZE:
        most = queue_attributes.MAX_SIZE
        text = f"Batch requests cannot be longer than {most} bytes. You have sent {total} bytes."
        raise AwsError(BATCH_TOO_LONG, text)
    reply = shapes.SendMessageBatchReply()
    accepted: list[shapes.SendEntry] = []
    drafts: list[Draft] = []
    for entry in entries:
        try:
            drafts.append(_draft(call, settings, entry))
        except AwsError as error:
            reply.failed.append(failure(entry.id, error))
        else:
            accepted.append(entry)
    if drafts:
        ids = await call.broker.send(call.queue, _drafts(drafts), limits=call.limits)
        for entry, id in zip(accepted, ids, strict=True):
            sent = shapes.SentEntry(id=entry.id, message_id=id, **_digests(call.queue, entry, id))
            reply.successful.append(sent)
    return reply


def _check_fifo_entry(settings: QueueSettings, entry: shapes.SendEntry) -> None:
    """Raise for the whole batch if an entry lacks what a FIFO queue needs."""
    if not entry.message_group_id:
        raise invalid("The request must contain the parameter MessageGroupId.")
    if not entry.message_deduplication_id and settings.sqs.get("ContentBasedDeduplication") != "true":
        raise invalid(_NO_DEDUP_ID)


def _drafts(drafts: list[Draft]) -> Sequence[Draft]:
    """Drafts for the broker, which handles those that are only bodies faster."""
    if all(draft.headers is None and draft.delay is None and draft.group is None for draft in drafts):
        return PlainDrafts([draft.body for draft in drafts], TEXT)
    return drafts


def _draft(call: Call, settings: QueueSettings, message: shapes.NewMessage) -> Draft:
    """A message to send; raises if it is invalid."""
    body = message.message_body
    if not body:
        raise missing("MessageBody")
    most, limits = queue_attributes.max_size(settings), call.limits
    if _size(message) > most:
        raise invalid(f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.")
    if INVALID_CHARACTERS.search(body) is not None:
        check_text(body)
    is_fifo = queue_attributes.is_fifo(call.queue)
    headers = _headers(call.trace, message, is_fifo)
    group = dedup_id = None
    if is_fifo:
        group, dedup_id = _fifo_ids(settings, message)
    elif message.message_deduplication_id:
        raise bad_value(message.message_deduplication_id, "MessageDeduplicationId", _NOT_THIS_TYPE)
    draft = Draft(
        body.encode(),
        TEXT,
        headers,
        delay=_delay(message.delay_seconds, is_fifo),
        group=group,
        dedup_id=dedup_id,
    )
    try:
        if headers is not None or len(draft.body) > limits.body_bytes:
            rules.check_draft(draft, limits)
    except MiniQError as error:
        raise translated(error) from None
    return draft


def _headers(trace: str | None, message: shapes.NewMessage, is_fifo: bool) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    if message.message_attributes:
        message_attributes.check(message.message_attributes)
        headers = message_attributes.to_headers(message.message_attributes)
    for name, value in (message.message_system_attributes or {}).items():
        if name != TRACE_ATTRIBUTE:
            raise invalid(
                f"Message system attribute name '{name[:256]}' is invalid. The only one is {TRACE_ATTRIBUTE}."
            )
        message_attributes.check_value(name, value)
        trace = value.string_value
    headers |= message_attributes.trace_header(trace)
    if message.message_group_id is not None and not is_fifo:
        headers[GROUP] = fifo_id(message.message_group_id, "MessageGroupId")
    return headers or None


def _delay(seconds: int | None, is_fifo: bool) -> float | None:
    if seconds is None:
        return None
    if is_fifo:
        if seconds:
            raise bad_value(seconds, "DelaySeconds", _NOT_THIS_TYPE)
        return None
    if not 0 <= seconds <= 900:
        raise bad_value(seconds, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
    return float(seconds)


def _fifo_ids(settings: QueueSettings, message: shapes.NewMessage) -> tuple[str, str]:
    """The group and the dedup id of a message."""
    if not message.message_group_id:
        raise missing("MessageGroupId")
    group = fifo_id(message.message_group_id, "MessageGroupId")
    if message.message_deduplication_id:
        dedup_id = fifo_id(message.message_deduplication_id, "MessageDeduplicationId")
    elif settings.sqs.get("ContentBasedDeduplication") == "true":
        dedup_id = sha256(message.message_body.encode()).hexdigest()
    else:
        raise invalid(_NO_DEDUP_ID)
    if settings.sqs.get("DeduplicationScope") == "messageGroup":
        dedup_id = f"{scope_of(group)} {dedup_id}"
    return group, dedup_id


def scope_of(group: str) -> str:
    """What precedes a dedup id that is valid within a group. It has no space, which separates the two."""
    return group if len(group) < 100 else sha256(group.encode()).hexdigest()


def fifo_id(id: str, parameter: str) -> str:
    """An id of a FIFO queue; raises if it is invalid."""
    if _FIFO_ID.fullmatch(id) is None:
        reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise bad_value(id[:256], parameter, reason)
    return id


def _size(message: shapes.NewMessage) -> int:
    body = message.message_body
    size = len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))
    return size + message_attributes.size(message.message_attributes) if message.message_attributes else size


def _digests(queue: str, message: shapes.NewMessage, id: str) -> dict[str, str]:
    """What a reply says about a message that was sent, so that its sender can check it."""
    digests = {"md5_of_body": digest_of(message.message_body.encode())}
    if message.message_attributes:
        digests["md5_of_attributes"] = message_attributes.digest(message.message_attributes)
    if message.message_system_attributes:
        digests["md5_of_system_attributes"] = message_attributes.digest(message.message_system_attributes)
    if queue_attributes.is_fifo(queue):
        digests["sequence_number"] = sequence_number(id)
    return digests


def digest_of(raw: bytes) -> str:
    """The MD5 digest of a body."""
    return md5(raw, usedforsecurity=False).hexdigest()
