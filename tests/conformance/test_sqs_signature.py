"""Requests of SQS that are signed: with API keys, a signature and the rights of its key decide."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

import miniq
from miniq.broker.keyring import ApiKey
from miniq.message import SECOND
from miniq.server.http.aws.sqs.queue_attributes import MAX_SIZE
from miniq.server.http.aws.wire import MAX_REQUEST
from tests.kit import sleepers, wait_for
from tests.sqs import (
    AWSRequest,
    Credentials,
    SigV4Auth,
    SigV4QueryAuth,
    SqsServer,
    ask,
    client,
    refused,
    sqs_server,
)


@pytest.fixture
def signed() -> Iterator[SqsServer]:
    """A server with a key, whose clock stands at the time at which boto3 signs."""
    with sqs_server("memory:", round(time.time()) * SECOND) as served:
        yield served


def key(sqs: SqsServer, *allow: str) -> ApiKey:
    created: ApiKey = sqs.run(sqs.broker.keys.create_aws("app", allow, sqs.clock.now()))
    return created


def as_(sqs: SqsServer, key: ApiKey, protocol: str = "json") -> Any:
    assert key.access_key is not None
    assert key.aws is not None
    return client(sqs.url, protocol, key.access_key, key.aws)


def test_without_keys_any_credentials_are_accepted_and_none_are_needed(signed: SqsServer) -> None:
    client(signed.url, key="x", secret="y").create_queue(QueueName="q")
    assert b"/000000000000/q</QueueUrl>" in ask(signed, "GET", "/?Action=GetQueueUrl&QueueName=q")[2]


@pytest.mark.parametrize("protocol", ["json", "query"])
def test_with_keys_a_request_must_be_signed_by_one(signed: SqsServer, protocol: str) -> None:
    app = key(signed, "*")
    sqs = as_(signed, app, protocol)
    url = sqs.create_queue(QueueName="q", tags={"a b": "ü/ö"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="ü ~*'()")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "ü ~*'()"
    assert app.access_key is not None
    with refused("SignatureDoesNotMatch", 403):
        client(signed.url, protocol, app.access_key, "another secret").list_queues()
    with refused("InvalidClientTokenId", 403):
        client(signed.url, protocol, "AKIAIOSFODNN7EXAMPLE", "x").list_queues()
    for path in ("/?Action=ListQueues", "/000000000000/q?Action=PurgeQueue"):
        status, _, body = ask(signed, "GET", path)
        assert (status, b"MissingAuthenticationToken" in body) == (403, True)
    signed.run(signed.broker.keys.revoke(app.id))
    with refused("InvalidClientTokenId", 403):
        sqs.list_queues()


def test_the_rights_of_the_key_apply_to_each_action(signed: SqsServer) -> None:
    admin = as_(signed, key(signed, "*"))
    for name in ("orders", "other"):
        admin.create_queue(QueueName=name)
    producer, consumer = as_(signed, key(signed, "send:orders")), as_(signed, key(signed, "receive:orders"))
    url = producer.get_queue_url(QueueName="orders")["QueueUrl"]
    other = url.replace("orders", "other")
    assert producer.list_queues()["QueueUrls"] == [url]
    producer.send_message(QueueUrl=url, MessageBody="x")
    (message,) = consumer.receive_message(QueueUrl=url, WaitTimeSeconds=1)["Messages"]
    consumer.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    for call in (
        lambda: producer.receive_message(QueueUrl=url),
        lambda: producer.send_message(QueueUrl=other, MessageBody="x"),
        lambda: consumer.send_message(QueueUrl=url, MessageBody="x"),
        lambda: consumer.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]),
        lambda: consumer.purge_queue(QueueUrl=url),
        lambda: producer.get_queue_url(QueueName="other"),
        lambda: consumer.create_queue(QueueName="new"),
        lambda: consumer.delete_queue(QueueUrl=url),
    ):
        with refused("AccessDenied", 403):
            call()


def test_a_receive_that_waits_ends_when_its_key_is_revoked(signed: SqsServer) -> None:
    admin = as_(signed, key(signed, "*"))
    admin.create_queue(QueueName="orders")
    for protocol in ("json", "query"):
        app = key(signed, "receive:orders")
        with ThreadPoolExecutor() as pool, refused("InvalidClientTokenId", 403):
            poll = pool.submit(as_(signed, app, protocol).receive_message, QueueUrl="orders", WaitTimeSeconds=20)
            wait_for(lambda: sleepers(signed.broker) == [True])
            signed.run(signed.broker.keys.revoke(app.id))
            poll.result(60)
        admin.send_message(QueueUrl="orders", MessageBody="afterwards")
        (message,) = admin.receive_message(QueueUrl="orders")["Messages"]
        admin.delete_message(QueueUrl="orders", ReceiptHandle=message["ReceiptHandle"])


def test_a_dead_letter_queue_needs_the_right_to_send_to_it(signed: SqsServer) -> None:
    as_(signed, key(signed, "*")).create_queue(QueueName="vault")
    mine = as_(signed, key(signed, "manage:mine", "read:*"))
    arn = "arn:aws:sqs:eu-west-1:000000000000:vault"
    policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}'
    with refused("AccessDenied", 403):
        mine.create_queue(QueueName="mine", Attributes={"RedrivePolicy": policy})
    mine.create_queue(QueueName="mine")
    with refused("AccessDenied", 403):
        mine.set_queue_attributes(QueueUrl="mine", Attributes={"RedrivePolicy": policy})


def test_a_key_is_not_told_which_queues_of_others_exist(signed: SqsServer) -> None:
    admin = as_(signed, key(signed, "*"))
    for name in ("vault", "dead"):
        admin.create_queue(QueueName=name)
    arn = "arn:aws:sqs:eu-west-1:000000000000"
    mine = as_(signed, key(signed, "manage:mine", "manage:dead", "read:dead", "send:dead"))
    policy = f'{{"deadLetterTargetArn":"{arn}:%s","maxReceiveCount":1}}'
    mine.create_queue(QueueName="mine", Attributes={"RedrivePolicy": policy % "dead"})
    for name in ("vault", "nosuch"):
        with refused("AccessDenied", 403):
            mine.set_queue_attributes(QueueUrl="mine", Attributes={"RedrivePolicy": policy % name})
        with refused("AccessDenied", 403):
            mine.create_queue(QueueName="mine", Attributes={"RedrivePolicy": policy % name})
        with refused("AccessDenied", 403):
            mine.start_message_move_task(SourceArn=f"{arn}:dead", DestinationArn=f"{arn}:{name}")


def test_the_id_of_a_key_does_not_fill_the_memory_for_the_bodies_of_others(signed: SqsServer) -> None:
    app = key(signed, "*")
    sqs = as_(signed, app)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    credential = f"{app.access_key}/{time.strftime('%Y%m%d', time.gmtime())}/eu-west-1/sqs/aws4_request"
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
        f"X-Amz-Date: {time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}\r\n"
        f"Authorization: AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host;x-amz-date;x-amz-target, "
        f"Signature={'0' * 64}\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {MAX_REQUEST}\r\n\r\n"
    )
    place = urlsplit(signed.url)
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(40)]
        for line in lines:
            line.sendall(head.encode() + b" " * 100_000)
        refusals = 0
        while refusals < 24:  # all but those for which there is room, a quarter of max_buffered_bytes
            answered, _, _ = select.select(lines, [], [], 30)
            assert answered, f"{refusals} refused"
            for line in answered:
                assert line.recv(65536).startswith(b"HTTP/1.1 503 ")
                lines.remove(line)
                refusals += 1
        sqs.send_message(QueueUrl=url, MessageBody="x" * 50_000)
        _, secret = signed.run(signed.broker.keys.create("ops", ["*"], signed.clock.now()))
        with miniq.connect(signed.url, api_key=secret) as mq:
            mq.queue("q").send("x" * 1_000_000)


def test_a_signature_is_valid_for_fifteen_minutes(signed: SqsServer) -> None:
    sqs = as_(signed, key(signed, "*"))
    sqs.list_queues()
    signed.advance(17 * 60)
    with refused("SignatureDoesNotMatch", 403) as error:
        sqs.list_queues()
    assert error["Message"].startswith("Signature expired: ")
    signed.advance(-34 * 60)
    with refused("SignatureDoesNotMatch", 403) as error:
        sqs.list_queues()
    assert error["Message"].startswith("Signature not yet current: ")


def test_a_presigned_url_is_valid_until_it_expires(signed: SqsServer) -> None:
    app = key(signed, "*")
    as_(signed, app).create_queue(QueueName="q")
    request = AWSRequest("GET", f"{signed.url}/000000000000/q?Action=SendMessage&MessageBody=a%20b%2Bc")
    SigV4QueryAuth(Credentials(app.access_key, app.aws), "sqs", "eu-west-1", expires=3600).add_auth(request)
    path = request.url.removeprefix(signed.url)
    for _ in range(2):  # as at AWS, it may be used again
        assert b"<MessageId>" in ask(signed, "GET", path)[2]
    signed.advance(3500)
    assert ask(signed, "GET", path)[0] == 200
    assert ask(signed, "GET", path.replace("b%2Bc", "b%2Bd"))[0] == 403
    signed.advance(200)
    status, _, body = ask(signed, "GET", path)
    assert (status, b"Signature expired" in body) == (403, True)


def test_what_decides_the_meaning_of_a_request_must_be_signed(signed: SqsServer) -> None:
    app = key(signed, "*")
    as_(signed, app).create_queue(QueueName="q")
    body = b'{"QueueUrl": "q"}'
    request = AWSRequest("POST", f"{signed.url}/", data=body)
    SigV4Auth(Credentials(app.access_key, app.aws), "sqs", "eu-west-1").add_auth(request)
    headers = {**request.headers, "X-Amz-Target": "AmazonSQS.PurgeQueue"}
    status, _, reply = ask(signed, "POST", "/", body, headers)
    assert (status, b"must be a 'SignedHeader'" in reply) == (403, True)
    request = AWSRequest("POST", f"{signed.url}/", data=body, headers={"X-Amz-Target": "AmazonSQS.PurgeQueue"})
    SigV4Auth(Credentials(app.access_key, app.aws), "sqs", "eu-west-1").add_auth(request)
    assert ask(signed, "POST", "/", b'{"QueueUrl":  "q"}', request.headers)[0] == 403  # another body than was signed
    assert ask(signed, "POST", "/", body, request.headers)[::2] == (200, b"{}")


def test_an_api_key_is_accepted_as_on_the_native_routes(signed: SqsServer) -> None:
    _, secret = signed.run(signed.broker.keys.create("ops", ["*"], signed.clock.now()))
    headers = {"Authorization": f"Bearer {secret}", "X-Amz-Target": "AmazonSQS.ListQueues"}
    assert b"/000000000000/default" in ask(signed, "POST", "/", b"{}", headers)[2]
    headers["Authorization"] = "Bearer mq_000000000000_nonsense"
    assert ask(signed, "POST", "/", b"{}", headers)[0] == 403


def test_a_key_for_sqs_is_listed_with_its_access_key_and_without_its_secret(signed: SqsServer) -> None:
    with signed.native() as mq:
        created = mq.create_key("shop", ["*"], aws=True)
        assert created.secret
    assert created.access_key is not None
    _, admin = signed.run(signed.broker.keys.create("ops", ["*"], signed.clock.now()))
    headers = {"Authorization": f"Bearer {admin}"}
    listed = ask(signed, "GET", "/v1/keys", headers=headers)[2].decode()
    assert created.access_key in listed
    assert created.secret not in listed


def by_hand(app: ApiKey, path: str, body: bytes, service: str = "sqs", **headers: str) -> dict[str, str]:
    """The headers of a request that a key has signed."""
    given = {"Content-Type": "application/x-www-form-urlencoded"} | {k.replace("_", "-"): v for k, v in headers.items()}
    request = AWSRequest("POST", path, data=body, headers=given)
    SigV4Auth(Credentials(app.access_key, app.aws), service, "eu-west-1").add_auth(request)
    return dict(request.headers)


def test_a_signature_without_the_body_or_for_another_service_is_refused(signed: SqsServer) -> None:
    app = key(signed, "*")
    body, url = b"Action=ListQueues", f"{signed.url}/"
    digest = sha256(body).hexdigest()
    assert ask(signed, "POST", "/", body, by_hand(app, url, body))[0] == 200
    headers = by_hand(app, url, body, X_Amz_Content_SHA256=digest)
    assert ask(signed, "POST", "/", body, headers)[0] == 200
    status, _, reply = ask(signed, "POST", "/", b"Action=ListQueue5", headers)
    assert (status, b"is not the SHA-256 of the body" in reply) == (403, True)
    headers = by_hand(app, url, body, X_Amz_Content_SHA256="UNSIGNED-PAYLOAD")
    status, _, reply = ask(signed, "POST", "/", body, headers)
    assert (status, b"must be the SHA-256 of the body in hexadecimal digits" in reply) == (403, True)
    status, _, reply = ask(signed, "POST", "/", body, by_hand(app, url, body, "s3"))
    assert (status, b"scoped to correct service" in reply) == (403, True)


def test_nothing_is_decoded_before_the_signature_is_verified(signed: SqsServer) -> None:
    app = key(signed, "*")
    for body in (b"Action=%", b"&" * 10_000):
        headers = by_hand(app, f"{signed.url}/", body)
        assert b"MalformedQueryString" in ask(signed, "POST", "/", body, headers)[2]
        headers["Authorization"] = headers["Authorization"][:-64] + "0" * 64
        assert b"SignatureDoesNotMatch" in ask(signed, "POST", "/", body, headers)[2]


def test_what_the_head_of_a_request_tells_is_refused_before_its_body_arrives(signed: SqsServer) -> None:
    app = key(signed, "*")
    url = f"{signed.url}/"
    forged = by_hand(app, url, b"x", X_Amz_Content_SHA256="0" * 64)
    forged["Authorization"] = forged["Authorization"][:-64] + "0" * 64
    old = by_hand(app, url, b"x")
    old["X-Amz-Date"] = "20200101T000000Z"
    for headers, length, told in (
        (forged, 1000, b"SignatureDoesNotMatch"),
        (old, 1000, b"Date in Credential scope"),
        (by_hand(app, url, b"x", "s3"), 1000, b"correct service"),
        (by_hand(app, url, b"x"), MAX_REQUEST + 1, b"over %d bytes" % MAX_REQUEST),
    ):
        assert told in without_body(signed, headers, length)


def without_body(sqs: SqsServer, headers: dict[str, str], length: int) -> bytes:
    """The reply to a request whose body is announced and never sent."""
    connection = HTTPConnection(urlsplit(sqs.url).netloc, timeout=30)
    try:
        connection.putrequest("POST", "/")
        for name, value in {**headers, "Content-Length": str(length)}.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_message_of_the_largest_size_arrives_by_either_protocol_however_it_is_escaped(signed: SqsServer) -> None:
    app = key(signed, "*")
    body = "ü" * (MAX_SIZE // 2)
    for protocol in ("json", "query"):
        sqs = as_(signed, app, protocol)
        url = sqs.create_queue(QueueName=protocol)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=body)
        assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == body
