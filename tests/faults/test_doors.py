"""Examples that were changed at random come in by every door; `make fuzz` does it for longer and with a plan."""

from __future__ import annotations

import random

import pytest

from tests.faults.doors import DOORS

KNOCKS = 4000


def changed(chance: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """One example with some bytes changed, left out, doubled or from another one."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(data) + 1)
        end = min(len(data), place + chance.choice([1, 1, 2, 8, 40]))
        kind = chance.randrange(5)
        if kind == 0:
            data[place:end] = b""
        elif kind == 1:
            data[place:end] = chance.randbytes(end - place)
        elif kind == 2:
            data[place:place] = data[place:end]
        elif kind == 3:
            data[place:end] = chance.choice([b"-1", b"1e999", b"null", b'"', b"\x00", b"\xff", b"[" * 500, b"9" * 30])
        else:
            other = chance.choice(seeds)
            cut = chance.randrange(len(other))
            data[place:end] = other[cut : cut + 40]
    return bytes(data)


@pytest.mark.parametrize("name", DOORS)
async def test_whatever_comes_in_is_answered(name: str) -> None:
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    door = DOORS[name]()
    try:
        for one in door.seeds:
            await door.knock(one)
        for _ in range(KNOCKS):
            data = changed(chance, door.seeds)
            try:
                await door.knock(data)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {data!r}") from error
    finally:
        await door.close()
