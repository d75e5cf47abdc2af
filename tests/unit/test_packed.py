"""Bodies in one piece of memory and ids that are written out on demand: the same as lists of them."""

from __future__ import annotations

import pytest

from miniq.ids import IdSource, RunIds, ids_from
from miniq.packed import Packed, pack, size_of, sizes_of

BODIES = [b"1", b"", b'"three"', b"[4, 4]", b"\xff\x00"]


def test_packed_bodies_are_read_one_by_one_and_in_stretches() -> None:
    packed = pack(BODIES)
    assert list(packed) == BODIES
    assert (len(packed), packed[2], packed[-1]) == (5, BODIES[2], BODIES[4])
    assert (sizes_of(packed), size_of(packed)) == ([1, 0, 7, 6, 2], 16)
    assert pack(packed) is packed
    for start in range(6):
        for stop in range(6):
            cut = packed[start:stop]
            assert list(cut) == BODIES[start:stop]
            assert (sizes_of(cut), size_of(cut)) == (sizes_of(BODIES[start:stop]), size_of(BODIES[start:stop]))
    assert list(packed[1:4][1:]) == BODIES[2:4]
    assert list(packed[2:][-2:]) == BODIES[3:]
    with pytest.raises(IndexError):
        packed[5]
    with pytest.raises(ValueError, match="rearranged"):
        packed[::2]


def test_packed_bodies_are_views_of_one_piece_of_memory() -> None:
    memory = bytearray(b"aabbb")
    packed = Packed(memoryview(memory), pack([b"xx", b"yyy"]).lengths)
    cut = packed[1:]
    memory[2:3] = b"B"
    assert list(cut) == [b"Bbb"]


@pytest.mark.parametrize("place", [0, 5])
def test_ids_of_a_run_are_those_that_were_given_out(place: int) -> None:
    given = IdSource().run(128, 1_000_000)[place:]
    ids = RunIds(given[0], len(given))
    assert list(ids) == given == ids_from(given[0], len(given))
    assert (len(ids), ids[0], ids[-1], ids[7]) == (len(given), given[0], given[-1], given[7])
    assert ids.joined() == "".join(given).encode()
    assert list(ids[3:20]) == given[3:20]
    assert ids[3:20][2] == given[5]
    assert list(ids[::2]) == given[::2]
    assert list(ids[4:4]) == []
