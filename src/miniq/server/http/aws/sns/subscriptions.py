"""The actions on subscriptions of queues to topics."""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

from miniq import dispatch
from miniq.api import operations as ops
from miniq.errors import SubscriptionNotFound, TopicNotFound
from miniq.server.http.aws.actions import Call
from miniq.server.http.aws.addresses import ACCOUNT, queue_of_arn
from miniq.server.http.aws.errors import AwsError
from miniq.server.http.aws.sns import attributes, shapes
from miniq.server.http.aws.sns.errors import NOT_FOUND, invalid, no_subscription
from miniq.server.http.aws.sns.topics import page_of, readable, sns
from miniq.server.http.aws.sqs.queue_attributes import is_fifo as is_fifo_queue
from miniq.topic import Subscription, TopicInfo

PROTOCOLS = ("http", "https", "email", "email-json", "sms", "application", "lambda", "firehose")
"""The other protocols of AWS."""
SUBSCRIBING = "Attributes Reason: "
"""What the error for an attribute begins with that came with the subscription."""


@sns(shapes.SubscribeRequest, "manage", "topic")
async def subscribe(call: Call) -> shapes.SubscriptionReply:
    info, given = await call.broker.topics.get(call.topic), call.request.attributes or {}
    queue = _endpoint(call)
    existing = next((one for one in info.subscriptions if one.queue == queue), None)
    if existing is not None:
        return _existing(call, existing, given)
    options = attributes.Options()
    for name, text in given.items():
        attributes.set_option(options, name, text, SUBSCRIBING)
    subscription = str(uuid4())
    await _save(call, subscription, queue, None, options)
    return shapes.SubscriptionReply(call.place.topic_arn(call.topic, subscription))


def _endpoint(call: Call) -> str:
    """The queue that a request subscribes. Raises unless the caller may send to it, before it is looked for, so that a
    key does not tell which queues of others exist."""
    protocol, endpoint = call.request.protocol, call.request.endpoint or ""
    if protocol in PROTOCOLS:
        raise invalid(f"Protocol Reason: {protocol} is not supported here, only sqs")
    if protocol != "sqs":
        raise invalid(f"Amazon SNS does not support this protocol string: {protocol[:80]}")
    queue = queue_of_arn(endpoint)
    if queue is None:
        raise invalid("SQS endpoint ARN")
    if is_fifo_queue(queue) and not attributes.is_fifo(call.topic):
        reason = "FIFO SQS Queues can not be subscribed to standard SNS topics"
        raise invalid(f"Invalid parameter: Endpoint Reason: {reason}")
    call.broker.keys.check(call.caller.secret, "send", queue)
    if call.broker.catalog.find(queue) is None:
        raise AwsError(NOT_FOUND, f"The queue {queue[:128]} does not exist")
    return queue


def _existing(call: Call, subscription: Subscription, given: dict[str, str]) -> shapes.SubscriptionReply:
    """The answer for a queue that is subscribed; raises unless the attributes that are given are those it has."""
    wanted = attributes.options_of(subscription)
    for name, text in given.items():
        attributes.set_option(wanted, name, text, SUBSCRIBING)
    if wanted != attributes.options_of(subscription):
        raise invalid("Attributes Reason: Subscription already exists with different attributes")
    return shapes.SubscriptionReply(call.place.topic_arn(call.topic, subscription.name))


async def _save(call: Call, name: str, queue: str, pattern: str | None, options: attributes.Options) -> None:
    """Create or replace a subscription."""
    envelope = None if options.is_raw else attributes.envelope_of(call.place, call.topic, name)
    made = ops.Subscribe(
        call.topic, name, queue, pattern, options.filter, options.filter_on, envelope, options.kept or None
    )
    await dispatch.perform(call.broker, made, call.caller)


@sns(shapes.ConfirmSubscriptionRequest, "manage", "topic")
async def confirm_subscription(call: Call) -> shapes.SubscriptionReply:
    """Subscriptions of queues need no confirmation, so no token was ever given out."""
    raise invalid("Token")


@sns(shapes.UnsubscribeRequest, "manage", "subscription")
async def unsubscribe(call: Call) -> None:
    with suppress(TopicNotFound, SubscriptionNotFound):  # as at AWS
        await call.broker.topics.unsubscribe(call.topic, call.subscription)


@sns(shapes.ListSubscriptionsRequest, "read", "none")
async def list_subscriptions(call: Call) -> shapes.SubscriptionsReply:
    return _page(call, await readable(call))


@sns(shapes.ListSubscriptionsByTopicRequest, "read", "topic")
async def list_subscriptions_by_topic(call: Call) -> shapes.SubscriptionsReply:
    return _page(call, [await call.broker.topics.get(call.topic)])


def _page(call: Call, topics: list[TopicInfo]) -> shapes.SubscriptionsReply:
    place = call.place
    each = [
        shapes.SubscriptionEntry(
            place.topic_arn(info.name, one.name), ACCOUNT, "sqs", place.arn(one.queue), place.topic_arn(info.name)
        )
        for info in topics
        for one in info.subscriptions
    ]
    each.sort(key=lambda entry: entry.subscription_arn)
    return shapes.SubscriptionsReply(*page_of(each, call.request.next_token, lambda entry: entry.subscription_arn))


async def _subscription(call: Call) -> Subscription:
    try:
        info = await call.broker.topics.get(call.topic)
    except TopicNotFound:
        raise no_subscription() from None
    for subscription in info.subscriptions:
        if subscription.name == call.subscription:
            return subscription
    raise no_subscription()


@sns(shapes.GetSubscriptionAttributesRequest, "read", "subscription")
async def get_subscription_attributes(call: Call) -> shapes.AttributesReply:
    found = await _subscription(call)
    return shapes.AttributesReply(attributes.describe_subscription(call.topic, found, call.place))


@sns(shapes.SetSubscriptionAttributesRequest, "manage", "subscription")
async def set_subscription_attributes(call: Call) -> None:
    found = await _subscription(call)
    options = attributes.options_of(found)
    attributes.set_option(options, call.request.attribute_name, call.request.attribute_value or "")
    await _save(call, found.name, found.queue, found.pattern, options)
