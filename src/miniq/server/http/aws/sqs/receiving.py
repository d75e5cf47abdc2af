"""The actions of consumers: receive, delete, and change of visibility, alone and in batches."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from miniq.broker.receipts import origin
from miniq.errors import MessageNotFound
from miniq.ids import sequence_number
from miniq.json_values import is_json
from miniq.message import SECOND, Lease, Leased, Message, Outcome, Stored
from miniq.server.http.aws import message_attributes
from miniq.server.http.aws.actions import Call, action
from miniq.server.http.aws.errors import INVALID_ATTRIBUTE_NAME, MESSAGE_NOT_INFLIGHT, AwsError, bad_value, missing
from miniq.server.http.aws.message_attributes import GROUP, INVALID_CHARACTERS, TRACE, TRACE_ATTRIBUTE
from miniq.server.http.aws.sqs import queue_attributes, shapes
from miniq.server.http.aws.sqs.batches import ENTRIES, check_entries, failure, leases_of, sort_out
from miniq.server.http.aws.sqs.receipts import handle_of, lease_of
from miniq.server.http.aws.sqs.sending import digest_of, fifo_id, scope_of

SYSTEM_ATTRIBUTES = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
)

MAX_TIMEOUT = 43_200
SENDER = "AIDAMINIQ00000000000"
"""The sender of every message: MiniQ keeps none."""


@action(shapes.ReceiveMessageRequest, "receive")
async def receive_message(call: Call) -> shapes.ReceiveMessageReply:
    settings, request = await call.settings(), call.request
    most, timeout, wait = request.max_number_of_messages, request.visibility_timeout, request.wait_time_seconds
    if most is not None and not 1 <= most <= ENTRIES:
        raise bad_value(most, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    if timeout is not None:
        _check_timeout(timeout)
    if wait is None:
        wait = queue_attributes.wait(settings)
    elif not 0 <= wait <= 20:
        raise bad_value(wait, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
    names = {*(request.attribute_names or ()), *(request.message_system_attribute_names or ())}
    unknown = names.difference(SYSTEM_ATTRIBUTES, queue_attributes.NAMES)
    if unknown:
        raise AwsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)[:256]}.")
    permit = call.caller.permit(call.broker, "receive", call.queue) if wait else None
    receive: Callable[..., Coroutine[Any, Any, Leased]] = call.broker.receive
    if request.receive_request_attempt_id is not None and queue_attributes.is_fifo(call.queue):
        attempt = fifo_id(request.receive_request_attempt_id, "ReceiveRequestAttemptId")
        receive = partial(call.memory.attempts.receive, attempt)
    receiving = receive(call.queue, max=most or 1, visibility_timeout=timeout, wait=wait, permit=permit)
    received = await (call.while_connected(receiving) if wait else receiving)
    now = call.broker.clock.now()
    wanted = request.message_attribute_names or ()
    return shapes.ReceiveMessageReply([_received(call, stored, names, wanted, now) for stored in received])


def _received(call: Call, stored: Stored, names: set[str], wanted: Sequence[str], now: int) -> shapes.ReceivedMessage:
    message = stored.message
    body = call.shown(_text(message))
    received = shapes.ReceivedMessage(
        message_id=message.id,
        receipt_handle=handle_of(call.queue, stored),
        md5_of_body=digest_of(body.encode()),
        body=body,
    )
    if names:
        system = _system_attributes(call, stored, now)
        shown = system if "All" in names else {name: text for name, text in system.items() if name in names}
        received.attributes = shown
    if wanted and message.headers:
        chosen = message_attributes.select(message_attributes.from_headers(message.headers), wanted)
        if chosen:
            chosen = message_attributes.shown(chosen, call.shown)
            received.message_attributes = chosen
            received.md5_of_attributes = message_attributes.digest(chosen)
    return received


def _text(message: Message) -> str:
    """The body of a message as text. Bytes of other content types, unless they are text, become base64."""
    kind = message.content_type
    if kind.startswith("text/") or is_json(kind):
        return message.body.decode("utf-8", "replace")
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return b64encode(message.body).decode()
    return b64encode(message.body).decode() if INVALID_CHARACTERS.search(text) else text


def _system_attributes(call: Call, stored: Stored, now: int) -> dict[str, str]:
    message, dead = stored.message, stored.message.dead
    receives = stored.receives + (0 if dead is None else dead.receives)
    first = message.due_at if dead is None else message.sent_at
    if receives == 1:
        lease = origin(stored.receipt or "", now)
        first = now if lease is None else now - lease[1]
    attributes = {
        "SenderId": SENDER,
        "SentTimestamp": str(message.sent_at // 1000),
        "ApproximateReceiveCount": str(receives),
        "ApproximateFirstReceiveTimestamp": str(first // 1000),
    }
    headers = message.headers or {}
    if queue_attributes.is_fifo(call.queue):
        attributes["SequenceNumber"] = sequence_number(message.id)
        if message.dedup_id is not None:
            scope = f"{scope_of(message.group or '')} "
            attributes["MessageDeduplicationId"] = message.dedup_id.removeprefix(scope)
    group = message.group or headers.get(GROUP)
    if group is not None:
        attributes["MessageGroupId"] = group
    if TRACE in headers:
        attributes[TRACE_ATTRIBUTE] = headers[TRACE]
    if dead is not None:
        attributes["DeadLetterQueueSourceArn"] = call.place.arn(dead.origin)
    return attributes


# Delete


@action(shapes.DeleteMessageRequest, "receive")
async def delete_message(call: Call) -> None:
    await call.settings()
    handle = call.request.receipt_handle
    lease = lease_of(call.queue, handle)
    for error in await _delete(call, [handle], [lease]):
        if error is not None:
            raise error


@action(shapes.DeleteMessageBatchRequest, "receive")
async def delete_message_batch(call: Call) -> shapes.DeleteMessageBatchReply:
    await call.settings()
    entries = call.request.entries
    check_entries(entries, "DeleteMessageBatchRequestEntry")
    reply = shapes.DeleteMessageBatchReply()
    valid, leases = leases_of(call, entries, reply.failed)
    if valid:
        errors = await _delete(call, [entry.receipt_handle for entry in valid], leases)
        sort_out(valid, errors, reply.successful, reply.failed)
    return reply


async def _delete(call: Call, handles: Sequence[str], leases: Sequence[Lease]) -> list[AwsError | None]:
    """Delete messages, and return the error of each. A message that is gone, or that another consumer has received
    since, is no error; except that an expired receipt handle is one in a FIFO queue."""
    is_fifo = queue_attributes.is_fifo(call.queue)
    outcomes = await call.broker.ack(call.queue, leases, late=not is_fifo)
    return [
        bad_value(handle, "ReceiptHandle", "The receipt handle has expired.")
        if is_fifo and outcome == "stale"
        else None
        for handle, outcome in zip(handles, outcomes, strict=True)
    ]


# Visibility


@action(shapes.ChangeMessageVisibilityRequest, "receive")
async def change_message_visibility(call: Call) -> None:
    await call.settings()
    handle, timeout = call.request.receipt_handle, call.request.visibility_timeout
    lease = lease_of(call.queue, handle)
    _check_timeout(timeout)
    _check_total(call, timeout, lease)
    for error in await _change_visibility(call, timeout, [handle], [lease]):
        if error is not None:
            raise error


@action(shapes.ChangeMessageVisibilityBatchRequest, "receive")
async def change_message_visibility_batch(call: Call) -> shapes.ChangeMessageVisibilityBatchReply:
    await call.settings()
    entries = call.request.entries
    check_entries(entries, "ChangeMessageVisibilityBatchRequestEntry")
    reply = shapes.ChangeMessageVisibilityBatchReply()
    valid, leases = leases_of(call, entries, reply.failed)
    by_timeout: dict[int, list[tuple[shapes.VisibilityEntry, Lease]]] = {}
    for entry, lease in zip(valid, leases, strict=True):
        try:
            if entry.visibility_timeout is None:
                raise missing("VisibilityTimeout")
            _check_timeout(entry.visibility_timeout)
            _check_total(call, entry.visibility_timeout, lease)
        except AwsError as error:
            reply.failed.append(failure(entry.id, error))
        else:
            by_timeout.setdefault(entry.visibility_timeout, []).append((entry, lease))
    for timeout, pairs in by_timeout.items():
        some = [entry for entry, _ in pairs]
        handles = [entry.receipt_handle for entry in some]
        errors = await _change_visibility(call, timeout, handles, [lease for _, lease in pairs])
        sort_out(some, errors, reply.successful, reply.failed)
    return reply


async def _change_visibility(
    call: Call, seconds: int, handles: Sequence[str], leases: Sequence[Lease]
) -> list[AwsError | None]:
    """Make messages visible after some seconds, and return the error of each."""
    if seconds:
        _, outcomes = await call.broker.extend(call.queue, leases, seconds, late=False)
    else:
        outcomes = await call.broker.release(call.queue, leases, late=False)
    return [await _visibility_error(call, *each) for each in zip(handles, leases, outcomes, strict=True)]


async def _visibility_error(call: Call, handle: str, lease: Lease, outcome: Outcome) -> AwsError | None:
    """Why the visibility of a message was not changed. As at AWS, it is no error, and without effect, if the receipt
    handle has expired and nobody has received the message since, except in a FIFO queue."""
    if outcome == "done":
        return None
    if outcome != "missing":
        with suppress(MessageNotFound):
            stored = await call.broker.get(call.queue, lease.id)
            if stored.receipt == lease.receipt and not queue_attributes.is_fifo(call.queue):
                return None
            return AwsError(MESSAGE_NOT_INFLIGHT, "The message referred to isn't in flight.")
    reason = "Message does not exist or is not available for visibility timeout change."
    return bad_value(handle, "ReceiptHandle", reason)


def _check_total(call: Call, seconds: int, lease: Lease) -> None:
    """Raise if a message would be invisible for too long since it was received."""
    began = origin(lease.receipt, call.broker.clock.now())
    if began is not None and began[1] + seconds * SECOND > MAX_TIMEOUT * SECOND:
        reason = f"Total VisibilityTimeout for the message is beyond the limit [{MAX_TIMEOUT} seconds]"
        raise bad_value(seconds, "VisibilityTimeout", reason)


def _check_timeout(seconds: int) -> None:
    if not 0 <= seconds <= MAX_TIMEOUT:
        raise bad_value(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
