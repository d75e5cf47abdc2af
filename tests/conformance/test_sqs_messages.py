"""Messages over Amazon SQS in standard queues, by boto3: what AWS answers is the contract."""

from __future__ import annotations

import threading
from hashlib import md5
from typing import Any

import pytest

import miniq
from tests.kit import sleepers, wait_for
from tests.sqs import SqsServer, bodies, create, on_every_database, receive, refused, sqs

__all__ = ["sqs"]


def digest(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


@on_every_database
def test_a_message_is_sent_received_and_deleted(sqs: SqsServer) -> None:
    url = create(sqs)
    sent = sqs.client.send_message(QueueUrl=url, MessageBody="hällo <&> \r\n world")
    (message,) = receive(sqs, url)
    assert message["Body"] == "hällo <&> \r\n world"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == digest(message["Body"])
    now = str(sqs.clock.now() // 1000)
    assert message["Attributes"].pop("SenderId")
    assert message["Attributes"] == {
        "SentTimestamp": now,
        "ApproximateReceiveCount": "1",
        "ApproximateFirstReceiveTimestamp": now,
    }
    assert "Messages" not in sqs.client.receive_message(QueueUrl=url)
    sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])  # again, which succeeds
    sqs.advance(31)
    assert receive(sqs, url) == []


def test_an_unacknowledged_message_comes_back_and_its_old_handle_deletes_nothing(sqs: SqsServer) -> None:
    url = create(sqs, VisibilityTimeout="10")
    sqs.client.send_message(QueueUrl=url, MessageBody="x")
    (first,) = receive(sqs, url)
    sqs.advance(10)
    (second,) = receive(sqs, url)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    sqs.client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    sqs.advance(10)
    (third,) = receive(sqs, url)
    sqs.advance(10)  # expired, but nobody has received it since
    sqs.client.delete_message(QueueUrl=url, ReceiptHandle=third["ReceiptHandle"])
    assert receive(sqs, url) == []


def test_message_attributes_keep_their_types_and_their_digest_covers_those_returned(sqs: SqsServer) -> None:
    url = create(sqs)
    attributes = {
        "Hello": {"DataType": "String", "StringValue": "There"},
        "General": {"DataType": "String", "StringValue": "Kenobi"},
        "Help.Me": {"DataType": "String", "StringValue": "Me"},
    }
    sent = sqs.client.send_message(QueueUrl=url, MessageBody="msg", MessageAttributes=attributes)
    assert sent["MD5OfMessageAttributes"] == "4c360f3fdafd970e05fae2f149d997f5"  # as recorded from AWS
    for asked, digest, names in (
        ([], None, set()),
        (["All"], "4c360f3fdafd970e05fae2f149d997f5", {"Hello", "General", "Help.Me"}),
        ([".*"], "4c360f3fdafd970e05fae2f149d997f5", {"Hello", "General", "Help.Me"}),
        (["Hello", "General"], "fca026605781cb4126a1e9044df24232", {"Hello", "General"}),
        (["Hello", "Nope"], "a311262e065454b75da111d535b8dacd", {"Hello"}),
        (["Hel.*"], "83fee93c1bcd8b9a5a923ffacdc636c7", {"Hello", "Help.Me"}),
        (["AWS."], None, set()),
        (["..foo"], None, set()),
    ):
        (message,) = receive(sqs, url, MessageAttributeNames=asked, VisibilityTimeout=0)
        assert set(message.get("MessageAttributes", ())) == names
        assert message.get("MD5OfMessageAttributes") == digest


