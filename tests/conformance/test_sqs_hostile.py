"""Requests and messages that are meant to break SQS for others: characters that XML cannot express, and nesting."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from miniq.server.http.aws.sqs.sending import digest_of
from tests.sqs import SqsServer, ask, sqs

__all__ = ["sqs"]

pytestmark = pytest.mark.parametrize("sqs", ["query"], indirect=True)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
LESS_DEEP = '{"a":' * 500 + "1" + "}" * 500


def call(sqs: SqsServer, action: str, body: Any) -> tuple[int, Any]:
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, reply = ask(sqs, "POST", "/", raw, headers)
    return status, json.loads(reply)


def query(sqs: SqsServer, action: str, **fields: str) -> tuple[int, ElementTree.Element]:
    """Status and reply of an action by the Query protocol; the reply must be XML."""
    status, _, reply = ask(sqs, "POST", "/", urlencode({"Action": action, **fields}).encode(), FORM)
    return status, ElementTree.fromstring(reply)  # noqa: S314


def texts(root: ElementTree.Element, name: str) -> list[str | None]:
    return [element.text for element in root.findall(f".//{{*}}{name}")]


def test_head_does_nothing(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    call(sqs, "SendMessage", {"QueueUrl": "q", "MessageBody": "x"})
    for path in (
        "/?Action=ReceiveMessage&QueueUrl=q",
        "/000000000000/q?Action=ReceiveMessage",
        "/000000000000/q?Action=DeleteQueue",
    ):
        assert ask(sqs, "HEAD", path)[0] in (307, 404, 405)
    assert len(call(sqs, "ReceiveMessage", {"QueueUrl": "q"})[1]["Messages"]) == 1


def test_a_post_may_have_its_parameters_in_the_url(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    for path in ("/?QueueUrl=q&", "/000000000000/q?"):
        assert ask(sqs, "POST", f"{path}Action=SendMessage&MessageBody=x")[0] == 200
    kind = {"Content-Type": "Application/X-WWW-Form-urlencoded; charset=utf-8"}
    assert ask(sqs, "POST", "/", b"Action=SendMessage&MessageBody=x&QueueUrl=q", kind)[0] == 200
    asked = {"QueueUrl": "q", "MaxNumberOfMessages": 10}
    assert len(call(sqs, "ReceiveMessage", asked)[1]["Messages"]) == 3


def test_a_message_that_xml_cannot_express_is_shown_with_replacements_and_its_neighbours_are_unharmed(
    sqs: SqsServer,
) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    with sqs.native() as mq:
        queue = mq.queue("q")
        queue.send(
            b"a\x01b\xef\xbf\xbe",
            content_type="text/plain",
            headers={"k": "x\x00y", "AWS.DataType.n": "N\x02", "n": "1"},
        )
        queue.send(b"good", content_type="text/plain")
        queue.configure(tags={"t": "a\x01b"}, sqs={"KmsMasterKeyId": "k\x01"})
    asked = {"QueueUrl": "q", "MaxNumberOfMessages": "10", "AttributeName.1": "All", "MessageAttributeName.1": "All"}
    status, root = query(sqs, "ReceiveMessage", VisibilityTimeout="0", **asked)
    assert status == 200
    assert texts(root, "Body") == ["a\ufffdb\ufffd", "good"]
    assert texts(root, "MD5OfBody")[0] == digest_of("a\ufffdb\ufffd".encode())  # SDKs compare it
    assert texts(root, "StringValue") == ["x\ufffdy", "1"]
    assert "N\ufffd" in texts(root, "DataType")
    assert texts(query(sqs, "ListQueueTags", QueueUrl="q")[1], "Value") == ["a\ufffdb"]
    assert "k\ufffd" in texts(query(sqs, "GetQueueAttributes", QueueUrl="q", **{"AttributeName.1": "All"})[1], "Value")
    (first, _) = call(sqs, "ReceiveMessage", {"QueueUrl": "q", "MaxNumberOfMessages": 10})[1]["Messages"]
    assert first["Body"] == "a\x01b\ufffe"  # JSON expresses it
    assert first["MD5OfBody"] == digest_of(first["Body"].encode())


def test_an_error_that_repeats_what_xml_cannot_express_is_xml(sqs: SqsServer) -> None:
    status, root = query(sqs, "<a>\0\x1b")
    assert (status, texts(root, "Code")) == (400, ["InvalidAction"])
    assert query(sqs, "GetQueueAttributes", QueueUrl="default", **{"AttributeName.1": "\x01"})[0] == 400


def test_tags_and_attributes_that_xml_cannot_express_are_refused(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    for action, given, kind in (
        ("TagQueue", {"QueueUrl": "q", "Tags": {"a": "\x01"}}, "InvalidParameterValueException"),
        ("TagQueue", {"QueueUrl": "q", "Tags": {"\ufffe": "a"}}, "InvalidParameterValueException"),
        ("CreateQueue", {"QueueName": "r", "tags": {"a": "\x01"}}, "InvalidParameterValueException"),
        ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"KmsMasterKeyId": "\x01"}}, "InvalidAttributeValue"),
        ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"Policy": '{"a":"\ufffe"}'}}, "InvalidAttributeValue"),
    ):
        status, reply = call(sqs, action, given)
        assert (status, reply["__type"]) == (400, f"com.amazonaws.sqs#{kind}"), given
    assert call(sqs, "ListQueueTags", {"QueueUrl": "q"}) == (200, {})
    assert call(sqs, "GetQueueUrl", {"QueueName": "r"})[0] == 400


def test_deep_nesting_is_refused(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    for deep in (DEEP, "[" * 100_000, LESS_DEEP):
        for name in ("RedrivePolicy", "RedriveAllowPolicy", "Policy"):
            status, reply = call(sqs, "SetQueueAttributes", {"QueueUrl": "q", "Attributes": {name: deep}})
            assert (status, "Invalid" in reply["__type"]) == (400, True), name
    for raw in (DEEP, '{"QueueUrl":' * 5000, "[" * 1_000_000):
        status, reply = call(sqs, "ListQueues", raw.encode())
        assert (status, reply["__type"]) == (400, "com.amazonaws.sqs#SerializationException")
    with sqs.native() as mq:
        mq.queue("q").configure(sqs={"RedrivePolicy": DEEP, "Policy": LESS_DEEP}, max_receives=3)
    assert call(sqs, "GetQueueAttributes", {"QueueUrl": "q", "AttributeNames": ["All"]})[0] == 200
    asked = {"QueueUrl": "q", "Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["*"]}
    assert call(sqs, "AddPermission", asked)[0] == 200
