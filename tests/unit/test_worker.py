"""What a worker decides without I/O: when to fetch, what to start, what to settle together, what it holds."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from miniq.client.delivery import ACKED, Delivery, settle
from miniq.errors import InvalidRequest, StoreUnavailable
from miniq.message import Message, Stored
from miniq.worker.jobs import Failure, Handler, Hooks, Job, Trial
from miniq.worker.plan import LOOK, SLOWEST_RETRY, Backoff, Plan
from miniq.worker.shift import BULK, OVERDUE, Shift
from miniq.worker.sources import Source

SHORT, LONG = 0.0001, 60.0


def handler(**options: Any) -> Handler:
    return Handler(print, name="work", arguments=lambda message: ((message.body,), {}), **options)


def source(*handlers: Handler) -> Source[Any]:
    return Source(None, lambda message: handlers[0], handlers)


def messages(count: int) -> list[Delivery[None]]:
    return [Delivery(None, Stored(Message(str(n), "jobs", 0, 0, b"1"), 1, 1, "receipt")) for n in range(count)]


def jobs(origin: Any, count: int, **options: Any) -> list[Job[Any]]:
    work = handler(**options)
    return [Job(origin, work, [message], monotonic()) for message in messages(count)]


def took(shift: Shift[Any], seconds: float, origin: Any = None) -> None:
    """Let the shift believe that handlers take so long."""
    [job] = shift.add(jobs(origin, 1))
    assert shift.begin(job)
    assert job.started is not None
    job.started -= seconds
    shift.finish(job)
    shift.settlements()


def test_it_fetches_as_many_as_are_free_unless_told_otherwise() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=3))
    assert shift.wanted(None) == 3
    [job] = shift.add(jobs(None, 1))
    assert shift.wanted(None) == 2
    assert shift.begin(job)
    assert shift.wanted(None) == 2
    job.started = monotonic() - LONG
    assert shift.finish(job)
    assert shift.wanted(None) == 3
    assert Shift(Plan(batch=50)).wanted(None) == 50


def test_work_for_a_tenth_of_a_second_is_fetched_ahead_if_handlers_are_quick() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=2))
    took(shift, 0.01)
    assert 2 <= shift.wanted(None) <= 20
    took(shift, LONG)
    assert shift.wanted(None) == 2


def test_more_is_fetched_when_half_of_what_is_ahead_is_used_up() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=2))
    took(shift, SHORT)
    shift.add(fetched := jobs(None, 2 + BULK))
    assert shift.wanted(None) == 0
    for job in fetched[: BULK // 2 + 10]:
        assert shift.begin(job)
        shift.finish(job)
    assert shift.wanted(None) > BULK // 3


def test_each_queue_gets_a_share_of_the_handlers() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=8), sources=2)
    first, second = source(handler()), source(handler())
    shift.add(jobs(first, 8))
    assert shift.wanted(first) == 0
    assert shift.wanted(second) == 4


def test_a_message_whose_lease_was_lost_is_neither_started_nor_held() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=1))
    shift.received(30)
    first, lost, third = shift.add(jobs(None, 3))
    assert shift.begin(first)
    settle(lost.messages, ["stale"], ACKED)
    [renewal] = shift.renewals(monotonic() + 11)
    assert renewal.messages == [*first.messages, *third.messages]
    assert not shift.begin(lost)
    assert shift.begin(third)


def test_acks_share_calls_and_failures_share_them_by_their_reason() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=9))
    origin = source(handler())
    done = shift.add(jobs(origin, 5))
    for number, job in enumerate(done):
        assert shift.begin(job)
        job.verdict = "ack"
        if number > 2:
            job.fail(Failure("ValueError: no", dead=number == 4))
        assert shift.finish(job)
    batches = [(batch.verdict, len(batch.messages), batch.failure) for batch in shift.settlements()]
    assert batches == [
        ("ack", 3, None),
        ("fail", 1, Failure("ValueError: no")),
        ("fail", 1, Failure("ValueError: no", dead=True)),
    ]


def test_an_ack_waits_for_others_only_while_there_is_more_work() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=2))
    first, second = shift.add(jobs(None, 2))
    for job in (first, second):
        assert shift.begin(job)
    shift.finish(first)
    assert shift.lingers()
    shift.finish(second)
    assert not shift.lingers()


def test_an_ack_for_which_a_group_waits_is_made_at_once() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=2))
    member = Delivery(None, Stored(Message("1", "jobs", 0, 0, b"1", group="g"), 1, 1, "receipt"))
    first, _ = shift.add([Job(None, handler(), [member], monotonic()), *jobs(None, 1)])
    assert shift.begin(first)
    shift.finish(first)
    assert not shift.lingers()


def test_at_the_end_nothing_is_fetched_or_started_and_the_rest_is_released_in_portions() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=1))
    some = shift.add(jobs(source(handler()), BULK + 2))
    assert shift.begin(some[0])
    shift.end()
    assert (shift.begin(some[1]), shift.wanted(None), shift.add(jobs(None, 1))) == (False, 0, [])
    shift.end_fetch()
    assert [(batch.verdict, len(batch.messages)) for batch in shift.settlements()] == [
        ("release", BULK),
        ("release", 1),
        ("release", 1),
    ]
    assert not shift.is_over()
    assert shift.finish(some[0])
    shift.settlements()
    assert shift.is_over()


def test_at_the_end_nothing_is_released_while_a_receive_could_get_it_again() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=2), sources=2)
    shift.received(30)
    done, _ = waiting = shift.add(jobs(source(handler()), 2))
    assert shift.begin(done)
    done.verdict = "ack"
    shift.finish(done)
    shift.end()
    shift.end_fetch()
    assert [batch.verdict for batch in shift.settlements()] == ["ack"]
    shift.settled()
    assert [renewal.messages for renewal in shift.renewals(monotonic() + 11)] == [waiting[1].messages]
    shift.end_fetch()
    assert not shift.is_over()
    assert [batch.verdict for batch in shift.settlements()] == ["release"]
    assert shift.is_over()


def test_a_job_that_takes_too_long_fails_once_and_its_own_outcome_is_ignored() -> None:
    shift: Shift[Any] = Shift(Plan())
    [job] = shift.add(jobs(None, 1, timeout=5))
    assert shift.begin(job)
    now = monotonic()
    assert shift.expire(now) == []
    assert shift.expire(now + 5.1) == [job]
    job.verdict = "ack" if shift.finish(job) else job.verdict
    [batch] = shift.settlements()
    assert (batch.verdict, batch.failure) == ("fail", Failure("timeout: not done after 5 s"))


def test_a_job_that_takes_too_long_is_a_failure_to_hooks_and_never_a_success() -> None:
    failed: list[Any] = []
    succeeded: list[Any] = []
    shift: Shift[Any] = Shift(Plan())
    [job] = shift.add(jobs(None, 1, timeout=5, hooks=Hooks(failed=[failed.append], after=[succeeded.append])))
    assert shift.begin(job)
    shift.expire(monotonic() + 5.1)
    [attempt] = failed
    assert (str(attempt.error), attempt.messages) == ("timeout: not done after 5 s", job.messages)
    job.is_given_up = True
    with Trial(job):
        pass
    assert (len(failed), succeeded) == (1, [])


def test_a_lease_is_not_extended_past_the_timeout() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=2))
    shift.received(30)
    limited, unlimited = shift.add([*jobs(None, 1, timeout=15), *jobs(None, 1, timeout=None)])
    now = monotonic()
    assert shift.begin(limited)
    assert shift.begin(unlimited)
    first, second = shift.renewals(now + 11)
    assert (first.messages, second.messages) == (limited.messages, unlimited.messages)
    assert (first.seconds, second.seconds) == (pytest.approx(5, abs=1), 30)


def test_what_still_runs_when_the_grace_time_is_over_is_released() -> None:
    shift: Shift[Any] = Shift(Plan(grace=3))
    [job] = shift.add(jobs(None, 1))
    assert shift.begin(job)
    shift.end()
    now = monotonic()
    assert not shift.is_out_of_time(now + 1)
    assert shift.next_look(now) == pytest.approx(3, abs=0.5)
    assert shift.is_out_of_time(now + 3.1)
    shift.end_fetch()
    assert shift.abandon() == [job]
    assert [(batch.verdict, batch.is_unused) for batch in shift.settlements()] == [("release", False)]


def test_what_waits_at_the_end_or_comes_later_is_released_as_not_used() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=1))
    running, *_ = shift.add(jobs(None, 3))
    assert shift.begin(running)
    shift.end()
    assert shift.add(jobs(None, 2)) == []
    shift.end_fetch()
    assert shift.abandon(at_once=True) == [running]
    batches = shift.settlements()
    assert sorted((batch.verdict, batch.is_unused, len(batch.messages)) for batch in batches) == [
        ("release", False, 1), ("release", True, 4),
    ]  # fmt: skip


def test_what_was_fetched_ahead_is_released_when_all_handlers_are_busy_for_long() -> None:
    shift: Shift[Any] = Shift(Plan(concurrency=1))
    took(shift, SHORT)
    running, *_ = shift.add(jobs(None, 10))
    assert shift.begin(running)
    shift.overdue(monotonic() + OVERDUE / 2)
    assert shift.settlements() == []
    shift.overdue(monotonic() + OVERDUE + 0.1)
    assert [(batch.verdict, batch.is_unused, len(batch.messages)) for batch in shift.settlements()] == [
        ("release", True, 9)
    ]
    assert shift.wanted(None) == 0


def test_a_batch_goes_when_it_is_full_or_its_linger_is_over() -> None:
    origin = source(handler(batch=3, linger=2.0))
    [full] = origin.jobs(messages(4), 100.0)
    assert full.size == 3
    assert (origin.missing(50), origin.wait(5, 100.5)) == (2, pytest.approx(1.5))
    [rest] = origin.jobs([], 102.1)
    assert (rest.size, origin.rest()) == (1, [])


def test_each_failure_in_a_row_waits_longer_up_to_a_limit() -> None:
    backoff, error = Backoff(), StoreUnavailable("away")
    waits = [backoff.failed(error) for _ in range(10)]
    assert waits[:3] == pytest.approx([LOOK, 2 * LOOK, 4 * LOOK])
    assert waits[-1] == SLOWEST_RETRY
    backoff.worked()
    assert backoff.failed(error) == LOOK


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("batch", 1.5),
        ("grace", -1),
        ("grace", float("nan")),
        ("stop", 5),
        ("visibility_timeout", 0),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Plan(**{field: value})
    assert caught.value.field == field
