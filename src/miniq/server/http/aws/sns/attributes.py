"""The attributes of topics and subscriptions: which are settings of the broker, which are kept for SNS alone, and what
is valid.

Those that MiniQ has no setting for are in `sns` of the topic or subscription, under their own names.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from miniq.broker.envelopes import Envelope
from miniq.broker.filters import Scope
from miniq.server.http.aws.addresses import ACCOUNT, Place, queue_of_arn
from miniq.server.http.aws.json_text import read_json
from miniq.server.http.aws.message_attributes import INVALID_CHARACTERS
from miniq.server.http.aws.sns.errors import invalid
from miniq.topic import Subscription, TopicInfo

FIFO = ".fifo"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9_-]+")
_FEEDBACK = re.compile(
    r"(HTTP|Firehose|Lambda|Application|SQS)(SuccessFeedbackRoleArn|SuccessFeedbackSampleRate|FailureFeedbackRoleArn)"
)
_KEPT = ("Policy", "DeliveryPolicy", "DisplayName", "KmsMasterKeyId", "TracingConfig", "SignatureVersion")
_FIFO_CHOICES = {"ContentBasedDeduplication": ("true", "false"), "FifoThroughputScope": ("Topic", "MessageGroup")}
_JSON = ("Policy", "DeliveryPolicy", "RedrivePolicy")
_ACTIONS = (
    "GetTopicAttributes",
    "SetTopicAttributes",
    "AddPermission",
    "RemovePermission",
    "DeleteTopic",
    "Subscribe",
    "ListSubscriptionsByTopic",
    "Publish",
)
_RETRIES = {
    "minDelayTarget": 20,
    "maxDelayTarget": 20,
    "numRetries": 3,
    "numMaxDelayRetries": 0,
    "numNoDelayRetries": 0,
    "numMinDelayRetries": 0,
    "backoffFunction": "linear",
}
_DELIVERY = {
    "http": {
        "defaultHealthyRetryPolicy": _RETRIES,
        "disableSubscriptionOverrides": False,
        "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
    }
}
_SCOPES: dict[str, Scope] = {"MessageAttributes": "headers", "MessageBody": "body"}
_BOOLEANS = {"true": True, "false": False}


def is_fifo(topic: str) -> bool:
    return topic.endswith(FIFO)


def check_name(topic: str, attributes: dict[str, str]) -> None:
    """Raise unless this is the name of a topic that SNS would create and MiniQ can."""
    is_valid = len(topic) <= 128 and _TOPIC_NAME.fullmatch(topic.removesuffix(FIFO)) is not None
    wants_fifo = attributes.get("FifoTopic", "").lower() == "true"
    if not is_valid or is_fifo(topic) != wants_fifo:
        if wants_fifo or is_fifo(topic):
            raise invalid(
                "Topic Name Reason: Fifo Topic names must end with .fifo and must be made up of only uppercase and "
                "lowercase ASCII letters, numbers, underscores, and hyphens, and must be between 1 and 128 characters "
                "long."
            )
        raise invalid("Topic Name")


def topic_changes(topic: str, attributes: dict[str, str], *, is_new: bool = False) -> dict[str, str | None]:
    """Attributes as changes of what SNS keeps of a topic; raises if one is invalid."""
    changed: dict[str, str | None] = {}
    for name, text in attributes.items():
        if name in _FIFO_CHOICES and is_fifo(topic):
            changed[name] = _choice(name, text, _FIFO_CHOICES[name])
        elif name == "FifoTopic" and is_new:
            _choice(name, text, ("true", "false"))
        elif name in _KEPT or _FEEDBACK.fullmatch(name) is not None:
            changed[name] = _kept(name, text)
        else:
            raise invalid("AttributeName" if not is_new else f"Attributes Reason: Unknown attribute {name[:256]}")
    return changed


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    value = next((choice for choice in choices if choice.lower() == text.lower()), None)
    if value is None:
        raise invalid(f"{name} Reason: {text[:80]!r} is not one of {', '.join(choices)}")
    return value


def _kept(name: str, text: str) -> str | None:
    if INVALID_CHARACTERS.search(text) is not None:
        raise invalid(f"{name} Reason: It has characters that XML cannot express")
    if name in _JSON and text:
        _json_object(name, text)
    return text or None


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise invalid(f"{name}: failed to parse JSON.")
    return value


def describe_topic(info: TopicInfo, place: Place) -> dict[str, str]:
    """All attributes of a topic."""
    attributes = {
        "TopicArn": place.topic_arn(info.name),
        "Owner": ACCOUNT,
        "Policy": json.dumps(default_policy(info.name, place)),
        "DisplayName": "",
        "SubscriptionsConfirmed": str(len(info.subscriptions)),
        "SubscriptionsPending": "0",
        "SubscriptionsDeleted": "0",
        "EffectiveDeliveryPolicy": json.dumps(_DELIVERY),
    }
    if is_fifo(info.name):
        attributes |= {"FifoTopic": "true", "ContentBasedDeduplication": "false"}
    return attributes | info.settings.sns


def default_policy(topic: str, place: Place) -> dict[str, Any]:
    """The policy of a topic that was given none."""
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{name}" for name in _ACTIONS],
        "Resource": place.topic_arn(topic),
        "Condition": {"StringEquals": {"AWS:SourceOwner": ACCOUNT}},
    }
    return {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}


class Options(Struct):
    """What the attributes of a subscription say."""

    filter: dict[str, Any] | None = None
    filter_on: Scope = "headers"
    is_raw: bool = False
    kept: dict[str, str] = {}


def options_of(subscription: Subscription) -> Options:
    """The options of an existing subscription."""
    return Options(subscription.filter, subscription.filter_on, subscription.envelope is None, dict(subscription.sns))


def set_option(options: Options, name: str, text: str, where: str = "") -> None:
    """Apply an attribute of a subscription; raises if it is invalid. `where` precedes the reason."""
    if name == "RawMessageDelivery":
        if text.lower() not in _BOOLEANS:
            raise invalid(f"{where}RawMessageDelivery: Invalid value [{text[:80]}]. Must be true or false.")
        options.is_raw = _BOOLEANS[text.lower()]
    elif name == "FilterPolicy":
        options.filter = (_json_object(f"{where}FilterPolicy", text) if text else None) or None
    elif name == "FilterPolicyScope":
        if text not in _SCOPES:
            raise invalid(
                f"{where}FilterPolicyScope: Invalid value [{text[:80]}]. Please use either {' or '.join(_SCOPES)}"
            )
        options.filter_on = _SCOPES[text]
    elif name == "RedrivePolicy" and text:
        if queue_of_arn(str(_json_object(name, text).get("deadLetterTargetArn"))) is None:
            raise invalid("RedrivePolicy: deadLetterTargetArn is an invalid arn")
        options.kept[name] = text
    elif name in ("DeliveryPolicy", "RedrivePolicy", "SubscriptionRoleArn"):
        kept = _kept(name, text)
        options.kept.pop(name, None)
        if kept is not None:
            options.kept[name] = kept
    else:
        raise invalid("AttributeName")


def envelope_of(place: Place, topic: str, subscription: str) -> Envelope:
    """What a notification says beside the message. Notifications are not signed."""
    arn = place.topic_arn(topic, subscription)
    url = f"{place.base}/?Action=Unsubscribe&SubscriptionArn={arn}"
    fields = {"TopicArn": place.topic_arn(topic), "UnsubscribeURL": url}
    if not is_fifo(topic):
        fields |= {"SignatureVersion": "1", "Signature": "UNSIGNED", "SigningCertURL": ""}
    return fields


def describe_subscription(topic: str, subscription: Subscription, place: Place) -> dict[str, str]:
    """All attributes of a subscription."""
    attributes = {
        "SubscriptionArn": place.topic_arn(topic, subscription.name),
        "TopicArn": place.topic_arn(topic),
        "Owner": ACCOUNT,
        "Protocol": "sqs",
        "Endpoint": place.arn(subscription.queue),
        "ConfirmationWasAuthenticated": "true",
        "PendingConfirmation": "false",
        "SubscriptionPrincipal": f"arn:aws:iam::{ACCOUNT}:root",
        "RawMessageDelivery": "true" if subscription.envelope is None else "false",
    }
    if subscription.filter is not None:
        attributes["FilterPolicy"] = json.dumps(subscription.filter)
    if subscription.filter is not None or subscription.filter_on != "headers":
        scope = next(name for name, scope in _SCOPES.items() if scope == subscription.filter_on)
        attributes["FilterPolicyScope"] = scope
    return attributes | subscription.sns
