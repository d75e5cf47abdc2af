"""Three brokers on one database, many producers and consumers over HTTP: to their users they are one broker."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import miniq
from miniq.errors import Unauthorized
from tests.conftest import store_url
from tests.server import clear
from tests.serving import Served, serving

QUEUE = "work"
GROUPS = "abcdef"
PER_PRODUCER = 60


Brokers = tuple[Served, Served, Served]


@pytest.fixture(scope="module", params=["postgresql", "mongodb"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three servers on a database of their own. They look at each other's changes only when told to: what is known at
    once is known by hints."""
    folder = tmp_path_factory.mktemp("brokers")
    config = folder / "miniq.toml"
    config.write_text("refresh_interval = 30.0\n", encoding="utf-8")
    url, flags = store_url(request.param, folder), ("--config", str(config))
    with serving(url, 0, *flags) as one, serving(url, 0, *flags) as two, serving(url, 0, *flags) as three:
        yield one, two, three


@pytest.fixture
def brokers(running: Brokers) -> Brokers:
    """The same three, without what an earlier test left in them."""
    clear(running[0].url)
    return running


class Ledger:
    """What all clients together know: who holds what, and what was done with it."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.held: dict[str, str | None] = {}
        """Messages in hands, with their groups."""
        self.acked: list[str] = []
        self.order: defaultdict[str, list[int]] = defaultdict(list)

    def take(self, message: Any) -> None:
        assert message.id not in self.held, "handed to two consumers at once"
        assert message.group is None or message.group not in self.held.values(), "two of a group in flight"
        self.held[message.id] = message.group


async def produce(urls: list[str], name: str, ledger: Ledger, chance: random.Random) -> None:
    """Some messages of one group in order, some without, each through any broker."""
    async with contextlib.AsyncExitStack() as stack:
        queues = [(await stack.enter_async_context(miniq.connect_async(url))).queue(QUEUE) for url in urls]
        for number in range(PER_PRODUCER):
            queue = chance.choice(queues)
            if number % 2:
                ledger.sent.add(await queue.send(number, group=name))
            else:
                ledger.sent.update(await queue.send_many([{"free": number}] * chance.randrange(1, 8)))


async def consume(url: str, ledger: Ledger, expected: asyncio.Event, chance: random.Random) -> None:
    """Receive on one broker until everything is acked, and give some back on the way."""
    async with miniq.connect_async(url) as mq:
        queue = mq.queue(QUEUE)
        while not (expected.is_set() and len(ledger.acked) == len(ledger.sent)):
            got = await queue.receive(max=chance.choice([1, 5, 20]), wait=0.5, visibility_timeout=600)
            for message in got:
                ledger.take(message)
            await asyncio.sleep(chance.choice([0, 0, 0.002]))
            for message in got:
                back = chance.random() < 0.1
                group = ledger.held.pop(message.id)
                if back:
                    await message.release()
                    continue
                if group is not None:
                    ledger.order[group].append(message.body)
                ledger.acked.append(message.id)
                await message.ack()


async def test_nobody_holds_a_message_twice_none_is_lost_and_groups_keep_their_order(
    brokers: Brokers,
) -> None:
    urls = [served.url for served in brokers]
    chance = random.Random(5)
    ledger = Ledger()
    expected = asyncio.Event()

    async def produce_all() -> None:
        await asyncio.gather(*[produce(urls, name, ledger, random.Random(chance.random())) for name in GROUPS])
        expected.set()

    consumers = [consume(urls[n % 3], ledger, expected, random.Random(chance.random())) for n in range(9)]
    async with asyncio.timeout(120):
        await asyncio.gather(produce_all(), *consumers)
    assert sorted(ledger.acked) == sorted(ledger.sent)
    assert len(ledger.sent) > len(GROUPS) * PER_PRODUCER
    for name in GROUPS:
        assert ledger.order[name] == list(range(1, PER_PRODUCER, 2)), f"group {name} is out of order"
    async with miniq.connect_async(urls[0]) as mq:
        info = await mq.queue(QUEUE).info()
    assert info.counts.total == 0


async def test_a_long_poll_on_one_broker_wakes_for_a_send_on_another(brokers: Brokers) -> None:
    one, two, _ = brokers
    async with miniq.connect_async(one.url) as waits, miniq.connect_async(two.url) as sends:
        await sends.queue(QUEUE).send("first")
        assert [message.body for message in await waits.queue(QUEUE).receive(wait=5)] == ["first"]
        for number in range(5):
            task = asyncio.create_task(waits.queue(QUEUE).receive(wait=25, mode="at-most-once"))
            await asyncio.sleep(0.2)
            await sends.queue(QUEUE).send(number)
            async with asyncio.timeout(15):  # only a hint wakes that soon: a look of its own comes after 30 s
                assert [message.body for message in await task] == [number]


async def test_what_is_changed_on_one_broker_is_known_to_the_others(brokers: Brokers) -> None:
    one, two, _ = brokers
    async with miniq.connect_async(one.url) as here, miniq.connect_async(two.url) as there:
        await here.queue("made").configure(visibility_timeout=7)
        assert (await there.queue("made").info()).settings.visibility_timeout == 7
        await there.queue("made").configure(max_receives=3)
        info = await here.queue("made").configure(delay=1)
        assert (info.settings.visibility_timeout, info.settings.max_receives, info.settings.delay) == (7, 3, 1)
        await here.queue("made").delete()
        await there.queue("made").send("again")
        assert (await here.queue("made").info()).counts.total == 1


async def test_a_lease_is_acked_and_fenced_on_any_broker(brokers: Brokers) -> None:
    urls = [served.url for served in brokers]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(miniq.connect_async(url)) for url in urls]
        await clients[0].queue(QUEUE).send("x")
        (held,) = await clients[1].queue(QUEUE).receive()
        assert await clients[2].queue(QUEUE).receive() == []
        assert await clients[2].queue(QUEUE).ack([held]) == ["done"]
        assert await clients[0].queue(QUEUE).ack([held]) == ["missing"]


async def test_a_key_counts_on_every_broker(brokers: Brokers) -> None:
    from tests.faults.test_databases import ask

    one, two, _ = brokers
    _, _, made = ask(one, "/v1/keys", {"name": "admin", "allow": ["*"]})
    deadline = time.monotonic() + 10
    while True:  # the hint is on its way
        try:
            async with miniq.connect_async(two.url, retry=0) as anybody:
                await anybody.queue(QUEUE).send("x")
        except Unauthorized:
            break
        assert time.monotonic() < deadline
    async with miniq.connect_async(two.url, api_key=made["secret"]) as known:
        # That there are keys is noted before the key itself, so a broker may know the one and not yet the other.
        while True:
            try:
                await known.queue(QUEUE).send("x")
                break
            except Unauthorized:
                assert time.monotonic() < deadline
        await known.revoke_key(made["id"])
