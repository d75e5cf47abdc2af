"""Queues over Amazon SQS, by boto3: attributes, tags, permissions, lists, move tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit import wait_for
from tests.sqs import SqsServer, create, receive, refused, sqs

__all__ = ["sqs"]

ONE_SSE = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."

COUNT = "Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive."


def attributes(sqs: SqsServer, url: str, *names: str) -> dict[str, str]:
    asked = sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ["All"]))
    found: dict[str, str] = asked.get("Attributes", {})
    return found


def arn_of(sqs: SqsServer, url: str) -> str:
    return attributes(sqs, url, "QueueArn")["QueueArn"]


def test_a_new_queue_has_the_defaults_of_sqs(sqs: SqsServer) -> None:
    url = create(sqs)
    assert url == f"{sqs.url}/000000000000/q"
    now = str(sqs.clock.now() // 1_000_000)
    assert attributes(sqs, url) == {
        "QueueArn": "arn:aws:sqs:eu-west-1:000000000000:q",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "CreatedTimestamp": now,
        "LastModifiedTimestamp": now,
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "false",
    }
    fifo = sqs.client.create_queue(QueueName="f.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    assert attributes(sqs, fifo).items() >= {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }.items()  # fmt: skip
    assert attributes(sqs, url, "Policy", "FifoQueue") == {}
    assert "Attributes" not in sqs.client.get_queue_attributes(QueueUrl=url)


def test_attributes_are_changed_and_the_others_stay(sqs: SqsServer) -> None:
    url = create(sqs, VisibilityTimeout="20", MessageRetentionPeriod="604800", ReceiveMessageWaitTimeSeconds="10")
    sqs.advance(5)
    changed = {"VisibilityTimeout": "69", "DelaySeconds": "420", "MaximumMessageSize": "2048"}
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes=changed)
    now = sqs.clock.now() // 1_000_000
    assert attributes(sqs, url).items() >= (changed | {
        "MessageRetentionPeriod": "604800",
        "ReceiveMessageWaitTimeSeconds": "10",
        "CreatedTimestamp": str(now - 5),
        "LastModifiedTimestamp": str(now),
    }).items()  # fmt: skip
    with sqs.native() as mq:
        settings = mq.queue("q").info().settings
        assert (settings.visibility_timeout, settings.delay, settings.retention) == (69, 420, 604800)
        mq.queue("q").configure(visibility_timeout=7)
    assert attributes(sqs, url, "VisibilityTimeout") == {"VisibilityTimeout": "7"}


def test_invalid_attributes_are_refused_and_change_nothing(sqs: SqsServer) -> None:
    url = create(sqs)
    before = attributes(sqs, url)
    for given, code, text in (
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue", "Invalid value for the parameter VisibilityTimeout."),
        ({"DelaySeconds": "-1"}, "InvalidAttributeValue", "Invalid value for the parameter DelaySeconds."),
        ({"MaximumMessageSize": "1"}, "InvalidAttributeValue", "Invalid value for the parameter MaximumMessageSize."),
        ({"Policy": "{"}, "InvalidAttributeValue", "Invalid value for the parameter Policy."),
        ({"Nope": "1"}, "InvalidAttributeName", "Unknown Attribute Nope."),
        ({"QueueArn": "1"}, "InvalidAttributeName", "Unknown Attribute QueueArn."),
        ({"FifoQueue": "true"}, "InvalidAttributeName", "Unknown Attribute FifoQueue."),
        ({"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}, "InvalidAttributeName", ONE_SSE),
    ):  # fmt: skip
        with refused(code) as error:
            sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "3"} | given)
        assert error["Message"] == text
    fifo = sqs.client.create_queue(QueueName="f.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    with refused("InvalidAttributeValue") as error:
        sqs.client.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    assert error["Message"].endswith("Reason: Modifying queue type is not supported.")
    with refused("InvalidAttributeName"):
        sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=["Nope"])
    assert attributes(sqs, url) == before


def test_encryption_settings_are_kept(sqs: SqsServer) -> None:
    url = create(sqs, KmsMasterKeyId="testKeyId", KmsDataKeyReusePeriodSeconds="6000")
    asked = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
    assert attributes(sqs, url, *asked) == {
        "KmsMasterKeyId": "testKeyId",
        "KmsDataKeyReusePeriodSeconds": "6000",
        "SqsManagedSseEnabled": "false",
    }
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"SqsManagedSseEnabled": "true"})
    assert attributes(sqs, url, "KmsMasterKeyId", "SqsManagedSseEnabled") == {"SqsManagedSseEnabled": "true"}


def test_creating_a_queue_again_is_allowed_unless_an_attribute_differs(sqs: SqsServer) -> None:
    url = create(sqs, DelaySeconds="1")
    assert create(sqs) == create(sqs, DelaySeconds="1") == create(sqs, DelaySeconds="1", VisibilityTimeout="30") == url
    for given in ({"DelaySeconds": "2"}, {"DelaySeconds": "1", "VisibilityTimeout": "1"}):
        with refused("QueueAlreadyExists") as error:
            create(sqs, **given)
        assert error["Message"] == (
            "A queue already exists with the same name and a different value for attribute " + list(given)[-1]
        )
    for name, given in (("a.b", {}), ("x" * 81, {}), ("", {}), ("f.fifo", {}), ("f", {"FifoQueue": "true"})):
        with refused("InvalidParameterValue"):
            create(sqs, name, **given)


def test_queues_are_found_by_name_and_listed_by_prefix_and_page(sqs: SqsServer) -> None:
    urls = [create(sqs, name) for name in ("a-1", "a-2", "a-3", "b-1")]
    assert sqs.client.get_queue_url(QueueName="a-2")["QueueUrl"] == urls[1]
    assert sqs.client.list_queues(QueueNamePrefix="a-")["QueueUrls"] == urls[:3]
    first = sqs.client.list_queues(QueueNamePrefix="a-", MaxResults=2)
    assert first["QueueUrls"] == urls[:2]
    second = sqs.client.list_queues(QueueNamePrefix="a-", MaxResults=2, NextToken=first["NextToken"])
    assert (second["QueueUrls"], "NextToken" in second) == (urls[2:3], False)
    assert "QueueUrls" not in sqs.client.list_queues(QueueNamePrefix="zzz")
    with refused("InvalidParameterValue"):
        sqs.client.list_queues(MaxResults=1001)


def test_a_queue_that_does_not_exist_is_refused_by_every_action(sqs: SqsServer) -> None:
    client, code = sqs.client, "AWS.SimpleQueueService.NonExistentQueue"
    calls: list[tuple[Any, dict[str, Any]]] = [
        (client.send_message, {"MessageBody": "x"}),
        (client.send_message_batch, {"Entries": [{"Id": "a", "MessageBody": "x"}]}),
        (client.receive_message, {"WaitTimeSeconds": 20}),
        (client.delete_message, {"ReceiptHandle": "x"}),
        (client.change_message_visibility, {"ReceiptHandle": "x", "VisibilityTimeout": 1}),
        (client.get_queue_attributes, {"AttributeNames": ["All"]}),
        (client.set_queue_attributes, {"Attributes": {"DelaySeconds": "1"}}),
        (client.list_queue_tags, {}),
        (client.tag_queue, {"Tags": {"a": "b"}}),
        (client.purge_queue, {}),
        (client.delete_queue, {}),
        (client.list_dead_letter_source_queues, {}),
        (client.add_permission, {"Label": "l", "AWSAccountIds": ["1"], "Actions": ["*"]}),
    ]
    for call, asked in calls:
        with refused(code) as error:
            call(QueueUrl=f"{sqs.url}/000000000000/nope", **asked)
        wsdl = " for this wsdl version" if sqs.protocol == "query" else ""
        assert error["Message"] == f"The specified queue does not exist{wsdl}."
    with refused(code):
        client.get_queue_url(QueueName="nope")
    url = create(sqs)
    client.delete_queue(QueueUrl=url)
    with refused(code):
        client.send_message(QueueUrl=url, MessageBody="x")


def test_tags_are_added_replaced_and_removed_and_native_clients_see_them(sqs: SqsServer) -> None:
    client = sqs.client
    url = client.create_queue(QueueName="q", tags={"a": "1"})["QueueUrl"]
    client.tag_queue(QueueUrl=url, Tags={"a": "2", "b": "", "c d": "ü"})
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "2", "b": "", "c d": "ü"}
    with sqs.native() as mq:
        assert mq.queue("q").info().settings.tags == {"a": "2", "b": "", "c d": "ü"}
        mq.queue("q").configure(tags={"b": None, "team": "x"})
    client.untag_queue(QueueUrl=url, TagKeys=["a", "nope"])
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"c d": "ü", "team": "x"}
    client.untag_queue(QueueUrl=url, TagKeys=["c d", "team"])
    assert "Tags" not in client.list_queue_tags(QueueUrl=url)
    with refused("InvalidParameterValue"):
        client.tag_queue(QueueUrl=url, Tags={f"t{number}": "" for number in range(51)})


def test_permissions_are_statements_of_the_policy(sqs: SqsServer) -> None:
    client, url = sqs.client, create(sqs)
    client.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["1" * 12, "2" * 12], Actions=["ReceiveMessage"])
    arn = arn_of(sqs, url)
    assert json.loads(attributes(sqs, url)["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "l",
                "Effect": "Allow",
                "Principal": {"AWS": [f"arn:aws:iam::{'1' * 12}:root", f"arn:aws:iam::{'2' * 12}:root"]},
                "Action": "SQS:ReceiveMessage",
                "Resource": arn,
            }
        ],
    }
    with refused("InvalidParameterValue") as error:
        client.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["1" * 12], Actions=["*"])
    assert error["Message"] == "Value l for parameter Label is invalid. Reason: Already exists."
    for label in ("", "a b", "x" * 81):
        with refused("InvalidParameterValue"):
            client.add_permission(QueueUrl=url, Label=label, AWSAccountIds=["1" * 12], Actions=["*"])
    with refused("InvalidParameterValue") as error:
        client.add_permission(QueueUrl=url, Label="m", AWSAccountIds=["1" * 12, "x"], Actions=["*"])
    assert error["Message"] == "Value [x] for parameter PrincipalId is invalid. Reason: Unable to verify."
    client.remove_permission(QueueUrl=url, Label="l")
    assert attributes(sqs, url, "Policy") == {}
    with refused("InvalidParameterValue") as error:
        client.remove_permission(QueueUrl=url, Label="l")
    assert error["Message"] == "Value l for parameter Label is invalid. Reason: can't find label."
    with refused("OverLimit", 403):
        client.add_permission(QueueUrl=url, Label="m", AWSAccountIds=["1" * 12], Actions=["SendMessage"] * 8)


def test_a_redrive_policy_is_checked_and_removed(sqs: SqsServer) -> None:
    dead, url = create(sqs, "dead"), create(sqs)
    arn = arn_of(sqs, dead)
    for policy, reason in (
        ('{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}', "Invalid value for deadLetterTargetArn."),
        (f'{{"deadLetterTargetArn": "{arn}x", "maxReceiveCount": 4}}', "Dead letter target does not exist."),
        (f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1001}}', COUNT),
        ("x", "Redrive policy is not a valid JSON map."),
    ):  # fmt: skip
        with refused("InvalidParameterValue") as error:
            sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
        assert error["Message"] == f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}"
    policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"3"}}'
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert attributes(sqs, url, "RedrivePolicy") == {"RedrivePolicy": policy}
    with sqs.native() as mq:
        settings = mq.queue("q").info().settings
        assert (settings.max_receives, settings.dead_letter_queue) == (3, "dead")
        mq.queue("q").configure(max_receives=4)
    changed = {"deadLetterTargetArn": arn, "maxReceiveCount": 4}
    assert json.loads(attributes(sqs, url, "RedrivePolicy")["RedrivePolicy"]) == changed
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert attributes(sqs, url, "RedrivePolicy") == {}
    denied = {"RedriveAllowPolicy": '{"redrivePermission": "denyAll"}'}
    sqs.client.set_queue_attributes(QueueUrl=dead, Attributes=denied)
    with refused("InvalidParameterValue"):
        sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})


def bury(sqs: SqsServer, count: int) -> tuple[str, str]:
    """A queue whose messages are all in its dead-letter queue; the URLs of both."""
    dead = create(sqs, "dead")
    policy = f'{{"deadLetterTargetArn":"{arn_of(sqs, dead)}","maxReceiveCount":1}}'
    url = create(sqs, VisibilityTimeout="0", RedrivePolicy=policy)
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(count)]
    sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    receive(sqs, url)
    receive(sqs, url)
    return url, dead


def test_a_move_task_brings_dead_letters_back(sqs: SqsServer) -> None:
    url, dead = bury(sqs, 3)
    client, arn = sqs.client, arn_of(sqs, dead)
    client.start_message_move_task(SourceArn=arn)

    def task() -> dict[str, Any]:
        (entry,) = client.list_message_move_tasks(SourceArn=arn)["Results"]
        return dict(entry)

    wait_for(lambda: task()["Status"] == "COMPLETED")
    assert task() == {
        "Status": "COMPLETED",
        "SourceArn": arn,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 3,
        "StartedTimestamp": sqs.clock.now() // 1000,
    }
    assert sorted(message["Body"] for message in receive(sqs, url)) == ["0", "1", "2"]


def test_a_move_task_is_cancelled(sqs: SqsServer) -> None:
    url, dead = bury(sqs, 3)
    client, arn, to = sqs.client, arn_of(sqs, dead), arn_of(sqs, url)
    asked = {"SourceArn": arn, "DestinationArn": to, "MaxNumberOfMessagesPerSecond": 1}
    handle = client.start_message_move_task(**asked)["TaskHandle"]
    with refused("InvalidParameterValue") as error:
        client.start_message_move_task(**asked)
    assert error["Message"].startswith("There is already a task running.")
    (running,) = client.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (running["Status"], running["TaskHandle"], running["DestinationArn"]) == ("RUNNING", handle, to)
    moved = client.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    (cancelled,) = client.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (cancelled["Status"], cancelled["ApproximateNumberOfMessagesMoved"]) == ("CANCELLED", moved)
    assert "TaskHandle" not in cancelled
    counts = attributes(sqs, dead, "ApproximateNumberOfMessages")
    assert counts == {"ApproximateNumberOfMessages": str(3 - moved)}


def test_a_move_task_into_a_full_queue_has_failed(sqs: SqsServer) -> None:
    _, dead = bury(sqs, 3)
    client, arn, to = sqs.client, arn_of(sqs, dead), create(sqs, "small")
    with sqs.native() as mq:
        mq.queue("small").configure(max_length=1)
    client.start_message_move_task(SourceArn=arn, DestinationArn=arn_of(sqs, to))

    def task() -> dict[str, Any]:
        (entry,) = client.list_message_move_tasks(SourceArn=arn)["Results"]
        return dict(entry)

    wait_for(lambda: task()["Status"] != "RUNNING")
    assert (task()["Status"], task()["FailureReason"]) == ("FAILED", "OverLimit")
    assert (task()["ApproximateNumberOfMessagesMoved"], task()["ApproximateNumberOfMessagesToMove"]) == (1, 3)
    assert attributes(sqs, dead, "ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "2"}


def test_a_redrive_allow_policy_is_checked_and_names_whole_queues(sqs: SqsServer) -> None:
    dead, url = create(sqs, "dead"), create(sqs, "q")
    arn = arn_of(sqs, url)

    def allow(policy: Any) -> None:
        sqs.client.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(policy)})

    malformed, invalid = "InvalidAttributeValue", "InvalidParameterValue"
    for policy, code in (
        ({"redrivePermission": 1}, malformed),
        ({"redrivePermission": []}, malformed),
        ({"redrivePermission": "some"}, malformed),
        ({"redrivePermission": "byQueue"}, invalid),
        ({"redrivePermission": "byQueue", "sourceQueueArns": arn}, malformed),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [1, {}]}, malformed),
        ({"redrivePermission": "byQueue", "sourceQueueArns": ["q"]}, malformed),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [f"{arn}{number}" for number in range(11)]}, invalid),
        ({"redrivePermission": "denyAll", "sourceQueueArns": [arn]}, invalid),
        ({"permission": "denyAll"}, malformed),
    ):
        with refused(code):
            allow(policy)
    assert attributes(sqs, dead, "RedriveAllowPolicy") == {}
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})}
    allow({"redrivePermission": "byQueue", "sourceQueueArns": [f"{arn}{number}" for number in range(10)]})
    with refused("InvalidParameterValue"):
        sqs.client.set_queue_attributes(QueueUrl=url, Attributes=redrive)
    allow({"redrivePermission": "byQueue", "sourceQueueArns": [arn]})
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes=redrive)


def test_move_tasks_are_refused_with_the_words_of_aws(sqs: SqsServer) -> None:
    url, dead = bury(sqs, 1)
    client, arn = sqs.client, arn_of(sqs, dead)
    with refused("InvalidParameterValue") as error:
        client.start_message_move_task(SourceArn=arn_of(sqs, url))
    assert error["Message"] == "Source queue must be configured as a Dead Letter Queue."
    with refused("ResourceNotFoundException", 404) as error:
        client.start_message_move_task(SourceArn=arn, DestinationArn=f"{arn}x")
    assert error["Message"] == "The resource that you specified for the DestinationArn parameter doesn't exist."
    with refused("ResourceNotFoundException", 404):
        client.start_message_move_task(SourceArn=f"{arn}x")
    with refused("InvalidParameterValue") as error:
        client.cancel_message_move_task(TaskHandle="foobar")
    assert error["Message"] == "Value for parameter TaskHandle is invalid."


@pytest.mark.parametrize("sqs", ["rocksdb"], indirect=True)
def test_a_native_queue_is_a_queue_of_sqs(sqs: SqsServer) -> None:
    with sqs.native() as mq:
        mq.queue("orders.eu").send({"a": 1})
    found = attributes(sqs, "orders.eu")
    assert found["ApproximateNumberOfMessages"] == "1"
    assert json.loads(found["RedrivePolicy"]) == {
        "deadLetterTargetArn": "arn:aws:sqs:eu-west-1:000000000000:orders.eu.dead",
        "maxReceiveCount": 20,
    }
    assert sqs.client.create_queue(QueueName="orders.eu")["QueueUrl"].endswith("/orders.eu")
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.client.delete_queue(QueueUrl="default")
