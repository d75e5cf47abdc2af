"""Schedules as the Python clients offer them: blocking and async, in process and over the wires."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import miniq
from tests.acceptance.faces import Opener


@pytest.fixture
def mq(opener: Opener, place: str) -> Iterator[Any]:
    client = opener(place)
    for schedule in client.schedules():
        client.delete_schedule(schedule.name)
    yield client
    for schedule in client.schedules():
        client.delete_schedule(schedule.name)


def test_a_schedule_is_set_listed_and_deleted(mq: Any) -> None:
    made = mq.schedule("nightly", queue="reports", cron="0 3 * * *", timezone="Asia/Tokyo", body={"n": 1}, priority=2)
    assert (made.name, made.queue, made.cron, made.timezone) == ("nightly", "reports", "0 3 * * *", "Asia/Tokyo")
    assert (made.every, made.at, made.topic, made.catch_up, made.paused) == (None, None, None, "last", False)
    assert (made.draft.body, made.draft.priority) == (b'{"n":1}', 2)
    assert [(moment.hour, moment.minute, moment.tzinfo) for moment in made.next] == [(18, 0, UTC)] * 5
    assert mq.schedules() == [made] == [mq.get_schedule("nightly")]
    mq.delete_schedule("nightly")
    with pytest.raises(miniq.ScheduleNotFound, match="there is no schedule 'nightly'"):
        mq.delete_schedule("nightly")
    assert mq.schedules() == []


def test_moments_and_durations_have_one_type_on_every_way(mq: Any) -> None:
    queue = mq.queue("jobs")
    text, bare, offset = "2030-01-01T00:00:00Z", datetime(2030, 1, 1), "is not a moment with an offset from UTC"
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (queue.send, {"deliver_at": text}, f"deliver_at: {text!r} is text; pass a datetime with a time zone"),
        (queue.send, {"deliver_at": bare}, f"deliver_at: 2030-01-01T00:00:00 {offset}"),
        (
            queue.send,
            {"delay": timedelta(seconds=1)},
            "delay: datetime.timedelta(seconds=1) is not a number of seconds, s",
        ),
        (
            mq.schedule,
            {"queue": "jobs", "body": 1, "at": text},
            f"at: {text!r} is text; pass a datetime with a time zone",
        ),
        (mq.schedule, {"queue": "jobs", "body": 1, "at": bare}, f"at: 2030-01-01T00:00:00 {offset}"),
    ]
    for call, given, says in wrong:
        with pytest.raises(miniq.InvalidRequest) as raised:
            call("once", **given)
        assert raised.value.text.startswith(says)
    assert mq.schedules() == []


def test_it_fires_by_itself_and_can_be_paused_and_run(mq: Any) -> None:
    mq.schedule("often", queue="jobs", every=0.2, body="tick", headers={"a": "b"})
    queue = mq.queue("jobs")
    seen = [message for _ in range(3) for message in queue.receive(max=1, wait=10)]
    assert [message.body for message in seen] == ["tick"] * 3
    moments = [datetime.fromisoformat(message.headers["miniq-moment"]) for message in seen]
    assert moments == [moments[0] + timedelta(seconds=0.2 * n) for n in range(3)]
    assert mq.pause_schedule("often").paused
    queue.purge()
    assert queue.receive(wait=0.5) == []
    run = mq.run_schedule("often")
    [message] = queue.receive(wait=5)
    assert (run.results[0].outcome, run.results[0].id, run.results[0].on_request) == ("sent", message.id, True)
    assert {result.outcome for result in run.results} == {"sent"}
    assert not mq.resume_schedule("often").paused
    assert len(queue.receive(wait=10)) == 1
    mq.delete_schedule("often")


def test_text_bytes_and_moments_are_what_they_were(mq: Any) -> None:
    moment = datetime.now(UTC) + timedelta(days=3)
    made = mq.schedule("once", queue="jobs", at=moment, body=b"\x00", ttl=5, key="k", catch_up="all", paused=True)
    assert (made.at, made.next, made.paused, made.catch_up) == (moment, [moment], True, "all")
    assert (made.draft.body, made.draft.content_type) == (b"\x00", "application/octet-stream")
    assert mq.schedule("once", queue="jobs", at=moment, body="é", content_type="text/plain").draft.body == "é".encode()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cron": "0 3 * *"}, "cron"),
        ({"cron": b"0 3 * * *"}, "cron"),
        ({"every": float("nan")}, "every"),
        ({"every": "5"}, "every"),
        ({"at": "tomorrow"}, "at"),
        ({"at": datetime(2040, 1, 1)}, "at"),
        ({"every": 5, "timezone": "Berlin"}, "timezone"),
        ({"every": 5, "catch_up": "never"}, "catch_up"),
        ({"every": 5, "paused": "no"}, "paused"),
        ({"every": 5, "priority": 10}, "priority"),
        ({"every": 5, "headers": {"a": 1}}, "headers"),
        ({"every": 5, "topic": "t"}, "queue"),
        ({"every": 5, "queue": None, "topic": "no/topic"}, "topic"),
        ({"every": 5, "body": float("inf")}, "body"),
    ],
)
def test_wrong_arguments_raise_the_same_error_everywhere(mq: Any, given: dict[str, Any], field: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as refused:
        mq.schedule("x", **{"queue": "jobs", "body": 1} | given)
    assert refused.value.field == field
    assert mq.schedules() == []
