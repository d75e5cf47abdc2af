"""What a request of SNS is about: the topic and the subscription that its ARN names."""

from __future__ import annotations

from typing import Any

from miniq.errors import BadName
from miniq.message import NAME
from miniq.server.http.aws.actions import Action
from miniq.server.http.aws.addresses import topic_of_arn
from miniq.server.http.aws.sns import shapes
from miniq.server.http.aws.sns.errors import invalid

ELEMENTS = 6
"""Parts of an ARN."""


def of(action: Action, request: Any) -> tuple[str, str]:
    """The topic and the subscription of a request; either is empty if it names none."""
    if action.subject == "none":
        return "", ""
    if action.subject == "name":
        return str(request.name), ""
    if action.subject == "subscription":
        named = topic_of_arn(request.subscription_arn)
        if named is None or not named[1]:
            raise invalid("SubscriptionId")
        return named
    if isinstance(request, shapes.PublishRequest):
        if request.phone_number is not None:
            raise invalid("PhoneNumber Reason: text messages are not supported")
        arn, name = request.topic_arn, "TopicArn"
        if arn is None:
            arn, name = request.target_arn, "TargetArn"
        if arn is None:
            raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
        if ":endpoint/" in arn:
            raise invalid(f"{name} Reason: No endpoint found for the target arn specified")
    elif isinstance(request, shapes.OfResource):
        arn, name = request.resource_arn, "ResourceArn"
    else:
        arn, name = request.topic_arn, "TopicArn"
    elements = arn.count(":") + 1
    if elements < ELEMENTS:
        raise invalid(f"{name} Reason: An ARN must have at least {ELEMENTS} elements, not {elements}")
    named = topic_of_arn(arn)
    if named is None or named[1]:
        raise invalid(f"{name} Reason: An ARN must have the form arn:aws:sns:REGION:ACCOUNT:TOPIC")
    if NAME.fullmatch(named[0]) is None:
        raise BadName(f"topic: {named[0][:128]!r} is not the name of a topic", field="topic")
    return named
