"""The actions on queues: create, list, delete, purge, attributes, tags, permissions."""

from __future__ import annotations

import json
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from miniq import dispatch
from miniq.api import operations as ops
from miniq.message import SECOND
from miniq.server.http.aws.actions import ACTIONS, ANY_RIGHT, Call, action
from miniq.server.http.aws.errors import (
    INVALID_ATTRIBUTE_NAME,
    OVER_LIMIT,
    PURGE_IN_PROGRESS,
    QUEUE_NAME_EXISTS,
    AwsError,
    bad_value,
    invalid,
    missing,
)
from miniq.server.http.aws.json_text import read_json
from miniq.server.http.aws.message_attributes import INVALID_CHARACTERS, SYSTEM_TAG
from miniq.server.http.aws.sqs import queue_attributes, shapes

PURGE_PAUSE = 60 * SECOND
PURGED = "PurgedTimestamp"
"""When a queue was purged, in microseconds: beside its attributes, so that all brokers know it."""
PAGE = 1000
MOST_ACTIONS = 7
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}|arn:[a-z-]+:iam::[0-9]{12}:[^ ]+")


@action(shapes.CreateQueueRequest, "manage", "name")
async def create_queue(call: Call) -> shapes.QueueUrlReply:
    queue, attributes = call.queue, call.request.attributes or {}
    await call.broker.catalog.refresh()
    settings = call.broker.catalog.find(queue)
    if settings is None or attributes:
        queue_attributes.check_name(queue, attributes)
    if settings is None:
        now = call.broker.clock.now()
        changes = queue_attributes.creation(queue, attributes, now, *_targets(call))
        if call.request.tags:
            _check_tags(call.request.tags)
            changes["tags"] = call.request.tags
        await _configure(call, changes)
    elif attributes:
        queue_attributes.changes(queue, attributes, *_targets(call))
        name = queue_attributes.difference(queue, settings, attributes, call.place)
        if name is not None:
            text = f"A queue already exists with the same name and a different value for attribute {name}"
            raise AwsError(QUEUE_NAME_EXISTS, text)
    return shapes.QueueUrlReply(call.place.url(queue))


def _targets(call: Call) -> tuple[queue_attributes.Exists, queue_attributes.Exists]:
    """Whether a queue exists, and whether it may become the dead-letter queue of the one that is called. Raises
    unless the caller may send to it, so that a key does not tell which queues of others exist."""
    find = call.broker.catalog.find

    def exists(queue: str) -> bool:
        call.broker.keys.check(call.caller.secret, "send", queue)
        return find(queue) is not None

    def allows(queue: str) -> bool:
        settings = find(queue)
        return settings is None or queue_attributes.allows_source(settings.sqs.get("RedriveAllowPolicy"), call.queue)

    return exists, allows


async def _configure(call: Call, changes: dict[str, Any]) -> None:
    await dispatch.perform(call.broker, ops.Configure(call.queue, changes), call.caller)


@action(shapes.GetQueueUrlRequest, ANY_RIGHT, "name")
async def get_queue_url(call: Call) -> shapes.QueueUrlReply:
    await call.settings()
    return shapes.QueueUrlReply(call.place.url(call.queue))


@action(shapes.ListQueuesRequest, ANY_RIGHT, "none")
async def list_queues(call: Call) -> shapes.ListQueuesReply:
    broker, prefix = call.broker, call.request.queue_name_prefix or ""
    broker.check_open()
    await broker.catalog.refresh()
    names = [name for name in broker.catalog.names() if name.startswith(prefix) and call.has_right(name)]
    return shapes.ListQueuesReply(*_page(call, names))


@action(shapes.ListDeadLetterSourceQueuesRequest, "read")
async def list_dead_letter_source_queues(call: Call) -> shapes.ListDeadLetterSourceQueuesReply:
    await call.settings()
    return shapes.ListDeadLetterSourceQueuesReply(*_page(call, sources(call, call.queue)))


def sources(call: Call, dead: str) -> list[str]:
    """The queues whose dead letters go to a queue, as far as the caller may see them."""
    return [
        name
        for name, settings in call.broker.catalog.queues.items()
        if queue_attributes.dead_letter_queue(name, settings) == dead and call.has_right(name)
    ]


def _page(call: Call, names: Sequence[str]) -> tuple[list[str], str | None]:
    """The URLs of a page of queues, and the token of the next page, if the caller asks for pages."""
    most, token = call.request.max_results, call.request.next_token
    if most is not None and not 1 <= most <= PAGE:
        reason = f"MaxResults must be an integer between 1 and {PAGE}."
        raise bad_value(most, "MaxResults", reason)
    after = ""
    if token:
        try:
            after = b64decode(token, b"-_", validate=True).decode()
        except ValueError:
            raise invalid("Invalid or expired next token.") from None
    names = sorted(name for name in names if name > after)
    page = names[: most or PAGE]
    more = most is not None and len(names) > most
    return [call.place.url(name) for name in page], urlsafe_b64encode(page[-1].encode()).decode() if more else None


@action(shapes.DeleteQueueRequest, "manage")
async def delete_queue(call: Call) -> None:
    await call.broker.delete_queue(call.queue)
    call.memory.tasks.pop(call.queue, None)


@action(shapes.PurgeQueueRequest, "manage")
async def purge_queue(call: Call) -> None:
    await call.broker.catalog.refresh()
    purged, now = (await call.settings()).sqs.get(PURGED, ""), call.broker.clock.now()
    if purged.isascii() and purged.isdigit() and 0 <= now - int(purged[:20]) < PURGE_PAUSE:
        text = f"Only one PurgeQueue operation on {call.queue} is allowed every 60 seconds."
        raise AwsError(PURGE_IN_PROGRESS, text)
    await call.broker.purge(call.queue, forget=True)
    await _configure(call, {"sqs": {PURGED: str(now)}})


