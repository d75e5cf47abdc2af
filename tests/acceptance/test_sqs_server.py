"""Amazon SQS on a real server: keys from the command line, and what a restart leaves."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.acceptance.shell import Shell
from tests.serving import free_ports, serving
from tests.sqs import client, refused


def test_keys_queues_messages_and_dedup_ids_survive_a_killed_server(tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path / 'data'}"
    away = Shell("http://127.0.0.1:1", tmp_path)
    away("keys", "create", "ops", "--allow", "*", "--store", store, "--yes")
    lines = away("keys", "create", "shop", "--aws", "--allow", "*", "--store", store).lines
    key, secret = (line.partition("=")[2] for line in lines)
    assert [line.partition("=")[0] for line in lines] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    assert key in away("keys", "list", "--store", store).out
    (port,) = free_ports(1)
    with serving(store, port) as served:
        sqs = client(served.url, key=key, secret=secret)
        attributes = {"FifoQueue": "true", "ReceiveMessageWaitTimeSeconds": "1"}
        url = sqs.create_queue(QueueName="q.fifo", Attributes=attributes, tags={"a": "b"})["QueueUrl"]
        message = {"QueueUrl": url, "MessageGroupId": "g", "MessageDeduplicationId": "d"}
        sent = sqs.send_message(MessageBody="x", **message)
        with refused("InvalidClientTokenId", 403):
            client(served.url).list_queues()
        served.stop(signal.SIGKILL)
    with serving(store, port) as served:
        sqs = client(served.url, key=key, secret=secret)
        again = sqs.send_message(MessageBody="y", **message)
        assert (again["MessageId"], again["SequenceNumber"]) == (sent["MessageId"], sent["SequenceNumber"])
        assert [one["Body"] for one in sqs.receive_message(QueueUrl=url)["Messages"]] == ["x"]
        assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}
        asked = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ReceiveMessageWaitTimeSeconds"])
        assert asked["Attributes"] == {"ReceiveMessageWaitTimeSeconds": "1"}
