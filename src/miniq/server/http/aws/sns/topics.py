"""The actions on topics: create, list, delete, attributes, tags, permissions."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from miniq.errors import BadName, TopicNotFound
from miniq.server.http.aws.actions import ACTIONS, Call, action
from miniq.server.http.aws.errors import AwsError
from miniq.server.http.aws.json_text import read_json
from miniq.server.http.aws.message_attributes import INVALID_CHARACTERS, SYSTEM_TAG
from miniq.server.http.aws.sns import attributes, shapes
from miniq.server.http.aws.sns.errors import NOT_FOUND, RESOURCE_NOT_FOUND, invalid
from miniq.topic import TopicInfo

PAGE = 100
T = TypeVar("T")
sns = partial(action, service="sns")


@sns(shapes.CreateTopicRequest, "manage", "name")
async def create_topic(call: Call) -> shapes.CreateTopicReply:
    topic, given = call.topic, call.request.attributes or {}
    tags = _tags(call.request.tags or ())
    if call.request.data_protection_policy:
        raise invalid("DataProtectionPolicy Reason: not supported")
    try:
        info = await call.broker.topics.get(topic)
    except (TopicNotFound, BadName):
        attributes.check_name(topic, given)
        changes = attributes.topic_changes(topic, given, is_new=True)
        call.caller.check_new_topic(call.broker, topic)
        await call.broker.topics.configure(topic, {"sns": changes, "tags": tags})
    else:
        changes = attributes.topic_changes(topic, given, is_new=True)
        has = attributes.describe_topic(info, call.place)
        if any((text or "") != has.get(name, "") for name, text in changes.items()):
            raise invalid("Attributes Reason: Topic already exists with different attributes")
        if tags and tags != info.settings.tags:
            raise invalid("Tags Reason: Topic already exists with different tags")
    return shapes.CreateTopicReply(call.place.topic_arn(topic))


@sns(shapes.DeleteTopicRequest, "manage", "topic")
async def delete_topic(call: Call) -> None:
    try:
        await call.broker.topics.delete(call.topic)
    except TopicNotFound:
        return  # as at AWS


@sns(shapes.ListTopicsRequest, "read", "none")
async def list_topics(call: Call) -> shapes.ListTopicsReply:
    names = [info.name for info in await readable(call)]
    page, token = page_of(names, call.request.next_token, str)
    return shapes.ListTopicsReply([shapes.TopicEntry(call.place.topic_arn(name)) for name in page], token)


async def readable(call: Call) -> list[TopicInfo]:
    """The topics that the caller may read."""
    return [info for info in await call.broker.topics.all() if call.caller.may(call.broker, "read", info.name)]


def page_of(items: Sequence[T], token: str | None, key: Callable[[T], str]) -> tuple[list[T], str | None]:
    """A page of items that are sorted by their keys, and the token of the next page."""
    after = ""
    if token:
        try:
            after = b64decode(token, b"-_", validate=True).decode()
        except ValueError:
            raise invalid("NextToken Reason: invalid or expired") from None
    rest = [item for item in items if key(item) > after]
    page = rest[:PAGE]
    return page, urlsafe_b64encode(key(page[-1]).encode()).decode() if len(rest) > PAGE else None


@sns(shapes.GetTopicAttributesRequest, "read", "topic")
async def get_topic_attributes(call: Call) -> shapes.AttributesReply:
    info = await call.broker.topics.get(call.topic)
    return shapes.AttributesReply(attributes.describe_topic(info, call.place))


@sns(shapes.SetTopicAttributesRequest, "manage", "topic")
async def set_topic_attributes(call: Call) -> None:
    await call.broker.topics.get(call.topic)
    given = {call.request.attribute_name: call.request.attribute_value or ""}
    await call.broker.topics.configure(call.topic, {"sns": attributes.topic_changes(call.topic, given)})


# Tags


@sns(shapes.TagResourceRequest, "manage", "topic")
async def tag_resource(call: Call) -> shapes.EmptyReply:
    await _resource(call)
    await call.broker.topics.configure(call.topic, {"tags": _tags(call.request.tags)})
    return shapes.EmptyReply()


@sns(shapes.UntagResourceRequest, "manage", "topic")
async def untag_resource(call: Call) -> shapes.EmptyReply:
    await _resource(call)
    await call.broker.topics.configure(call.topic, {"tags": dict.fromkeys(call.request.tag_keys)})
    return shapes.EmptyReply()


@sns(shapes.ListTagsForResourceRequest, "read", "topic")
async def list_tags_for_resource(call: Call) -> shapes.ListTagsForResourceReply:
    tags = (await _resource(call)).settings.tags
    return shapes.ListTagsForResourceReply([shapes.Tag(key, value) for key, value in tags.items()])


async def _resource(call: Call) -> TopicInfo:
    try:
        return await call.broker.topics.get(call.topic)
    except TopicNotFound:
        raise AwsError(RESOURCE_NOT_FOUND, "Resource does not exist") from None


def _tags(tags: Sequence[shapes.Tag]) -> dict[str, str]:
    texts = {tag.key: tag.value for tag in tags}
    if len(texts) < len(tags):
        raise invalid("Duplicated keys are not allowed.")
    for key, value in texts.items():
        if key.lower().startswith(SYSTEM_TAG):
            raise invalid(f"Tags Reason: Keys must not begin with {SYSTEM_TAG}")
        if INVALID_CHARACTERS.search(key + value) is not None:
            raise invalid("Tags Reason: Tags must not have characters that XML cannot express")
    return texts


# Permissions, which are statements of the topic's policy. Policies are kept; rights are those of API keys.


@sns(shapes.AddPermissionRequest, "manage", "topic")
async def add_permission(call: Call) -> None:
    policy, label = await _policy(call), call.request.label
    if any(statement.get("Sid") == label for statement in policy["Statement"]):
        raise invalid("Statement already exists")
    for name in call.request.actions:
        if name not in ACTIONS["sns"]:
            raise invalid("Policy statement action out of service scope!")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in call.request.account_ids]},
        "Action": [f"SNS:{name}" for name in call.request.actions],
        "Resource": call.place.topic_arn(call.topic),
    }
    await _set_policy(call, policy | {"Statement": [*policy["Statement"], statement]})


@sns(shapes.RemovePermissionRequest, "manage", "topic")
async def remove_permission(call: Call) -> None:
    policy = await _policy(call)
    rest = [statement for statement in policy["Statement"] if statement.get("Sid") != call.request.label]
    if len(rest) == len(policy["Statement"]):
        raise AwsError(NOT_FOUND, "Statement does not exist")
    await _set_policy(call, policy | {"Statement": rest})


async def _policy(call: Call) -> dict[str, Any]:
    """The policy of a topic, whose statements are a list of objects."""
    info = await call.broker.topics.get(call.topic)
    try:
        given = read_json(info.settings.sns.get("Policy", "null"))
    except ValueError:
        given = None
    policy: dict[str, Any] = attributes.default_policy(call.topic, call.place)
    if isinstance(given, dict):
        policy = given
    statements = policy.get("Statement", [])
    each = statements if isinstance(statements, list) else [statements]
    return policy | {"Statement": [statement for statement in each if isinstance(statement, dict)]}


async def _set_policy(call: Call, policy: dict[str, Any]) -> None:
    await call.broker.topics.configure(call.topic, {"sns": {"Policy": json.dumps(policy)}})
