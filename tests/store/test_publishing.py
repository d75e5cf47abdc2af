"""Publications of the embedded store on disk: bodies are stored once, references survive crashes and are reclaimed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import StoreFailed
from miniq.message import PlainDrafts
from miniq.store.embedded import keys
from miniq.store.embedded.check import check
from miniq.store.embedded.kv import Op
from tests.kit import bodies, draft, drain, leases
from tests.store.parts import FaultyKV, copy_as_after_kill, opened, seam

QUEUES = [f"q{number}" for number in range(8)]


async def subscribe(broker: Broker, queues: Sequence[str] = QUEUES) -> None:
    for queue in queues:
        await broker.topics.subscribe("t", queue)


def shared(broker: Broker) -> list[bytes]:
    """The keys of shared blocks, and of the numbers of references to them."""
    kv = broker.store._kv  # type: ignore[attr-defined]
    return [key for key, _ in kv.scan(b"j", keys.after(b"j"))]


async def test_shared_blocks_go_with_their_last_reference(url: str) -> None:
    async with opened(url) as broker:
        await subscribe(broker)
        await broker.publish("t", [draft(1), draft(2)])
        await broker.publish("t", [draft("own", recipient="ann")])
        await broker.publish("t", [draft(number, group="g") for number in range(3)])
        await broker.publish("t", [draft("later", delay=1000)])
        assert len(shared(broker)) == 2 * 6
        for queue in QUEUES[:-1]:
            for consumer in ("ann", None):
                while received := await broker.receive(queue, max=10, consumer=consumer):
                    await broker.ack(queue, leases(received))
            await broker.purge(queue)
        await broker.delete_queue(QUEUES[0])
        for _ in range(20):
            await broker.upkeep()
        assert len(shared(broker)) == 2 * 6, "one queue still has all"
        await broker.purge(QUEUES[-1])
        for _ in range(20):
            await broker.upkeep()
        assert shared(broker) == []


async def test_one_target_needs_no_shared_block(url: str) -> None:
    async with opened(url) as broker:
        await subscribe(broker, ["a"])
        await broker.publish("t", [draft(1), draft(2, group="g")])
        assert shared(broker) == []
        assert await drain(broker, "a") == [1, 2]


async def test_shared_blocks_are_read_after_a_restart(url: str, folder: Path) -> None:
    async with opened(url) as broker:
        await subscribe(broker)
        first = await broker.publish("t", [draft(number) for number in range(5)])
        await broker.publish("t", [draft("x", group="g"), draft("y", group="g"), draft("z", delay=1)])
        taken = await broker.receive("q0", max=2)
        await broker.ack("q0", leases(taken[:1]))
        await broker.edit("q1", first.ids[0], body=b'"edited"')
    report = check(str(folder))
    assert report.damage == []
    assert all(queue.messages == queue.expected for queue in report.queues)
    async with opened(url) as broker:
        assert await broker.ack("q0", leases(taken[1:])) == ["done"]
        assert await drain(broker, "q0") == [2, 3, 4, "x", "y"]
        assert await drain(broker, "q1") == ["edited", 1, 2, 3, 4, "x", "y"]
        assert await drain(broker, "q2") == [0, 1, 2, 3, 4, "x", "y"]
    assert check(str(folder)).damage == []


async def test_a_check_finds_a_wrong_number_of_references(url: str, folder: Path) -> None:
    async with opened(url) as broker:
        await subscribe(broker)
        await broker.publish("t", [draft(1)])
        [key, number] = shared(broker)
        broker.store._kv.write([(number, keys.encode(3))], True)  # type: ignore[attr-defined]
    [damage] = check(str(folder)).damage
    assert "8 queues refer to a shared block that counts 3" in damage
    async with opened(url) as broker:
        broker.store._kv.write([(key, None), (number, None)], True)  # type: ignore[attr-defined]
    assert any("is missing" in text for text in check(str(folder)).damage)


async def test_a_publication_to_100_queues_costs_less_than_5_times_the_bytes_of_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = seam(monkeypatch)
    written: list[int] = []
    count = FaultyKV.write

    def write(self: FaultyKV, ops: Sequence[Op], sync: bool) -> None:
        written.append(sum(len(key) + len(value or b"") for key, value in ops))
        count(self, ops, sync)

    monkeypatch.setattr(FaultyKV, "write", write)
    async with opened(url) as broker:
        assert made
        for number in (1, 100):
            await broker.topics.configure(f"t{number}")
            for queue in range(number):
                await broker.topics.subscribe(f"t{number}", f"q{number}.{queue}")
        for many, size in ((100, 1000), (100, 100), (25, 100), (3, 1000), (1, 2500)):  # 2.5 KB of bodies or more
            cost: dict[int, int] = {}
            for number in (1, 100):
                written.clear()
                random = [os.urandom(size) for _ in range(many)]
                published = await broker.publish(f"t{number}", PlainDrafts(random, "application/octet-stream"))
                assert published.queues == number
                cost[number] = sum(written)
            assert cost[100] < 5 * cost[1], (many, size, cost)
            assert cost[100] - cost[1] < 100 * 99, (many, size, cost)  # bytes for each queue more


KILLS = [
    # What happens around the publication whose writes are cut off.
    {},
    {"group": "g"},
    {"recipient": "ann"},
    {"delay": 100},
    {"key": "k", "headers": {"a": "b"}},
]


@pytest.mark.parametrize("fields", KILLS, ids=str)
async def test_a_publication_is_in_all_queues_or_in_none_after_a_kill_at_any_write(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """The store is copied as `kill -9` would leave it, before and after every write of a series of publications."""
    made = seam(monkeypatch)
    copies: list[tuple[Path, int]] = []
    confirmed = 0
    async with opened(url) as broker:
        await subscribe(broker)
        faulty = made[-1]

        def copy() -> None:
            copies.append((tmp_path / f"copy{len(copies)}", confirmed))
            copy_as_after_kill(folder, copies[-1][0])

        faulty.hold_before_write = faulty.hold_after_write = copy
        for number in range(3):
            await broker.publish("t", [draft([number, part], **fields) for part in range(3)])
            confirmed += 1
            received = await broker.receive(QUEUES[number], max=2, consumer="ann")
            if received:
                await broker.ack(QUEUES[number], leases(received))
        await broker.purge(QUEUES[-1])
        await broker.upkeep()
        faulty.hold_before_write = faulty.hold_after_write = lambda: None
    assert len(copies) >= 10
    monkeypatch.undo()
    engine = url.partition(":")[0]
    for path, confirmed in copies:
        assert check(str(path)).damage == []
        async with opened(f"{engine}:{path}") as broker:
            found = [
                {tuple(body[:1]) for body in bodies((await broker.peek(queue, limit=100)).messages)}
                for queue in QUEUES[3:-1]
            ]
            assert all(one == found[0] for one in found), path
            assert {(number,) for number in range(confirmed)} <= found[0]
            counts = [(await broker.queue(queue)).counts.total for queue in QUEUES[3:-1]]
            assert counts == [3 * len(found[0])] * len(counts)


async def test_a_publication_whose_write_failed_is_not_confirmed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    with suppress(StoreFailed):
        async with opened(url) as broker:
            await subscribe(broker)
            made[-1].fail_after = 0
            with pytest.raises(StoreFailed):
                await broker.publish("t", [draft(1)])
            with pytest.raises(StoreFailed):
                await broker.publish("t", [draft(2)])
    monkeypatch.undo()
    async with opened(url) as broker:
        for queue in QUEUES:
            assert await drain(broker, queue) == []
