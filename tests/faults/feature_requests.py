"""Requests of topics, schedules and results, and those of SQS and SNS, for `http_requests.py`: mostly proper ones."""

from __future__ import annotations

import json
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlencode

from miniq.message import Lease
from miniq.server.http.aws.sqs import receipts
from tests.faults import predictable

RESULT = b"00000000-0000-7000-8000-000000000001"
"""An id that a program chose for a result."""
ACCOUNT = "000000000000"
TOPIC = f"arn:aws:sns:us-east-1:{ACCOUNT}:t"


class Wanted(NamedTuple):
    """A request before it is framed."""

    label: str
    target: bytes
    """Method and path."""
    value: Any = None
    """What its body says in JSON, or the body; None if it has none."""
    headers: tuple[bytes, ...] = ()


# The native routes


def topic(chance: Random, queue: str, message: Any) -> Wanted:
    """A request about a topic."""
    path = b"/v1/topics/%b" % chance.choice([b"t", b"t", b"t", b"u", b"a%20b"])
    subscription = b"%b/subscriptions/%b" % (path, chance.choice([b"s", b"s", b"other"]))
    subscribed = {"queue": chance.choice([queue, "q", "r", "new"])} | chance.choice(
        [{}, {}, {"pattern": "k"}, {"pattern": "a.*.#"}, {"filter": {"h": ["v"]}}, {"filter": {"h": "v"}}, {"zz": 1}]
    )
    stages = {"stages": [{"partition": 0, "attempt": 0}]}
    publish = Wanted("publish", b"POST %b/messages" % path, chance.choice([message, {"messages": [message, message]}]))
    subscribe = Wanted("subscribe", b"PUT " + subscription, subscribed)
    return chance.choice(
        [
            publish, publish, publish, subscribe, subscribe,
            Wanted("topic", b"PUT " + path, chance.choice([{}, {"history": "events"}, {"history": "none"}])),
            Wanted("topic", b"GET " + path),
            Wanted("topic", b"GET /v1/topics"),
            Wanted("topic", b"DELETE " + path),
            Wanted("topic", b"DELETE " + subscription),
            Wanted("match", b"POST %b/match" % path, {"key": "k", "headers": {"h": "v"}}),
            Wanted("upload to a topic", b"POST %b/stages/j/1/0/0" % path, {"messages": [message]}),
            Wanted("commit to a topic", b"POST %b/stages/j/1/commit" % path, stages),
        ]
    )  # fmt: skip


def schedule(chance: Random, queue: str, message: Any) -> Wanted:
    """A request about a schedule. None of them is due within a sequence: `run` sends its message."""
    path = b"/v1/schedules/%b" % chance.choice([b"s", b"s", b"s", b"other", b".."])
    target = chance.choice([{"queue": queue}, {"queue": "q"}, {"topic": "t"}, {"queue": "q", "topic": "t"}, {}])
    moment = chance.choice(
        [{"every": 86400}, {"cron": "0 0 1 1 *"}, {"cron": "0 0 1 1 *", "timezone": "Europe/Berlin"}, {"every": -1},
         {"at": "2100-01-01T00:00:00Z"}, {"cron": "* *"}, {"every": 86400, "paused": True}, {"every": 5, "cron": "x"}]
    )  # fmt: skip
    put = Wanted("schedule", b"PUT " + path, message | target | moment)
    run = Wanted("run a schedule", b"POST %b/run" % path, {})
    return chance.choice(
        [
            put, put, put, run, run,
            Wanted("schedule", b"PUT " + path, {"paused": chance.choice([True, False, 1])}),
            Wanted("schedule", b"GET " + path),
            Wanted("schedule", b"GET /v1/schedules"),
            Wanted("schedule", b"DELETE " + path),
        ]
    )  # fmt: skip


def result(chance: Random, queue: bytes, id: bytes) -> Wanted:
    """A request about a result."""
    path = b"/v1/queues/%b/results/%b" % (queue, chance.choice([id, id, RESULT, b"x"]))
    value = chance.choice([{"result": [1, None]}, {"result": "x", "ttl": 9}, {"final": False}, {}, {"new": 1}])
    return chance.choice(
        [
            Wanted("keep results", b"PUT /v1/queues/" + queue, {"results": chance.choice([60, 60, 0])}),
            Wanted("result", b"GET " + path),
            Wanted("result", b"GET %b?wait=%b" % (path, chance.choice([b"0", b"1", b"x"]))),
            Wanted("put a result", b"PUT " + path, value),
            Wanted("put a result", b"PUT /v1/queues/%b/results/%b" % (queue, RESULT), value),
        ]
    )


# SQS and SNS


def handle(queue: str, lease: dict[str, str]) -> str:
    """The receipt handle of a lease that an earlier request may have been given."""

    class Leased(NamedTuple):
        message: Lease
        receipt: str

    known = Lease(lease["id"], lease["receipt"])
    return receipts.handle_of(queue, Leased(known, known.receipt))  # type: ignore[arg-type]