def test_attributes_may_fill_a_message(sqs: SqsServer) -> None:
    dead = create(sqs, "dead")
    arn = sqs.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    url = create(sqs, RedrivePolicy=f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}', VisibilityTimeout="0")
    text = {"text": {"DataType": "String", "StringValue": "ä" * 20_000}}
    raw = {"raw": {"DataType": "Binary", "BinaryValue": b"\xff" * (1_048_576 - 10)}}
    with refused("InvalidParameterValue") as error:
        sqs.client.send_message(QueueUrl=url, MessageBody="xx", MessageAttributes=raw)
    assert error["Message"].endswith("Reason: Message must be shorter than 1048576 bytes.")
    for attributes in (text, raw):
        sent = sqs.client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
        (message,) = receive(sqs, url)
        assert message["MessageAttributes"] == attributes
        assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
        assert receive(sqs, url) == []  # it is dead-lettered
        (message,) = receive(sqs, dead)
        assert message["MessageAttributes"] == attributes
        sqs.client.delete_message(QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"])
    entries = [{"Id": str(place), "MessageBody": "x", "MessageAttributes": text} for place in range(10)]
    assert len(sqs.client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    assert [message["MessageAttributes"] for message in receive(sqs, url)] == [text] * 10
    with sqs.native() as mq, pytest.raises(miniq.TooLarge):  # a header has at most 4 KiB elsewhere
        mq.queue("q").send("x", headers={"text": "x" * 4096})


def test_binary_and_number_attributes_and_the_trace_header_come_back(sqs: SqsServer) -> None:
    url = create(sqs)
    attributes = {
        "n": {"DataType": "Number.int", "StringValue": "-3.5"},
        "b": {
            "DataType": "Binary",
            "BinaryValue": b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01",
        },
    }
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    sent = sqs.client.send_message(
        QueueUrl=url, MessageBody="x", MessageAttributes=attributes, MessageSystemAttributes=system
    )
    (message,) = receive(sqs, url)
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["AWSTraceHeader"] == system["AWSTraceHeader"]["StringValue"]
    assert sent["MD5OfMessageSystemAttributes"] == "5ae4d5d7636402d80f4eb6d213245a88"  # as recorded from AWS


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_a_trace_header_has_a_limit_of_its_own(sqs: SqsServer) -> None:
    url = create(sqs)
    for size in (4096, 4097):
        system = {"AWSTraceHeader": {"DataType": "String", "StringValue": "x" * size}}
        entry = {"MessageBody": "x", "MessageSystemAttributes": system}
        reply = sqs.client.send_message_batch(QueueUrl=url, Entries=[entry | {"Id": "a"}])
        assert [one["Code"] for one in reply.get("Failed", ())] == ["InvalidParameterValue"] * (size == 4097)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ({"DataType": "String", "StringValue": ""}, "must contain a non-empty value of type 'String'"),
        ({"DataType": "Float", "StringValue": "1"}, "the set of supported type prefixes is Binary, Number, and String"),
        ({"DataType": "Number", "StringValue": "one"}, "to a number"),
        ({"DataType": "Binary", "StringValue": "x"}, "must contain a non-empty value"),
    ],
)
@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_an_invalid_attribute_is_refused(sqs: SqsServer, attribute: dict[str, Any], text: str) -> None:
    url = create(sqs)
    with refused("InvalidParameterValue") as error:
        sqs.client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"a": attribute})
    assert text in error["Message"]
    for name in ("AWS.x", "a..b", ".a", "a b"):
        with refused("InvalidParameterValue"):
            value = {"DataType": "String", "StringValue": "1"}
            sqs.client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={name: value})
    assert receive(sqs, url) == []


