"""Small records that change only if they are what they were, alone or together with messages."""

from __future__ import annotations

import asyncio

import pytest

from miniq.errors import MiniQError, QueueFull
from miniq.message import QueueSettings
from miniq.store.arguments import Change, RecordChange, RecordSet, Room
from miniq.store.contract import RecordChanged, RevisionChanged, Store
from tests.oracle import Oracle
from tests.store.calls import Maker, put, take_all


def change(was: bytes | None, value: bytes | None, *, is_quiet: bool = False) -> RecordChange:
    return RecordChange("schedule", "nightly", was, value, is_quiet)


async def nightly(store: Store) -> bytes | None:
    return (await store.records("schedule")).get("nightly")


async def test_a_record_changes_only_from_what_it_was(store: Store) -> None:
    assert not await store.change_record(change(b"1", b"2"))
    assert await store.change_record(change(None, b"1"))
    assert not await store.change_record(change(None, b"2"))
    assert await store.change_record(change(b"1", b"\x00\xff2"))
    assert not await store.change_record(change(b"1", None))
    assert await nightly(store) == b"\x00\xff2"
    assert await store.change_record(change(b"\x00\xff2", None))
    assert await nightly(store) is None


async def test_only_a_change_that_is_not_quiet_changes_the_revision(store: Store) -> None:
    if not store.shared:
        return
    before = await store.revision()
    await store.change_record(change(None, b"1", is_quiet=True))
    assert await store.revision() == before
    await store.change_record(change(b"1", b"2"))
    assert await store.revision() > before


async def test_of_changes_at_the_same_time_one_is_made(store: Store) -> None:
    await store.change_record(change(None, b"0"))
    done = await asyncio.gather(*(store.change_record(change(b"0", b"%d" % number)) for number in range(1, 9)))
    assert done.count(True) == 1
    assert await nightly(store) == b"%d" % (done.index(True) + 1)


async def test_several_records_change_together_and_only_at_the_revision_that_they_are_based_on(store: Store) -> None:
    await store.save_queue("q", QueueSettings())
    await store.save_queue("r", QueueSettings())
    await store.save_record("kind", "old", b"1")
    now = await store.revision()
    await store.save_records(RecordSet({("kind", "old"): None, ("kind", "new"): b"2", ("other", "new"): b"\x00"}, now))
    assert (await store.records("kind"), await store.records("other")) == ({"new": b"2"}, {"new": b"\x00"})
    if store.shared:
        with pytest.raises(RevisionChanged):
            await store.save_records(RecordSet({("kind", "new"): None, ("kind", "more"): b"3"}, now))
        with pytest.raises(RevisionChanged):
            await store.delete_queue("q", Change(0), RecordSet({("kind", "new"): None}, now))
        assert list(await store.queues()) == ["q", "r"]
        assert await store.records("kind") == {"new": b"2"}
    changes = [RecordSet({("kind", "new"): None}, await store.revision()) for _ in range(2)]
    assert await store.delete_queue("q", Change(0), changes[0])
    if store.shared:
        with pytest.raises(RevisionChanged):
            await store.delete_queue("r", Change(0), changes[1])
    assert (list(await store.queues()), await store.records("kind")) == (["r"], {})


@pytest.mark.parametrize("count", [1, 3, 40])
async def test_messages_and_a_record_arrive_together_once(store: Store, count: int) -> None:
    await store.save_queue("q", QueueSettings(history="events"))
    await store.change_record(change(None, b"0"))
    maker = Maker()
    batches = [maker.run(count) for _ in range(6)]

    async def attempt(number: int) -> bool:
        try:
            await put(store, batches[number], keep="events", record=change(b"0", b"%d" % (number + 1), is_quiet=True))
        except RecordChanged:
            return False
        return True

    done = await asyncio.gather(*(attempt(number) for number in range(6)))
    assert done.count(True) == 1
    winner = done.index(True)
    assert await nightly(store) == b"%d" % (winner + 1)
    assert await take_all(store) == [message.id for message in batches[winner]]
    assert len((await store.history.read(0, 1000)).records) == count


async def test_a_refused_put_leaves_the_record(store: Store) -> None:
    await store.save_queue("q", QueueSettings())
    await store.change_record(change(None, b"0"))
    maker = Maker()
    with pytest.raises(QueueFull):
        await put(store, maker.run(2), room=Room(1, 0), record=change(b"0", b"1"))
    with pytest.raises(MiniQError, match="missing"):
        await put(store, Maker("missing").run(1), record=change(b"0", b"1"))
    assert await nightly(store) == b"0"
    assert await put(store, maker.run(1), room=Room(1, 0), record=change(b"0", b"1"))
    assert await nightly(store) == b"1"


async def test_the_record_changes_though_the_message_is_a_duplicate(store: Store) -> None:
    await store.save_queue("q", QueueSettings())
    await store.change_record(change(None, b"0"))
    maker = Maker()
    first = maker.one(dedup_id="d", group="g")
    for value, message in ((b"0", first), (b"1", maker.one(dedup_id="d", group="g"))):
        ids = await put(store, [message], record=change(value, b"%d" % (int(value) + 1)))
        assert ids == [first.id]
    assert await nightly(store) == b"2"
    assert await take_all(store) == [first.id]


async def test_the_oracle_does_the_same() -> None:
    await test_a_record_changes_only_from_what_it_was(Oracle())
    await test_messages_and_a_record_arrive_together_once(Oracle(), 3)
    await test_a_refused_put_leaves_the_record(Oracle())
    await test_the_record_changes_though_the_message_is_a_duplicate(Oracle())
