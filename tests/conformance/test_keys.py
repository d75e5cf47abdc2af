"""API keys on every store: what lies there opens nothing, and what ends with a key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from miniq import dispatch
from miniq.api.operations import (
    CommitStages,
    CommitToTopic,
    Configure,
    ConfigureTopic,
    DeleteQueue,
    NextClaim,
    OpenClaims,
    Publish,
    PutSchedule,
    Receive,
    Redrive,
    Send,
    Subscribe,
    Upload,
    UploadToTopic,
)
from miniq.broker import Broker, keyring
from miniq.broker.keyring import ApiKey
from miniq.dispatch import Caller, perform
from miniq.errors import Forbidden, IdempotencyMismatch, InvalidRequest, TooManyQueues, TooManyTopics, Unauthorized
from miniq.message import Mode, Stored
from miniq.options import Options
from miniq.schedule import Definition
from miniq.store import open_store
from tests.conftest import STORES
from tests.kit import bodies, draft, send, waiting


async def test_the_store_holds_no_secret_that_opens_anything(broker: Broker) -> None:
    key, secret = await broker.keys.create("reports", ["read:*"], broker.clock.now())
    broker.keys.check(secret, "read", "jobs")
    with pytest.raises(Forbidden):
        broker.keys.check(secret, "send", "jobs")
    kept = b"".join((await broker.store.records(keyring.KIND)).values())
    assert b"reports" in kept
    assert secret.split("_", 2)[2].encode() not in kept
    with pytest.raises(Unauthorized):
        broker.keys.check(key.id, "read", "jobs")


async def test_a_key_with_max_queues_creates_no_queue_beyond_it(broker: Broker) -> None:
    now = broker.clock.now()
    _, secret = await broker.keys.create("shop", ["send:x*", "manage:x*"], now, max_queues=2)
    _, other = await broker.keys.create("ops", ["*"], now)
    shop, ops = Caller(secret), Caller(other)
    await perform(broker, Send("x1", [draft()]), shop)
    await perform(broker, Configure("x2", {"dead_letter_queue": None}), shop)
    calls = (Send("x3", [draft()]), Configure("x3", {}), Upload("x3", "j", "b", "p", "a", 0, [draft()]))
    for call in (
        *calls,
        Configure("x2", {"max_receives": 1}),
        Configure("x2", {"max_receives": 1, "dead_letter_queue": "x9"}),
        CommitStages("x3", "j", "b", []),
        Redrive("x2", to="x3"),
        OpenClaims("x3", "g"),
        NextClaim("x3", "g", 0),
    ):
        with pytest.raises(TooManyQueues, match="2 queues match key 'shop', whose max_queues is 2"):
            await perform(broker, call, shop)
    await perform(broker, Send("x2", [draft()]), shop)
    await perform(broker, Send("y", [draft()]), ops)
    await perform(broker, DeleteQueue("x1"), ops)
    with pytest.raises(TooManyQueues, match=r"'x5\.dead' cannot be created, 2 queues match key 'shop'"):
        await perform(broker, Configure("x5", {"max_receives": 1}), shop)  # would create two, and one is left
    assert {info.name for info in await broker.queues()} == {"default", "x2", "y"}
    await perform(broker, Send("x3", [draft()]), shop)
    await broker.keys.load()
    with pytest.raises(TooManyQueues):
        await perform(broker, Send("x4", [draft()]), shop)


async def test_a_key_with_max_queues_creates_as_many_topics(broker: Broker) -> None:
    now = broker.clock.now()
    _, secret = await broker.keys.create("shop", ["*:x*"], now, max_queues=2)
    _, other = await broker.keys.create("ops", ["*"], now)
    shop, ops = Caller(secret), Caller(other)
    await perform(broker, Send("x1", [draft()]), shop)
    await perform(broker, Publish("x1", [draft()]), shop)
    later = Definition(every=86400, topic="x2", draft=draft())
    await perform(broker, PutSchedule("later", later), shop)  # its topic counts before it is there
    for call in (
        Publish("x3", [draft()]),
        ConfigureTopic("x3", {}),
        Subscribe("x3", "x1"),
        UploadToTopic("x3", "j", "b", "p", "a", 0, [draft()]),
        CommitToTopic("x3", "j", "b", []),
        PutSchedule("other", msgspec.structs.replace(later, topic="x3")),
    ):
        with pytest.raises(TooManyTopics, match="2 topics match key 'shop', whose max_queues is 2"):
            await perform(broker, call, shop)
    await perform(broker, Publish("x2", [draft()]), shop)
    await perform(broker, Publish("y", [draft()]), ops)
    assert {info.name for info in await broker.topics.all()} == {"x1", "x2", "y"}


WRONG_PERMISSIONS = {
    "send:orders,read:orders": "one permission each",
    "send:a b": "A-Z a-z 0-9 . _ - and *",
    "send:orders.[ab]": "A-Z a-z 0-9 . _ - and *",
    "send:orders.?": "A-Z a-z 0-9 . _ - and *",
    "send:*:x": "A-Z a-z 0-9 . _ - and *",
    "send:ordérs": "A-Z a-z 0-9 . _ - and *",
    "send:orders\n": "A-Z a-z 0-9 . _ - and *",
    "send:": "VERB:PATTERN",
    "admin:orders": "admin is for all queues; use admin",
}


async def test_a_permission_that_can_never_match_is_refused_with_what_would_be_right(broker: Broker) -> None:
    for wrong, right in WRONG_PERMISSIONS.items():
        with pytest.raises(InvalidRequest) as refused:
            await broker.keys.create("k", ["read", wrong], broker.clock.now())
        assert (refused.value.field, repr(wrong) in refused.value.text) == ("allow", True)
        assert right in refused.value.text, wrong
    with pytest.raises(InvalidRequest, match="allow: 101 permissions; at most 100"):
        await broker.keys.create("k", ["read"] * 101, broker.clock.now())
    for name in ("two\nlines", "bell\a", "\u2028"):
        with pytest.raises(InvalidRequest, match=r"name: .* has a control character"):
            await broker.keys.create(name, ["read"], broker.clock.now())
    assert broker.keys.open
    await broker.keys.create("clé d'Ann", ["admin", "admin:*", "*:x-*.y_1", "send:*"], broker.clock.now())


async def test_names_that_are_no_queue_s_are_not_remembered(broker: Broker) -> None:
    """Else anybody with a key could fill the memory with them."""
    _, secret = await broker.keys.create("one", ["send:*"], broker.clock.now())
    for number in range(3):
        with pytest.raises(Forbidden) as refused:
            broker.keys.check(secret, "read", f"{number}" * 1_000_000)
        assert len(refused.value.text) < 300
    assert sum(len(queue) for _, _, queue in broker.keys._allowed) < 1000


async def revoke(broker: Broker, key: ApiKey) -> None:
    await broker.keys.revoke(key.id)


async def test_a_broker_that_had_keys_stays_closed_after_the_last_one_and_a_restart(broker: Broker) -> None:
    assert broker.keys.open
    key, _ = await broker.keys.create("only", ["*"], broker.clock.now())
    await revoke(broker, key)
    for _ in range(2):
        with pytest.raises(Unauthorized, match="miniq keys create NAME --allow '\\*' --store"):
            broker.keys.check(None, "read", "jobs")
        await broker.keys.load()
    another, secret = await broker.keys.create("the way back", ["*"], broker.clock.now())
    broker.keys.check(secret, "admin", None)
    assert broker.keys.list() == [another]


async def test_a_store_whose_keys_an_earlier_version_made_stays_closed_as_well(broker: Broker) -> None:
    key, _ = await broker.keys.create("only", ["*"], broker.clock.now())
    await broker.store.save_record(keyring.CLOSED_KIND, "since", None)
    await broker.keys.load()
    await revoke(broker, key)
    await broker.keys.load()
    assert not broker.keys.open


@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
async def test_a_receive_that_waits_ends_with_its_key_and_gets_nothing(broker: Broker, mode: Mode) -> None:
    await broker.configure("q")
    key, secret = await broker.keys.create("waits", ["receive:q"], broker.clock.now())
    _, other = await broker.keys.create("also waits", ["receive:q"], broker.clock.now())
    call = Receive("q", wait=20, mode=mode)
    polls = [await waiting(broker, dispatch.perform(broker, call, Caller(one))) for one in (secret, secret, other)]
    await revoke(broker, key)
    for poll in polls[:2]:
        with pytest.raises(Unauthorized):
            await poll
    await send(broker, "q", "afterwards")
    assert bodies(await polls[2]) == ["afterwards"]


async def test_a_claim_that_waits_ends_with_its_key(broker: Broker) -> None:
    await broker.configure("q")
    key, secret = await broker.keys.create("waits", ["receive:q"], broker.clock.now())
    poll = await waiting(broker, dispatch.perform(broker, NextClaim("q", "g", 0, wait=20), Caller(secret)))
    await revoke(broker, key)
    with pytest.raises(Unauthorized):
        await poll
    await send(broker, "q", 1)
    assert bodies(await broker.receive("q")) == [1], "nobody claimed it"


async def test_those_who_wait_without_a_key_are_refused_when_there_is_one(broker: Broker) -> None:
    poll = await waiting(broker, dispatch.perform(broker, Receive("q", wait=20), Caller()))
    await broker.keys.create("first", ["*"], broker.clock.now())
    with pytest.raises(Unauthorized):
        await poll


async def test_messages_taken_while_the_key_is_revoked_are_given_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q")
    key, secret = await broker.keys.create("waits", ["receive:q"], broker.clock.now())
    take = broker.deliveries.take

    async def revoked_meanwhile(*asked: Any) -> list[Stored]:
        taken = await take(*asked)
        if taken:
            await revoke(broker, key)
        return taken

    monkeypatch.setattr(broker.deliveries, "take", revoked_meanwhile)
    poll = await waiting(broker, dispatch.perform(broker, Receive("q", wait=20), Caller(secret)))
    await send(broker, "q", 1)
    with pytest.raises(Unauthorized):
        await poll
    await broker.deliveries.stop()
    monkeypatch.undo()
    assert bodies(await broker.receive("q")) == [1]


@pytest.mark.parametrize("url", ["postgresql", "mongodb"], indirect=True)
async def test_a_receive_ends_with_its_key_though_another_broker_revoked_it(url: str) -> None:
    """Brokers tell each other; one that missed it looks every `refresh_interval`."""
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options) as one, Broker(open_store(url), options) as other:
        key, secret = await one.keys.create("waits", ["receive:default"], one.clock.now())
        await one.keys.create("admin", ["*"], one.clock.now())
        await other.catalog.refresh()
        poll = await waiting(other, dispatch.perform(other, Receive("default", wait=20), Caller(secret)))
        await revoke(one, key)
        with pytest.raises(Unauthorized):
            await poll


@pytest.mark.parametrize("url", [store for store in STORES if store != "memory"], indirect=True)
async def test_a_named_send_is_recognised_by_another_broker_and_after_a_restart(url: str) -> None:
    """As the Python client repeats it."""
    call = Send("q", [draft(1)])
    async with Broker(open_store(url)) as broker:
        _, secret = await broker.keys.create("sender", ["send:q"], broker.clock.now())
        ids = await dispatch.perform(broker, call, Caller(secret, "name"))
    async with Broker(open_store(url)) as broker:
        assert await dispatch.perform(broker, call, Caller(secret, "name")) == ids
        with pytest.raises(IdempotencyMismatch):
            await dispatch.perform(broker, Send("q", [draft(2)]), Caller(secret, "name"))
