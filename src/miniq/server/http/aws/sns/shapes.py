"""The requests and replies of SNS."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from miniq.server.http.aws.shape import Shape, Xml

MEMBER = Xml("member", is_wrapped=True)
Texts = Annotated[dict[str, str], Xml("entry", "key", "value", is_wrapped=True)]


class Tag(Shape):
    key: str
    value: str


class AttributeValue(Shape):
    """The value of a message attribute; `string_value` or `binary_value` holds it, depending on its type."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None


MessageAttributes = Annotated[dict[str, AttributeValue], Xml("entry", is_wrapped=True)]


class OfTopic(Shape, kw_only=True):
    topic_arn: str


class OfResource(Shape, kw_only=True):
    resource_arn: str


class OfSubscription(Shape, kw_only=True):
    subscription_arn: str


# Topics


class CreateTopicRequest(Shape, kw_only=True):
    name: str
    attributes: Texts | None = None
    tags: Annotated[list[Tag] | None, MEMBER] = None
    data_protection_policy: str | None = None


class CreateTopicReply(Shape):
    topic_arn: str


class DeleteTopicRequest(OfTopic):
    pass


class ListTopicsRequest(Shape, kw_only=True):
    next_token: str | None = None


class TopicEntry(Shape):
    topic_arn: str


class ListTopicsReply(Shape):
    topics: Annotated[list[TopicEntry], MEMBER] = []
    next_token: str | None = None


class GetTopicAttributesRequest(OfTopic):
    pass


class AttributesReply(Shape):
    attributes: Texts = {}


class SetTopicAttributesRequest(OfTopic, kw_only=True):
    attribute_name: str
    attribute_value: str | None = None


class TagResourceRequest(OfResource, kw_only=True):
    tags: Annotated[list[Tag], MEMBER]


class UntagResourceRequest(OfResource, kw_only=True):
    tag_keys: Annotated[list[str], MEMBER]


class ListTagsForResourceRequest(OfResource):
    pass


class ListTagsForResourceReply(Shape):
    tags: Annotated[list[Tag], MEMBER] = []


class EmptyReply(Shape):
    pass


class AddPermissionRequest(OfTopic, kw_only=True):
    label: str
    account_ids: Annotated[list[str], MEMBER] = field(name="AWSAccountId")
    actions: Annotated[list[str], MEMBER] = field(name="ActionName")


class RemovePermissionRequest(OfTopic, kw_only=True):
    label: str


# Subscriptions


class SubscribeRequest(OfTopic, kw_only=True):
    protocol: str
    endpoint: str | None = None
    attributes: Texts | None = None
    return_subscription_arn: bool | None = None


class SubscriptionReply(Shape):
    subscription_arn: str


class ConfirmSubscriptionRequest(OfTopic, kw_only=True):
    token: str
    authenticate_on_unsubscribe: str | None = None


class UnsubscribeRequest(OfSubscription):
    pass


class ListSubscriptionsRequest(Shape, kw_only=True):
    next_token: str | None = None


class ListSubscriptionsByTopicRequest(OfTopic, kw_only=True):
    next_token: str | None = None


class SubscriptionEntry(Shape):
    subscription_arn: str
    owner: str
    protocol: str
    endpoint: str
    topic_arn: str


class SubscriptionsReply(Shape):
    subscriptions: Annotated[list[SubscriptionEntry], MEMBER] = []
    next_token: str | None = None


class GetSubscriptionAttributesRequest(OfSubscription):
    pass


class SetSubscriptionAttributesRequest(OfSubscription, kw_only=True):
    attribute_name: str
    attribute_value: str | None = None


# Messages


class NewMessage(Shape, kw_only=True):
    """A message to publish, alone or in a batch."""

    message: str
    subject: str | None = None
    message_structure: str | None = None
    message_attributes: MessageAttributes | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class PublishRequest(NewMessage, kw_only=True):
    topic_arn: str | None = None
    target_arn: str | None = None
    phone_number: str | None = None


class PublishReply(Shape):
    message_id: str
    sequence_number: str | None = None


class PublishEntry(NewMessage, kw_only=True):
    id: str


class PublishBatchRequest(OfTopic, kw_only=True):
    entries: Annotated[list[PublishEntry], MEMBER] = field(name="PublishBatchRequestEntries")


class PublishedEntry(Shape):
    id: str
    message_id: str
    sequence_number: str | None = None


class FailedEntry(Shape):
    id: str
    code: str
    message: str | None
    sender_fault: bool


class PublishBatchReply(Shape):
    successful: Annotated[list[PublishedEntry], MEMBER] = []
    failed: Annotated[list[FailedEntry], MEMBER] = []
