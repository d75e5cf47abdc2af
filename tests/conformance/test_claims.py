"""Claims: frozen, numbered batches that readers take, read as often as they like, and ack: on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from miniq.batch import Claim, ClaimGroup
from miniq.broker import Broker
from miniq.errors import (
    BadName,
    ClaimGone,
    ClaimUnknown,
    Fenced,
    InvalidRequest,
    MessageLeased,
    QueueNotFound,
    TooLarge,
)
from miniq.message import NEVER, Draft, Stored
from miniq.options import Options
from miniq.store import open_store
from miniq.store.arguments import Fit, NextClaim
from tests.clock import FrozenClock
from tests.conftest import STORES
from tests.kit import bodies, case, drain, ids, leases, send, states, waiting

LASTING = pytest.mark.parametrize("url", [store for store in STORES if store != "memory"], indirect=True)


async def content(broker: Broker, queue: str, group: str, number: int, part: int = 0, parts: int = 1) -> list[Stored]:
    found = await broker.claims.fetch(queue, group, number, part, parts)
    read = [stored async for some in found.each() for stored in some]
    assert len(read) == len(found)
    return read


async def claim(broker: Broker, after: int, queue: str = "q", group: str = "g", **asked: Any) -> list[Any] | None:
    """Ask for the next claim and read it: its bodies, None if there is none."""
    found, _ = await broker.claims.next(queue, group, after, **asked)
    return None if found is None else bodies(await content(broker, queue, group, found.number))


async def test_claims_are_numbered_frozen_and_acked_by_asking_for_the_next(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(10))
    assert await claim(broker, 0, max_messages=4) == [0, 1, 2, 3]
    clock.advance(10**6)
    # Repeated, it is the same, whatever is asked.
    assert await claim(broker, 0, max_messages=100) == [0, 1, 2, 3]
    assert await states(broker, "q") == (6, 0, 4)
    assert await claim(broker, 1, max_messages=4) == [4, 5, 6, 7]
    assert await states(broker, "q") == (2, 0, 4)
    assert await claim(broker, 2) == [8, 9]
    assert await claim(broker, 3) is None
    assert await states(broker, "q") == (0, 0, 0)
    assert await claim(broker, 3) is None


async def test_who_asks_a_store_for_no_messages_gets_no_claim_though_there_is_one(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    assert await claim(broker, 0) == [1, 2]
    now = broker.clock.now()
    asked = NextClaim(after=0, now=now, keep_until=now, fit=Fit(0, 9))
    found = await broker.store.claims.next("q", "g", asked)
    assert (found.claim, found.made, found.acked) == (None, False, 0)


async def test_a_claim_does_not_end_by_itself_and_nobody_else_gets_its_messages(
    broker: Broker, clock: FrozenClock
) -> None:
    await send(broker, "q", 1, 2)
    assert await claim(broker, 0, max_messages=1) == [1]
    clock.advance(13 * 86400)
    await broker.upkeep()
    assert bodies(await broker.receive("q", max=10)) == [2]
    clock.advance(2 * 86400)
    await broker.upkeep()
    # Retention ends what is ready, not what is in a claim.
    assert await claim(broker, 0) == [1]
    assert await claim(broker, 0, group="other") is None


async def test_messages_of_a_claim_that_cannot_be_processed_are_buried_once(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "full"})
    await broker.configure("q.dead", {"history": "events"})
    sent = await send(broker, "q", *range(5))
    (special,) = await broker.send("q", [Draft(b"5", headers={"a": "b"}, priority=3, ttl=60, dedup_id="d")])
    assert await claim(broker, 0, max_messages=5) == [5, 0, 1, 2, 3]
    for _ in range(2):
        assert await broker.claims.bury("q", "g", 1, [special, sent[1], sent[1]], "corrupt", ["too long", "", "x"]) == 2
        clock.advance(6 * 3600)
    # The claim is what it was, and messages that are not in it stay.
    assert await claim(broker, 0) == [5, 0, 1, 2, 3]
    assert await broker.claims.bury("q", "g", 1, [sent[4], "unknown"], "corrupt") == 0
    assert await broker.claims.bury("q", "other", 1, [sent[0]], "corrupt") == 0
    letters = (await broker.peek("q.dead")).messages
    assert bodies(letters) == [5, 1]
    dead = letters[0].message.dead
    assert dead is not None
    assert (dead.origin, dead.reason, dead.receives, dead.error) == ("q", "corrupt", 1, "too long")
    assert (letters[0].message.headers, letters[0].message.expires_at) == ({"a": "b"}, None)
    told = [record.event for record in (await broker.history(queue="q.dead")).records]
    assert [(event.event, event.reason) for event in told] == [("sent", "dead")] * 2
    # Given back and claimed again, they are not buried again.
    await broker.claims.release("q", "g")
    assert await claim(broker, 1, max_messages=4) == [0, 1, 2, 3]
    assert await broker.claims.bury("q", "g", 2, [sent[1]], "corrupt") == 1
    assert await states(broker, "q.dead") == (2, 0, 0)
    # An acked claim has nothing to bury, and dead letters go back to where they came from.
    await broker.claims.ack("q", "g", 2)
    assert await broker.claims.bury("q", "g", 2, [sent[0]], "corrupt") == 0
    assert (await broker.redrive("q.dead")).moved == 2
    assert sorted(bodies(await broker.receive("q", max=10))) == [1, 4, 5]


async def test_burying_checks_what_it_is_asked(broker: Broker) -> None:
    await send(broker, "q", 1)
    for group, number, named, reason, field in [
        ("g", 1, [], "x", "ids"),
        ("g", 0, ["i"], "x", "claim"),
        ("g", 1, ["i"], "", "reason"),
        ("no group", 1, ["i"], "x", "group"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            await broker.claims.bury("q", group, number, named, reason)
        assert caught.value.field == field
    for errors, told in [
        ([], "errors: 0 for 2 ids; give one for each, or none"),
        (["a", "ü" * 3000], "errors[1]: 6000 bytes in UTF-8; at most 4096"),
    ]:
        with pytest.raises((InvalidRequest, TooLarge)) as refused:
            await broker.claims.bury("q", "g", 1, ["i", "j"], "x", errors)
        assert refused.value.text == told
    with pytest.raises(QueueNotFound):
        await broker.claims.bury("none", "g", 1, ["i"], "x")


async def test_peek_shows_claimed_messages_as_leased_by_the_group(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    await claim(broker, 0)
    (seen,) = (await broker.peek("q", status="leased")).messages
    assert (seen.message.id, seen.visible_at, seen.receives, seen.consumer) == (id, NEVER, 1, "g")
    assert (await broker.get("q", id)).consumer == "g"


async def test_nothing_but_its_claim_changes_a_claimed_message(broker: Broker) -> None:
    (id,) = await send(broker, "default", 1)
    await claim(broker, 0, queue="default")
    (held,) = await content(broker, "default", "g", 1)
    guess = leases([held])
    assert await broker.ack("default", guess) == ["leased"]
    assert await broker.release("default", guess) == ["leased"]
    assert (await broker.extend("default", guess))[1] == ["leased"]
    assert not await broker.ack_by_id("default", id)
    assert not await broker.edit_by_id("default", id, b"2", "application/json")
    for receipt in (None, held.receipt):
        with pytest.raises(MessageLeased):
            await broker.edit("default", id, body=b"2", receipt=receipt)
        with pytest.raises(MessageLeased):
            await broker.remove("default", id, receipt)
    assert await claim(broker, 0, queue="default") == [1]


async def test_an_ack_of_all_claimed_ids_with_the_name_as_receipt_changes_nothing(broker: Broker) -> None:
    await send(broker, "q", *range(50))
    await claim(broker, 0)
    held = await content(broker, "q", "g", 1)
    assert set(await broker.ack("q", leases(held))) == {"leased"}
    assert await states(broker, "q") == (0, 0, 50)


async def test_parts_are_disjoint_stable_and_hold_everything_in_order(broker: Broker) -> None:
    await send(broker, "q", *range(333))
    await send(broker, "q", "first", priority=9)
    for number in range(3):
        await send(broker, "q", f"alone {number}", headers={"n": str(number)})
    await claim(broker, 0)
    for _ in range(2):
        whole = bodies(await content(broker, "q", "g", 1))
        assert whole == ["first", *range(333), "alone 0", "alone 1", "alone 2"]
        for parts in (1, 2, 7, 337, 400):
            read = [bodies(await content(broker, "q", "g", 1, part, parts)) for part in range(parts)]
            assert [body for one in read for body in one] == whole
            assert max(map(len, read)) - min(map(len, read)) <= 1
        # And so it stays when it is acked.
        await broker.claims.ack("q", "g", 1)


async def test_a_claim_holds_what_was_sent_with_each_message(broker: Broker) -> None:
    await send(broker, "q", "x", headers={"a": "b"}, key="k", priority=3, group="m", dedup_id="d", ttl=60)
    (sent,) = (await broker.peek("q")).messages
    await claim(broker, 0)
    for _ in range(2):
        (held,) = await content(broker, "q", "g", 1)
        assert held == Stored(sent.message, NEVER, 1, "g/1", "g")
        await broker.claims.ack("q", "g", 1)


async def test_an_acked_claim_stays_readable_for_a_while(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"claim_retention": 100})
    await send(broker, "q", *range(300))
    assert await claim(broker, 0, max_messages=250) == list(range(250))
    assert await claim(broker, 1) == list(range(250, 300))
    clock.advance(99)
    await broker.upkeep()
    assert await claim(broker, 0) == list(range(250))
    (group,) = await broker.claims.list("q")
    assert [(c.number, c.messages, c.acked_at is None) for c in group.claims] == [(1, 250, False), (2, 50, True)]
    clock.advance(1)
    for _ in range(2):
        with pytest.raises(ClaimGone):
            await claim(broker, 0)
        with pytest.raises(ClaimGone):
            await content(broker, "q", "g", 1)
        await broker.upkeep()
    assert await claim(broker, 1) == list(range(250, 300))
    assert [c.number for c in (await broker.claims.list("q"))[0].claims] == [2]


async def test_without_retention_an_acked_claim_is_gone_at_once(broker: Broker) -> None:
    await broker.configure("q", {"claim_retention": 0})
    await send(broker, "q", 1, 2)
    await claim(broker, 0, max_messages=1)
    assert await claim(broker, 1) == [2]
    with pytest.raises(ClaimGone):
        await content(broker, "q", "g", 1)


async def test_acks_are_idempotent_and_know_no_claim_that_was_not_made(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    await claim(broker, 0, max_messages=1)
    await broker.claims.ack("q", "g", 1)
    await broker.claims.ack("q", "g", 1)
    await broker.claims.ack("q", "g", 0)
    assert await states(broker, "q") == (1, 0, 0)
    for call in (broker.claims.ack("q", "g", 2), broker.claims.next("q", "g", 2), content(broker, "q", "g", 2)):
        with pytest.raises(ClaimUnknown):
            await call
    with pytest.raises(ClaimUnknown):
        await content(broker, "q", "nobody", 1)
    assert await states(broker, "q") == (1, 0, 0)


async def test_a_new_reader_fences_the_old_one(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    old = await broker.claims.open("q", "g")
    assert (old.group, old.epoch, old.acked, old.last, old.claims, old.ready) == ("g", 1, 0, 0, [], 2)
    assert await claim(broker, 0, epoch=old.epoch, max_messages=1) == [1]
    new = await broker.claims.open("q", "g")
    assert (new.epoch, new.acked, new.last) == (2, 0, 1)
    for call in (
        broker.claims.next("q", "g", 1, epoch=old.epoch),
        broker.claims.ack("q", "g", 1, old.epoch),
        broker.claims.release("q", "g", old.epoch),
    ):
        with pytest.raises(Fenced):
            await call
    with pytest.raises(ClaimUnknown, match="group 'g' is at 2, and was never at 9"):
        await broker.claims.next("q", "g", 0, epoch=9)
    assert await states(broker, "q") == (1, 0, 1)
    # The claim that the old one made is there for the new one.
    assert await claim(broker, 0, epoch=new.epoch) == [1]
    assert await claim(broker, 1, epoch=new.epoch) == [2]


async def test_released_messages_are_ready_at_their_place_and_their_numbers_are_not_used_again(broker: Broker) -> None:
    await send(broker, "q", *range(6))
    await claim(broker, 0, max_messages=2)
    await claim(broker, 1, max_messages=2)
    assert await broker.claims.release("q", "g") == 2
    assert await broker.claims.release("q", "g") == 0
    assert await states(broker, "q") == (4, 0, 0)
    with pytest.raises(ClaimGone):
        await claim(broker, 1)
    assert await broker.claims.list("q") == [
        ClaimGroup("g", 0, 2, 2, [c for c in (await broker.claims.list("q"))[0].claims if c.number == 1])
    ]
    assert await claim(broker, 2, max_messages=3) == [2, 3, 4]
    (held, *_) = await content(broker, "q", "g", 3)
    assert held.receives == 2
    assert await broker.claims.release("q", "unknown") == 0


async def test_groups_have_their_own_claims_of_one_queue(broker: Broker) -> None:
    await send(broker, "q", *range(4))
    assert await claim(broker, 0, group="a", max_messages=2) == [0, 1]
    assert await claim(broker, 0, group="b") == [2, 3]
    await broker.claims.ack("q", "b", 1)
    assert [(g.group, g.acked, g.last) for g in await broker.claims.list("q")] == [("a", 0, 1), ("b", 1, 1)]
    assert await claim(broker, 0, group="a") == [0, 1]


async def test_claims_stop_at_max_bytes_but_hold_at_least_one(broker: Broker) -> None:
    await send(broker, "q", "x" * 100, "y" * 100, "z" * 100, "w")
    assert await claim(broker, 0, max_bytes=10) == ["x" * 100]
    assert await claim(broker, 1, max_bytes=204) == ["y" * 100, "z" * 100]
    (found, _) = await broker.claims.next("q", "g", 2)
    assert found is not None
    assert (found.messages, found.bytes) == (1, 3)


async def test_a_claim_takes_by_priority_and_only_what_is_for_anybody_or_for_the_consumer(broker: Broker) -> None:
    await send(broker, "q", "low")
    await send(broker, "q", "high", priority=5)
    await send(broker, "q", "for ann", recipient="ann")
    await send(broker, "q", "later", delay=10)
    assert await claim(broker, 0) == ["high", "low"]
    assert await claim(broker, 1) is None
    assert await claim(broker, 1, consumer="ann") == ["for ann"]
    assert bodies(await broker.receive("q")) == []


async def test_of_a_message_group_a_claim_takes_the_head(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3, group="m")
    await send(broker, "q", 9, group="n")
    assert await claim(broker, 0) == [1, 9]
    assert await broker.receive("q", max=10) == []
    assert await claim(broker, 1) == [2]
    assert await broker.claims.release("q", "g") == 1
    assert await drain(broker, "q") == [2, 3]


async def test_what_has_ended_or_was_received_too_often_is_never_claimed(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 2, "history": "events", "retention": 1000})
    await send(broker, "q", "old")
    clock.advance(500)
    await send(broker, "q", "worn")
    for _ in range(2):
        (got,) = [s for s in await broker.receive("q", max=9, visibility_timeout=1) if bodies([s]) == ["worn"]]
        clock.advance(1)
        await broker.claims.release("q", "g")
    await send(broker, "q", "brief", ttl=5)
    await send(broker, "q", "fine", "fine too")
    clock.advance(499)
    assert await claim(broker, 0) == ["fine", "fine too"]
    assert await states(broker, "q") == (0, 0, 2)
    (dead,) = (await broker.peek("q.dead")).messages
    assert dead.message.dead is not None
    assert (dead.message.id, dead.message.dead.reason, dead.message.dead.receives) == (
        got.message.id,
        "max_receives",
        2,
    )
    told = (await broker.history(limit=1000, queue="q")).records
    ended = [(r.event.event, r.event.reason) for r in told if r.event.reason not in (None, "lease")]
    assert sorted(ended) == [("dead", "max_receives"), ("expired", "retention"), ("expired", "ttl")]


async def test_many_that_have_ended_do_not_stand_in_the_way(broker: Broker, clock: FrozenClock) -> None:
    for _ in range(3):
        await send(broker, "q", *range(900), ttl=5)
    await send(broker, "q", "alive")
    clock.advance(5)
    assert await claim(broker, 0) == ["alive"]
    assert await states(broker, "q") == (0, 0, 1)


async def test_a_released_message_that_is_worn_out_dies_when_it_is_met(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1)
    assert await claim(broker, 0) == [1]
    await broker.claims.release("q", "g")
    assert await claim(broker, 1) is None
    assert await states(broker, "q.dead") == (1, 0, 0)


async def test_purge_and_delete_end_claims_but_a_purge_keeps_their_numbers_used(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3)
    await claim(broker, 0, max_messages=1)
    await claim(broker, 1, max_messages=1)
    opened = await broker.claims.open("q", "g")
    assert await broker.purge("q") == 2
    assert await broker.claims.list("q") == [ClaimGroup("g", 1, 2, 2, id=opened.id)]
    for number in (1, 2):
        with pytest.raises(ClaimGone):
            await content(broker, "q", "g", number)
    await send(broker, "q", 4)
    with pytest.raises(ClaimGone):
        await claim(broker, 1)
    assert await claim(broker, 2) == [4]
    await broker.delete_queue("q")
    with pytest.raises(QueueNotFound):
        await broker.claims.list("q")
    await send(broker, "q", 5)
    assert await broker.claims.list("q") == []
    assert await claim(broker, 0) == [5]


async def test_a_reader_does_not_create_the_queue_again_that_was_deleted_under_it(
    broker: Broker, clock: FrozenClock
) -> None:
    opened = await broker.claims.open("q", "g")
    poll = await waiting(broker, claim(broker, 0, wait=20, epoch=opened.epoch))
    unopened = await waiting(broker, claim(broker, 0, group="other", wait=20))
    await broker.delete_queue("q")
    clock.advance(20)
    for waited in (poll, unopened):
        with pytest.raises(QueueNotFound):
            await waited
    with pytest.raises(QueueNotFound):
        await claim(broker, 0, epoch=opened.epoch)
    assert [queue.name for queue in await broker.queues()] == ["default"]
    # Without an epoch it is a new reader, which may come before the first send.
    assert await claim(broker, 0) is None
    assert [queue.name for queue in await broker.queues()] == ["default", "q"]


async def test_the_history_tells_of_claims_as_of_leases(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events"})
    sent = await send(broker, "q", *range(200))
    clock.advance(2)
    await claim(broker, 0, max_messages=150)
    clock.advance(3)
    await broker.claims.ack("q", "g", 1)
    await claim(broker, 1)
    await broker.claims.release("q", "g")
    told = [r.event for r in (await broker.history(after=200, limit=1000)).records]
    assert [(e.event, e.id, e.consumer, e.size) for e in told] == [
        (event, id, "g", len(str(n)))
        for event, part in (("received", range(150)), ("acked", range(150)), ("received", range(150, 200)),
                            ("released", range(150, 200)))
        for n, id in ((n, sent[n]) for n in part)
    ]  # fmt: skip
    assert {e.wait_ms for e in told[:150]} == {2000.0}
    assert {e.held_ms for e in told[150:300]} == {3000.0}


async def test_a_claim_waits_for_messages(broker: Broker, clock: FrozenClock) -> None:
    poll = await waiting(broker, claim(broker, 0, wait=20))
    await send(broker, "q", "woken")
    assert await poll == ["woken"]
    poll = await waiting(broker, claim(broker, 1, wait=20))
    clock.advance(20)
    assert await poll is None
    await send(broker, "q", "later", delay=5)
    poll = await waiting(broker, claim(broker, 1, wait=20))
    clock.advance(5)
    assert await poll == ["later"]


async def test_readers_that_ask_at_the_same_time_get_the_same_claim(broker: Broker) -> None:
    await send(broker, "q", *range(500))
    asked = [claim(broker, 0, max_messages=n) for n in (100, 110, 120, 130)]
    taken, *found = await asyncio.gather(broker.receive("q", max=10), *asked)
    made = found[0] or []
    assert len(made) in (100, 110, 120, 130)
    assert made in [list(range(len(made))), list(range(10, len(made) + 10))]
    assert found == [made] * 4
    first, *rest = await asyncio.gather(*[claim(broker, 1, max_messages=100) for _ in range(3)])
    assert rest == [first] * 2
    assert await states(broker, "q") == (390 - len(made), 0, 110)
    assert not set(ids(taken)) & set(ids(await content(broker, "q", "g", 1) + await content(broker, "q", "g", 2)))


WRONG_CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"after": -1}, "after"), ({"after": "1"}, "after"), ({"after": True}, "after"),
    ({"max_messages": 0}, "max_messages"),
    ({"max_messages": 1_000_001}, "max_messages"), ({"max_bytes": 0}, "max_bytes"), ({"wait": 61}, "wait"),
    ({"wait": float("nan")}, "wait"), ({"epoch": -1}, "epoch"), ({"epoch": 1.5}, "epoch"),
    ({"consumer": ""}, "consumer"),
    ({"group": "a/b"}, "group"), ({"group": ""}, "group"), ({"group": 5}, "group"), ({"queue": "a b"}, "queue"),
]  # fmt: skip


async def test_a_wrong_claim_is_refused(broker: Broker) -> None:
    await send(broker, "q", 1)
    for asked, field in WRONG_CLAIMS:
        with case(asked):
            with pytest.raises(InvalidRequest) as error:
                await broker.claims.next(**{"queue": "q", "group": "g", "after": 0} | asked)
            assert error.value.field == field
            assert await states(broker, "q") == (1, 0, 0)
            assert len(await broker.queues()) == 2


async def test_wrong_parts_and_names_are_refused(broker: Broker) -> None:
    await send(broker, "q", 1)
    await claim(broker, 0)
    for part, parts, field in ((1, 1, "part"), (-1, 1, "part"), (0, 0, "parts"), (0, 10**7, "parts")):
        with pytest.raises(InvalidRequest) as error:
            await broker.claims.fetch("q", "g", 1, part, parts)
        assert error.value.field == field
    for call in (broker.claims.open("q", "*"), broker.claims.ack("q", "", 1), broker.claims.release("q", "a b")):
        with pytest.raises(BadName) as bad:
            await call
        assert bad.value.field == "group"
    for other in (broker.claims.ack("nope", "g", 0), broker.claims.list("nope"), broker.claims.fetch("nope", "g", 1)):
        with pytest.raises(QueueNotFound):
            await other


@LASTING
async def test_claims_and_their_groups_are_there_after_a_restart(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await send(broker, "q", *range(400))
        await broker.claims.open("q", "g")
        await claim(broker, 0, max_messages=150)
        await claim(broker, 1, max_messages=101)
        before = await broker.claims.list("q")
    for _ in range(2):
        async with Broker(open_store(url), options, clock) as broker:
            assert await broker.claims.list("q") == before
            assert await claim(broker, 0) == list(range(150))
            assert await claim(broker, 1) == list(range(150, 251))
            assert bodies(await content(broker, "q", "g", 2, 1, 3)) == list(range(183, 217))
            assert await states(broker, "q") == (149, 0, 101)
    async with Broker(open_store(url), options, clock) as broker:
        assert await claim(broker, 2) == list(range(251, 400))
        assert await broker.claims.release("q", "g") == 149
    async with Broker(open_store(url), options, clock) as broker:
        assert await states(broker, "q") == (149, 0, 0)
        assert await drain(broker, "q") == list(range(251, 400))


async def test_a_claim_in_the_list_says_what_is_in_it(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", "ab", "c")
    made = clock.now()
    await claim(broker, 0)
    clock.advance(1)
    assert await broker.claims.list("q") == [ClaimGroup("g", 0, 0, 1, [Claim(1, 2, 7, made, reader="")])]
    await broker.claims.ack("q", "g", 1)
    assert await broker.claims.list("q") == [ClaimGroup("g", 0, 1, 1, [Claim(1, 2, 7, made, clock.now(), "")])]
