"""A broker under load, to be killed: `python tests/faults/load.py URL SEED`. With the URL of a store the broker is
in this process, on a slow disk if the seed is odd; with that of a server it is that server which is killed, and
this process then ends by itself.

Every fact that the broker confirmed is written to the output, one JSON line each, before the task that
learned it goes on. What stands there is what a client of the broker had been told.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from miniq.api import operations as calls
from miniq.api import shapes
from miniq.batch import Committed
from miniq.client import embedded, zmq
from miniq.client._async.transport import AsyncTransport
from miniq.client.http import transport as http
from miniq.errors import MiniQError
from miniq.message import Draft, Lease, Mode, PlainDrafts
from miniq.store.embedded import store as store
from miniq.store.embedded.kv import KV, Op

QUEUE = "work"
STREAM = "stream"
COMMITTED = "committed"


class SlowDisk:
    """A database whose writes take their time, so that a kill often finds one that was not made."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        if sync:
            time.sleep(0.005)
        self._kv.write(ops, sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)


def tell(*fact: Any) -> None:
    os.write(1, json.dumps(fact).encode() + b"\n")


async def sender(door: AsyncTransport, chance: random.Random, name: str) -> None:
    while True:
        kind = chance.randrange(4)
        many = chance.choice([1, 1, 5, 40])
        if kind == 0:
            drafts = [Draft(b'"%d"' % n, group=chance.choice("abc")) for n in range(chance.choice([1, 2]))]
        elif kind == 1:
            drafts = [Draft(b'"%d"' % n, priority=chance.randrange(10)) for n in range(many)]
        else:
            drafts = [Draft(b'"%d"' % n, delay=chance.choice([0, 0, 0.05])) for n in range(many)]
        tell("sending")
        ids = await door.perform(calls.Send(QUEUE, drafts))
        for id, draft in zip(ids, drafts, strict=True):
            tell("sent", id, draft.group)
        await asyncio.sleep(chance.choice([0, 0.001, 0.01]))


async def receiver(door: AsyncTransport, chance: random.Random, name: str) -> None:
    while True:
        seconds = chance.choice([0.02, 0.3, 5, 600])
        once = chance.random() < 0.15
        mode: Mode = "at-most-once" if once else "at-least-once"
        got = await door.perform(calls.Receive(QUEUE, chance.choice([1, 3, 20]), 0.05, seconds, name, mode))
        for stored in got:
            fact = [stored.message.id, stored.receives, stored.visible_at, stored.receipt, stored.message.group]
            tell("once" if once else "received", *fact)
        if once or not got:
            continue
        await asyncio.sleep(chance.choice([0, 0, 0.005]))
        leases = [Lease(stored.message.id, stored.receipt or "") for stored in got]
        what = chance.randrange(8)
        if what < 4:
            for lease in leases:
                tell("acking", lease.id)
            outcomes = await door.perform(calls.Ack(QUEUE, leases))
            for lease, outcome in zip(leases, outcomes, strict=True):
                tell("acked", lease.id, lease.receipt, outcome)
        elif what < 6:
            for lease in leases:
                tell("releasing", lease.id, lease.receipt)
            await door.perform(calls.Release(QUEUE, leases, chance.choice([0, 0.05])))
        elif what == 6:
            for lease in leases:
                tell("extending", lease.id, lease.receipt)
            extended = await door.perform(calls.Extend(QUEUE, leases, 700))
            for lease, outcome in zip(leases, extended.outcomes, strict=True):
                if outcome == "done":
                    tell("extended", lease.id, extended.until, lease.receipt)


async def stream_sender(door: AsyncTransport, chance: random.Random, name: str) -> None:
    while True:
        drafts = [Draft(b'"%d"' % n, priority=chance.choice([0, 0, 5])) for n in range(chance.choice([1, 10, 150]))]
        tell("streamed", await door.perform(calls.Send(STREAM, drafts)))
        await asyncio.sleep(chance.choice([0, 0.001, 0.01]))


