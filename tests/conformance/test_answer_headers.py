"""Headers that protect browsers, on answers of SQS and SNS and in the manual; `test_http.py` has the other routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from miniq.server.http import manual
from tests.kit import case
from tests.sqs import SqsServer, ask, sqs_server

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
AWS: list[tuple[str, str, bytes, dict[str, str], int]] = [
    ("POST", "/", b'{"QueueName":"q"}', {"X-Amz-Target": "AmazonSQS.CreateQueue"}, 200),
    ("POST", "/", b'{"QueueName":"nope"}', {"X-Amz-Target": "AmazonSQS.GetQueueUrl"}, 400),
    ("POST", "/", b"{", {"X-Amz-Target": "AmazonSQS.ListQueues"}, 400),
    ("POST", "/", b"Action=SendMessage&QueueUrl=q&MessageBody=<script>", FORM, 200),
    ("GET", "/000000000000/q?Action=ReceiveMessage", b"", {}, 200),
    ("GET", "/?Action=Nonsense", b"", {}, 400),
    ("POST", "/", b"Action=CreateTopic&Name=t", FORM, 200),
    ("GET", "/?Action=ListTopics", b"", {}, 200),
    ("POST", "/", b"Action=Publish&TopicArn=arn:x&Message=x", FORM, 400),
]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SqsServer]:
    """A broker with a small manual."""
    (tmp_path / "index.html").write_text("<script>1</script>")
    (tmp_path / "search.js").write_text("1")
    monkeypatch.setattr(manual, "built", lambda: tmp_path)
    with sqs_server("memory:") as server:
        yield server


def test_answers_are_not_taken_for_what_they_are_not(served: SqsServer) -> None:
    manual_pages = [
        ("GET", path, b"", {}, status)
        for path, status in (("/manual", 307), ("/manual/", 200), ("/manual/search.js", 200), ("/manual/nope", 404))
    ]
    for method, path, body, headers, expected in [*AWS, *manual_pages]:
        with case(method, path, body):
            status, got, _ = ask(served, method, path, body, headers)
            assert (status, got["x-content-type-options"]) == (expected, "nosniff")


def test_the_manual_may_not_be_framed(served: SqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    _, page, _ = ask(served, "GET", "/manual/")
    paths = [("/manual/", {}), ("/manual/search.js", {}), ("/manual/", {"If-None-Match": page["etag"]})]
    answers = [ask(served, "GET", path, headers=headers) for path, headers in paths]
    monkeypatch.setattr(manual, "built", lambda: None)
    monkeypatch.setattr(manual, "find_spec", lambda name: None)
    answers.append(ask(served, "GET", "/manual/"))  # a page that says how to get it
    assert [status for status, _, _ in answers] == [200, 200, 304, 404]
    for status, headers, _ in answers:
        with case(status):
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
