"""What is counted for many calls at once is what would be counted for each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniq.broker.metrics import BUCKETS, Latency


@given(st.lists(st.one_of(st.sampled_from(BUCKETS), st.floats(0, 100)), min_size=1))
def test_calls_that_were_answered_together_are_counted_one_by_one(seconds: list[float]) -> None:
    together, each = Latency(), Latency()
    together.add_all(seconds)
    for one in seconds:
        each.add(one)
    assert (together.buckets, together.count) == (each.buckets, each.count)
    assert together.total == pytest.approx(each.total)
