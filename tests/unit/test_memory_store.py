"""The memory store: its keys are ordered, whatever is written and removed."""

from __future__ import annotations

import random

import pytest

from miniq.errors import Closed
from miniq.store import memory


@pytest.mark.parametrize("seed", range(5))
def test_keys_in_memory_are_those_of_a_sorted_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PART", 4)
    monkeypatch.setattr(memory, "PAGE", 3)
    chance = random.Random(seed)
    kv = memory.MemoryKV()
    expected: dict[bytes, bytes] = {}

    def key() -> bytes:
        return bytes(chance.choices(b"abc", k=chance.randint(1, 4)))

    for step in range(400):
        ops = [(key(), None if chance.random() < (0.3 if step < 200 else 0.7) else b"%d" % step) for _ in range(3)]
        kv.write(ops, sync=False)
        for written, value in ops:
            if value is None:
                expected.pop(written, None)
            else:
                expected[written] = value
        start, end = sorted((key(), key()))
        within = [(each, expected[each]) for each in sorted(expected) if start <= each < end]
        assert list(kv.scan(start, end)) == within
        assert kv.last(start, end) == (within[-1][0] if within else None)
        assert kv.get(start) == expected.get(start)


async def test_a_memory_store_closes_while_something_is_staged() -> None:
    store = memory.MemoryStore()
    await store.open()
    store._commit.batch.ops.append((b"kx", b"1"))
    await store.close()
    assert store._keys.get(b"kx") == b"1"
    with pytest.raises(Closed):
        await store.queues()
