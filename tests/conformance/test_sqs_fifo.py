"""FIFO queues over Amazon SQS, by boto3."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from miniq.broker import attempts
from tests.conftest import store_url
from tests.sqs import SqsServer, bodies, on_every_database, receive, refused, sqs, sqs_server

__all__ = ["sqs"]


def create(sqs: SqsServer, name: str = "q.fifo", **attributes: str) -> str:
    created = sqs.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} | attributes)
    return str(created["QueueUrl"])


def send(
    sqs: SqsServer, url: str, body: str, group: str = "g", dedup: str | None = None, **more: Any
) -> dict[str, Any]:
    sent: dict[str, Any] = sqs.client.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=dedup or body, **more
    )
    return sent


def delete(sqs: SqsServer, url: str, *messages: dict[str, Any]) -> None:
    for message in messages:
        sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


@on_every_database
def test_a_receive_gets_several_of_a_group_which_is_then_blocked_until_all_are_settled(sqs: SqsServer) -> None:
    url = create(sqs)
    sent = [send(sqs, url, body) for body in ("1", "2", "3", "4")]
    numbers = [int(one["SequenceNumber"]) for one in sent]
    assert numbers == sorted(set(numbers))
    first = receive(sqs, url, MaxNumberOfMessages=3)
    assert bodies(first) == ["1", "2", "3"]
    assert [message["Attributes"]["SequenceNumber"] for message in first] == [one["SequenceNumber"] for one in sent[:3]]
    assert first[0]["Attributes"]["MessageGroupId"] == "g"
    assert first[0]["Attributes"]["MessageDeduplicationId"] == "1"
    delete(sqs, url, first[0], first[1])
    assert receive(sqs, url) == []
    sqs.client.change_message_visibility(QueueUrl=url, ReceiptHandle=first[2]["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(sqs, url)) == ["3", "4"]


def test_no_message_of_a_group_is_received_while_its_first_is_invisible(sqs: SqsServer) -> None:
    url = create(sqs, VisibilityTimeout="10")
    for body in ("1", "2"):
        send(sqs, url, body)
    (first,) = receive(sqs, url, MaxNumberOfMessages=1)
    send(sqs, url, "other", "h")
    assert bodies(receive(sqs, url)) == ["other"]
    sqs.client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=100)
    sqs.advance(50)
    assert bodies(receive(sqs, url)) == ["other"]
    sqs.advance(50)
    assert sorted(bodies(receive(sqs, url))) == ["1", "2", "other"]


@on_every_database
def test_two_concurrent_receives_never_get_messages_of_one_group(sqs: SqsServer) -> None:
    url = create(sqs)
    groups = [f"g{number}" for number in range(5)]
    for number in range(4):
        bodies_of = {group: f"{group}-{number}" for group in groups}
        entries = [
            {"Id": group, "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": body}
            for group, body in bodies_of.items()
        ]
        sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    client = sqs.client
    seen: dict[str, list[str]] = {group: [] for group in groups}
    with ThreadPoolExecutor(8) as threads:
        while sum(map(len, seen.values())) < 20:
            asked = [
                threads.submit(client.receive_message, QueueUrl=url, MaxNumberOfMessages=2, AttributeNames=["All"])
                for _ in range(8)
            ]
            replies = [one.result().get("Messages", []) for one in asked]
            owners: dict[str, int] = {}
            for place, messages in enumerate(replies):
                for message in messages:
                    group = message["Attributes"]["MessageGroupId"]
                    assert owners.setdefault(group, place) == place
                    seen[group].append(message["Body"])
            for message in [message for messages in replies for message in messages]:
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert seen == {group: [f"{group}-{number}" for number in range(4)] for group in groups}


@on_every_database
def test_a_duplicate_within_five_minutes_is_the_first_message_also_after_its_deletion(sqs: SqsServer) -> None:
    url = create(sqs)
    first = send(sqs, url, "one", dedup="d")
    second = send(sqs, url, "two", "h", "d")
    assert (second["MessageId"], second["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    messages = receive(sqs, url)
    assert bodies(messages) == ["one"]
    delete(sqs, url, *messages)
    sqs.advance(299)
    assert send(sqs, url, "three", dedup="d")["MessageId"] == first["MessageId"]
    assert receive(sqs, url) == []
    sqs.advance(1)
    send(sqs, url, "four", dedup="d")
    assert bodies(receive(sqs, url)) == ["four"]


@on_every_database
def test_a_purge_forgets_dedup_ids_and_a_second_one_must_wait(sqs: SqsServer) -> None:
    url = create(sqs)
    send(sqs, url, "one", dedup="d")
    sqs.client.purge_queue(QueueUrl=url)
    send(sqs, url, "two", dedup="d")
    assert bodies(receive(sqs, url)) == ["two"]
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", 403) as error:
        sqs.client.purge_queue(QueueUrl=url)
    assert error["Message"] == "Only one PurgeQueue operation on q.fifo is allowed every 60 seconds."
    sqs.advance(60)
    sqs.client.purge_queue(QueueUrl=url)


def test_all_brokers_on_a_store_know_of_a_purge(tmp_path: Path) -> None:
    store = store_url("postgresql", tmp_path)
    with sqs_server(store) as one, sqs_server(store) as other:
        url = create(one)
        one.client.purge_queue(QueueUrl=url)
        with refused("AWS.SimpleQueueService.PurgeQueueInProgress", 403):
            other.client.purge_queue(QueueUrl=url)
        one.client.delete_queue(QueueUrl=url)
        other.client.purge_queue(QueueUrl=create(other))


def test_a_purge_of_an_empty_queue_forgets_dedup_ids_too(sqs: SqsServer) -> None:
    url = create(sqs)
    send(sqs, url, "one", dedup="d")
    delete(sqs, url, *receive(sqs, url))
    sqs.client.purge_queue(QueueUrl=url)
    send(sqs, url, "two", dedup="d")
    assert bodies(receive(sqs, url)) == ["two"]


def test_dedup_by_content_and_within_a_group(sqs: SqsServer) -> None:
    url = create(
        sqs,
        ContentBasedDeduplication="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    long = "x" * 128
    for group in ("a", "a", "b", long, long):
        sqs.client.send_message(QueueUrl=url, MessageBody="same", MessageGroupId=group)
    messages = receive(sqs, url)
    assert [message["Attributes"]["MessageGroupId"] for message in messages] == ["a", "b", long]
    digest = sha256(b"same").hexdigest()
    assert {message["Attributes"]["MessageDeduplicationId"] for message in messages} == {digest}
    (first, second) = (send(sqs, url, "y", long, long), send(sqs, url, "z", long, long))
    assert first["MessageId"] == second["MessageId"]


def test_high_throughput_by_group_needs_deduplication_by_group(sqs: SqsServer) -> None:
    high = {"FifoThroughputLimit": "perMessageGroupId"}
    with refused("InvalidAttributeValue"):
        create(sqs, **high)
    url = create(sqs)
    with refused("InvalidAttributeValue"):
        sqs.client.set_queue_attributes(QueueUrl=url, Attributes=high)
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes=high | {"DeduplicationScope": "messageGroup"})
    sqs.client.set_queue_attributes(QueueUrl=url, Attributes=high)
    with refused("InvalidAttributeValue"):
        sqs.client.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": "queue"})


def test_an_expired_receipt_handle_deletes_nothing(sqs: SqsServer) -> None:
    url = create(sqs, VisibilityTimeout="10")
    send(sqs, url, "x")
    (message,) = receive(sqs, url)
    sqs.advance(10)
    with refused("InvalidParameterValue") as error:
        delete(sqs, url, message)
    assert error["Message"].endswith("Reason: The receipt handle has expired.")
    entries = [{"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}]
    reply = sqs.client.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Code"] for entry in reply["Failed"]] == ["InvalidParameterValue"]
    assert bodies(receive(sqs, url)) == ["x"]


@pytest.mark.parametrize("sqs", ["query", "mongodb"], indirect=True)
def test_a_receive_is_repeated_under_its_attempt_id(sqs: SqsServer) -> None:
    url = create(sqs, VisibilityTimeout="10")
    for body in ("1", "2", "3"):
        send(sqs, url, body)
    attempt = {"ReceiveRequestAttemptId": "a-1", "MaxNumberOfMessages": 2}
    first = receive(sqs, url, **attempt)
    assert bodies(first) == ["1", "2"]
    sqs.advance(9)
    assert receive(sqs, url) == receive(sqs, url, ReceiveRequestAttemptId="a-2") == []
    assert receive(sqs, url, **attempt) == first  # with the same receipt handles, and leased anew
    sqs.advance(9)
    assert receive(sqs, url) == []
    assert receive(sqs, url, **attempt, VisibilityTimeout=400) == first
    sqs.advance(300)
    assert receive(sqs, url, **attempt) == []  # five minutes later it is a new receive
    delete(sqs, url, *first)
    third = receive(sqs, url, **attempt)
    assert bodies(third) == ["3"]
    sqs.advance(10)
    (again,) = receive(sqs, url, **attempt)  # visible again, so received again
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert again["ReceiptHandle"] != third[0]["ReceiptHandle"]


@pytest.mark.parametrize("sqs", ["rocksdb", "postgresql"], indirect=True)
def test_a_receive_is_not_repeated_once_a_message_has_changed(sqs: SqsServer) -> None:
    url = create(sqs)
    for body in ("1", "2", "3"):
        send(sqs, url, body, f"g{body}")
    attempt = {"ReceiveRequestAttemptId": "a", "MaxNumberOfMessages": 2}
    (_, second) = receive(sqs, url, **attempt)
    sqs.client.change_message_visibility(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=20)
    third = receive(sqs, url, **attempt)
    assert bodies(third) == ["3"]  # it is a new receive, and that of the id
    assert receive(sqs, url, **attempt) == third
    delete(sqs, url, *third)
    assert receive(sqs, url, **attempt) == []
    sqs.advance(20)
    assert bodies(receive(sqs, url, **attempt)) == ["2"]
    with refused("InvalidParameterValue") as error:
        receive(sqs, url, ReceiveRequestAttemptId="a b")
    assert "for parameter ReceiveRequestAttemptId is invalid" in error["Message"]


@pytest.mark.parametrize("sqs", ["mongodb"], indirect=True)
def test_repeats_at_the_same_time_get_the_same_messages(sqs: SqsServer) -> None:
    url = create(sqs)
    for body in ("1", "2"):
        send(sqs, url, body)
    known = attempts.Attempts(sqs.broker)

    async def repeat() -> list[list[str]]:
        each = await asyncio.gather(*(known.receive("a", "q.fifo", max=10) for _ in range(8)))
        return [[stored.message.body.decode() for stored in taken] for taken in each]

    assert len(sqs.run(known.receive("a", "q.fifo", max=10))) == 2
    sqs.advance(1)
    assert sqs.run(repeat()) == [["1", "2"]] * 8


@pytest.mark.parametrize("sqs", ["query"], indirect=True)
def test_only_the_latest_attempts_are_remembered(sqs: SqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ATTEMPTS", 2)
    url = create(sqs)
    for body in ("1", "2", "3"):
        send(sqs, url, body, f"g{body}")
        assert bodies(receive(sqs, url, ReceiveRequestAttemptId=body)) == [body]
    assert [bodies(receive(sqs, url, ReceiveRequestAttemptId=body)) for body in ("1", "2", "3")] == [[], ["2"], ["3"]]


def test_a_fifo_queue_wants_a_group_and_a_dedup_id_and_no_delay(sqs: SqsServer) -> None:
    url, client = create(sqs), sqs.client
    with refused("MissingParameter") as error:
        client.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")
    assert error["Message"] == "The request must contain the parameter MessageGroupId."
    with refused("InvalidParameterValue") as error:
        client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    assert error["Message"].startswith("The queue should either have ContentBasedDeduplication enabled or")
    with refused("InvalidParameterValue") as error:
        send(sqs, url, "x", DelaySeconds=2)
    assert error["Message"] == (
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
        "this queue type."
    )
    send(sqs, url, "x", DelaySeconds=0)
    for group in ("", "a b", "ä", "x" * 129):
        with refused("InvalidParameterValue" if group else "MissingParameter"):
            send(sqs, url, "x", group)
    for entry, text in (
        ({"MessageDeduplicationId": "d"}, "The request must contain the parameter MessageGroupId."),
        ({"MessageGroupId": "g"}, "The queue should either have ContentBasedDeduplication enabled or"),
    ):
        with refused("InvalidParameterValue") as error:
            client.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "x"} | entry])
        assert error["Message"].startswith(text)


def test_fifo_dead_letters_keep_their_group(sqs: SqsServer) -> None:
    dead = create(sqs, "dead.fifo")
    arn = sqs.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    url = create(sqs, VisibilityTimeout="0", RedrivePolicy=f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}')
    sent = send(sqs, url, "x")
    assert [len(receive(sqs, url)) for _ in range(2)] == [1, 0]
    (message,) = receive(sqs, dead)
    assert message["MessageId"] == sent["MessageId"]
    assert (message["Attributes"]["MessageGroupId"], message["Attributes"]["MessageDeduplicationId"]) == ("g", "x")
