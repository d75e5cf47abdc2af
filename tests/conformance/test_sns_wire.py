"""SNS beside SQS on one port: how requests are told apart, signatures, and rights."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.conformance.test_sqs_signature import key, signed
from tests.sqs import SqsServer, ask, client, create, refused, sqs

__all__ = ["signed", "sqs"]

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TOPIC = "arn:aws:sns:us-east-1:000000000000:t"
QUEUE = "arn:aws:sqs:us-east-1:000000000000:q"


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_requests_are_told_apart_by_version_and_name(sqs: SqsServer) -> None:
    def post(**fields: str) -> tuple[int, bytes]:
        status, _, body = ask(sqs, "POST", "/", urlencode(fields).encode(), FORM)
        return status, body

    namespace = b'xmlns="http://sns.amazonaws.com/doc/2010-03-31/"'
    status, body = post(Action="CreateTopic", Name="t", Version="2010-03-31")
    assert status == 200
    assert body.startswith(b'<?xml version="1.0"?><CreateTopicResponse ' + namespace)
    assert f"<CreateTopicResult><TopicArn>{TOPIC}</TopicArn></CreateTopicResult>".encode() in body
    assert b"<Topics><member><TopicArn>" in post(Action="ListTopics")[1]
    create(sqs)
    permission = {"Action": "RemovePermission", "Label": "x", "TopicArn": TOPIC, "QueueUrl": "q"}
    assert b"<Code>NotFound</Code>" in post(**permission, Version="2010-03-31")[1]
    assert b"<Code>InvalidParameterValue</Code>" in post(**permission, Version="2012-11-05")[1]
    assert b"<Code>InvalidParameterValue</Code>" in post(**permission)[1]
    status, body = post(Action="ListQueues", Version="2010-03-31")
    assert (status, b"<Code>InvalidAction</Code>" in body, namespace in body) == (400, True, True)
    status, body = post(Action="Publish", TopicArn=TOPIC)
    assert (status, b"<Code>ValidationError</Code>" in body) == (400, True)
    status, body = post(Action="Subscribe", TopicArn=TOPIC, Protocol="sqs", Endpoint=QUEUE)
    assert status == 200
    status, _, body = ask(sqs, "GET", f"/?{urlencode({'Action': 'ListSubscriptions'})}")
    arn = body.partition(b"<SubscriptionArn>")[2].partition(b"<")[0].decode()
    assert ask(sqs, "GET", f"/?Action=Unsubscribe&SubscriptionArn={arn}")[0] == 200
    assert b"<Subscriptions></Subscriptions>" in post(Action="ListSubscriptions")[1]
    for form in (
        b"Action=Publish&Message=x&MessageAttributes.entry.1.Name=a",
        b"Action=PublishBatch&TopicArn=%s&PublishBatchRequestEntries.member.1=x" % TOPIC.encode(),
        b"Action=CreateTopic&Name=" + b"a" * 2000,
        b"Action=GetTopicAttributes&TopicArn=arn:aws:sns:us-east-1:000000000000:a%20b",
    ):
        assert 400 <= ask(sqs, "POST", "/", form, FORM)[0] < 500, form


def test_actions_need_the_rights_of_topics(signed: SqsServer) -> None:
    def sns(*allow: str) -> Any:
        made = key(signed, *allow)
        return client(signed.url, key=made.access_key or "", secret=made.aws or "", service="sns")

    region = TOPIC.replace("us-east-1", "eu-west-1"), QUEUE.replace("us-east-1", "eu-west-1")
    topic, queue = region
    admin, publisher, reader = sns("*"), sns("publish:t"), sns("read:t")
    manager = sns("manage:t")
    admin.create_topic(Name="t")
    admin.create_topic(Name="other")
    signed.run(signed.broker.configure("q"))
    with refused("AuthorizationError", 403):
        publisher.get_topic_attributes(TopicArn=topic)
    publisher.publish(TopicArn=topic, Message="x")
    with refused("AuthorizationError", 403):
        publisher.publish(TopicArn=f"{topic}x", Message="x")
    with refused("AuthorizationError", 403):
        reader.publish(TopicArn=topic, Message="x")
    assert reader.list_topics()["Topics"] == [{"TopicArn": topic}]
    given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": queue}
    with refused("AuthorizationError", 403) as error:
        manager.subscribe(**given)
    assert "send" in error["Message"]
    with refused("AuthorizationError", 403) as missing:
        manager.subscribe(**given | {"Endpoint": f"{queue}x"})
    assert missing["Message"] == error["Message"].replace("'q'", "'qx'"), "a key does not tell which queues exist"
    made = sns("manage:t", "send:q").subscribe(**given)["SubscriptionArn"]
    with refused("AuthorizationError", 403):
        reader.unsubscribe(SubscriptionArn=made)
    manager.unsubscribe(SubscriptionArn=made)
    for action, given in (
        ("delete_topic", {"TopicArn": topic}),
        ("tag_resource", {"ResourceArn": topic, "Tags": [{"Key": "a", "Value": "b"}]}),
        ("create_topic", {"Name": "new"}),
    ):
        with refused("AuthorizationError", 403):
            getattr(publisher, action)(**given)


def test_requests_must_be_signed_for_sns(signed: SqsServer) -> None:
    app = key(signed, "*")
    access, secret = app.access_key or "", app.aws or ""
    with refused("InvalidClientTokenId", 403):
        client(signed.url, service="sns").list_topics()
    with refused("SignatureDoesNotMatch", 403):
        client(signed.url, key=access, secret="wrong", service="sns").list_topics()
    status, _, body = ask(signed, "POST", "/", b"Action=ListTopics&Version=2010-03-31", FORM)
    assert (status, b"MissingAuthenticationToken" in body) == (403, True)
    other = client(signed.url, "query", access, secret)
    other.meta.events.register(
        "before-call.sqs.ListQueues",
        lambda params, **_: params["body"].update({"Action": "ListTopics", "Version": "2010-03-31"}),
    )
    with refused("SignatureDoesNotMatch", 403) as error:
        other.list_queues()
    assert error["Message"] == "Credential should be scoped to correct service: 'sns'."