def test_a_batch_answers_for_each_entry(sqs: SqsServer) -> None:
    url = create(sqs, MaximumMessageSize="1024")
    reply = sqs.client.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "a"},
            {"Id": "control", "MessageBody": "a\x01b"},
            {"Id": "large", "MessageBody": "x" * 1025},
            {"Id": "late", "MessageBody": "b", "DelaySeconds": 901},
            {"Id": "delayed", "MessageBody": "c", "DelaySeconds": 5},
        ],
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["good", "delayed"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in reply["Failed"]] == [
        ("control", "InvalidMessageContents", True),
        ("large", "InvalidParameterValue", True),
        ("late", "InvalidParameterValue", True),
    ]
    received = receive(sqs, url)
    assert bodies(received) == ["a"]
    sqs.advance(5)
    received += receive(sqs, url)
    handles = [{"Id": f"m{place}", "ReceiptHandle": message["ReceiptHandle"]} for place, message in enumerate(received)]
    reply = sqs.client.delete_message_batch(
        QueueUrl=url, Entries=[*handles, {"Id": "bad", "ReceiptHandle": "nonsense"}]
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["m0", "m1"]
    assert [(entry["Id"], entry["Code"]) for entry in reply["Failed"]] == [("bad", "ReceiptHandleIsInvalid")]


def test_a_batch_that_is_no_batch_is_refused_whole(sqs: SqsServer) -> None:
    url, client = create(sqs), sqs.client
    entry = {"Id": "a", "MessageBody": "x"}
    prefix = "AWS.SimpleQueueService."
    with refused(f"{prefix}EmptyBatchRequest"):
        client.send_message_batch(QueueUrl=url, Entries=[])
    with refused(f"{prefix}TooManyEntriesInBatchRequest") as error:
        client.send_message_batch(QueueUrl=url, Entries=[entry | {"Id": str(number)} for number in range(11)])
    assert error["Message"] == "Maximum number of entries per request are 10. You have sent 11."
    with refused(f"{prefix}BatchEntryIdsNotDistinct"):
        client.send_message_batch(QueueUrl=url, Entries=[entry, entry])
    for id in ("", "a:b", "x" * 81):
        with refused(f"{prefix}InvalidBatchEntryId"):
            client.delete_message_batch(QueueUrl=url, Entries=[{"Id": id, "ReceiptHandle": "x"}])
    with refused(f"{prefix}BatchRequestTooLong") as error:
        half = "x" * 524_289
        entries = [{"Id": "a", "MessageBody": half}, {"Id": "b", "MessageBody": half}]
        client.send_message_batch(QueueUrl=url, Entries=entries)
    assert error["Message"] == "Batch requests cannot be longer than 1048576 bytes. You have sent 1048578 bytes."
    assert receive(sqs, url) == []


def test_a_message_may_have_one_mebibyte_and_no_more(sqs: SqsServer) -> None:
    url = create(sqs)
    attributes = {"k": {"DataType": "String", "StringValue": "x"}}
    with refused("InvalidParameterValue") as error:
        sqs.client.send_message(QueueUrl=url, MessageBody="x" * (1_048_576 - 7), MessageAttributes=attributes)
    assert error["Message"].endswith("Reason: Message must be shorter than 1048576 bytes.")
    sqs.client.send_message(QueueUrl=url, MessageBody="x" * (1_048_576 - 8), MessageAttributes=attributes)
    (message,) = receive(sqs, url)
    assert len(message["Body"]) == 1_048_568


def test_visibility_is_changed_alone_and_in_batches(sqs: SqsServer) -> None:
    url, client = create(sqs, VisibilityTimeout="10"), sqs.client
    for body in "abc":
        client.send_message(QueueUrl=url, MessageBody=body)
    first, second, third = receive(sqs, url)
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=100)
    reply = client.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "now", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "much", "ReceiptHandle": third["ReceiptHandle"], "VisibilityTimeout": 43_201},
            {"Id": "bad", "ReceiptHandle": "AQEB", "VisibilityTimeout": 1},
        ],
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["now"]
    assert {entry["Id"]: entry["Code"] for entry in reply["Failed"]} == {
        "much": "InvalidParameterValue",
        "bad": "ReceiptHandleIsInvalid",
    }
    assert bodies(receive(sqs, url)) == ["b"]
    sqs.advance(10)
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=third["ReceiptHandle"], VisibilityTimeout=5)
    assert bodies(receive(sqs, url)) == ["b", "c"]  # it had expired: as at AWS, no error and no effect
    with refused("AWS.SimpleQueueService.MessageNotInflight"):
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=third["ReceiptHandle"], VisibilityTimeout=5)
    client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    with refused("InvalidParameterValue") as error:
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=5)
    assert "Message does not exist or is not available for visibility timeout change." in error["Message"]


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_a_message_is_invisible_for_twelve_hours_in_total(sqs: SqsServer) -> None:
    url, client = create(sqs, VisibilityTimeout="3600"), sqs.client
    client.send_message(QueueUrl=url, MessageBody="x")
    handle = receive(sqs, url)[0]["ReceiptHandle"]
    sqs.advance(60)
    with refused("InvalidParameterValue") as error:
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_141)
    assert error["Message"] == (
        "Value 43141 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is "
        "beyond the limit [43200 seconds]"
    )
    entries = [{"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 43_200}]
    reply = client.change_message_visibility_batch(QueueUrl=url, Entries=entries)
    assert [entry["Code"] for entry in reply["Failed"]] == ["InvalidParameterValue"]
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_140)
    sqs.advance(43_139)
    assert receive(sqs, url) == []


def test_a_receipt_handle_is_valid_for_its_queue_only(sqs: SqsServer) -> None:
    one, two = create(sqs, "one"), create(sqs, "two")
    sqs.client.send_message(QueueUrl=one, MessageBody="x")
    (message,) = receive(sqs, one)
    with refused("ReceiptHandleIsInvalid") as error:
        sqs.client.delete_message(QueueUrl=two, ReceiptHandle=message["ReceiptHandle"])
    assert error["Message"].endswith("is not a valid receipt handle.")


def test_a_long_poll_ends_with_the_first_message_or_after_its_time(sqs: SqsServer) -> None:
    url = create(sqs, ReceiveMessageWaitTimeSeconds="20")
    got: list[list[str]] = []
    for send in (True, False):
        poll = threading.Thread(target=lambda: got.append(bodies(receive(sqs, url))))
        poll.start()
        wait_for(lambda: sleepers(sqs.broker))
        if send:
            sqs.client.send_message(QueueUrl=url, MessageBody="x")
        else:
            sqs.advance(20)
        poll.join(30)
        wait_for(lambda: not sleepers(sqs.broker))
    assert got == [["x"], []]


def test_numbers_out_of_range_are_refused_with_the_words_of_aws(sqs: SqsServer) -> None:
    url, client = create(sqs), sqs.client
    for asked, text in (
        ({"MaxNumberOfMessages": 11}, "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be"),
        ({"WaitTimeSeconds": 21}, "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20,"),
        ({"VisibilityTimeout": 43_201}, "Value 43201 for parameter VisibilityTimeout is invalid."),
    ):  # fmt: skip
        with refused("InvalidParameterValue") as error:
            client.receive_message(QueueUrl=url, **asked)
        assert error["Message"].startswith(text)
    with refused("InvalidAttributeName") as error:
        client.receive_message(QueueUrl=url, AttributeNames=["Nonsense"])
    assert error["Message"] == "Unknown Attribute Nonsense."
    with refused("MissingParameter") as error:
        client.send_message(QueueUrl=url, MessageBody="")
    assert error["Message"] == "The request must contain the parameter MessageBody."
    with refused("InvalidParameterValue"):
        client.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")


def test_messages_of_one_group_in_a_standard_queue_do_not_wait_for_each_other(sqs: SqsServer) -> None:
    url = create(sqs)
    for body in "abc":
        sqs.client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="tenant-1")
    first = receive(sqs, url, MaxNumberOfMessages=1)
    rest = receive(sqs, url)
    assert bodies(first + rest) == ["a", "b", "c"]
    assert {message["Attributes"]["MessageGroupId"] for message in first + rest} == {"tenant-1"}