async def stream_worker(door: AsyncTransport, chance: random.Random, name: str) -> None:
    """An ordinary consumer of the queue that others claim from."""
    while True:
        got = await door.perform(calls.Receive(STREAM, chance.choice([1, 20]), 0.05, 600, name))
        if got:
            ids = [stored.message.id for stored in got]
            tell("working", ids)
            await door.perform(calls.Ack(STREAM, [Lease(stored.message.id, stored.receipt or "") for stored in got]))
            tell("worked", ids)
        await asyncio.sleep(chance.choice([0, 0.005, 0.02]))


async def stream_reader(door: AsyncTransport, chance: random.Random, name: str) -> None:
    """Works through claims as a stream processor does, from where its predecessor was."""
    state = await door.perform(calls.OpenClaims(STREAM, "readers"))
    after = state.acked
    while True:
        tell("acking claim", after)
        most = chance.choice([1, 40, 400])
        claim, _ = await door.perform(calls.NextClaim(STREAM, "readers", after, state.epoch, most, wait=0.05))
        tell("acked claim", after)
        if claim is not None:
            got = [
                stored.message.id
                for part in range(2)
                for stored in await door.perform(calls.ReadClaim(STREAM, "readers", claim.number, part, 2))
            ]
            assert len(got) == claim.messages
            tell("claimed", claim.number, got)
            after = claim.number
        await asyncio.sleep(chance.choice([0, 0.001, 0.01]))


async def stream_job(door: AsyncTransport, chance: random.Random, name: str) -> None:
    """Uploads and commits batches as the tasks of a job do: repeated, with tries that do not count."""
    job = f"job-{chance.randrange(10**9)}"
    batch = 0
    while True:
        batch += 1
        listed = []
        count = 0
        for partition in range(chance.choice([1, 2])):
            for attempt in range(chance.choice([1, 1, 2])):
                bodies = [b'"%d"' % n for n in range(chance.choice([1, 20, 200]))]
                names = (job, str(batch), str(partition), str(attempt))
                part = (await door.perform(calls.Upload(COMMITTED, *names, 0, PlainDrafts(bodies))))[0]
            listed.append((str(partition), str(attempt)))
            count += part
        call = calls.CommitStages(COMMITTED, job, str(batch), [shapes.StageId(*stage) for stage in listed])
        tell("committing", job, batch, listed, count)
        done = await door.perform(call)
        assert done == Committed(count), done
        tell("committed", job, batch)
        if chance.random() < 0.3:
            assert await door.perform(call) == Committed(count, repeated=True)
        await asyncio.sleep(chance.choice([0.005, 0.02]))


async def main(url: str, seed: int) -> None:
    remote = url.startswith(("http:", "tcp:"))
    door: AsyncTransport
    if remote:
        door = await (http if url.startswith("http:") else zmq).open_async(url, {"retry": 0})
    else:
        if seed % 2:
            open_kv = store.open_kv
            store.open_kv = lambda folder, durable: SlowDisk(open_kv(folder, durable))  # type: ignore[assignment]
        door = await embedded.open_async(url, {"upkeep_interval": 0.1})
    await door.perform(calls.Configure(QUEUE, {"history": "events"}))
    tell("open")
    jobs = [sender(door, random.Random(f"{seed} s{n}"), f"s{n}") for n in range(4)]
    jobs += [receiver(door, random.Random(f"{seed} r{n}"), f"r{n}") for n in range(5)]
    jobs += [job(door, random.Random(f"{seed} {job.__name__}"), "w") for job in STREAMING]
    try:
        await asyncio.gather(*jobs)
    except MiniQError:
        if not remote:
            raise
        os._exit(0)  # the server was killed: nothing more will be told


STREAMING = (stream_sender, stream_worker, stream_reader, stream_job)

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
