"""However the same requests are sent, they are answered alike; `python -m tests.faults differential` tries more."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from miniq.server.http import guard
from miniq.server.http.app import HttpApp
from tests.faults import differential, feature_requests, http_requests, predictable
from tests.faults.differential import ALWAYS, OTHERS, PLAIN, check, search, shrink
from tests.faults.http_replay import Way, answers_in, replay
from tests.faults.http_requests import Asked

SEQUENCES = 120
SEND = Asked(
    "send", b"POST /v1/queues/q/messages HTTP/1.1", (b"content-length: 10", b"host: x"), b'{"body":1}', needed=1
)
CLOSE = Asked("last", b"GET /health HTTP/1.1", (b"connection: close", b"host: x"), closes=True, needed=1)


async def test_requests_are_answered_alike_however_they_are_sent() -> None:
    seed = random.randrange(10**9)
    found = await search(seed, range(SEQUENCES))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("way", [PLAIN, *ALWAYS, *OTHERS], ids=lambda way: way.name)
async def test_what_follows_a_request_that_ends_its_connection_is_not_carried_out(way: Way) -> None:
    outcome = await replay([SEND, CLOSE, SEND], False, way)
    assert [answer.status for answer in outcome.answers] == [201, 200]
    assert outcome.closed
    assert sum(line.startswith("message ") for line in outcome.state) == 4  # three were there


async def test_what_an_earlier_request_makes_can_be_named_by_a_later_one() -> None:
    """Else nothing would ever be acked, and all requests with keys would be refused."""
    key = b"authorization: Bearer " + predictable.secret(1).encode()
    lease = {"id": predictable.message_id(0), "receipt": predictable.receipt(1)}

    def asked(target: bytes, body: Any, *headers: bytes) -> Asked:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Asked("x", target + b" HTTP/1.1", (b"content-length: %d" % len(raw), b"host: x", key, *headers), raw)

    again = {"id": lease["id"], "receipt": predictable.receipt(3)}
    deleted = feature_requests.form(
        "DeleteMessage", {"QueueUrl": "q", "ReceiptHandle": feature_requests.handle("q", again)}
    )
    sequence = [
        asked(b"POST /v1/queues/q/release", {"leases": [lease]}),
        asked(b"POST /v1/queues/q/receive", {}),
        asked(b"POST /", deleted.encode(), b"content-type: application/x-www-form-urlencoded"),
        asked(b"GET /v1/queues/q/results/" + lease["id"].encode(), b""),
        asked(b"POST /v1/schedules/s/run", {}),
        asked(b"POST /v1/topics/t/messages", {"body": 1}),
        asked(b"POST /v1/queues/q/fail", {"leases": [lease], "error": "late"}),
    ]
    outcome = await replay(sequence, True, PLAIN)
    assert outcome.wrong == ""
    assert [answer.status for answer in outcome.answers] == [200, 200, 200, 200, 200, 201, 200]
    for answer, text in zip(
        outcome.answers,
        (b'"released"', lease["id"].encode(), b"DeleteMessageResponse", b'"done"', b'"s"', b'"queues":1', b'"missing"'),
        strict=True,
    ):
        assert text in answer.body


async def test_time_passes_for_a_long_poll_with_more_behind_it_than_the_connection_takes() -> None:
    headers = (b"content-length: 10", b"host: x")
    poll = Asked("poll", b"POST /v1/queues/default/receive HTTP/1.1", headers, b'{"wait":5}', needed=1)
    health = Asked("health", b"GET /health HTTP/1.1", (b"host: x",), cuts=tuple(range(1, 30)))
    outcome = await replay([poll, *[health] * 30], False, Way("in pieces", "one", pieces=True))
    assert [answer.status for answer in outcome.answers] == [200] * 31


async def test_the_slow_form_of_a_hot_call_takes_the_ordinary_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    called = guard.GuardedApp.__call__

    async def watch(self: guard.GuardedApp, scope: Any, *more: Any) -> None:
        paths.append(scope["path"])
        await called(self, scope, *more)

    monkeypatch.setattr(guard.GuardedApp, "__call__", watch)
    await replay([SEND], False, PLAIN)
    assert paths == []
    await replay([SEND], False, Way("slow", slow=True))
    assert paths == ["/v1/queues/q/messages"]


async def test_a_lane_that_answers_otherwise_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    body = HttpApp.body

    async def other(self: HttpApp, *asked: Any) -> bytes:
        return (await body(self, *asked)).replace(b"1", b"2")

    monkeypatch.setattr(HttpApp, "body", other)
    one = Asked("health", b"GET /health HTTP/1.1", (b"host: x",))
    found = await check([one, SEND, one], False, ALWAYS)
    assert found is not None
    assert "the state differs" in found.kind
    assert [asked.label for asked in (await shrink(found)).asked] == ["send"]


def test_a_seed_makes_the_same_sequence_again() -> None:
    one, other = (http_requests.sequence(random.Random("7-3"), True) for _ in range(2))
    assert one == other != http_requests.sequence(random.Random("7-4"), True)


def test_an_answer_is_read_to_its_end() -> None:
    begun = b"HTTP/1.1 204 "
    fields = b"content-length: 2\r\nx-request-id: 0a1b2c3d-1f\r\n"
    said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + fields + b"\r\nok" + begun
    answers, rest = answers_in(said, [b"GET", b"GET"])
    assert [(answer.status, answer.body, answer.continued) for answer in answers] == [(200, b"ok", True)]
    assert (b"x-request-id", b"its own") in answers[0].headers
    assert rest == begun


def test_the_command_tells_whether_there_was_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert differential.main(["--sequences", "1", "--seed", "1", "--jobs", "1"]) == 0
    assert "seed 1: 1 sequences" in capsys.readouterr().out