# Attributes


@action(shapes.GetQueueAttributesRequest, "read")
async def get_queue_attributes(call: Call) -> shapes.GetQueueAttributesReply:
    names = call.request.attribute_names or ()
    info = await call.broker.queue(call.queue)
    for name in names:
        if name not in queue_attributes.NAMES:
            raise AwsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:256]}.")
    attributes = queue_attributes.describe(call.queue, info.settings, info.counts, call.place)
    if "All" not in names:
        attributes = {name: attributes[name] for name in names if name in attributes}
    return shapes.GetQueueAttributesReply(attributes)


@action(shapes.SetQueueAttributesRequest, "manage")
async def set_queue_attributes(call: Call) -> None:
    await call.settings()
    await call.broker.catalog.refresh()
    changes = queue_attributes.changes(call.queue, call.request.attributes, *_targets(call))
    if {"FifoThroughputLimit", "DeduplicationScope"} & changes.get("sqs", {}).keys():
        queue_attributes.check_throughput({**(await call.settings()).sqs, **changes["sqs"]})
    await _set(call, changes)


async def _set(call: Call, changes: dict[str, Any]) -> None:
    modified = {"LastModifiedTimestamp": str(call.broker.clock.now() // SECOND)}
    await _configure(call, changes | {"sqs": changes.get("sqs", {}) | modified})


# Tags


@action(shapes.ListQueueTagsRequest, "read")
async def list_queue_tags(call: Call) -> shapes.ListQueueTagsReply:
    return shapes.ListQueueTagsReply((await call.settings()).tags)


@action(shapes.TagQueueRequest, "manage")
async def tag_queue(call: Call) -> None:
    await call.settings()
    if not call.request.tags:
        raise missing("Tags")
    _check_tags(call.request.tags)
    await _configure(call, {"tags": call.request.tags})


def _check_tags(tags: Mapping[str, str]) -> None:
    """Raise if a tag is reserved, or has characters that XML cannot express."""
    for key, text in tags.items():
        if key.lower().startswith(SYSTEM_TAG):
            raise bad_value(key[:128], "Tags", f"Keys must not begin with {SYSTEM_TAG}.")
        if INVALID_CHARACTERS.search(key + text) is not None:
            raise bad_value(repr(key[:128]), "Tags", "Tags must not have characters that XML cannot express.")


@action(shapes.UntagQueueRequest, "manage")
async def untag_queue(call: Call) -> None:
    await call.settings()
    if not call.request.tag_keys:
        raise invalid("Tag keys must be between 1 and 128 characters in length.")
    await _configure(call, {"tags": dict.fromkeys(call.request.tag_keys)})


# Permissions, which are statements of the queue's policy. Policies are kept; rights are those of API keys.


@action(shapes.AddPermissionRequest, "manage")
async def add_permission(call: Call) -> None:
    policy = _policy((await call.settings()).sqs.get("Policy"), call)
    label, accounts, names = call.request.label, call.request.account_ids, call.request.actions
    if not names:
        raise missing("Actions")
    if _LABEL.fullmatch(label) is None:
        reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        raise bad_value(label[:256], "Label", reason)
    unknown = [account for account in accounts if _ACCOUNT.fullmatch(account) is None]
    if unknown or not accounts:
        raise bad_value(f"[{', '.join(unknown)[:256]}]", "PrincipalId", "Unable to verify.")
    if len(names) > MOST_ACTIONS:
        raise AwsError(OVER_LIMIT, f"{len(names)} Actions were found, maximum allowed is {MOST_ACTIONS}.")
    for name in names:
        if name != "*" and name not in ACTIONS["sqs"]:
            reason = "Please refer to the appropriate WSDL for a list of valid actions. "
            raise bad_value(f"SQS:{name[:80]}", "ActionName", reason)
    if any(statement.get("Sid") == label for statement in policy["Statement"]):
        raise bad_value(label, "Label", "Already exists.")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in accounts])},
        "Action": _one_or_all([f"SQS:{name}" for name in names]),
        "Resource": call.place.arn(call.queue),
    }
    await _set_policy(call, policy, [*policy["Statement"], statement])


@action(shapes.RemovePermissionRequest, "manage")
async def remove_permission(call: Call) -> None:
    policy = _policy((await call.settings()).sqs.get("Policy"), call)
    rest = [statement for statement in policy["Statement"] if statement.get("Sid") != call.request.label]
    if len(rest) == len(policy["Statement"]):
        raise bad_value(call.request.label, "Label", "can't find label.")
    await _set_policy(call, policy, rest)


def _policy(text: str | None, call: Call) -> dict[str, Any]:
    """The policy of a queue, whose statements are a list of objects."""
    try:
        given = read_json(text or "null")
    except ValueError:
        given = None
    policy: dict[str, Any] = given if isinstance(given, dict) else {}
    if not policy:
        policy = {"Version": "2008-10-17", "Id": f"{call.place.arn(call.queue)}/SQSDefaultPolicy"}
    statements = policy.get("Statement", [])
    each = statements if isinstance(statements, list) else [statements]
    return policy | {"Statement": [statement for statement in each if isinstance(statement, Mapping)]}


async def _set_policy(call: Call, policy: dict[str, Any], statements: Sequence[Any]) -> None:
    text = json.dumps(policy | {"Statement": statements}) if statements else None
    await _set(call, {"sqs": {"Policy": text}})


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
