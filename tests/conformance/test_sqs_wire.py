"""The bytes of SQS: paths, headers, both protocols, and requests that make no sense."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.sqs import SqsServer, ask, sqs

__all__ = ["sqs"]

pytestmark = pytest.mark.parametrize("sqs", ["query"], indirect=True)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def call(sqs: SqsServer, action: str, body: Any, path: str = "/") -> tuple[int, dict[str, str], Any]:
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, got, reply = ask(sqs, "POST", path, raw, headers)
    return status, got, json.loads(reply)


def test_an_error_has_its_name_in_both_protocols(sqs: SqsServer) -> None:
    status, headers, body = call(sqs, "GetQueueUrl", {"QueueName": "nope"})
    assert status == 400
    assert headers["content-type"] == "application/x-amz-json-1.0"
    assert headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert headers["x-amzn-requestid"]
    assert body == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    status, headers, raw = ask(sqs, "POST", "/", b"Action=GetQueueUrl&QueueName=nope&Version=2012-11-05", FORM)
    assert (status, headers["content-type"]) == (400, "text/xml")
    assert raw.startswith(
        b'<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        b"<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>"
    )


def test_a_queue_is_named_by_path_url_or_name_and_what_is_empty_is_left_out(sqs: SqsServer) -> None:
    assert call(sqs, "CreateQueue", {"QueueName": "q"})[2] == {"QueueUrl": f"{sqs.url}/000000000000/q"}
    for url in (
        "q",
        "/000000000000/q",
        f"{sqs.url}/000000000000/q",
        "https://sqs.us-east-1.amazonaws.com/123456789012/q",
    ):
        assert call(sqs, "ReceiveMessage", {"QueueUrl": url})[::2] == (200, {})
    assert call(sqs, "ReceiveMessage", {}, "/123456789012/q")[::2] == (200, {})
    assert ask(sqs, "GET", "/000000000000/q?Action=ReceiveMessage")[0] == 200
    query = urlencode({"Action": "SendMessage", "MessageBody": "a&b=<c>", "QueueUrl": "q"})
    assert ask(sqs, "GET", f"/?{query}")[0] == 200
    assert ask(sqs, "POST", "/000000000000/q/", b"Action=SendMessage&MessageBody=2", FORM)[0] == 200
    messages = call(sqs, "ReceiveMessage", {"QueueUrl": "q", "MaxNumberOfMessages": 10})[2]["Messages"]
    assert [message["Body"] for message in messages] == ["a&b=<c>", "2"]
    assert set(messages[0]) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


def test_a_request_that_makes_no_sense_is_refused_and_not_a_failure_of_the_broker(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    for action, body, kind in (
        ("Nonsense", {}, "UnknownOperationException"),
        ("CreateQueue", {}, "MissingRequiredParameterException"),
        ("CreateQueue", b"{", "SerializationException"),
        ("CreateQueue", b"\xff", "SerializationException"),
        ("CreateQueue", b"[]", "SerializationException"),
        ("CreateQueue", {"QueueName": 7}, "SerializationException"),
        ("SendMessage", {"QueueUrl": "q", "MessageBody": "x", "DelaySeconds": "soon"}, "SerializationException"),
        ("SendMessage", b'{"QueueUrl": "q", "MessageBody": "\\ud800"}', "SerializationException"),
        ("SendMessage", {"QueueUrl": "", "MessageBody": "x"}, "QueueDoesNotExist"),
        ("SendMessage", {"QueueUrl": "../x y", "MessageBody": "x"}, "QueueDoesNotExist"),
        ("SendMessageBatch", {"QueueUrl": "q", "Entries": [{"Id": "a"}]}, "MissingRequiredParameterException"),
        ("ListQueues", {"NextToken": "?"}, "InvalidParameterValueException"),
        ("StartMessageMoveTask", {"SourceArn": "q"}, "InvalidParameterValueException"),
        ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"DelaySeconds": "9" * 5000}}, "InvalidAttributeValue"),
    ):  # fmt: skip
        status, _, reply = call(sqs, action, body)
        assert (status, reply["__type"]) == (400, f"com.amazonaws.sqs#{kind}"), (action, body, reply)
        assert reply["message"]
    for form, code in (
        (b"", b"InvalidAction"),
        (b"Action=CreateQueue", b"MissingParameter"),
        (b"Action=SendMessage&QueueUrl=q&MessageBody=x&DelaySeconds=soon", b"MalformedQueryString"),
        (b"Action=SendMessage&QueueUrl=q&MessageBody=x&MessageAttribute.1.Name=a", b"MalformedQueryString"),
        (b"Action=SendMessageBatch&QueueUrl=q&SendMessageBatchRequestEntry.x.Id=1", b"MissingParameter"),
        (b"Action=SendMessage&QueueUrl=q&MessageBody=%00", b"InvalidMessageContents"),
        (b"&".join(b"a%d=" % number for number in range(3000)), b"MalformedQueryString"),
        (b"Action=SendMessage\xff", b"MalformedQueryString"),
        (b"Action=ListQueues&Action=DeleteQueue&QueueUrl=q", b"Action is given twice"),
        (b"Action=SendMessage&QueueUrl=q&MessageBody=100%", b"MalformedQueryString"),
    ):
        status, _, raw = ask(sqs, "POST", "/", form, FORM)
        assert (status, code in raw) == (400, True), (form[:80], raw)
    for action in (b"ListQueues", b"CreateQueue&QueueName=r", b"GetQueueUrl&QueueName=q"):
        status, _, raw = ask(sqs, "POST", "/000000000000/q", b"Action=" + action, FORM)
        assert (status, b"<Code>InvalidAction</Code>" in raw) == (400, True), action
    assert call(sqs, "ReceiveMessage", {"QueueUrl": "q"})[2] == {}


def test_a_setting_that_another_program_broke_breaks_no_answer(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    with sqs.native() as mq:
        broken = dict.fromkeys(("MaximumMessageSize", "ReceiveMessageWaitTimeSeconds", "Policy", "RedrivePolicy"), "{x")
        mq.queue("q").configure(sqs={**broken, "RedriveAllowPolicy": "[]"})
    assert call(sqs, "SendMessage", {"QueueUrl": "q", "MessageBody": "x"})[0] == 200
    assert len(call(sqs, "ReceiveMessage", {"QueueUrl": "q"})[2]["Messages"]) == 1
    assert call(sqs, "GetQueueAttributes", {"QueueUrl": "q", "AttributeNames": ["All"]})[0] == 200
    asked = {"QueueUrl": "q", "Label": "l", "AWSAccountIds": ["1" * 12], "Actions": ["*"]}
    assert call(sqs, "AddPermission", asked)[0] == 200


def test_a_page_of_another_site_cannot_send(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    form = b"Action=SendMessage&QueueUrl=q&MessageBody=x"
    assert ask(sqs, "POST", "/", form, FORM | {"Origin": "http://evil.example"})[0] == 403
    assert ask(sqs, "GET", f"/?{form.decode()}", b"", {"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert call(sqs, "ReceiveMessage", {"QueueUrl": "q"})[2] == {}


def test_the_console_and_the_native_routes_stay_where_they_are(sqs: SqsServer) -> None:
    assert ask(sqs, "GET", "/")[0] in (302, 307)
    assert ask(sqs, "POST", "/", b"{}", {"Content-Type": "application/json"})[0] == 405
    assert ask(sqs, "GET", "/v1/queues")[0] == 200


def test_the_metrics_have_the_actions(sqs: SqsServer) -> None:
    call(sqs, "CreateQueue", {"QueueName": "q"})
    call(sqs, "SendMessage", {"QueueUrl": "q", "MessageBody": "x"})
    call(sqs, "SendMessage", {"QueueUrl": "nope", "MessageBody": "x"})
    metrics = ask(sqs, "GET", "/metrics")[2].decode()
    assert 'call="SendMessage"' in metrics
    assert "AWS.SimpleQueueService.NonExistentQueue" in metrics
