"""Stages: messages that are uploaded unseen and committed all at once, once: on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from miniq.batch import Committed, Stage, StageName
from miniq.broker import Broker
from miniq.errors import BadName, InvalidRequest, QueueFull, QueueNotFound, StageUnknown, TooLarge
from miniq.message import Draft, PlainDrafts
from miniq.options import Limits, Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.conftest import STORES
from tests.kit import bodies, case, draft, drain, ids, leases, send, states

LASTING = pytest.mark.parametrize("url", [store for store in STORES if store != "memory"], indirect=True)


def stage(partition: int, attempt: int = 0, batch: int = 1, job: str = "job") -> StageName:
    return StageName(job, str(batch), str(partition), str(attempt))


def plain(*values: int) -> PlainDrafts:
    return PlainDrafts([b"%d" % value for value in values])


async def upload(broker: Broker, name: StageName, *values: int, part: int = 0, queue: str = "q") -> None:
    assert (await broker.stages.upload(queue, name, part, plain(*values)))[0] == len(values)


async def commit(broker: Broker, *stages: StageName, queue: str = "q", batch: int = 1) -> Committed:
    return await broker.stages.commit(queue, "job", str(batch), [(name.partition, name.attempt) for name in stages])


async def all_of(broker: Broker, queue: str = "q") -> list[Any]:
    """All bodies in queue order, taken away."""
    found: list[Any] = []
    while got := await broker.receive(queue, max=1000, mode="at-most-once"):
        found += bodies(got)
    return found


async def test_uploads_are_unseen_until_they_are_committed_in_order(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events"})
    await upload(broker, stage(0), *range(150))
    await upload(broker, stage(0), *range(150, 200), part=1)
    await upload(broker, stage(1), *range(200, 300))
    assert await states(broker, "q") == (0, 0, 0)
    assert (await broker.peek("q")).messages == []
    assert await broker.receive("q") == []
    assert (await broker.history()).records == []
    before = await send(broker, "q", "before")
    clock.advance(60)
    assert await commit(broker, stage(0), stage(1)) == Committed(300)
    after = await send(broker, "q", "after")
    assert await states(broker, "q") == (302, 0, 0)
    seen = [stored for page in [await broker.peek("q", limit=1000)] for stored in page.messages]
    assert bodies(seen) == ["before", *range(300), "after"]
    assert ids(seen) == sorted(set(ids(seen)))
    assert (ids(seen)[0], ids(seen)[-1]) == (before[0], after[0])
    assert {stored.message.sent_at for stored in seen[1:-1]} == {clock.now()}
    told = [record.event for record in (await broker.history(limit=1000)).records]
    assert [(event.event, event.id, event.size) for event in told] == [
        ("sent", stored.message.id, stored.message.size) for stored in seen
    ]
    assert await all_of(broker) == ["before", *range(300), "after"]
    assert await broker.stages.list("q") == []


async def test_a_commit_is_made_once_for_a_week(broker: Broker, clock: FrozenClock) -> None:
    await upload(broker, stage(0), 1, 2)
    assert await commit(broker, stage(0)) == Committed(2)
    assert await commit(broker, stage(0)) == Committed(2, repeated=True)
    # A late try of the same task uploads again, in vain.
    await upload(broker, stage(0), 1, 2)
    assert await commit(broker, stage(0)) == Committed(2, repeated=True)
    clock.advance(7 * 86400 - 1)
    await broker.upkeep()
    assert await commit(broker, stage(0)) == Committed(2, repeated=True)
    assert await all_of(broker) == [1, 2]


async def test_many_commits_of_one_batch_at_the_same_time_add_it_once(broker: Broker) -> None:
    await upload(broker, stage(0), *range(50))
    done = await asyncio.gather(*[commit(broker, stage(0)) for _ in range(4)])
    assert sorted(done, key=lambda one: one.repeated) == [Committed(50), *[Committed(50, repeated=True)] * 3]
    assert await all_of(broker) == list(range(50))


async def test_a_part_that_is_uploaded_again_adds_nothing(broker: Broker) -> None:
    for _ in range(2):
        assert await broker.stages.upload("q", stage(0), 0, plain(1, 20)) == (2, 3)
    assert await broker.stages.upload("q", stage(0), 0, plain(5, 6, 7)) == (2, 3)
    done = await asyncio.gather(*[broker.stages.upload("q", stage(0), 1, plain(n)) for n in range(3)])
    assert done == [(1, 1)] * 3
    await commit(broker, stage(0))
    assert await all_of(broker) in [[1, 20, first] for first in range(3)]


async def test_only_the_listed_attempts_count_and_the_others_are_gone(broker: Broker) -> None:
    await upload(broker, stage(0, attempt=0), 1)
    await upload(broker, stage(0, attempt=7), 1)
    await upload(broker, stage(1), 2)
    await upload(broker, stage(1, batch=2), 3)
    assert await commit(broker, stage(0, attempt=7)) == Committed(1)
    assert await all_of(broker) == [1]
    assert [one.name.batch for one in await broker.stages.list("q")] == ["2"]
    assert await commit(broker, batch=9) == Committed(0)
    assert await commit(broker, batch=9) == Committed(0, repeated=True)


async def test_a_commit_with_an_unknown_stage_changes_nothing(broker: Broker, clock: FrozenClock) -> None:
    await upload(broker, stage(0), 1)
    with pytest.raises(StageUnknown, match="partition '1'"):
        await commit(broker, stage(0), stage(1))
    assert await states(broker, "q") == (0, 0, 0)
    await upload(broker, stage(1), 2)
    assert await commit(broker, stage(0), stage(1)) == Committed(2)


async def test_messages_keep_what_they_were_uploaded_with(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "full"})
    drafts = [
        draft("a", headers={"h": "v"}, key="k", ttl=30),
        draft("b", priority=5, content_type="application/ld+json"),
        draft("later", delay=10),
        draft("later too", delay=10),
        draft("first of m", group="m"),
        draft("second of m", group="m"),
        draft("for ann", recipient="ann"),
        Draft(b"\xff\x00", "application/octet-stream"),
    ]
    await broker.stages.upload("q", stage(0), 0, drafts)
    clock.advance(1000)
    await commit(broker, stage(0))
    assert await states(broker, "q") == (6, 2, 0)
    now = clock.now()
    got = await broker.receive("q", max=10, consumer="ann")
    found = [stored.message for stored in got]
    assert [message.body for message in found] == [
        b'"b"', b'"a"', b'"first of m"', b'"for ann"', b"\xff\x00",
    ]  # fmt: skip
    first = found[1]
    assert (first.headers, first.key, first.expires_at, first.sent_at, first.due_at) == (
        {"h": "v"}, "k", now + 30_000_000, now, now,
    )  # fmt: skip
    assert found[0].content_type == "application/ld+json"
    clock.advance(10)
    assert bodies(await broker.receive("q", max=10)) == ["later", "later too"]
    assert await broker.ack_by_id("q", found[2].id)
    assert bodies(await broker.receive("q", max=10)) == ["second of m"]
    told = [r.event for r in (await broker.history(limit=100)).records if r.event.event == "sent"]
    assert [event.body for event in told] == [one.body for one in drafts]


async def test_dedup_ids_and_the_limits_of_the_queue_hold_at_a_commit(broker: Broker) -> None:
    await broker.configure("q", {"max_length": 4})
    await send(broker, "q", "there", dedup_id="x")
    await broker.stages.upload("q", stage(0), 0, [draft(n, dedup_id=id) for n, id in enumerate("xyyz")])
    await upload(broker, stage(1), 7, 8)
    with pytest.raises(QueueFull):
        await commit(broker, stage(0), stage(1))
    assert await states(broker, "q") == (1, 0, 0)
    await broker.configure("q", {"max_length": 5, "max_bytes": 10})
    with pytest.raises(QueueFull):
        await commit(broker, stage(0), stage(1))
    await broker.configure("q", {"max_bytes": 0})
    assert await commit(broker, stage(0), stage(1)) == Committed(4)
    assert await all_of(broker) == ["there", 1, 3, 7, 8]
    await send(broker, "q", "again", dedup_id="z")
    assert await all_of(broker) == []


async def test_committed_messages_are_messages_like_any_other(broker: Broker, clock: FrozenClock) -> None:
    await upload(broker, stage(0), *range(300))
    await commit(broker, stage(0))
    seen = (await broker.peek("q", limit=1000)).messages
    some = seen[200].message.id
    await broker.edit("q", some, body=b'"edited"')
    await broker.remove("q", seen[201].message.id)
    assert (await broker.get("q", seen[299].message.id)).message.body == b"299"
    first = await broker.receive("q", max=130)
    await broker.release("q", leases(first))
    found, _ = await broker.claims.next("q", "g", 0, max_messages=150)
    assert found is not None
    part = await broker.claims.fetch("q", "g", 1)
    await broker.claims.ack("q", "g", 1)
    assert [body async for chunk in part.each() for body in bodies(chunk)] == list(range(150))
    assert await drain(broker, "q") == [*range(150, 200), "edited", *range(202, 300)]
    assert await states(broker, "q") == (0, 0, 0)


async def test_stages_run_out_and_are_discarded(broker: Broker, clock: FrozenClock) -> None:
    await upload(broker, stage(0), 1)
    made = clock.now()
    day = 86400_000_000
    assert await broker.stages.list("q") == [Stage(stage(0), 1, 1, 1, made, made + day)]
    clock.advance(86399)
    await upload(broker, stage(0), 2, part=1)
    await upload(broker, stage(0, batch=2), 3)
    clock.advance(2)
    # The last part counts.
    assert await commit(broker, stage(0)) == Committed(2)
    assert await broker.stages.discard("q", "job", "2") == 1
    assert await broker.stages.discard("q", "job", "2") == 0
    with pytest.raises(StageUnknown):
        await commit(broker, stage(0, batch=2), batch=2)
    await upload(broker, stage(0, batch=3), 4)
    clock.advance(86400)
    for _ in range(2):
        with pytest.raises(StageUnknown):
            await commit(broker, stage(0, batch=3), batch=3)
        assert await broker.stages.list("q") == []
        await broker.upkeep()
    await upload(broker, stage(0, batch=3), 5)
    assert await commit(broker, stage(0, batch=3), batch=3) == Committed(1)
    assert await all_of(broker) == [1, 2, 5]


async def test_a_purge_leaves_stages_and_a_deleted_queue_takes_them_along(broker: Broker) -> None:
    await upload(broker, stage(0), *range(200))
    await send(broker, "q", "gone")
    await broker.purge("q")
    await commit(broker, stage(0))
    await upload(broker, stage(0, batch=2), 7)
    assert await broker.purge("q") == 200
    await broker.upkeep()
    assert await commit(broker, stage(0, batch=2), batch=2) == Committed(1)
    assert await all_of(broker) == [7]
    await upload(broker, stage(0, batch=3), 8)
    await broker.delete_queue("q")
    with pytest.raises(QueueNotFound):
        await broker.stages.list("q")
    await broker.upkeep()
    await broker.upkeep()
    await send(broker, "q", "new")
    assert await broker.stages.list("q") == []
    with pytest.raises(StageUnknown):
        await commit(broker, stage(0, batch=3), batch=3)


async def test_a_long_poll_is_woken_by_a_commit(broker: Broker) -> None:
    await upload(broker, stage(0), 1)
    poll = asyncio.create_task(broker.receive("q", wait=20))
    await asyncio.sleep(0.01)
    await commit(broker, stage(0))
    assert bodies(await poll) == [1]


async def test_sends_and_commits_at_the_same_time_keep_their_order(broker: Broker) -> None:
    for batch in range(5):
        await upload(broker, stage(0, batch=batch), *range(130))
    jobs: list[Any] = []
    for batch in range(5):
        jobs += [send(broker, "q", f"s{batch}"), commit(broker, stage(0, batch=batch), batch=batch)]
    await asyncio.gather(*jobs, send(broker, "q", "last"))
    seen = (await broker.peek("q", limit=1000)).messages
    assert ids(seen) == sorted(ids(seen))
    assert len(seen) == 656
    assert await drain(broker, "q") == bodies(seen)


async def test_wrong_names_are_refused(broker: Broker) -> None:
    for name, field in (
        (StageName("a/b", "1", "0", "0"), "job"),
        (StageName("j", "", "0", "0"), "batch"),
        (StageName("j", "1", "ä", "0"), "partition"),
        (StageName("j", "1", "0", "x" * 129), "attempt"),
    ):
        with case(name), pytest.raises(BadName) as error:
            await broker.stages.upload("q", name, 0, plain(1))
        assert error.value.field == field


async def test_wrong_uploads_and_commits_are_refused(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0, limits=Limits(upload=5, commit_alone=2, body_bytes=10))
    wrong: list[tuple[int, Sequence[Draft], str]] = [
        (-1, plain(1), "part"),
        (0, plain(1, 2, 3, 4, 5, 6), "messages"),
        (0, PlainDrafts([b"1", b'"too long for a body"']), "messages[1].body"),
        (0, [draft(1), draft(2, priority=10)], "messages[1].priority"),
        (0, [draft(1, group="")], "group"),
    ]
    async with Broker(open_store(url), options, clock) as broker:
        for part, drafts, field in wrong:
            with pytest.raises(InvalidRequest) as error:
                await broker.stages.upload("q", stage(0), part, drafts)
            assert error.value.field == field
        assert await broker.stages.list("q") == []
        await broker.stages.upload("q", stage(0), 0, [])
        await upload(broker, stage(0, attempt=1), 1)
        with pytest.raises(InvalidRequest) as error:
            await commit(broker, stage(0), stage(0, attempt=1))
        assert error.value.field == "stages[1]"
        await broker.stages.upload("q", stage(1), 0, [draft(n, group="g") for n in range(3)])
        with pytest.raises(TooLarge) as large:
            await commit(broker, stage(0), stage(1))
        assert large.value.field == "stages"
        assert await commit(broker, stage(0)) == Committed(0)


@LASTING
async def test_stages_and_what_was_committed_are_there_after_a_restart(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await upload(broker, stage(0), *range(260))
        await broker.stages.upload(
            "q", stage(1), 0, [draft("x", group="m"), draft("y", group="m"), draft("z", delay=5)]
        )
        await upload(broker, stage(2), 7)
        listed = await broker.stages.list("q")
    async with Broker(open_store(url), options, clock) as broker:
        assert await broker.stages.list("q") == listed
        await commit(broker, stage(0), stage(1))
        got = await broker.receive("q", max=100)
    async with Broker(open_store(url), options, clock) as broker:
        assert await broker.stages.list("q") == []
        assert await commit(broker, stage(0), stage(1)) == Committed(263, repeated=True)
        assert await states(broker, "q") == (162, 1, 100)
        assert set(await broker.ack("q", leases(got))) == {"done"}
        (last,) = await send(broker, "q", "last")
        clock.advance(5)
        assert await drain(broker, "q") == [*range(100, 260), "x", "y", "z", "last"]
        assert last > max(ids(got))
        await broker.upkeep()
    async with Broker(open_store(url), options, clock) as broker:
        assert await states(broker, "q") == (0, 0, 0)