@on_every_database
def test_a_dead_letter_keeps_its_id_counts_on_and_names_its_source(sqs: SqsServer) -> None:
    dead = create(sqs, "dead")
    arn = sqs.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": "2"}}'
    url = create(sqs, VisibilityTimeout="0", RedrivePolicy=policy)
    sent = sqs.client.send_message(QueueUrl=url, MessageBody="x")
    assert [len(receive(sqs, url)) for _ in range(3)] == [1, 1, 0]
    (message,) = receive(sqs, dead)
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "3"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn.replace(":dead", ":q")
    assert sqs.client.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]


# One broker


def test_what_one_door_sends_the_other_receives(sqs: SqsServer) -> None:
    url = create(sqs)
    attributes = {
        "color": {"DataType": "String", "StringValue": "red"},
        "size": {"DataType": "Number", "StringValue": "3"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\1"},
    }
    with sqs.native() as mq:
        queue = mq.queue("q")
        sent = sqs.client.send_message(QueueUrl=url, MessageBody='{"a": 1}', MessageAttributes=attributes)
        (message,) = queue.receive()
        assert (message.id, message.body) == (sent["MessageId"], '{"a": 1}')
        assert message.headers == {
            "color": "red",
            "size": "3",
            "AWS.DataType.size": "Number",
            "raw": "AAE=",
            "AWS.DataType.raw": "Binary",
        }
        message.ack()
        queue.send({"a": [1, "ä"]}, headers={"color": "blue", "x y": "z"})
        queue.send("text", content_type="text/plain")
        queue.send(b"\xff\0", content_type="application/octet-stream")
        received = receive(sqs, url)
        assert bodies(received) == ['{"a":[1,"ä"]}', "text", "/wA="]
        assert received[0]["MessageAttributes"] == {
            "color": {"DataType": "String", "StringValue": "blue"},
            "x y": {"DataType": "String", "StringValue": "z"},
        }
        reply = sqs.client.delete_message_batch(
            QueueUrl="q",
            Entries=[{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(received)],
        )
        assert len(reply["Successful"]) == 3
        assert queue.info().counts.total == 0