def sqs(chance: Random, queue: str, lease: dict[str, str]) -> Wanted:
    """A request of SQS, in one of its protocols."""
    queue = chance.choice([queue, "q", "q", "s.fifo"])
    url = chance.choice([queue, f"http://x/{ACCOUNT}/{queue}", f"http://x/{ACCOUNT}/{queue}", "no queue"])
    fifo = {"MessageGroupId": "g", "MessageDeduplicationId": chance.choice(["d", "e"])} if ".fifo" in queue else {}
    given = handle(queue, lease) if chance.random() < 0.8 else "nonsense"
    sent = {"MessageBody": chance.choice(["x", "<&>", "ü", "y" * 300, ""])} | chance.choice([fifo, fifo, {}])
    attribute = {"DataType": "String", "StringValue": "v"}
    actions: list[tuple[str, dict[str, Any]]] = [
        ("CreateQueue", {"QueueName": queue, "Attributes": {"FifoQueue": "true"} if ".fifo" in queue else {}}),
        ("CreateQueue", {"QueueName": "bad name", "Attributes": {}}),
        *[("SendMessage", {"QueueUrl": url} | sent)] * 4,
        ("SendMessage", {"QueueUrl": url, "DelaySeconds": chance.choice([5, 901])} | sent),
        ("SendMessage", {"QueueUrl": url, "MessageAttributes": {"a": attribute}} | sent),
        ("SendMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "1"} | sent, {"Id": chance.choice("12")} | sent]}),
        *[("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": chance.choice([0, 0, 1, 21])})] * 3,
        ("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": chance.choice([2, 11]), "AttributeNames": ["All"]}),
        *[("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": given})] * 2,
        ("DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "1", "ReceiptHandle": given}]}),
        ("ChangeMessageVisibility", {"QueueUrl": url, "ReceiptHandle": given, "VisibilityTimeout": 0}),
        ("GetQueueUrl", {"QueueName": queue}),
        ("ListQueues", {}),
        ("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]}),
        ("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"DelaySeconds": chance.choice(["5", "x"])}}),
        ("PurgeQueue", {"QueueUrl": url}),
        ("TagQueue", {"QueueUrl": url, "Tags": {"a": "b"}}),
        ("DeleteQueue", {"QueueUrl": url}),
        ("Nonsense", {}),
    ]
    action, value = chance.choice(actions)
    if chance.random() < 0.5:
        raw = json.dumps(value).encode()
        headers = (b"x-amz-target: AmazonSQS." + action.encode(), b"content-type: application/x-amz-json-1.0")
        return Wanted("SQS", b"POST /", raw if chance.random() < 0.9 else raw[:-1] + b"]", headers)
    if chance.random() < 0.2:
        path = f"/{ACCOUNT}/{queue}?" + form(action, {name: value[name] for name in value if name != "QueueUrl"})
        return Wanted("SQS", b"GET " + path.encode())
    return _posted("SQS", form(action, value))


def sns(chance: Random, queue: str) -> Wanted:
    """A request of SNS."""
    topic = chance.choice([TOPIC, TOPIC, TOPIC, TOPIC + "%", "arn:x"])
    subscription = f"{TOPIC}:{predictable.uuid(chance.choice([1, 2]))}"
    endpoint = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{chance.choice([queue, 'q', 'r'])}"
    entry = {"Id": "1", "Message": "x"}
    batch = [entry, entry | {"Id": chance.choice("12")}]
    protocol = chance.choice(["sqs", "sqs", "smtp"])
    actions: list[tuple[str, dict[str, Any]]] = [
        ("CreateTopic", {"Name": chance.choice(["t", "t", "a b"])}),
        *[("Subscribe", {"TopicArn": topic, "Protocol": protocol, "Endpoint": endpoint})] * 3,
        *[("Publish", {"TopicArn": topic, "Message": chance.choice(["x", "<ü>", ""])})] * 3,
        ("PublishBatch", {"TopicArn": topic, "PublishBatchRequestEntries": batch}),
        ("SetSubscriptionAttributes",
         {"SubscriptionArn": subscription, "AttributeName": "RawMessageDelivery", "AttributeValue": "true"}),
        ("GetTopicAttributes", {"TopicArn": topic}),
        ("ListTopics", {}),
        ("ListSubscriptions", {}),
        ("Unsubscribe", {"SubscriptionArn": subscription}),
        ("DeleteTopic", {"TopicArn": topic}),
    ]  # fmt: skip
    action, value = chance.choice(actions)
    return _posted("SNS", form(action, value, "2010-03-31"))


def _posted(label: str, text: str) -> Wanted:
    return Wanted(label, b"POST /", text.encode(), (b"content-type: application/x-www-form-urlencoded",))


def form(action: str, value: dict[str, Any], version: str = "2012-11-05") -> str:
    """A request in the Query protocol."""
    fields = {"Action": action, "Version": version}
    for name, each in value.items():
        if isinstance(each, dict):
            key = "Key" if name == "Tags" else "Name"
            for number, (inner, text) in enumerate(each.items(), 1):
                place = f"{name.removesuffix('s')}.{number}"
                fields |= {f"{place}.{key}": inner} | _flat(f"{place}.Value", text)
        elif isinstance(each, list):
            prefix = (
                f"{name}.member"
                if "Publish" in name
                else f"{action}RequestEntry"
                if name == "Entries"
                else "AttributeName"
            )
            for number, inner in enumerate(each, 1):
                fields |= _flat(f"{prefix}.{number}", inner)
        else:
            fields[name] = str(each)
    return urlencode(fields)


def _flat(prefix: str, value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {f"{prefix}.{name}": str(inner) for name, inner in value.items()}
    return {prefix: str(value)}
