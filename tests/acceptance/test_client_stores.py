"""Both clients on every store in process that `test_client.py` does not run on: one look at each way into a store."""

from __future__ import annotations

from pathlib import Path

import pytest

import miniq
from tests.acceptance.faces import Opener
from tests.conftest import STORES, store_url


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "rocksdb"])
def test_a_client_sends_receives_claims_commits_stages_and_finds_it_all_again(
    opener: Opener, kind: str, tmp_path: Path
) -> None:
    url = store_url(kind, tmp_path)
    mq = opener(url)
    q = mq.queue("jobs")
    q.configure(history="events")
    ids = q.send_many([{"n": 1}, b"\xff", miniq.draft("first", priority=9)])
    first, second = q.receive(max=2, visibility_timeout=60)
    assert (first.id, first.body, second.body) == (ids[2], "first", {"n": 1})
    with first:
        assert second.extend(90) == second.lease_until
    assert second.release() is None
    [late] = q.receive(visibility_timeout=2)
    [again] = q.receive(wait=20, max=1)
    assert (late.body, again.body) == ({"n": 1}, b"\xff")
    [woken] = q.receive(wait=20)
    assert (woken.id, woken.receives) == (late.id, 3)
    assert q.ack([again, woken, late]) == ["done", "done", "missing"]
    assert q.stage("etl", 1, 0, 0).upload([2, 3]) == 2
    assert q.commit_stages("etl", 1, [(0, 0)]) == miniq.Committed(2)
    assert q.claims("readers").next(0).messages == 2
    assert [m.body for m in q.claims("readers").fetch(1)] == [2, 3]
    events = [record.event.event for record in mq.history(queue="jobs").records]
    assert events[:4] == ["sent", "sent", "sent", "received"]
    mq.close()
    with pytest.raises(miniq.Closed):
        q.send(1)
    if kind != "memory":
        found = opener(url).queue("jobs")
        assert [m.body for m in found.claims("readers").fetch(1)] == [2, 3]
