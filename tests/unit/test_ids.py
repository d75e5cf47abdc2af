"""Ids: they rise, share runs, and can be told in short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from miniq.ids import SHARE, IdSource, from_spans, run_of, spans

NOW = 1_700_000_000_000_000


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_ids_rise_over_all_calls_whatever_their_sizes(sizes: list[int]) -> None:
    source = IdSource()
    ids = [id for size in sizes for id in source.runs(size, NOW)]
    assert len(ids) == sum(sizes)
    assert sorted(set(ids)) == ids


@given(st.integers(1, 1000))
def test_messages_of_one_call_share_runs_of_a_hundred_from_their_start(count: int) -> None:
    ids = IdSource().runs(count, NOW)
    for start in range(0, count, SHARE):
        name = ids[start]
        assert [run_of(id) for id in ids[start : start + SHARE]] == [
            (name, place) for place in range(min(SHARE, count - start))
        ]


@given(st.lists(st.tuples(st.integers(1, 250), st.booleans()), min_size=1, max_size=6), st.randoms())
def test_ids_told_in_short_come_back_as_they_were(calls: list[tuple[int, bool]], random: object) -> None:
    source = IdSource()
    ids: list[str] = []
    for count, holes in calls:
        ids += source.runs(count, NOW)[:: 2 if holes else 1]
    assert from_spans(spans(ids)) == ids
    random.shuffle(ids)  # type: ignore[attr-defined]
    assert from_spans(spans(ids)) == ids


def test_a_call_of_a_thousand_is_told_in_a_few_hundred_characters() -> None:
    assert len(spans(IdSource().runs(1000, NOW))) < 500
