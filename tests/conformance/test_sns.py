"""Amazon SNS by boto3, on every kind of store: topics, subscriptions of SQS queues, and what they deliver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from miniq.ids import sequence_number
from tests.sqs import SqsServer, bodies, create, receive, refused, sqs

__all__ = ["sqs"]

INVALID, VALUE, NOT_FOUND = "InvalidParameter", "ParameterValueInvalid", "NotFound"
REGION, ACCOUNT = "eu-west-1", "000000000000"


def arn(queue: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"


def make(sqs: SqsServer, name: str = "t", **attributes: str) -> str:
    """Create a topic; its ARN."""
    return str(sqs.sns.create_topic(Name=name, Attributes=attributes)["TopicArn"])


def subscribe(sqs: SqsServer, topic: str, queue: str = "q", **attributes: Any) -> tuple[str, str]:
    """Create a queue and subscribe it; its URL, and the ARN of the subscription."""
    url = create(sqs, queue, **({"FifoQueue": "true"} if queue.endswith(".fifo") else {}))
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in attributes.items()}
    made = sqs.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn(queue), Attributes=texts)
    return url, made["SubscriptionArn"]


def text(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


def test_a_message_arrives_in_the_notification(sqs: SqsServer) -> None:
    topic = make(sqs)
    url, subscription = subscribe(sqs, topic)
    attributes = {
        "color": text("red"),
        "count": text("7", "Number"),
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        "list": text('["a", 1]', "String.Array"),
    }
    sent = sqs.sns.publish(TopicArn=topic, Message='{"n": "ü"}', Subject="Hi there", MessageAttributes=attributes)
    (message,) = receive(sqs, url)
    assert "MessageAttributes" not in message
    notification = json.loads(message["Body"])
    assert notification == {
        "Type": "Notification",
        "MessageId": sent["MessageId"],
        "TopicArn": topic,
        "Subject": "Hi there",
        "Message": '{"n": "ü"}',
        "Timestamp": notification["Timestamp"],
        "SignatureVersion": "1",
        "Signature": "UNSIGNED",
        "SigningCertURL": "",
        "UnsubscribeURL": f"{sqs.url}/?Action=Unsubscribe&SubscriptionArn={subscription}",
        "MessageAttributes": {
            "color": {"Type": "String", "Value": "red"},
            "count": {"Type": "Number", "Value": "7"},
            "raw": {"Type": "Binary", "Value": "AP8="},
            "list": {"Type": "String.Array", "Value": '["a", 1]'},
        },
    }
    assert len(notification["Timestamp"]) == len("2012-03-29T05:12:16.901Z")


def test_raw_delivery_gives_the_message_with_its_attributes(sqs: SqsServer) -> None:
    topic = make(sqs)
    url, subscription = subscribe(sqs, topic, RawMessageDelivery="true")
    other, _ = subscribe(sqs, topic, "other")
    attributes = {"color": text("red"), "raw": {"DataType": "Binary.png", "BinaryValue": b"\0"}}
    sent = sqs.sns.publish(TopicArn=topic, Message="plain", Subject="x", MessageAttributes=attributes)
    (message,) = receive(sqs, url)
    assert (message["Body"], message["MessageAttributes"]) == ("plain", attributes)
    assert message["MessageId"] == sent["MessageId"]
    assert json.loads(receive(sqs, other)[0]["Body"])["Message"] == "plain"
    sqs.sns.set_subscription_attributes(
        SubscriptionArn=subscription, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    sqs.sns.publish(TopicArn=topic, Message="2")
    assert json.loads(receive(sqs, url)[0]["Body"])["Message"] == "2"


@pytest.mark.parametrize("sqs", ["rocksdb"], indirect=True)
def test_attributes_may_fill_a_message(sqs: SqsServer) -> None:
    topic = make(sqs)
    url, _ = subscribe(sqs, topic, RawMessageDelivery="true")
    other, _ = subscribe(sqs, topic, "other")
    attributes = {"long": text("x" * (262_144 - 11))}
    with refused(INVALID):
        sqs.sns.publish(TopicArn=topic, Message="yy", MessageAttributes=attributes)
    sqs.sns.publish(TopicArn=topic, Message="y", MessageAttributes=attributes)
    entries = [{"Id": "a", "Message": "y", "MessageAttributes": attributes}]
    assert len(sqs.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)["Successful"]) == 1
    assert [message["MessageAttributes"] for message in receive(sqs, url)] == [attributes] * 2
    notification = json.loads(receive(sqs, other)[0]["Body"])
    assert notification["MessageAttributes"]["long"]["Value"] == attributes["long"]["StringValue"]


def test_a_message_is_seen_by_all_protocols(sqs: SqsServer) -> None:
    topic = make(sqs)
    url, _ = subscribe(sqs, topic, RawMessageDelivery="true")
    with sqs.native() as mq:
        assert [one.queue for one in mq.topic("t").info().subscriptions] == ["q"]
        sqs.sns.publish(TopicArn=topic, Message="by sns", MessageAttributes={"color": text("red")})
        (message,) = mq.queue("q").receive()
        assert (message.body, message.headers, message.topic) == ("by sns", {"color": "red"}, "t")
        mq.topic("t").publish({"n": 1}, headers={"color": "blue"})
        mq.topic("native").subscribe("a", "q", pattern="x.#")
    (message,) = receive(sqs, url)
    assert (json.loads(message["Body"]), message["MessageAttributes"]) == ({"n": 1}, {"color": text("blue")})
    listed = sqs.sns.list_subscriptions_by_topic(TopicArn=topic.replace(":t", ":native"))["Subscriptions"]
    assert [(one["SubscriptionArn"], one["Endpoint"]) for one in listed] == [
        (f"arn:aws:sns:{REGION}:{ACCOUNT}:native:a", arn("q"))
    ]


def test_filter_policies_over_attributes(sqs: SqsServer) -> None:
    topic = make(sqs)
    policy = {"color": ["red", {"prefix": "bl"}], "count": [{"numeric": [">", 5]}]}
    url, subscription = subscribe(sqs, topic, FilterPolicy=policy, RawMessageDelivery="true")
    lists, _ = subscribe(sqs, topic, "lists", FilterPolicy={"tags": ["a", "YQ=="]}, RawMessageDelivery="true")
    for number, attributes in enumerate(
        (
            {"color": text("red"), "count": text("7", "Number")},
            {"color": text("red"), "count": text("5", "Number")},
            {"color": text("blue"), "count": text("6", "Number")},
            {"tags": text('["b", "a"]', "String.Array")},
            {"tags": {"DataType": "Binary", "BinaryValue": b"a"}},
            {},
        )
    ):
        sqs.sns.publish(TopicArn=topic, Message=str(number), MessageAttributes=attributes)
    assert bodies(receive(sqs, url)) == ["0", "2"]
    assert bodies(receive(sqs, lists)) == ["3"]
    has = sqs.sns.get_subscription_attributes(SubscriptionArn=subscription)["Attributes"]
    assert (json.loads(has["FilterPolicy"]), has["FilterPolicyScope"]) == (policy, "MessageAttributes")
    for value in ("{}", ""):
        sqs.sns.set_subscription_attributes(
            SubscriptionArn=subscription, AttributeName="FilterPolicy", AttributeValue=value
        )
        sqs.sns.publish(TopicArn=topic, Message="all")
        assert bodies(receive(sqs, url)) == ["all"]
    assert "FilterPolicy" not in sqs.sns.get_subscription_attributes(SubscriptionArn=subscription)["Attributes"]


def test_filter_policies_over_the_body(sqs: SqsServer) -> None:
    topic = make(sqs)
    url, subscription = subscribe(
        sqs,
        topic,
        FilterPolicy={"order": {"total": [{"numeric": [">=", 100]}], "tags": ["x"]}},
        FilterPolicyScope="MessageBody",
        RawMessageDelivery="true",
    )
    matching = '{"order": {"total": 100, "tags": ["y", "x"]}}'
    for message in (matching, '{"order": {"total": "100", "tags": ["x"]}}', "no json", '{"order": {"total": 100}}'):
        sqs.sns.publish(TopicArn=topic, Message=message)
    assert bodies(receive(sqs, url)) == [matching]
    has = sqs.sns.get_subscription_attributes(SubscriptionArn=subscription)["Attributes"]
    assert has["FilterPolicyScope"] == "MessageBody"


def test_a_batch_is_published_or_refused_whole(sqs: SqsServer) -> None:
    topic = make(sqs)
    url, _ = subscribe(sqs, topic, RawMessageDelivery="true")
    entries: list[dict[str, Any]] = [
        {"Id": "a", "Message": "one"},
        {"Id": "d", "Message": '{"default": "D", "sqs": "S"}', "MessageStructure": "json"},
    ]
    for entry, code in (
        ({"Id": "b", "Message": "two", "Subject": "\n"}, "InvalidParameter"),
        ({"Id": "c", "Message": "x", "MessageAttributes": {"n": text("x", "Number")}}, "ParameterValueInvalid"),
        ({"Id": "e", "Message": "{}", "MessageStructure": "json"}, "InvalidParameter"),
        ({"Id": "f", "Message": ""}, "InvalidParameter"),
    ):
        with refused(code):
            sqs.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[*entries, entry])
    reply = sqs.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert reply["Failed"] == []
    messages = receive(sqs, url)
    assert bodies(messages) == ["one", "S"]
    assert [(one["Id"], one["MessageId"]) for one in reply["Successful"]] == [
        ("a", messages[0]["MessageId"]),
        ("d", messages[1]["MessageId"]),
    ]
    for given, code in (
        ([], "EmptyBatchRequest"),
        ([{"Id": str(number), "Message": "x"} for number in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "Message": "x"}, {"Id": "a", "Message": "y"}], "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "Message": "x"}], "InvalidBatchEntryId"),
        ([{"Id": str(number), "Message": "x" * 140_000} for number in range(2)], "BatchRequestTooLong"),
    ):
        with refused(code):
            sqs.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=given)
    assert receive(sqs, url) == []


def test_fifo_topics_keep_order_and_leave_out_duplicates(sqs: SqsServer) -> None:
    topic = make(sqs, "t.fifo", FifoTopic="true")
    url, _ = subscribe(sqs, topic, "q.fifo", RawMessageDelivery="true")
    wrapped, _ = subscribe(sqs, topic, "w.fifo")
    sent = [
        sqs.sns.publish(TopicArn=topic, Message=str(number), MessageGroupId="g", MessageDeduplicationId=dedup)
        for number, dedup in enumerate("aba")
    ]
    assert sent[0]["SequenceNumber"] == sequence_number(sent[0]["MessageId"])
    assert sent[2]["MessageId"] == sent[0]["MessageId"]
    messages = receive(sqs, url)
    assert bodies(messages) == ["0", "1"]
    assert [one["Attributes"]["MessageGroupId"] for one in messages] == ["g", "g"]
    assert [one["Attributes"]["MessageDeduplicationId"] for one in messages] == ["a", "b"]
    notifications = [json.loads(body) for body in bodies(receive(sqs, wrapped))]
    assert [one["Message"] for one in notifications] == ["0", "1"]
    assert notifications[0]["SequenceNumber"] == sent[0]["SequenceNumber"]
    assert "Signature" not in notifications[0]
    entry = {"Id": "x", "Message": "x", "MessageGroupId": "h", "MessageDeduplicationId": "x"}
    for other in ({"Id": "y", "Message": "y", "MessageGroupId": "h"}, entry | {"Id": "z", "MessageGroupId": ""}):
        with refused("InvalidParameter"):
            sqs.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[entry, other])
    reply = sqs.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[entry])
    assert [one["Id"] for one in reply["Successful"]] == ["x"]
    with refused("InvalidParameter") as error:
        sqs.sns.publish(TopicArn=topic, Message="x", MessageDeduplicationId="d")
    assert error["Message"] == "Invalid parameter: The MessageGroupId parameter is required for FIFO topics"


def test_fifo_topics_dedup_by_content_and_within_a_group(sqs: SqsServer) -> None:
    topic = make(sqs, "t.fifo", FifoTopic="true", ContentBasedDeduplication="true", FifoThroughputScope="MessageGroup")
    url, _ = subscribe(sqs, topic, "q.fifo", RawMessageDelivery="true")
    for group in "gghg":
        sqs.sns.publish(TopicArn=topic, Message="same", MessageGroupId=group)
    assert [one["Attributes"]["MessageGroupId"] for one in receive(sqs, url)] == ["g", "h"]
    has = sqs.sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert (has["FifoTopic"], has["ContentBasedDeduplication"]) == ("true", "true")


def test_topics_are_created_once_listed_and_deleted(sqs: SqsServer) -> None:
    assert sqs.sns.list_topics()["Topics"] == []
    topic = make(sqs)
    assert topic == f"arn:aws:sns:{REGION}:{ACCOUNT}:t"
    assert make(sqs) == topic
    sqs.sns.set_topic_attributes(TopicArn=topic, AttributeName="DisplayName", AttributeValue="Orders")
    assert make(sqs, DisplayName="Orders") == topic
    with refused("InvalidParameter") as error:
        make(sqs, DisplayName="other")
    assert error["Message"] == "Invalid parameter: Attributes Reason: Topic already exists with different attributes"
    has = sqs.sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert (has["TopicArn"], has["Owner"], has["DisplayName"]) == (topic, ACCOUNT, "Orders")
    assert has["SubscriptionsConfirmed"] == has["SubscriptionsPending"] == "0"
    assert json.loads(has["Policy"])["Statement"][0]["Resource"] == topic
    url, subscription = subscribe(sqs, topic)
    assert sqs.sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsConfirmed"] == "1"
    assert sqs.sns.list_topics()["Topics"] == [{"TopicArn": topic}]
    sqs.sns.delete_topic(TopicArn=topic)
    sqs.sns.delete_topic(TopicArn=topic)
    assert sqs.sns.list_topics()["Topics"] == sqs.sns.list_subscriptions()["Subscriptions"] == []
    with refused("NotFound", 404) as error:
        sqs.sns.publish(TopicArn=topic, Message="x")
    assert error["Message"] == "Topic does not exist"
    with refused("NotFound", 404):
        sqs.sns.get_subscription_attributes(SubscriptionArn=subscription)
    assert receive(sqs, url) == []


def test_a_queue_is_subscribed_once(sqs: SqsServer) -> None:
    topic = make(sqs)
    _, subscription = subscribe(sqs, topic, RawMessageDelivery="true")
    again = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn("q")}
    assert sqs.sns.subscribe(**again)["SubscriptionArn"] == subscription
    assert sqs.sns.subscribe(**again, Attributes={"RawMessageDelivery": "true"})["SubscriptionArn"] == subscription
    with refused("InvalidParameter") as error:
        sqs.sns.subscribe(**again, Attributes={"RawMessageDelivery": "false"})
    assert error["Message"].endswith("Subscription already exists with different attributes")
    expected = {
        "SubscriptionArn": subscription,
        "Owner": ACCOUNT,
        "Protocol": "sqs",
        "Endpoint": arn("q"),
        "TopicArn": topic,
    }
    assert sqs.sns.list_subscriptions()["Subscriptions"] == [expected]
    assert sqs.sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == [expected]
    has = sqs.sns.get_subscription_attributes(SubscriptionArn=subscription)["Attributes"]
    assert {name: has[name] for name in expected} == expected
    assert (has["RawMessageDelivery"], has["PendingConfirmation"]) == ("true", "false")
    policy = json.dumps({"deadLetterTargetArn": arn("dead")})
    for name, value in (("RedrivePolicy", policy), ("DeliveryPolicy", "{}")):
        sqs.sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName=name, AttributeValue=value)
        kept = sqs.sns.get_subscription_attributes(SubscriptionArn=subscription)["Attributes"]
        assert (kept[name], kept["RawMessageDelivery"]) == (value, "true")
    for _ in range(2):
        sqs.sns.unsubscribe(SubscriptionArn=subscription)
    assert sqs.sns.list_subscriptions()["Subscriptions"] == []


def test_lists_have_pages(sqs: SqsServer) -> None:
    for number in range(101):
        sqs.run(sqs.broker.topics.subscribe(f"t{number:03}", "a", "q"))
    for call, key in (("list_topics", "Topics"), ("list_subscriptions", "Subscriptions")):
        pages = list(sqs.sns.get_paginator(call).paginate())
        assert [len(page[key]) for page in pages] == [100, 1]
        arns = [one["TopicArn"] for page in pages for one in page[key]]
        assert arns == sorted(set(arns))


def test_tags_and_permissions_are_kept(sqs: SqsServer) -> None:
    topic = sqs.sns.create_topic(Name="t", Tags=[{"Key": "team", "Value": "a"}])["TopicArn"]
    with refused("InvalidParameter"):
        sqs.sns.create_topic(Name="t", Tags=[{"Key": "team", "Value": "b"}])
    sqs.sns.tag_resource(ResourceArn=topic, Tags=[{"Key": "team", "Value": "b"}, {"Key": "x", "Value": ""}])
    sqs.sns.untag_resource(ResourceArn=topic, TagKeys=["team"])
    assert sqs.sns.list_tags_for_resource(ResourceArn=topic)["Tags"] == [{"Key": "x", "Value": ""}]
    with refused("ResourceNotFound", 404):
        sqs.sns.list_tags_for_resource(ResourceArn=f"{topic}x")
    with refused("TagLimitExceeded"):
        sqs.sns.tag_resource(ResourceArn=topic, Tags=[{"Key": str(n), "Value": ""} for n in range(51)])
    sqs.sns.add_permission(TopicArn=topic, Label="l", AWSAccountId=["111122223333"], ActionName=["Publish"])
    policy = json.loads(sqs.sns.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
    assert policy["Statement"][-1]["Action"] == ["SNS:Publish"]
    with refused("InvalidParameter"):
        sqs.sns.add_permission(TopicArn=topic, Label="l", AWSAccountId=["111122223333"], ActionName=["Publish"])
    sqs.sns.remove_permission(TopicArn=topic, Label="l")
    with refused("NotFound", 404):
        sqs.sns.remove_permission(TopicArn=topic, Label="l")


def test_what_is_invalid_is_refused_and_named(sqs: SqsServer) -> None:
    topic, sns = make(sqs), sqs.sns
    create(sqs, "q")
    create(sqs, "q.fifo", FifoQueue="true")
    good = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn("q")}
    to = {"TopicArn": topic}
    for call, given, code, reason in (
        ("create_topic", {"Name": "a b"}, INVALID, "Invalid parameter: Topic Name"),
        ("create_topic", {"Name": "a.fifo"}, INVALID, "Fifo Topic names must end with .fifo"),
        ("create_topic", {"Name": "a", "Attributes": {"FifoTopic": "true"}}, INVALID, "Fifo Topic names"),
        ("create_topic", {"Name": "a", "Attributes": {"X": "y"}}, INVALID, "Unknown attribute X"),
        ("create_topic", {"Name": "a", "Attributes": {"Policy": "{"}}, INVALID, "Policy: failed to parse"),
        ("get_topic_attributes", {"TopicArn": "t"}, INVALID, "TopicArn Reason: An ARN must have at least 6"),
        ("get_topic_attributes", {"TopicArn": f"{topic}x"}, NOT_FOUND, "Topic does not exist"),
        ("set_topic_attributes", {"TopicArn": topic, "AttributeName": "FifoTopic"}, INVALID, "AttributeName"),
        ("subscribe", good | {"TopicArn": f"{topic}x"}, NOT_FOUND, "Topic does not exist"),
        ("subscribe", good | {"Protocol": "email"}, INVALID, "email is not supported here, only sqs"),
        ("subscribe", good | {"Protocol": "x"}, INVALID, "does not support this protocol string: x"),
        ("subscribe", good | {"Endpoint": "q"}, INVALID, "Invalid parameter: SQS endpoint ARN"),
        ("subscribe", good | {"Endpoint": arn("nope")}, NOT_FOUND, "The queue nope does not exist"),
        ("subscribe", good | {"Endpoint": arn("q.fifo")}, INVALID, "FIFO SQS Queues can not be subscribed"),
        ("subscribe", good | {"Attributes": {"X": "y"}}, INVALID, "AttributeName"),
        ("subscribe", good | {"Attributes": {"FilterPolicy": "{"}}, INVALID, "FilterPolicy: failed to parse"),
        ("subscribe", good | {"Attributes": {"FilterPolicy": '{"a": "b"}'}}, INVALID, "filter.a: 'b' is not a"),
        ("subscribe", good | {"Attributes": {"FilterPolicyScope": "x"}}, INVALID, "Please use either"),
        ("subscribe", good | {"Attributes": {"RawMessageDelivery": "x"}}, INVALID, "Must be true or false"),
        ("confirm_subscription", {"TopicArn": topic, "Token": "x"}, INVALID, "Invalid parameter: Token"),
        ("unsubscribe", {"SubscriptionArn": topic}, INVALID, "Invalid parameter: SubscriptionId"),
        ("get_subscription_attributes", {"SubscriptionArn": f"{topic}:x"}, NOT_FOUND, "Subscription does not exist"),
        ("list_topics", {"NextToken": "?"}, INVALID, "NextToken"),
        ("publish", {"Message": "x"}, INVALID, "TopicArn or TargetArn Reason: no value"),
        ("publish", {"PhoneNumber": "1", "Message": "x"}, INVALID, "text messages are not supported"),
        ("publish", {**to, "Message": ""}, INVALID, "Invalid parameter: Empty message"),
        ("publish", {**to, "Message": "x" * 262_145}, INVALID, "Message too long"),
        ("publish", {**to, "Message": "\1"}, INVALID, "characters that XML cannot express"),
        ("publish", {**to, "Message": "x", "Subject": "x" * 101}, INVALID, "Subject"),
        ("publish", {**to, "Message": "x", "MessageStructure": "json"}, INVALID, "failed to parse"),
        ("publish", {**to, "Message": "{}", "MessageStructure": "json"}, INVALID, "No default entry"),
        ("publish", {**to, "Message": "x", "MessageDeduplicationId": "d"}, INVALID, "topic type"),
        ("publish", {**to, "Message": "x", "MessageAttributes": {"a": text("", "X")}}, VALUE, "type"),
    ):  # fmt: skip
        with refused(code, 404 if code == NOT_FOUND else 400) as error:
            getattr(sns, call)(**given)
        assert reason in error["Message"], (call, given, error)
    assert sns.list_subscriptions()["Subscriptions"] == []
    assert sns.list_topics()["Topics"] == [{"TopicArn": topic}]


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_what_is_invalid_is_told_in_the_words_of_aws(sqs: SqsServer) -> None:
    topic, queue = make(sqs), arn("q")
    url, subscription = subscribe(sqs, topic)
    sns, raw = sqs.sns, "RawMessageDelivery: Invalid value [x]. Must be true or false."
    for call, asked, told in (
        (
            sns.publish,
            {"TopicArn": "x", "Message": "x"},
            "TopicArn Reason: An ARN must have at least 6 elements, not 1",
        ),
        (
            sns.publish,
            {"TargetArn": "x:y", "Message": "x"},
            "TargetArn Reason: An ARN must have at least 6 elements, not 2",
        ),
        (sns.publish, {"TopicArn": "", "Message": "x"}, "TopicArn Reason: An ARN must have at least 6 elements, not 1"),
        (
            sns.publish,
            {"TargetArn": "arn:aws:sns:eu-west-1:000000000000:endpoint/APNS/a/b", "Message": "x"},
            "TargetArn Reason: No endpoint found for the target arn specified",
        ),
        (
            sns.create_topic,
            {"Name": "u", "Tags": [{"Key": "a", "Value": "b"}, {"Key": "a", "Value": "c"}]},
            "Duplicated keys are not allowed.",
        ),
        (sns.confirm_subscription, {"TopicArn": f"{topic}x", "Token": "51b2ff3edb475b7d91550e0ab6edf0c1"}, "Token"),
        (
            sns.subscribe,
            {"TopicArn": topic, "Protocol": "sqs", "Endpoint": queue, "Attributes": {"RawMessageDelivery": "x"}},
            f"Attributes Reason: {raw}",
        ),
        (
            sns.set_subscription_attributes,
            {"SubscriptionArn": subscription, "AttributeName": "RawMessageDelivery", "AttributeValue": "x"},
            raw,
        ),
    ):
        with refused(INVALID) as error:
            call(**asked)
        assert error["Message"] == f"Invalid parameter: {told}"
    with refused(INVALID) as error:
        policy = json.dumps({"a": 1})
        sns.set_subscription_attributes(
            SubscriptionArn=subscription, AttributeName="FilterPolicy", AttributeValue=policy
        )
    assert error["Message"].startswith("Invalid parameter: FilterPolicy: ")
    assert receive(sqs, url) == []


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_an_invalid_attribute_is_refused_in_the_words_of_aws(sqs: SqsServer) -> None:
    topic = make(sqs)
    empty = "The message attribute 'a' must contain non-empty message attribute value for message attribute type"
    for name, value, told in (
        ("a", {"DataType": "String", "StringValue": ""}, f"{empty} 'String'."),
        ("a", {"DataType": "Number"}, f"{empty} 'Number'."),
        ("a", {"DataType": "Binary", "BinaryValue": b""}, f"{empty} 'Binary'."),
        (
            "a",
            {"DataType": "Number", "BinaryValue": b"1"},
            "The message attribute 'a' with type 'Number' must use field 'String'.",
        ),
        (
            "a",
            {"DataType": "Binary", "StringValue": "x"},
            "The message attribute 'a' with type 'Binary' must use field 'Binary'.",
        ),
        (
            "a",
            {"DataType": "Stringprefixed", "StringValue": "x"},
            "The message attribute 'a' has an invalid message attribute type, the set of supported type prefixes is "
            "Binary, Number, and String.",
        ),
        ("a" * 256, text("x"), "Length of message attribute name must be less than 256 bytes."),
        (
            "a^b",
            text("x"),
            "Invalid non-alphanumeric character '#x5E' was found in the message attribute name. Can only include "
            "alphanumeric characters, hyphens, underscores, or dots.",
        ),
        (".a", text("x"), "Invalid message attribute name starting with character '.' was found."),
        ("a.", text("x"), "Invalid message attribute name ending with character '.' was found."),
        ("a..b", text("x"), "Message attribute name can not have successive '.' character."),
    ):
        with refused(VALUE) as error:
            sqs.sns.publish(TopicArn=topic, Message="x", MessageAttributes={name: value})
        assert error["Message"] == told
    url, _ = subscribe(sqs, topic)
    many = {f"a{number}": text("x") for number in range(20)}  # more than a message of SQS may have
    sqs.sns.publish(TopicArn=topic, Message="x", MessageAttributes=many)
    assert len(json.loads(receive(sqs, url)[0]["Body"])["MessageAttributes"]) == 20


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_reserved_tags_are_refused(sqs: SqsServer) -> None:
    topic, url = make(sqs), create(sqs)
    with refused(INVALID):
        sqs.sns.tag_resource(ResourceArn=topic, Tags=[{"Key": "aws:x", "Value": "y"}])
    with refused("InvalidParameterValue"):
        sqs.client.tag_queue(QueueUrl=url, Tags={"AWS:x": "y"})
    assert "Tags" not in sqs.client.list_queue_tags(QueueUrl=url)
