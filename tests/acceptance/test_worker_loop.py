"""The worker loop, `consume`, in both clients.

What the transport has no part in, as the order of handlers and what becomes of their failures, is tested in process
alone; deliveries, extensions and the ways to stop are tested over every wire.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import miniq
from miniq.api.operation import Call
from miniq.api.operations import Ack, Extend, Receive
from tests.acceptance.faces import Opener
from tests.acceptance.shell import complaints


class Enough:
    """A `stop` that says so once `count` things were seen, or when a test takes too long."""

    def __init__(self, count: int, seconds: float = 20) -> None:
        self.seen: list[Any] = []
        self._count, self._deadline = count, time.monotonic() + seconds

    def __call__(self) -> bool:
        assert time.monotonic() < self._deadline, f"saw only {self.seen}"
        return len(self.seen) >= self._count


def failing(mq: Any, kind: type[Call[Any]], times: int, error: Exception) -> None:
    """Let the transport fail on the first calls of a kind."""
    client = getattr(mq, "_target", mq)
    transport = client._transport
    perform = transport.perform
    left = [times]

    def attempt(call: Call[Any]) -> Any:
        if isinstance(call, kind) and left[0]:
            left[0] -= 1
            raise error
        return perform(call)

    transport.perform = attempt


def counted(mq: Any, kind: type[Call[Any]]) -> list[Any]:
    """The calls of a kind that the transport makes from now on."""
    transport = getattr(mq, "_target", mq)._transport
    perform, calls = transport.perform, []

    def note(call: Call[Any]) -> Any:
        if isinstance(call, kind):
            calls.append(call)
        return perform(call)

    transport.perform = note
    return calls


def test_every_message_is_handled_once_and_acked(opener: Opener, url: str) -> None:
    q = opener(url).queue("jobs")
    q.send_many(range(50))
    enough = Enough(50)
    q.consume(enough.seen.append, concurrency=4, batch=7, stop=enough, wait=0.1)
    assert sorted(enough.seen) == list(range(50))
    assert q.info().counts.total == 0


def test_one_handler_at_a_time_keeps_the_order(opener: Opener) -> None:
    q = opener("memory:").queue("jobs")
    q.send_many(range(20))
    enough = Enough(20)
    q.consume(enough.seen.append, batch=6, stop=enough, wait=0.1)
    assert enough.seen == list(range(20))


def test_handlers_run_at_the_same_time(opener: Opener) -> None:
    q = opener("memory:").queue("jobs")
    q.send_many(range(4))
    enough, meet = Enough(4), threading.Barrier(4, timeout=10)

    def handler(body: Any) -> None:
        meet.wait()
        enough.seen.append(body)

    q.consume(handler, concurrency=4, stop=enough, wait=0.1)
    assert q.info().counts.total == 0


def test_an_async_handler_runs_as_a_task() -> None:
    async def main() -> None:
        async with miniq.connect_async("memory:") as mq:
            q = mq.queue("jobs")
            await q.send_many(range(8))
            enough, gate, waiting = Enough(8), asyncio.Event(), []

            async def handler(body: int) -> None:
                waiting.append(body)
                if len(waiting) == 8:
                    gate.set()
                await gate.wait()
                enough.seen.append(body)

            await q.consume(handler, concurrency=8, stop=enough, wait=0.1)
            assert sorted(enough.seen) == list(range(8))
            assert (await q.info()).counts.total == 0

    asyncio.run(main())


def test_a_plain_handler_does_not_hold_up_the_event_loop() -> None:
    async def main() -> None:
        async with miniq.connect_async("memory:") as mq:
            q = mq.queue("jobs")
            await q.send(1)
            enough, released = Enough(1), threading.Event()

            def handler(body: int) -> None:
                asyncio.run_coroutine_threadsafe(other(), loop).result(10)
                enough.seen.append(body)

            async def other() -> None:
                released.set()

            loop = asyncio.get_running_loop()
            await q.consume(handler, stop=enough, wait=0.1)
            assert released.is_set()

    asyncio.run(main())


def test_the_handler_gets_the_message_itself_on_request(opener: Opener) -> None:
    q = opener("memory:").queue("jobs")
    q.send(1, headers={"a": "b"})
    enough = Enough(1)
    q.consume(lambda m: enough.seen.append((m.body, m.headers, m.receives)), pass_message=True, stop=enough, wait=0.1)
    assert enough.seen == [(1, {"a": "b"}, 1)]


@pytest.mark.parametrize(("opener", "url"), [("sync", "http"), ("async", "zmq"), ("sync", "rocksdb")], indirect=True)
def test_a_lease_is_extended_while_its_handler_runs(opener: Opener, url: str) -> None:
    """The handler takes twice the visibility timeout, and the one beside it, who is free, gets nothing."""
    q = opener(url).queue("jobs")
    q.send("long")
    enough = Enough(1)

    def handler(m: Any) -> None:
        time.sleep(2.4)
        enough.seen.append((m.body, m.receives))

    q.consume(handler, concurrency=2, visibility_timeout=1.2, pass_message=True, stop=enough, wait=0.1)
    assert enough.seen == [("long", 1)]
    assert q.info().counts.total == 0


def test_the_lease_of_a_message_that_waits_for_a_handler_is_extended_too(tmp_path: Path) -> None:
    with miniq.connect(tmp_path) as mq:
        q = mq.queue("jobs")
        q.configure(visibility_timeout=1.2)
        q.send_many([1, 2])
        enough, others = Enough(2), []

        def handler(body: int) -> None:
            if body == 1:
                others.extend(q.receive(wait=2.4))
            enough.seen.append(body)

        q.consume(handler, batch=2, stop=enough, wait=0.1)
        assert (enough.seen, others) == ([1, 2], [])
        assert q.info().counts.total == 0


@pytest.mark.parametrize("error", [miniq.StoreUnavailable("away"), OSError("of some transport")])
def test_an_extension_that_fails_once_is_tried_again(opener: Opener, error: Exception) -> None:
    mq = opener("memory:")
    failing(mq, Extend, 1, error)
    q = mq.queue("jobs")
    q.send(1)
    enough = Enough(1)
    q.consume(
        lambda m: (time.sleep(2), enough.seen.append(m.receives)),
        visibility_timeout=1.5,
        pass_message=True,
        stop=enough,
        wait=0.1,
    )
    assert q.info().counts.total == 0


def test_a_handler_that_lost_its_lease_acks_nobody_elses(caplog: pytest.LogCaptureFixture, place: str) -> None:
    with miniq.connect(place) as mq:
        outsider = mq.queue("jobs")
        failing(mq, Extend, 1000, miniq.StoreUnavailable("away"))
        q = mq.queue("jobs")
        q.send(1)
        enough, other = Enough(1), []

        def handler(body: int) -> None:
            other.extend(outsider.receive(wait=5))
            enough.seen.append(body)

        q.consume(handler, visibility_timeout=0.3, stop=enough, wait=0.1)
        assert [m.receives for m in other] == [2]
        assert q.info().counts.leased == 1
        assert other[0].ack() is True
        assert "lost the lease" in caplog.text


@pytest.mark.parametrize("error", [miniq.StoreUnavailable("away"), OSError("of some transport")])
def test_an_ack_that_fails_is_told_and_the_worker_goes_on(
    opener: Opener, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    mq = opener("memory:")
    failing(mq, Ack, 1, error)
    q = mq.queue("jobs")
    q.send(1)
    q.send(2, delay=0.5)  # not acked together
    enough = Enough(2)
    q.consume(enough.seen.append, stop=enough, wait=0.1)
    assert q.info().counts.total == 1
    assert "to be delivered again" in caplog.text


def test_a_failed_handler_fails_its_message_with_the_retry_delay(
    opener: Opener, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    q = opener(place).queue("jobs")
    id = q.send(1)
    enough = Enough(1)

    def handler(body: int) -> None:
        enough.seen.append(body)
        raise ValueError("cannot work")

    q.consume(handler, retry_delay=60, stop=enough, wait=0.1)
    seen = q.get(id)
    assert (seen.status, seen.error.partition("\n")[0]) == ("delayed", "ValueError: cannot work")
    assert 'raise ValueError("cannot work")' in seen.error
    assert f"handler failed on message {id} of jobs" in caplog.text
    assert "ValueError: cannot work" in caplog.text


@pytest.mark.parametrize(("changes", "name"), [({}, "jobs.dead"), ({"dead_letter_queue": "morgue"}, "morgue")])
def test_the_log_names_the_dead_letter_queue(
    opener: Opener, caplog: pytest.LogCaptureFixture, changes: dict[str, str], name: str
) -> None:
    q = opener("memory:").queue("jobs")
    q.configure(**changes)
    id = q.send(1)
    enough = Enough(1)

    def handler(body: int) -> None:
        enough.seen.append(body)
        raise miniq.Reject("never")

    q.consume(handler, stop=enough, wait=0.1)
    assert f"message {id} failed for good: moved to {name}" in caplog.messages


def test_a_failed_message_comes_again_and_dies_where_receives_are_limited(opener: Opener) -> None:
    mq = opener("memory:")
    q = mq.queue("jobs")
    q.configure(max_receives=3)
    q.send(1)
    enough = Enough(3)

    def handler(body: int) -> None:
        enough.seen.append(body)
        raise ValueError

    q.consume(handler, retry_delay=0, stop=enough, wait=0.1)
    assert (q.info().counts.total, mq.queue("jobs.dead").info().counts.ready) == (0, 1)


def test_a_failed_message_waits_as_its_queue_says_and_a_rejected_one_is_dead(opener: Opener) -> None:
    mq = opener("memory:")
    q = mq.queue("jobs")
    q.configure(retry={"delay": 60})
    q.send_many(["later", "never"])
    enough = Enough(2)

    def handler(body: str) -> None:
        enough.seen.append(body)
        raise ValueError if body == "later" else miniq.Reject("never")

    q.consume(handler, stop=enough, wait=0.1)
    assert q.info().counts.delayed == 1
    [dead] = mq.queue("jobs.dead").peek()
    assert (dead.body, dead.dead.reason) == ("never", "rejected")
    q.send("never")
    enough = Enough(1)
    q.consume(handler, stop=enough, wait=0.1, retry_delay=60)
    assert mq.queue("jobs.dead").info().counts.ready == 2


def test_a_body_that_cannot_be_read_is_a_failed_message(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    mq = opener("memory:")
    q = mq.queue("jobs")
    q.configure(max_receives=1)
    q.send(b"\xff", content_type="text/plain")
    q.send("fine")
    enough = Enough(1)
    q.consume(enough.seen.append, stop=enough, wait=0.1)
    assert enough.seen == ["fine"]
    assert mq.queue("jobs.dead").info().counts.ready == 1
    assert "not text" in caplog.text


def test_a_message_that_its_handler_settled_is_left_alone(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    opened = opener("memory:")
    q = opened.queue("jobs")
    q.send(1)
    enough = Enough(1)

    async def release(m: Any) -> None:
        await m.release(delay=60)
        enough.seen.append(m)

    def release_now(m: Any) -> None:
        m.release(delay=60)
        enough.seen.append(m)

    handler: Callable[[Any], Any] = release if opener.kind == "async" else release_now
    q.consume(handler, pass_message=True, stop=enough, wait=0.1)
    assert q.info().counts.delayed == 1
    assert caplog.text == ""


def test_a_broker_that_is_away_is_waited_for(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    mq = opener("memory:")
    failing(mq, Receive, 2, miniq.StoreUnavailable("away for now"))
    q = mq.queue("jobs")
    q.send(1)
    enough = Enough(1)
    q.consume(enough.seen.append, stop=enough, wait=0.1)
    assert caplog.text.count("away for now") == 2


def test_an_error_that_does_not_pass_ends_the_worker(opener: Opener) -> None:
    q = opener("memory:", auto_create=False).queue("nowhere")
    with pytest.raises(miniq.QueueNotFound):
        q.consume(print)


def test_a_queue_without_time_to_work_is_refused_and_nothing_is_kept(opener: Opener) -> None:
    q = opener("memory:").queue("jobs")
    q.configure(visibility_timeout=0)
    q.send(1)
    with pytest.raises(miniq.InvalidRequest) as caught:
        q.consume(lambda body: None, wait=0.1)
    assert caught.value.field == "visibility_timeout"


def test_a_coroutine_handler_needs_the_async_client() -> None:
    async def handler(body: Any) -> None:
        pass

    with miniq.connect("memory:") as mq, pytest.raises(miniq.InvalidRequest, match="connect_async"):
        mq.queue("jobs").consume(handler)


def test_acks_of_short_handlers_share_calls(opener: Opener) -> None:
    mq = opener("memory:")
    acks = counted(mq, Ack)
    q = mq.queue("jobs")
    q.send_many(range(1000))
    enough = Enough(1000)
    q.consume(enough.seen.append, concurrency=4, stop=enough, wait=0.1)
    assert q.info().counts.total == 0
    assert len(acks) < 250


def test_no_message_is_acked_before_its_handler_has_returned(opener: Opener) -> None:
    mq = opener("memory:")
    acks = counted(mq, Ack)
    q = mq.queue("jobs")
    q.send_many(range(100))
    enough, returned = Enough(100), set()

    def handler(m: Any) -> None:
        assert m.id not in {lease.id for ack in acks for lease in ack.leases}
        enough.seen.append(m.body)

    def after(attempt: Any) -> None:
        returned.add(attempt.message.id)

    q.consume(handler, pass_message=True, after=after, concurrency=4, stop=enough, wait=0.1)
    assert {lease.id for ack in acks for lease in ack.leases} == returned
    assert len(returned) == 100


def test_the_outcome_of_a_function_that_takes_too_long_is_ignored(opener: Opener, place: str) -> None:
    q = opener(place).queue("jobs")
    q.configure(retry={"delay": 0})
    id = q.send("slow")
    enough, late = Enough(2), threading.Event()

    def handler(m: Any) -> None:
        enough.seen.append(m.receives)
        if m.receives == 1:
            late.wait(20)

    q.consume(handler, timeout=0.3, pass_message=True, stop=enough, wait=0.1)
    late.set()
    assert enough.seen == [1, 2]
    with pytest.raises(miniq.MessageNotFound):
        q.get(id)


def test_a_message_that_took_too_long_remembers_why(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    q = opener("memory:").queue("jobs")
    id = q.send("slow")
    late = threading.Event()
    q.consume(
        lambda body: late.wait(20), timeout=0.2, retry_delay=60, stop=lambda: "timed out" in caplog.text, wait=0.1
    )
    late.set()
    assert q.get(id).error == "timeout: not done after 0.2 s"


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    async def main() -> None:
        async with miniq.connect_async("memory:") as mq:
            q = mq.queue("jobs")
            await q.configure(retry={"delay": 0})
            await q.send(1)
            enough, ends = Enough(2), []

            async def handler(m: miniq.AsyncMessage) -> None:
                enough.seen.append(m.receives)
                try:
                    await asyncio.sleep(60 if m.receives == 1 else 0)
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise

            await q.consume(handler, timeout=0.2, pass_message=True, stop=enough, wait=0.1)
            assert (enough.seen, ends, (await q.info()).counts.total) == ([1, 2], ["cancelled"], 0)

    asyncio.run(main())


def test_hooks_are_told_of_each_attempt(opener: Opener) -> None:
    q = opener("memory:").queue("jobs")
    q.send_many([1, 2])
    enough, seen = Enough(2), []

    def handler(body: int) -> int:
        if body == 2:
            raise ValueError("no")
        return 10 * body

    def on_error(message: Any, error: Exception) -> None:
        seen.append(("error", message.body, str(error)))
        enough.seen.append(message.body)

    def after(attempt: Any) -> None:
        seen.append(("after", attempt.result))
        enough.seen.append(attempt.message.body)

    def before(attempt: Any) -> None:
        seen.append(("before", attempt.message.body))

    q.consume(handler, before=before, after=after, on_error=on_error, stop=enough, wait=0.1)
    assert seen == [("before", 1), ("after", 10), ("before", 2), ("error", 2, "no")]


# The end


def test_what_does_not_end_within_the_grace_time_is_released(opener: Opener, place: str) -> None:
    q = opener(place).queue("jobs")
    q.send(1)
    stop, late = threading.Event(), threading.Event()

    def handler(body: int) -> None:
        stop.set()
        late.wait(20)

    q.consume(handler, grace=0.2, stop=stop, wait=0.1)
    counts = q.info().counts
    late.set()
    assert (counts.ready, counts.leased) == (1, 0)


@pytest.mark.timeout(25, func_only=True)  # sooner than the leases end
def test_a_stop_event_finishes_what_runs_and_gives_back_the_rest(opener: Opener, url: str) -> None:
    q = opener(url).queue("jobs")
    q.send_many(range(10))
    stop = threading.Event()
    done: list[int] = []
    meet = threading.Barrier(2, timeout=10)

    def handler(body: int) -> None:
        meet.wait()
        stop.set()
        time.sleep(0.5)
        done.append(body)

    q.consume(handler, concurrency=2, batch=10, stop=stop, wait=0.1)
    assert sorted(done) == [0, 1]
    counts = q.info().counts
    assert (counts.ready, counts.leased) == (8, 0)


def test_a_worker_that_waits_for_messages_asks_whether_to_stop_after_each_wait(opener: Opener, place: str) -> None:
    q = opener(place).queue("jobs")
    asked = itertools.count(1)
    q.consume(print, stop=lambda: next(asked) > 2, wait=0.1)
    assert next(asked) > 3


def test_ctrl_c_finishes_what_runs_and_gives_back_the_rest(place: str) -> None:
    with miniq.connect(place) as mq:
        q = mq.queue("jobs")
        q.send_many(range(10))
        done: list[int] = []
        meet = threading.Barrier(2, timeout=10)

        def handler(body: int) -> None:
            meet.wait()
            if body == 0:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            done.append(body)

        q.consume(handler, concurrency=2, batch=10, wait=0.1)
        assert sorted(done) == [0, 1]
        counts = q.info().counts
        assert (counts.ready, counts.leased) == (8, 0)


def test_a_second_ctrl_c_is_raised_alone(place: str) -> None:
    with miniq.connect(place) as mq:
        q = mq.queue("jobs")
        q.send(1)
        over = threading.Event()

        def handler(body: int) -> None:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                over.wait(0.3)
            over.wait(10)

        with pytest.raises(KeyboardInterrupt) as raised:
            q.consume(handler, wait=0.1)
        over.set()
        assert raised.value.__context__ is None


def test_ctrl_c_under_asyncio_finishes_what_runs_and_gives_back_the_rest(place: str) -> None:
    done: list[int] = []
    left: list[Any] = []

    async def main() -> None:
        async with miniq.connect_async(place) as mq:
            q = mq.queue("jobs")
            await q.send_many(range(10))

            async def handler(body: int) -> None:
                if body == 0:
                    os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.5)
                done.append(body)

            try:
                await q.consume(handler, concurrency=2, batch=10, wait=0.1)
            finally:
                left.append((await q.info()).counts)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert sorted(done) == [0, 1]
    assert (left[0].ready, left[0].leased) == (8, 0)


def test_a_second_cancel_does_not_wait_for_handlers_but_releases_their_messages(place: str) -> None:
    async def main() -> None:
        async with miniq.connect_async(place) as mq:
            q = mq.queue("jobs")
            await q.send_many(range(3))
            started = asyncio.Event()

            async def handler(body: int) -> None:
                started.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(q.consume(handler, concurrency=2, batch=3, wait=0.1))
            await started.wait()
            task.cancel()
            await asyncio.sleep(0.3)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            counts = (await q.info()).counts
            assert (counts.ready, counts.leased) == (3, 0)

    asyncio.run(main())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("by hand")], ids=repr)
def test_a_handler_that_tries_to_end_its_thread_has_failed_and_the_worker_goes_on(
    opener: Opener, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    q = opener("memory:").queue("jobs")
    id, _ = q.send_many(["bad", "good"])
    enough = Enough(2)

    def handler(body: str) -> None:
        enough.seen.append(body)
        if body == "bad":
            raise error

    q.consume(handler, retry_delay=60, stop=enough, wait=0.1)
    seen = q.get(id)
    assert (seen.status, seen.receives) == ("delayed", 1)
    assert type(error).__name__ in seen.error.partition("\n")[0]
    assert (enough.seen, q.info().counts.total) == (["bad", "good"], 1)
    assert f"handler failed on message {id} of jobs" in caplog.text


@pytest.mark.parametrize("how", ["raised", "of a task", "of itself", "exit", "awaited in a thread"])
def test_a_coroutine_that_ends_without_the_workers_doing_has_failed(caplog: pytest.LogCaptureFixture, how: str) -> None:
    async def main() -> None:
        async with miniq.connect_async("memory:") as mq:
            q = mq.queue("jobs")
            id, _ = await q.send_many(["bad", "good"])
            enough, told = Enough(2), []

            async def handler(body: str) -> None:
                enough.seen.append(body)
                if body == "good":
                    return
                if how in ("exit", "awaited in a thread"):
                    sys.exit(3)
                if how == "raised":
                    raise asyncio.CancelledError("by hand")
                task = asyncio.current_task() if how == "of itself" else asyncio.create_task(asyncio.sleep(60))
                assert task is not None
                task.cancel()
                await (asyncio.sleep(60) if how == "of itself" else task)

            await q.consume(
                (lambda body: handler(body)) if how == "awaited in a thread" else handler,
                retry_delay=60,
                stop=enough,
                wait=0.1,
                on_error=lambda message, error: told.append(type(error)),
            )
            seen = await q.get(id)
            kind = SystemExit if how in ("exit", "awaited in a thread") else asyncio.CancelledError
            assert (seen.status, seen.receives, told) == ("delayed", 1, [kind])
            assert kind.__name__ in seen.error.partition("\n")[0]
            assert f"handler failed on message {id} of jobs" in caplog.text

    asyncio.run(main())


def test_ctrl_c_that_hits_a_coroutine_ends_the_worker_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with miniq.connect_async("memory:") as mq:
            q = mq.queue("jobs")
            id = await q.send(1)

            async def handler(body: int) -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                await q.consume(handler, retry_delay=60, wait=0.1)
            seen = await q.get(id)
            assert (seen.status, seen.receives, seen.error.partition("\n")[0]) == ("delayed", 1, "KeyboardInterrupt")
            assert f"handler failed on message {id} of jobs" in caplog.text

    asyncio.run(main())


def test_what_is_given_back_at_the_end_is_not_received_again() -> None:
    async def main() -> None:
        async with miniq.connect_async("memory:") as mq:
            q = mq.queue("jobs")
            id = await q.send(1)

            async def handler(body: int) -> None:
                asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)  # in the next receive
                await asyncio.sleep(60)

            await q.consume(handler, concurrency=2, grace=0.1, wait=1)
            seen = await q.get(id)
            assert (seen.status, seen.receives) == ("ready", 1)

    asyncio.run(main())


def test_a_worker_process_ends_cleanly_on_ctrl_c(tmp_path: Path) -> None:
    script = """
import miniq, sys, time
with miniq.connect(sys.argv[1]) as mq:
    q = mq.queue("jobs")
    q.send_many(range(5))
    def work(body):
        print("begins", body, flush=True)
        time.sleep(1)
        print("ends", body, flush=True)
    q.consume(work, batch=5)
print("closed")
"""
    worker = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", script, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begins 0\n"
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=30)
    assert (worker.returncode, out, complaints(err)) == (0, "ends 0\nclosed\n", "")
    with miniq.connect(tmp_path / "data") as mq:
        assert [m.body for m in mq.queue("jobs").receive(max=9)] == [1, 2, 3, 4]


def test_a_client_that_is_closed_ends_its_workers(place: str) -> None:
    mq = miniq.connect(place)
    q = mq.queue("jobs")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            q.consume(print)
        except miniq.MiniQError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)  # let it get into its long poll; the test holds either way
    mq.close()
    thread.join(10)
    assert [type(error) for error in errors] == [miniq.Closed]
